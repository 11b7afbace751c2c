"""Train on blocks: cuts, matrices, rounds, answers; the same on every engine and worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..cache import Blocks
from ..columns import Array
from ..engine import Engine
from ..wire import record
from . import booster as boosters
from . import cuts, matrix, metrics
from .booster import Checkpoint, Trained, TrainSpec, probe
from .names import with_safe_names
from .params import check_params
from .sampling import RowSampler


@record
@dataclass(frozen=True)
class ModelOptions:
    """What the pipeline file says of the model, checked.

    Parameters
    ----------
    spec : TrainSpec
        What the model depends on.
    cuts : {'own', 'exact'}
        Whose histogram cuts.
    kind : {'in_core', 'external'}
        Which matrix.
    matrix_options : mapping
        What else XGBoost is told when it makes an external one on a GPU: `cache_host_ratio`, `min_cache_page_bytes`.
    """

    spec: TrainSpec
    cuts: Literal["own", "exact"]
    kind: Literal["in_core", "external"]
    matrix_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Hooks:
    """Where a training goes on, and who is told; as in `booster.train`."""

    resume: Checkpoint | None = None
    checkpoint: Callable[[Checkpoint], None] | None = None
    on_round: Callable[[int, Any], None] | None = None
    should_stop: Callable[[], bool] | None = None


def fit_booster(
    options: ModelOptions,
    blocks: Mapping[str, Blocks],
    chosen: np.ndarray | None,
    directory: Path,
    hooks: Hooks | None = None,
    to_device: Callable[[np.ndarray], Array] = np.asarray,
    sampler: RowSampler | None = None,
) -> tuple[Trained, dict[str, matrix.Matrix]]:
    """Build the matrices of the training and the validation side and train.

    Parameters
    ----------
    options : ModelOptions
        What to train, on which kind of matrix.
    blocks : mapping of str to Blocks
        By side; 'train' is there.
    chosen : numpy.ndarray, optional
        Own cuts, as `cuts.choose` made them.
    directory : Path
        Where the pages of an external matrix lie.
    hooks : Hooks, optional
        Where to go on, and who is told.
    to_device : callable
        Moves an array of a block to where the matrix is made.
    sampler : RowSampler, optional
        Draws the training rows of each round in place of XGBoost.

    Returns
    -------
    trained : Trained
        The model.
    matrices : dict of str to matrix
        Of the sides that were watched.
    """
    hooks = hooks or Hooks()
    names = blocks["train"].columns
    params = with_safe_names(options.spec.params, names)
    if sampler is not None:
        params = {name: value for name, value in params.items() if name != "subsample"}
    spec = replace(options.spec, params=params)
    ref = cuts.matrix_of(chosen, spec.max_bin, names) if chosen is not None else None
    build = matrix.Builder(options.kind, spec.max_bin, directory, to_device, options.matrix_options)
    matrices = {"train": build(blocks["train"], ref)}
    if "valid" in blocks:
        matrices["valid"] = build(blocks["valid"], ref or matrices["train"])
    watched = [(matrices["valid"], "valid")] if "valid" in matrices else []
    trained = boosters.train(
        spec,
        matrices["train"],
        watched,
        checkpoint=hooks.checkpoint,
        resume=hooks.resume,
        on_round=hooks.on_round,
        should_stop=hooks.should_stop,
        sampler=sampler,
    )
    return trained, matrices


@dataclass(frozen=True)
class Answers:
    """Predictions of one side beside what is true: float32 arrays of shape (n_rows,) on the host."""

    predicted: np.ndarray
    label: np.ndarray
    weight: np.ndarray | None

    @classmethod
    def of_matrix(cls, trained: Trained, made: matrix.Matrix, weight: np.ndarray | None) -> Answers:
        """Of rows that have a matrix; its own weights may be those of a round (`sampling`)."""
        return cls(trained.predict(made), made.get_label(), weight)

    @classmethod
    def of_blocks(cls, trained: Trained, blocks: Blocks, engine: Engine) -> Answers:
        """Of rows that have none."""
        model = boosters.load(trained.model, device=engine.device)
        predicted, label, weight = (np.empty(blocks.n_rows, np.float32) for _ in range(3))
        start = 0
        for block in blocks:
            rows = slice(start, start + block.n_rows)
            features = engine.to_device(block.features)
            predicted[rows] = engine.to_host(boosters.predict(model, features, trained.best_iteration))
            label[rows] = engine.to_host(block.label)
            if block.weight is not None:
                weight[rows] = engine.to_host(block.weight)
            start += block.n_rows
        return cls(predicted, label, weight if blocks.has_weight else None)

    def observe(self, task: metrics.Task) -> metrics.State:
        """State of the metrics of all rows."""
        return metrics.observe(task, self.predicted, self.label, self.weight)


__all__ = ["Answers", "Checkpoint", "Hooks", "ModelOptions", "TrainSpec", "check_params", "fit_booster", "probe"]
