"""Metrics of a side from its predictions: streamed, exact, and the same in any order.

A state says everything about the rows that the metrics need, merges, and travels:

* binary: a sorted table of distinct (prediction, weight, label) with the number of rows of each. All metrics are
  computed from it at the end, in the table's order: nothing depends on the order of rows, and ties are seen whole.
* regression: exact sums (`tabgpu.features.exact`) of the errors, their squares and the targets.

A metric that cannot be computed, such as the AUC of a side with one class, is None with a reason and no error. These
are the numbers that a run reports; the metrics that XGBoost watches in training are its own. XGBoost is not imported.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from .. import wire
from ..features import counts, exact
from ..features.counts import Counts
from ..merging import merge_tree

Task = Literal["binary", "regression"]
State = Any  # Counts or RegressionState

BINARY = ("auc", "average_precision", "logloss", "accuracy", "brier")
REGRESSION = ("rmse", "mae", "r2")

_PIECE = 2**19  # keys looked at at once
_EPSILON = float(np.finfo(np.float32).eps)  # scikit-learn's clip of float32 probabilities


@wire.record
@dataclass(frozen=True)
class RegressionState:
    """What is known of rows with a numeric target: exact sums in units of ``2**-1074`` (see `tabgpu.features.exact`).

    Parameters
    ----------
    rows : int
        Number of rows.
    weight, target, target_square, error, error_square : int
        Sums over rows of w, w*y, w*y*y, w*|p-y| and w*(p-y)^2, each term rounded once to float64.
    """

    rows: int
    weight: int
    target: int
    target_square: int
    error: int
    error_square: int


@wire.record
@dataclass(frozen=True)
class Scores:
    """Metrics of a side.

    Parameters
    ----------
    values : dict
        Metric to its value, None where there is none.
    reasons : dict
        Metric to the reason why there is none.
    """

    values: dict[str, float | None]
    reasons: dict[str, str] = field(default_factory=dict)


def observe(task: Task, prediction: np.ndarray, label: np.ndarray, weight: np.ndarray | None = None) -> State:
    """State of some rows.

    Parameters
    ----------
    task : {'binary', 'regression'}
        Which metrics.
    prediction : numpy.ndarray
        float32, shape (n,): probability of the positive class, or the predicted value.
    label : numpy.ndarray
        float32, shape (n,): 0 or 1, or the target.
    weight : numpy.ndarray, optional
        float32, shape (n,), finite and not negative. Rows of weight zero count nothing.
    """
    if weight is not None:
        used = weight > 0
        if not used.all():
            prediction, label, weight = prediction[used], label[used], weight[used]
    if task == "binary":
        return _observe_binary(prediction, label, weight)
    return _observe_regression(prediction, label, weight)


def merge(left: State, right: State) -> State:
    """State of both together; associative and commutative to the bit."""
    if isinstance(left, RegressionState):
        names = ("rows", "weight", "target", "target_square", "error", "error_square")
        return RegressionState(**{name: getattr(left, name) + getattr(right, name) for name in names})
    return counts.merge(left, right)


def merge_all(states: Iterable[State]) -> State | None:
    """State of all together; None of nothing."""

    def together(some: Sequence[State]) -> State:
        return counts.merge_all(some) if isinstance(some[0], Counts) else functools.reduce(merge, some)

    return merge_tree(states, together)


def finish(state: State) -> Scores:
    """Metrics from the state of all rows.

    Returns
    -------
    Scores
        Binary: `auc`, `average_precision` (both exact, ties as in scikit-learn), `logloss` (natural, probabilities
        clipped to the precision of float32), `accuracy` (positive where the probability is above 0.5), `brier`.
        Regression: `rmse`, `mae`, `r2`. None, with a reason, where one cannot be computed.

    Examples
    --------
    >>> p, y = np.array([0.1, 0.4, 0.35, 0.8], "float32"), np.array([0, 0, 1, 1], "float32")
    >>> finish(observe("binary", p, y)).values["auc"]
    0.75
    >>> finish(observe("binary", p, np.zeros(4, "float32"))).reasons["auc"]
    'all rows are of class 0'
    """
    return _finish_regression(state) if isinstance(state, RegressionState) else _finish_binary(state)


def _observe_binary(prediction: np.ndarray, label: np.ndarray, weight: np.ndarray | None) -> Counts:
    """Sort keys in place and count them: beside the rows' 8 bytes each little else is held."""
    keys = np.empty(len(label), np.uint64)
    for start in range(0, len(label), _PIECE):
        piece = slice(start, start + _PIECE)
        keys[piece] = _encode(prediction[piece], label[piece], None if weight is None else weight[piece])
    keys.sort()
    distinct = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=distinct[1:])
    if distinct.all():
        return Counts(keys, np.ones((len(keys), 1), np.uint8))
    first = np.flatnonzero(distinct)
    return counts.counts_of(keys[first], [np.diff(first, append=len(keys))])


def _encode(prediction: np.ndarray, label: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """Key of each row; see the module docstring."""
    if not ((label == 0) | (label == 1)).all():
        raise ValueError("labels of two classes are 0 and 1")
    bits = (prediction.astype(np.float32) + np.float32(0)).view(np.uint32)  # -0.0 is 0.0
    ordered = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))  # order of the bits is that of the values
    weights = np.ones(len(label), np.float32) if weight is None else weight.astype(np.float32)
    low = (weights.view(np.uint32) << np.uint32(1)) | label.astype(np.uint32)
    keys: np.ndarray = (ordered.astype(np.uint64) << np.uint64(32)) | low
    return keys


@dataclass
class _Sums:
    """Running sums over the sorted table, from the smallest prediction upwards."""

    weight: float = 0.0
    loss: float = 0.0
    right: float = 0.0
    square: float = 0.0
    hits: float = 0.0
    misses: float = 0.0
    area: float = 0.0

    def add(self, value: np.ndarray, weight: np.ndarray, positive: np.ndarray) -> None:
        """Add a piece that ends with a distinct prediction."""
        clipped = np.clip(value, _EPSILON, 1 - _EPSILON)
        self.weight += float(weight.sum())
        self.loss -= float((weight * np.log(np.where(positive, clipped, 1 - clipped))).sum())
        self.right += float(weight[(value > 0.5) == positive].sum())
        self.square += float((weight * (value - positive) ** 2).sum())
        hits, misses = _classes(value, weight, positive)
        below = self.misses + np.cumsum(misses) - misses
        self.area += float((hits * (below + misses / 2)).sum())
        self.hits += float(hits.sum())
        self.misses += float(misses.sum())


def _finish_binary(state: Counts) -> Scores:
    """Walk up the sorted table in pieces, and down again, so that little stands beside it."""
    if not len(state.keys):
        return _nothing(BINARY, "there are no rows")
    sums, pieces = _Sums(), list(_pieces(state.keys))
    for piece in pieces:
        value, weight, positive = _decode(state.keys[piece], state.rows[piece])
        if np.isnan(value).any():
            return _nothing(BINARY, "some predictions are missing")
        sums.add(value, weight, positive)
    values: dict[str, float | None] = {
        "auc": None,
        "average_precision": None,
        "logloss": sums.loss / sums.weight,
        "accuracy": sums.right / sums.weight,
        "brier": sums.square / sums.weight,
    }
    if not sums.hits or not sums.misses:
        reason = f"all rows are of class {int(sums.hits > 0)}"
        return Scores(values, {"auc": reason, "average_precision": reason})
    values["auc"] = sums.area / (sums.hits * sums.misses)
    downwards = (_classes(*_decode(state.keys[p], state.rows[p])) for p in reversed(pieces))
    values["average_precision"] = _average_precision(downwards) / sums.hits
    return Scores(values)


def _classes(value: np.ndarray, weight: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weight of either class for each distinct prediction, upwards."""
    first = np.flatnonzero(np.concatenate([[True], value[1:] != value[:-1]]))
    hits = np.add.reduceat(np.where(positive, weight, 0.0), first)
    return hits, np.add.reduceat(np.where(positive, 0.0, weight), first)


def _average_precision(downwards: Iterable[tuple[np.ndarray, np.ndarray]]) -> float:
    """Sum of hits times precision, from the largest prediction downwards."""
    total = above_hits = above = 0.0
    for hits, misses in downwards:
        hits, misses = hits[::-1], misses[::-1]
        found = above_hits + np.cumsum(hits)
        total += float((hits * found / (above + np.cumsum(hits + misses))).sum())
        above_hits, above = float(found[-1]), above + float(hits.sum() + misses.sum())
    return total


def _pieces(keys: np.ndarray) -> Iterator[slice]:
    """Slices of some `_PIECE` rows that never part rows of one prediction."""
    start = 0
    while start < len(keys):
        last = keys[min(start + _PIECE, len(keys)) - 1] | np.uint64(2**32 - 1)
        end = int(np.searchsorted(keys, last, side="right"))
        yield slice(start, end)
        start = end


def _decode(keys: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Prediction (float64), weight of all rows (float64) and class (bool) of each key."""
    high, low = (keys >> np.uint64(32)).astype(np.uint32), keys.astype(np.uint32)
    value = np.where(high >> 31, high & np.uint32(2**31 - 1), ~high).view(np.float32).astype(np.float64)
    weight = (low >> np.uint32(1)).view(np.float32).astype(np.float64) * rows
    return value, weight, (low & np.uint32(1)).astype(bool)


def _observe_regression(prediction: np.ndarray, label: np.ndarray, weight: np.ndarray | None) -> RegressionState:
    target = label.astype(np.float64)
    error = prediction.astype(np.float64) - target
    if weight is None:
        total, scale = len(label) << exact.UNIT, _unscaled
    else:
        wide = weight.astype(np.float64)
        total, scale = exact.sum_exact(np, wide), lambda terms: terms * wide
    sums = [exact.sum_exact(np, scale(terms)) for terms in (target, target * target, np.abs(error), error * error)]
    return RegressionState(len(label), total, *sums)


def _unscaled(terms: np.ndarray) -> np.ndarray:
    return terms


def _finish_regression(state: RegressionState) -> Scores:
    if not state.weight:
        return _nothing(REGRESSION, "there are no rows")
    values: dict[str, float | None] = {
        "rmse": float(Fraction(state.error_square, state.weight)) ** 0.5,
        "mae": float(Fraction(state.error, state.weight)),
        "r2": None,
    }
    spread = state.target_square - Fraction(state.target**2, state.weight)
    if spread <= 0:
        return Scores(values, {"r2": "all targets are equal"})
    values["r2"] = float(1 - Fraction(state.error_square) / spread)
    return Scores(values)


def _nothing(names: tuple[str, ...], reason: str) -> Scores:
    return Scores(dict.fromkeys(names), dict.fromkeys(names, reason))
