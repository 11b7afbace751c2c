"""Sums of the target by level and fold: what cross-fitted target encoding needs, exact.

The target is held in fixed point on a grid chosen for the whole data set from its `Range`, so that sums are sums of
whole numbers: the encoding of a row can leave out the row's own fold by subtraction, to the bit, and no order of rows
matters. State and result are the same table, a level a row and a fold a column.

Smoothing and priors are the matter of `tabgpu.features.target`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..columns import Array, ArrayModule, Chunk
from ..wire import record
from .contract import Statistic
from .counts import Union, narrow
from .exact import LIMB, fixed_point, grouped_counts, grouped_sums
from .keys import cells_of, distinct_groups, fold_of
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
@dataclass(frozen=True, eq=False)
class TargetTable:
    """Counts and sums of the target by level and fold, exact.

    Parameters
    ----------
    keys : array of uint64
        Sorted, shape (n,): all levels that have a row with a target.
    counts : array of an int dtype, the narrowest, as those that follow
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

    @property
    def tables(self) -> list[Array]:
        """Counts and limbs of the sums."""
        return [t for t in (self.counts, self.high, self.low) if t is not None]

    def level_totals(self) -> tuple[Array, Array]:
        """Counts (int64) and sums (float64) of each level over all folds, each of shape (n,)."""
        return self._numbers([_row_sums(t) for t in self.tables])

    def level_others(self) -> Iterator[tuple[Array, Array]]:
        """For one fold after the other, what `level_totals` are of all other folds.

        Rows of the fold leave no trace: whole numbers are subtracted before the one rounding to float64.
        """
        totals = [_row_sums(t) for t in self.tables]
        for fold in range(self.counts.shape[1]):
            yield self._numbers([total - t[:, fold] for total, t in zip(totals, self.tables, strict=True)])

    def totals(self) -> tuple[int, float]:
        """Count and sum of all rows."""
        count, total = self._numbers([t.sum(dtype="int64") for t in self.tables])
        return int(count), float(total)

    def others(self) -> Iterator[tuple[int, float]]:
        """For one fold after the other, count and sum of all rows that are in other folds."""
        by_fold = [t.sum(axis=0, dtype="int64") for t in self.tables]
        for fold in range(self.counts.shape[1]):
            count, total = self._numbers([sums.sum() - sums[fold] for sums in by_fold])
            yield int(count), float(total)

    def _numbers(self, limbs: list[Any]) -> tuple[Any, Any]:
        """Count, and sum in float64, from the count and the limbs of the sum."""
        total = limbs[1].astype("float64")
        if len(limbs) > 2:
            total = total * 2.0**LIMB + limbs[2]
        if not self.shift:
            return limbs[0], total
        half = self.shift // 2  # in two steps: 2.0**-shift alone may overflow
        return limbs[0], total * 2.0**-half * 2.0 ** (half - self.shift)


def _row_sums(table: Array) -> Array:
    """Sum of each row, int64: column by column, which is eight times as fast as ``sum(axis=1)`` on narrow tables."""
    total = table[:, 0].astype("int64")
    for column in range(1, table.shape[1]):
        total += table[:, column]
    return total


@dataclass(frozen=True)
class _Limb:
    """One limb of the targets of a chunk; of zeros and ones, which rows have a one: counting them is twice as fast."""

    values: Array | None
    ones: Array | None = None

    def __call__(self, xp: ArrayModule, cells: Array, n_cells: int) -> Array:
        """Sums by cell."""
        if self.values is None:
            return grouped_counts(xp, cells.take(self.ones), n_cells)
        return grouped_sums(xp, cells, self.values, n_cells)


@dataclass(frozen=True)
class TargetSums(Statistic):
    """Number of rows and sum of the target for each level (or tuple of levels) and fold.

    Rows whose target is missing or infinite are left out; a missing level is a level. State and result are the same
    `TargetTable`. Integer targets below 2^52 in size are summed without any error. Other values are rounded to 52 bits
    below the largest size first: a sum of ``n`` values is off by at most ``n * max(abs(y)) * 2**-52``.

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

    def observe(self, chunk: Chunk, request: Any) -> TargetTable:
        """Sums of one chunk."""
        xp = chunk.xp
        groups = distinct_groups(chunk, self.keyed_by)
        what = ("target by fold", self.folds, self.seed, self.grid)
        rows, fold, limbs = chunk.remember(what, (chunk[self.target],), lambda: self._by_fold(chunk))
        if rows is None:
            codes, seen, keys = groups.codes, groups.seen, groups.seen_keys
        else:
            codes = groups.codes.take(rows)
            seen = groups.order[grouped_counts(xp, codes, len(groups.keys)).take(groups.order) > 0]
            keys = groups.keys.take(seen)
        shape = len(groups.keys), self.folds
        n_cells = shape[0] * shape[1]
        cells = cells_of(codes, fold, shape)
        tables = [grouped_counts(xp, cells, n_cells), *(limb(xp, cells, n_cells) for limb in limbs)]
        counts, high, *low = (narrow(table).reshape(shape).take(seen, axis=0) for table in tables)
        return TargetTable(keys, counts, high, low[0] if low else None, self.grid.shift)

    def merge(self, left: TargetTable, right: TargetTable) -> TargetTable:
        """Numbers of equal keys and folds added."""
        return self.merge_all([left, right], {})

    def merge_all(self, states: Sequence[TargetTable], memory: dict[Any, Any]) -> TargetTable:
        """Numbers of equal keys and folds added."""
        filled = [s for s in states if len(s)]
        if len(filled) < 2:
            return filled[0] if filled else states[0]
        union = Union.of([s.keys for s in filled], memory)
        counts, high, *low = (union.add(tables) for tables in zip(*(s.tables for s in filled), strict=True))
        return TargetTable(union.keys, counts, high, low[0] if low else None, self.grid.shift)

    def finish(self, state: TargetTable, request: Any) -> TargetTable:
        """The state itself."""
        return state

    def _by_fold(self, chunk: Chunk) -> tuple[Array | None, Array, tuple[_Limb, ...]]:
        """Rows that count (None for all), their folds and the limbs of their targets: the same for all columns."""
        xp = chunk.xp
        column, fold = chunk[self.target], fold_of(chunk, self.folds, self.seed)
        usable = ~column.missing()
        if column.values.dtype.kind == "f":
            usable &= xp.isfinite(column.values)
        rows = None if bool(usable.all()) else xp.flatnonzero(usable)
        target = column.values if rows is None else column.values[rows]
        fold = fold if rows is None else fold[rows]
        if self.grid.kind == "float":
            return rows, fold, tuple(_Limb(limb) for limb in fixed_point(xp, target, self.grid.shift))
        if bool(((target == 0) | (target == 1)).all()):
            return rows, fold, (_Limb(None, xp.flatnonzero(target)),)
        return rows, fold, (_Limb(target.astype("float64")),)
