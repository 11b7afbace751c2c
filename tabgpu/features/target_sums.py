"""Sums of the target by level and fold: what cross-fitted target encoding needs, exact.

The target is held in fixed point on a grid chosen for the whole data set from its `Range`, so that sums are sums of
whole numbers: the encoding of a row can leave out the row's own fold by subtraction, to the bit, and no order of rows
matters. The state is one sparse table a fold; as each row is in exactly one fold, all together hold no more rows than
were seen.

Smoothing and priors are the matter of `tabgpu.features.target`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from ..columns import Array, Chunk
from ..hashing import array_module
from ..wire import record
from .contract import Statistic
from .counts import Counts, counts_of, merge
from .exact import LIMB, fixed_point, grouped_counts, grouped_sums
from .keys import fold_of, local_groups
from .moments import RangeResult


@record
@dataclass(frozen=True)
class TargetGrid:
    """How target values become whole numbers, fixed before the first row is summed.

    Parameters
    ----------
    kind : {'integer', 'float'}
        Integers below 2^26 in size (0 and 1 too); anything else.
    shift : int
        A 'float' target counts in units of ``2**-shift``: 52 bits below its largest size.
    """

    kind: Literal["integer", "float"]
    shift: int = 0

    @staticmethod
    def from_range(found: RangeResult) -> TargetGrid:
        """Choose the grid from the range of the target.

        Examples
        --------
        >>> TargetGrid.from_range(RangeResult(0, 1, 100, 0, 0)).kind
        'integer'
        >>> TargetGrid.from_range(RangeResult(-1.5, 3.0, 100, 0, 0))
        TargetGrid(kind='float', shift=50)
        """
        if found.min is None or found.max is None:
            return TargetGrid("integer")
        size = max(abs(found.min), abs(found.max))
        if isinstance(found.min, int) and size < 2**LIMB:
            return TargetGrid("integer")
        return TargetGrid("float", 2 * LIMB - math.frexp(size)[1] if size else 0)


@record
@dataclass(frozen=True)
class TargetState:
    """One table a fold: number of rows, sum of the high limbs and, for floats, of the low limbs."""

    folds: tuple[Counts, ...]


@record
@dataclass(frozen=True, eq=False)
class TargetTable:
    """Counts and sums of the target by level and fold, exact.

    Parameters
    ----------
    keys : array of uint64
        Sorted, shape (n,): all levels that have a row with a target.
    counts : array of an int dtype
        Shape (n, folds): number of rows.
    high : array of an int dtype
        Shape (n, folds): the sums, in units of ``2**-shift`` (times 2^26 where there is a `low`).
    low : array of an int dtype, optional
        Shape (n, folds): what is to be added, in units of ``2**-shift``.
    shift : int
        See `TargetGrid`.
    """

    keys: Array
    counts: Array
    high: Array
    low: Array | None = None
    shift: int = 0

    def __len__(self) -> int:
        return len(self.keys)

    def level_totals(self) -> tuple[Array, Array]:
        """Counts (int64) and sums (float64) of each level over all folds, each of shape (n,)."""
        return self._sums(_row_sums)

    def level_others(self, fold: int) -> tuple[Array, Array]:
        """Counts (int64) and sums (float64) of each level over all folds but one, each of shape (n,).

        Rows of the fold leave no trace: whole numbers are subtracted before the one rounding to float64.
        """
        return self._sums(lambda table: _row_sums(table) - table[:, fold])

    def totals(self) -> tuple[int, float]:
        """Count and sum of all rows."""
        count, total = self._sums(lambda table: table.sum(dtype="int64"))
        return int(count), float(total)

    def others(self, fold: int) -> tuple[int, float]:
        """Count and sum of all rows that are not in a fold."""
        count, total = self._sums(lambda table: table.sum(dtype="int64") - table[:, fold].sum(dtype="int64"))
        return int(count), float(total)

    def _sums(self, over: Any) -> tuple[Any, Any]:
        total = over(self.high).astype("float64")
        if self.low is not None:
            total = total * 2.0**LIMB + over(self.low)
        half = self.shift // 2  # in two steps: 2.0**-shift alone may overflow
        return over(self.counts), total * 2.0**-half * 2.0 ** (half - self.shift)


def _row_sums(table: Array) -> Array:
    """Sum of each row, int64: column by column, which is eight times as fast as ``sum(axis=1)`` on narrow tables."""
    total = table[:, 0].astype("int64")
    for column in range(1, table.shape[1]):
        total += table[:, column]
    return total


@dataclass(frozen=True)
class TargetSums(Statistic):
    """Number of rows and sum of the target for each level (or tuple of levels) and fold.

    Rows whose target is missing or infinite are left out; a missing level is a level. The result is a `TargetTable`.
    Integer targets below 2^52 in size are summed without any error. Other values are rounded to 52 bits below the
    largest size first: a sum of ``n`` values is off by at most ``n * max(abs(y)) * 2**-52``.

    Parameters
    ----------
    keyed_by : tuple of str
        One or more columns of any kind.
    target : str
        A numeric column.
    folds : int
        Number of folds; see `keys.fold_of`.
    seed : int
        Of the folds.
    grid : TargetGrid
        From the target's range over the training rows.
    """

    keyed_by: tuple[str, ...]
    target: str
    folds: int
    seed: int
    grid: TargetGrid

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the levels, and the target."""
        return (*self.keyed_by, self.target)

    def observe(self, chunk: Chunk, request: Any) -> TargetState:
        """Sums of one chunk."""
        xp = chunk.xp
        groups = local_groups(chunk, self.keyed_by)
        what = ("target by fold", self.folds, self.seed, self.grid)
        rows, ends, limbs = chunk.remember(what, (chunk[self.target],), lambda: self._by_fold(chunk))
        codes, n_groups = groups.codes[rows], len(groups.keys)
        tables = []
        for fold in range(self.folds):
            part = slice(ends[fold], ends[fold + 1])
            counts = grouped_counts(xp, codes[part], n_groups)
            seen = xp.flatnonzero(counts)
            sums = [grouped_sums(xp, codes[part], limb[part], n_groups)[seen] for limb in limbs]
            tables.append(counts_of(groups.keys[seen], [counts[seen], *sums]))
        return TargetState(tuple(tables))

    def merge(self, left: TargetState, right: TargetState) -> TargetState:
        """Numbers of equal keys and folds added."""
        return TargetState(tuple(merge(a, b) for a, b in zip(left.folds, right.folds, strict=True)))

    def finish(self, state: TargetState, request: Any) -> TargetTable:
        """One table over the levels of all folds."""
        xp = array_module(state.folds[0].keys)
        keys = xp.sort(xp.concatenate([fold.keys for fold in state.folds]))
        keys = keys[xp.append(xp.asarray([True]), keys[1:] != keys[:-1])[: len(keys)]]
        width = state.folds[0].counts.shape[1]
        tables = []
        for i in range(width):
            dtype = max((fold.counts.dtype for fold in state.folds), key=lambda d: d.itemsize)
            table = xp.zeros((len(keys), self.folds), dtype=dtype)
            for f, fold in enumerate(state.folds):
                table[xp.searchsorted(keys, fold.keys), f] = fold.counts[:, i]
            tables.append(table)
        return TargetTable(keys, tables[0], tables[1], tables[2] if width == 3 else None, self.grid.shift)

    def _by_fold(self, chunk: Chunk) -> tuple[Array, list[int], tuple[Array, ...]]:
        """Rows that count, fold by fold, where each fold ends, and the limbs of the rows' targets.

        It is the same for all columns, and keeps what the sums of one fold touch in the cache.
        """
        xp = chunk.xp
        column, fold = chunk[self.target], fold_of(chunk, self.folds, self.seed)
        usable = ~column.missing()
        if column.values.dtype.kind == "f":
            usable &= xp.isfinite(column.values)
        rows = xp.flatnonzero(usable)
        rows = rows[xp.argsort(fold[rows], kind="stable")]
        ends = xp.searchsorted(fold[rows], xp.arange(self.folds + 1, dtype="int16")).tolist()
        target = column.values[rows]
        if self.grid.kind == "float":
            return rows, ends, fixed_point(xp, target, self.grid.shift)
        return rows, ends, (target.astype("float64"),)
