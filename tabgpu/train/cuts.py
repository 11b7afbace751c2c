"""Own histogram cuts: where a feature is split into bins, decided from a sample instead of XGBoost's own sketch.

`choose` makes a small table whose column values are the quantiles we chose, and `matrix_of` makes it an
`xgboost.QuantileDMatrix`. Given as ``ref=``, that hands its cuts to the matrices for training and validation: the
sketch, one reading of the data, and its dependence on how rows are split over workers all fall away.

XGBoost makes cuts from sorted distinct values ``v[0] < ... < v[m-1]``, ``m <= max_bin + 1``, like this: bins start at
``v[0]``, ``v[1]``, ..., at most `max_bin` of them, and the last one ends at ``v[m-1] + |v[m-1]| + 1e-5``
(``src/common/quantile.cc``, `MakeCuts` and `AddCutPoint`). A present value beyond that end would be counted in the last
bin in training, and yet be sent where missing values go in prediction. So every column gets one more value, far beyond
all data; where there are fewer than `max_bin` starts it begins one more bin, which stays empty. Which rows are the
sample is for others to choose; weights do not count.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xgboost

from ..interrupts import deferred
from .names import safe_names

FAR = np.float32(1e38)  # XGBoost ends the last bin at twice this, still a float32


def bin_starts(values: np.ndarray, max_bin: int) -> np.ndarray:
    """Choose where the bins of one feature start.

    Parameters
    ----------
    values : numpy.ndarray
        float32, shape (n,), in any order; NaN where missing.
    max_bin : int
        Most bins of the feature, at least 2.

    Returns
    -------
    numpy.ndarray
        float32, sorted and distinct, shape (m,), m <= `max_bin`; empty where all values are missing. All distinct
        values where these are at most `max_bin`; otherwise about evenly many rows a bin, and a bin of its own for each
        value that holds two bins' share. The smallest value is always among them.

    Examples
    --------
    >>> bin_starts(np.array([3, 1, np.nan, 1], dtype="float32"), 4).tolist()
    [1.0, 3.0]
    >>> bin_starts(np.arange(1000, dtype="float32"), 4).tolist()
    [0.0, 250.0, 500.0, 750.0]
    """
    present: np.ndarray = values[~np.isnan(values)].astype(np.float32) + np.float32(0)  # -0.0 is 0.0
    present.sort()
    if not len(present):
        return present
    first = np.flatnonzero(np.concatenate([[True], present[1:] != present[:-1]]))
    distinct: np.ndarray = present[first]
    if len(distinct) <= max_bin:
        return distinct
    chosen: np.ndarray = distinct[_starts(np.diff(first, append=len(present)), max_bin)]
    return chosen


def choose(sample: np.ndarray, max_bin: int) -> np.ndarray:
    """Choose where the bins of every feature start.

    Parameters
    ----------
    sample : numpy.ndarray
        float32, shape (k, n_features); NaN where missing. The order of rows does not matter.
    max_bin : int
        Most bins of a feature.

    Returns
    -------
    numpy.ndarray
        float32, shape (m, n_features), m <= ``max_bin + 1``, ascending in each column: the starts, then one value
        beyond all data. Shorter columns are filled up with their last value and not with NaN, though a matrix built
        with them finds from its own rows alone whether values are missing.
    """
    columns = [bin_starts(column, max_bin) for column in np.ascontiguousarray(sample.T)]
    chosen = np.empty((max(map(len, columns)) + 1, len(columns)), dtype=np.float32)
    for j, column in enumerate(columns):
        chosen[: len(column), j] = column
        chosen[len(column) :, j] = np.max(column, initial=FAR)
    return chosen


def matrix_of(
    chosen: np.ndarray, max_bin: int, feature_names: Sequence[str], *, nthread: int | None = None
) -> xgboost.QuantileDMatrix:
    """Build the matrix whose cuts are ours, to be given as ``ref=``.

    Parameters
    ----------
    chosen : numpy.ndarray
        As `choose` returned it.
    max_bin : int
        As given to `choose`.
    feature_names : sequence of str
        Names of the features; XGBoost is given the safe ones (`names.safe_names`).
    nthread : int, optional
        Threads for XGBoost; all by default.
    """
    names = safe_names(feature_names)
    with deferred():
        return xgboost.QuantileDMatrix(chosen, feature_names=names, max_bin=max_bin, nthread=nthread)


def _starts(counts: np.ndarray, budget: int) -> np.ndarray:
    """Which distinct values start a bin: bool, shape (n,), at most `budget` of them, where n > `budget`.

    A value that holds more than two shares of the rows gets a bin of its own, which costs two starts: its own and the
    next value's. The others are cut at even ranks among themselves.
    """
    heavy = np.zeros(len(counts), dtype=bool)
    while True:
        room = budget - 2 * int(heavy.sum())
        light = int(counts[~heavy].sum())
        more = ~heavy & (counts * room > 2 * light)
        if not more.any():
            break
        heavy |= more
    ranks = np.cumsum(np.where(heavy, 0, counts)) - np.where(heavy, 0, counts)
    group = ranks * room // light
    starts = np.ones(len(counts), dtype=bool)
    starts[1:] = (group[1:] != group[:-1]) | heavy[1:] | heavy[:-1]
    return starts
