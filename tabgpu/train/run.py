"""Train on blocks and evaluate: cuts, matrices, rounds, metrics; one function for every engine and worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xgboost

from ..cache import Blocks
from . import booster as boosters
from . import cuts, matrix, metrics
from .booster import Checkpoint, Trained, TrainSpec, probe
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
    spec, names = options.spec, blocks["train"].columns
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
    task: Literal["binary", "regression"], trained: Trained, blocks: Mapping[str, Blocks]
) -> dict[str, dict[str, float | None]]:
    """Metrics of every side, with the rounds up to the best.

    Training rows are seen with the features they were trained on: out-of-fold encodings.
    """
    model = boosters.load(trained.model)
    return {side: _score(task, model, trained.best_iteration, of_side) for side, of_side in blocks.items()}


def _score(task: Any, model: xgboost.Booster, best: int, blocks: Blocks) -> dict[str, float | None]:
    def states() -> Iterator[Any]:
        for block in blocks:
            predicted = boosters.predict(model, block.features, best)
            yield metrics.observe(task, predicted, block.label, block.weight)

    state = metrics.merge_all(states())
    return metrics.finish(state).values if state is not None else {}


__all__ = ["Checkpoint", "ModelOptions", "TrainSpec", "check_params", "evaluate", "fit_booster", "probe"]
