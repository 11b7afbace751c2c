"""What can be known about the training rows: all statistics, offered in one place.

Each class is a `contract.Statistic`: frozen, hashable, three pure functions. Their states do not depend on how rows are
cut into chunks or in which order chunks are merged: counts are whole numbers, sums of floats are exact
(`tabgpu.features.exact`), and a sample is the rows with the smallest hashes. Missing values never count unless said.

`LevelCounts` and `Sample` live here; `Range`, `Moments`, `Quantiles` and `TargetSums` have modules of their own and are
offered here too, as are the helpers of `tabgpu.features.keys`. What a step makes of a result is its own matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..columns import Array, Chunk
from ..hashing import array_module, splitmix64
from ..wire import record
from .contract import Statistic
from .counts import Counts, counts_of, merge, merge_all
from .keys import cells_of, distinct_groups, find, fold_of, local_keys
from .moments import Moments, MomentsResult, Range, RangeResult
from .quantiles import Quantiles
from .target_sums import TargetGrid, TargetSums, TargetTable

__all__ = [
    "LevelCounts",
    "Moments",
    "MomentsResult",
    "Quantiles",
    "Range",
    "RangeResult",
    "Sample",
    "SampleResult",
    "TargetGrid",
    "TargetSums",
    "TargetTable",
    "cells_of",
    "find",
    "fold_of",
    "local_keys",
]


@dataclass(frozen=True)
class LevelCounts(Statistic):
    """How many rows have each value of a column, or each tuple of values of several columns.

    Missing rows count, under `MISSING_KEY` (of a tuple: as the key of the missing part). Columns of any kind.

    Parameters
    ----------
    keyed_by : tuple of str
        One or more columns.
    keep_levels : bool
        Keep the values of a single column beside their keys. In the order of the keys; the missing one is null.

    Notes
    -----
    The result is a `Counts` of one column of numbers: `keys`, `rows`, `levels`.
    """

    keyed_by: tuple[str, ...]
    keep_levels: bool = False

    def __post_init__(self) -> None:
        if self.keep_levels and len(self.keyed_by) != 1:
            raise ValueError("levels are kept of single columns only")

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns themselves."""
        return self.keyed_by

    def observe(self, chunk: Chunk, request: Any) -> Counts:
        """Counts of one chunk."""
        groups = distinct_groups(chunk, self.keyed_by)
        levels = groups.levels(groups.seen) if self.keep_levels else None
        return counts_of(groups.seen_keys, [groups.rows.take(groups.seen)], levels)

    def merge(self, left: Counts, right: Counts) -> Counts:
        """Counts of equal keys added."""
        return merge(left, right)

    def merge_all(self, states: Sequence[Counts], memory: dict[Any, Any]) -> Counts:
        """Counts of equal keys added."""
        return merge_all(states, memory)

    def finish(self, state: Counts, request: Any) -> Counts:
        """The state itself."""
        return state


@record
@dataclass(frozen=True, eq=False)
class SampleResult:
    """Sampled rows.

    Parameters
    ----------
    hashes : array of uint64
        Sorted, shape (n,): splitmix64 of the rows' identities.
    rows : array of float32
        Shape (n, n_columns), NaN where missing.
    """

    hashes: Array
    rows: Array


@dataclass(frozen=True)
class Sample(Statistic):
    """The `k` rows with the smallest splitmix64 of their identity: a random sample that no order of rows changes.

    Parameters
    ----------
    names : tuple of str
        Numeric columns, or categorical ones whose codes are numbers to the model.
    k : int
        Number of rows; all of them if there are fewer.
    threshold : int, optional
        Rows whose hash is not below it are passed over. It saves time where ``k / n_rows * 2**64`` and a margin are
        known before; too small a one makes the sample smaller than `k`.
    """

    names: tuple[str, ...]
    k: int
    threshold: int | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns themselves."""
        return self.names

    def observe(self, chunk: Chunk, request: Any) -> SampleResult:
        """Sample of one chunk."""
        xp = chunk.xp
        hashes = splitmix64(chunk.identity)
        if self.threshold is not None:
            picked = xp.flatnonzero(hashes < np.uint64(min(self.threshold, 2**64 - 1)))
        else:
            picked = xp.arange(len(hashes))
        if len(picked) > self.k:
            picked = picked[xp.argpartition(hashes[picked], self.k)[: self.k]]
        picked = picked[xp.argsort(hashes[picked])]
        rows = xp.empty((len(picked), len(self.names)), dtype="float32")
        with np.errstate(over="ignore"):  # float64 beyond float32 becomes infinite, as in the matrix
            for i, name in enumerate(self.names):
                rows[:, i] = chunk[name].take(picked).floats("float32")
        return SampleResult(hashes[picked], rows)

    def merge(self, left: SampleResult, right: SampleResult) -> SampleResult:
        """Sample of both."""
        if not len(left.hashes) or not len(right.hashes):
            return left if len(left.hashes) else right
        xp = array_module(left.hashes)
        hashes = xp.concatenate([left.hashes, right.hashes])
        order = xp.argsort(hashes)[: self.k]
        return SampleResult(hashes[order], xp.concatenate([left.rows, right.rows])[order])

    def finish(self, state: SampleResult, request: Any) -> SampleResult:
        """The state itself."""
        return state
