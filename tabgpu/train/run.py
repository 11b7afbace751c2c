"""Train on blocks and evaluate: cuts, matrices, rounds, metrics; one function for every engine and worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..cache import Blocks
from . import booster as boosters
from . import cuts, matrix, metrics
from .booster import Checkpoint, Trained, TrainSpec, probe
from .names import with_safe_names
from .params import check_params


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
    """

    spec: TrainSpec
    cuts: Literal["own", "exact"]
    kind: Literal["in_core", "external"]


def fit_booster(
    options: ModelOptions,
    blocks: Mapping[str, Blocks],
    sample: np.ndarray | None,
    directory: Path,
    checkpoint: Callable[[Checkpoint], None] | None = None,
    on_round: Callable[[int, Any], None] | None = None,
) -> tuple[Trained, dict[str, matrix.Matrix]]:
    """Build the matrices of the training and the validation side and train.

    Parameters
    ----------
    options : ModelOptions
        What to train, on which kind of matrix.
    blocks : mapping of str to Blocks
        By side; 'train' is there.
    sample : numpy.ndarray, optional
        float32, shape (k, n_features): the rows that own cuts are made of.
    directory : Path
        Where the pages of an external matrix lie.
    checkpoint, on_round : callable, optional
        As in `booster.train`.

    Returns
    -------
    trained : Trained
        The model.
    matrices : dict of str to matrix
        Of the sides that were watched.
    """
    names = blocks["train"].columns
    spec = replace(options.spec, params=with_safe_names(options.spec.params, names))
    ref = cuts.reference(sample, spec.max_bin, names) if sample is not None else None
    matrices = {
        "train": matrix.build(blocks["train"], kind=options.kind, max_bin=spec.max_bin, ref=ref, directory=directory)
    }
    if "valid" in blocks:
        matrices["valid"] = matrix.build(
            blocks["valid"], kind=options.kind, max_bin=spec.max_bin, ref=ref or matrices["train"], directory=directory
        )
    watched = [(matrices["valid"], "valid")] if "valid" in matrices else []
    trained = boosters.train(spec, matrices["train"], watched, checkpoint=checkpoint, on_round=on_round)
    return trained, matrices


def evaluate(
    task: Literal["binary", "regression"],
    trained: Trained,
    blocks: Mapping[str, Blocks],
    matrices: dict[str, matrix.Matrix],
) -> dict[str, dict[str, float | None]]:
    """Metrics of every side, with the rounds up to the best.

    Training rows are seen with the features they were trained on: out-of-fold encodings.

    Parameters
    ----------
    task : {'binary', 'regression'}
        Which metrics.
    trained : Trained
        The model.
    blocks : mapping of str to Blocks
        Rows of each side.
    matrices : dict of str to matrix
        Those that `fit_booster` made. They are taken out once they have been asked, so that their memory is free.
    """
    known = {side: _Answers.of_matrix(trained, made) for side, made in matrices.items()}
    matrices.clear()
    trained = replace(trained, booster=None)  # it holds on to the matrices
    scores = {}
    for side, of_side in blocks.items():
        answers = known.pop(side) if side in known else _Answers.of_blocks(trained, of_side)
        scores[side] = answers.score(task)
    return scores


@dataclass(frozen=True)
class _Answers:
    """Predictions of one side beside what is true: float32 arrays of shape (n_rows,)."""

    predicted: np.ndarray
    label: np.ndarray
    weight: np.ndarray | None

    @classmethod
    def of_matrix(cls, trained: Trained, made: matrix.Matrix) -> _Answers:
        """Of rows that have a matrix."""
        weight = made.get_weight()
        return cls(trained.predict(made), made.get_label(), weight if len(weight) else None)

    @classmethod
    def of_blocks(cls, trained: Trained, blocks: Blocks) -> _Answers:
        """Of rows that have none."""
        model = boosters.load(trained.model)
        predicted, label, weight = (np.empty(blocks.n_rows, np.float32) for _ in range(3))
        start = 0
        for block in blocks:
            rows = slice(start, start + block.n_rows)
            predicted[rows] = boosters.predict(model, block.features, trained.best_iteration)
            label[rows] = block.label
            if block.weight is not None:
                weight[rows] = block.weight
            start += block.n_rows
        return cls(predicted, label, weight if blocks.has_weight else None)

    def score(self, task: Literal["binary", "regression"]) -> dict[str, float | None]:
        """Metrics of all rows."""
        return metrics.finish(metrics.observe(task, self.predicted, self.label, self.weight)).values


__all__ = ["Checkpoint", "ModelOptions", "TrainSpec", "check_params", "evaluate", "fit_booster", "probe"]
