"""`Counts`: the one sparse table of whole numbers over keys, and how several of them become one.

Level counts, histograms and target sums are all tables with a sorted 64-bit key a row and a few whole numbers beside
it. `Counts` holds such a table in one canonical form: keys ascend, rows that count nothing are left out, and numbers
have the narrowest dtype that holds them all. So the form is a function of the content, merging is associative and
commutative to the bit, and a million levels that were seen a few times each take 9 MB.

Arrays may be NumPy's or CuPy's; levels are Arrow arrays on the host. What the columns of numbers mean is the matter of
the statistic that fills them (see `tabgpu.features.statistics`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..columns import Array, ArrayModule
from ..hashing import array_module
from ..wire import record

__all__ = ["Counts", "array_module", "merge", "merge_all", "to_host"]


@record
@dataclass(frozen=True, eq=False)
class Counts:
    """A sparse table of whole numbers over keys, in canonical form; make it with `counts_of` or `merge`.

    Parameters
    ----------
    keys : array of uint64
        Sorted, unique, shape (n,).
    counts : array of uint8, uint16, uint32 or int64
        Shape (n, w). Column 0 is the number of rows seen, at least 1; what the others are is up to the owner. The dtype
        is the narrowest that holds all of them, int64 if any is negative.
    levels : pyarrow.Array, optional
        The value of each key, shape (n,); null for the missing one. Strings as large_string.
    """

    keys: Array
    counts: Array
    levels: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def rows(self) -> Array:
        """int64, shape (n,): column 0, the number of rows seen of each key."""
        return self.counts[:, 0].astype("int64")


def counts_of(keys: Array, columns: list[Array], levels: pa.Array | None = None) -> Counts:
    """Bring a table into canonical form.

    Parameters
    ----------
    keys : array of uint64
        Sorted, unique, shape (n,).
    columns : list of int arrays
        Each of shape (n,); the first one is positive.
    levels : pyarrow.Array, optional
        Shape (n,).

    Examples
    --------
    >>> counts_of(np.array([3, 9], "uint64"), [np.array([1, 300])]).counts.dtype.name
    'uint16'
    """
    xp = array_module(keys)
    low = min((int(c.min()) for c in columns if len(c)), default=0)
    high = max((int(c.max()) for c in columns if len(c)), default=0)
    table = xp.empty((len(keys), len(columns)), dtype=_narrowest(low, high))
    for i, column in enumerate(columns):
        table[:, i] = column
    return Counts(keys, table, None if levels is None else _wide_strings(levels))


def empty(xp: ArrayModule, width: int, levels: pa.Array | None = None) -> Counts:
    """Return the table of no rows."""
    return Counts(xp.empty(0, dtype="uint64"), xp.empty((0, width), dtype="uint8"), levels)


def merge(left: Counts, right: Counts) -> Counts:
    """Add up two tables; see `merge_all`."""
    return merge_all([left, right])


def merge_all(tables: Sequence[Counts], memory: dict[Any, Any] | None = None) -> Counts:
    """Add up tables: rows of equal keys become one, their numbers added.

    Parameters
    ----------
    tables : sequence of Counts
        At least one, with equally many columns; all with levels or all without.
    memory : dict, optional
        Remembers how these keys were united, for tables with the very same arrays of keys.

    Returns
    -------
    Counts
        Equal to the bit for any order and grouping of merges. Where levels share a key, that of the first table stays.

    Examples
    --------
    >>> a = counts_of(np.array([3, 9], "uint64"), [np.array([1, 2])])
    >>> b = counts_of(np.array([4, 9], "uint64"), [np.array([5, 5])])
    >>> merge(a, b).keys.tolist(), merge(a, b).counts[:, 0].tolist()
    ([3, 4, 9], [1, 5, 7])
    """
    filled = [t for t in tables if len(t)]
    if len(filled) < 2:
        return filled[0] if filled else tables[0]
    union = Union.of([t.keys for t in filled], memory)
    levels = [t.levels for t in filled if t.levels is not None]
    taken = pa.concat_arrays(levels).take(pa.array(to_host(union.sources[0].take(union.places)))) if levels else None
    return Counts(union.keys, union.add([t.counts for t in filled]), taken)


@dataclass(frozen=True)
class Union:
    """The keys of several tables as those of one, and which of their rows make up each of its rows.

    Parameters
    ----------
    keys : array of uint64
        Sorted, unique, shape (n,).
    sources : list of int arrays
        Rows of the tables, counted through all of them. The i-th array holds the i-th row of each key that has so many,
        keys with most rows first: what is to be added is added to the front of what is there.
    places : array of int
        Shape (n,): where `sources` has each key.
    """

    keys: Array
    sources: list[Array]
    places: Array

    @staticmethod
    def of(tables: Sequence[Array], memory: dict[Any, Any] | None = None) -> Union:
        """Unite keys, sorted and unique in each table, of at least one row; once for the same arrays in a `memory`."""
        memory = {} if memory is None else memory
        what = ("union", *map(id, tables))
        if what not in memory:
            memory[what] = (tables, _unite(tables))  # the arrays stay, so that no other can take over their ids
        union: Union = memory[what][1]
        return union

    def add(self, tables: Sequence[Array]) -> Array:
        """Numbers beside the keys, shape (n, w) in the narrowest dtype, from those of each table."""
        xp = array_module(self.keys)
        low = sum(min(0, int(t.min())) for t in tables)
        high = sum(max(0, int(t.max())) for t in tables)
        together = xp.concatenate(tables).astype(_narrowest(low, high), copy=False)
        total = together.take(self.sources[0], axis=0)  # on rows many times as fast as brackets
        for rows in self.sources[1:]:
            total[: len(rows)] += together.take(rows, axis=0)
        return narrow(total).take(self.places, axis=0)


def _unite(tables: Sequence[Array]) -> Union:
    xp = array_module(tables[0])
    together = xp.concatenate(tables)
    order = xp.argsort(together, kind="stable")  # of sorted runs: NumPy merges them
    together = together.take(order)
    starts = xp.flatnonzero(xp.append(xp.asarray([True]), together[1:] != together[:-1]))
    keys = together.take(starts)
    lengths = xp.diff(xp.append(starts, xp.asarray([len(order)])))
    by_length = xp.argsort((len(tables) - lengths).astype("uint16"), kind="stable")  # NumPy does it by radix
    places = xp.empty_like(by_length)
    places[by_length] = xp.arange(len(by_length))
    starts = starts.take(by_length)
    longer = [int((lengths > i).sum()) for i in range(int(lengths.max()))]
    return Union(keys, [order.take(starts[:n] + i) for i, n in enumerate(longer)], places)


def narrow(table: Array) -> Array:
    """Whole numbers in the narrowest dtype of the canonical form that holds them."""
    bounds = (int(table.min()), int(table.max())) if table.size else (0, 0)
    return table.astype(_narrowest(*bounds), copy=False)


def to_host(array: Any) -> np.ndarray:
    """Return an array of either module as a NumPy array."""
    host: np.ndarray = array.get() if hasattr(array, "__cuda_array_interface__") else np.asarray(array)
    return host


def _narrowest(low: int, high: int) -> str:
    """Name of the dtype that canonical form has for numbers between `low` and `high`."""
    if low < 0 or high >= 2**32:
        return "int64"
    return "uint8" if high < 2**8 else "uint16" if high < 2**16 else "uint32"


def _wide_strings(levels: pa.Array) -> pa.Array:
    """Levels in the type that canonical form has for them: offsets of strings must not overflow when merged."""
    kind = levels.type
    if pa.types.is_string(kind) or pa.types.is_string_view(kind):
        return pc.cast(levels, pa.large_string())
    if pa.types.is_binary(kind) or pa.types.is_binary_view(kind):
        return pc.cast(levels, pa.large_binary())
    return levels
