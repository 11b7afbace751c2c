"""Rows as groups: which rows of a chunk have equal values in some columns, and the key and fold of each.

All statistics and steps that group rows begin here: codes of the groups of one chunk and a 64-bit key for each group,
which means the same in every chunk. Lookups take the groups as they come (`local_groups`); where they are counted, no
two may have the same key (`distinct_groups`); `local_keys` sorts them by key besides. This is the hot path, and several
statistics and steps ask for the same columns of the same chunk, so a chunk remembers the answers for as long as it
lives; the same goes for `fold_of`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from ..columns import Array, ArrayModule, Chunk, Column
from ..hashing import MISSING_KEY, KeyTable, argsort_keys, array_module, combine, splitmix64, value_keys
from .counts import to_host
from .exact import grouped_counts

_DENSE = 4  # codes are compacted when there are more than this many of them a row
_FLAGS = 64  # compaction marks a table of up to this many places a row; beyond, it sorts
_DEVICE_FLAGS = 4  # CuPy counts the marks in 8 bytes a place, and sorts fast


@dataclass(frozen=True)
class Groups:
    """Groups of the rows of one chunk. It never travels: codes mean nothing elsewhere.

    Parameters
    ----------
    codes : array of int32
        Shape (n_rows,): the group of each row, from 0.
    keys : array of uint64
        Shape (n_groups,), in any order. Some groups may have no row.
    places : array of int
        Shape (n_groups,): position in `values` of a value of the group; -1 for the missing one and for tuples.
    values : pyarrow.Array or Array, optional
        Values of a single column, in any order.
    """

    codes: Array
    keys: Array
    places: Array
    values: Any = None

    @cached_property
    def order(self) -> Array:
        """int64, shape (n_groups,): the order that sorts the keys."""
        return argsort_keys(self.keys)

    @cached_property
    def rows(self) -> Array:
        """int64, shape (n_groups,): number of rows of each group."""
        return grouped_counts(array_module(self.keys), self.codes, len(self.keys))

    @cached_property
    def seen(self) -> Array:
        """int64: the groups that have a row, in the order of their keys."""
        return self.order[self.rows.take(self.order) > 0]

    @cached_property
    def seen_keys(self) -> Array:
        """uint64: the keys of `seen`, one array for all who count these groups, so that they are merged once."""
        return self.keys.take(self.seen)

    def levels(self, groups: Array) -> pa.Array:
        """Values of the given groups as an Arrow array on the host, null for the missing one."""
        places = to_host(self.places[groups])
        values = self.values if isinstance(self.values, pa.Array) else pa.array(to_host(self.values))
        return values.take(pa.array(places, mask=places < 0))


def local_keys(chunk: Chunk, columns: tuple[str, ...]) -> tuple[Array, Array]:
    """Group the rows of a chunk by the values of some columns.

    Missing values are a group of their own with the key `MISSING_KEY`. The key of a single categorical value is the
    xxhash64 of its level, that of a number is `hashing.value_keys`, and that of a tuple is `hashing.combine` of the
    keys of its parts, `MISSING_KEY` for a missing part.

    Parameters
    ----------
    chunk : Chunk
        Any number of rows.
    columns : tuple of str
        At least one.

    Returns
    -------
    codes : array of int32
        Shape (n_rows,), the group of each row, from 0.
    keys : array of uint64
        Shape (n_groups,), sorted, unique: the key of each group. Some may have no row.

    Examples
    --------
    >>> from tabgpu.columns import Column
    >>> a = Column(np.array([7, 5, 7, 0]), valid=np.array([True, True, True, False]))
    >>> chunk = Chunk({"a": a}, np.arange(4, dtype="uint64"), np)
    >>> codes, keys = local_keys(chunk, ("a",))
    >>> bool(codes[0] == codes[2] != codes[1]), int(keys[codes[3]]) == MISSING_KEY
    (True, True)
    """
    groups = chunk.remember("sorted groups", _all(chunk, columns), lambda: _ranked(local_groups(chunk, columns)))
    return groups.codes, groups.keys


def local_groups(chunk: Chunk, columns: tuple[str, ...]) -> Groups:
    """Groups in no order, for lookups; two may have the same key. See `local_keys`."""
    return chunk.remember("groups", _all(chunk, columns), lambda: _groups(chunk, columns))


def find(chunk: Chunk, columns: tuple[str, ...], table: KeyTable) -> tuple[Array, Array]:
    """Look the rows of a chunk up in a table.

    Returns
    -------
    codes : array of int32
        Shape (n_rows,), the group of each row, from 0.
    rows : array of int32
        Shape (n_groups,): the row of `table` that has the key of the group, -1 where none has.
    """
    groups = local_groups(chunk, columns)
    return groups.codes, chunk.remember(table, _all(chunk, columns), lambda: table.lookup(groups.keys))


def distinct_groups(chunk: Chunk, columns: tuple[str, ...]) -> Groups:
    """Groups in no order whose keys are distinct, for counting. See `local_keys`."""

    def make() -> Groups:
        groups = local_groups(chunk, columns)
        ordered = groups.keys.take(groups.order)
        # equal ones: a hash collision, or an encoded column that brings a missing level of its own
        return _ranked(groups) if bool((ordered[1:] == ordered[:-1]).any()) else groups

    return chunk.remember("distinct groups", _all(chunk, columns), make)


def fold_of(chunk: Chunk, folds: int, seed: int) -> Array:
    """Return the fold of each row: ``splitmix64(identity ^ splitmix64(seed)) % folds``.

    Parameters
    ----------
    chunk : Chunk
        Any number of rows.
    folds : int
        Number of folds.
    seed : int
        Another seed gives other folds.

    Returns
    -------
    array of int32
        Shape (n_rows,), from 0. A function of the row's identity alone.
    """

    def make() -> Array:
        mixed = splitmix64(chunk.identity ^ np.uint64(splitmix64(seed)))
        return (mixed % np.uint64(folds)).astype("int32")

    return chunk.remember(("fold", folds, seed), (), make)


def cells_of(codes: Array, fold: Array, shape: tuple[int, int]) -> Array:
    """Return the place of each row in a table of groups by folds, laid out flat: int32 where that suffices.

    Parameters
    ----------
    codes, fold : arrays of int32
        Shape (n_rows,): group and fold of each row.
    shape : tuple of int
        Number of groups and of folds.
    """
    cells = codes.astype("int32" if shape[0] * shape[1] < 2**31 else "int64", copy=False)
    return cells * cells.dtype.type(shape[1]) + fold


def _all(chunk: Chunk, columns: tuple[str, ...]) -> tuple[Column, ...]:
    return tuple(chunk[c] for c in columns)


def _groups(chunk: Chunk, columns: tuple[str, ...]) -> Groups:
    xp = chunk.xp
    if len(columns) == 1:
        return _column_groups(xp, chunk[columns[0]])
    groups = local_groups(chunk, columns[:1])
    for name in columns[1:]:
        groups = _pairs(xp, groups, local_groups(chunk, (name,)))
    return groups


def _column_groups(xp: ArrayModule, column: Column) -> Groups:
    """Groups of the codes from 0, behind that of code -1, the missing values."""
    if column.levels is None:
        codes, values = _factorize(xp, column)
        keys = value_keys(values)
    else:
        codes, values, keys = column.values, column.levels.values, column.levels.keys
    places = xp.arange(-1, len(keys), dtype="int32")
    if column.levels is not None and len(keys) > _DENSE * len(codes):
        used, codes = xp.unique(codes, return_inverse=True)
        first = int(used[0] < 0) if len(used) else 0  # code -1, the missing values, sorts first
        keys, codes = keys[used[first:]], codes - first
        places = xp.concatenate([places[:1], used[first:]])
    missing = xp.asarray([MISSING_KEY], dtype="uint64")
    return Groups((codes + 1).astype("int32", copy=False), xp.concatenate([missing, keys]), places, values)


def _ranked(groups: Groups) -> Groups:
    """Number groups by the order of their keys; those of equal keys become one."""
    xp = array_module(groups.keys)
    n, order = len(groups.keys), groups.order
    ordered = groups.keys.take(order)
    distinct = xp.ones(n, dtype=bool)
    distinct[1:] = ordered[1:] != ordered[:-1]
    rank = xp.empty(n, dtype="int32")
    rank[order] = xp.cumsum(distinct) - 1
    places = xp.where(ordered != np.uint64(MISSING_KEY), groups.places.take(order), -1)
    return Groups(rank.take(groups.codes), ordered[distinct], places[distinct], groups.values)


def _factorize(xp: ArrayModule, column: Column) -> tuple[Array, Array]:
    """Codes of a numeric column, -1 where missing, and the value of each code."""
    values, missing = column.values, column.missing()
    if values.dtype.kind != "f" and len(values):
        low = int(values.min())
        span = int(values.max()) - low + 1
        if span <= _DENSE * len(values):  # years, hours, ids in a row: no sort
            wide = values if values.dtype.itemsize == 8 else values.astype("int64")
            start = wide.dtype.type(low)
            codes = (wide - start).astype("int32")
            codes[missing] = -1
            return codes, (xp.arange(span, dtype=wide.dtype) + start).astype(values.dtype)  # the column's own type
    distinct, codes = xp.unique(values, return_inverse=True)
    codes[missing] = -1
    return codes, distinct + distinct.dtype.type(0)  # 0.0 for -0.0, whichever of them came first


def _pairs(xp: ArrayModule, left: Groups, right: Groups) -> Groups:
    """Groups of pairs of groups."""
    n_rows, n_right = len(left.codes), len(right.keys)
    n_pairs = len(left.keys) * n_right
    codes = left.codes.astype("int64") * n_right + right.codes
    if n_pairs <= (_FLAGS if xp is np else _DEVICE_FLAGS) * n_rows:
        seen = xp.zeros(n_pairs, dtype=bool)
        seen[codes] = True
        used = xp.flatnonzero(seen)
        number = xp.empty(n_pairs, dtype="int32")
        number[used] = xp.arange(len(used), dtype="int32")
        codes = number[codes]
    else:
        used, codes = xp.unique(codes, return_inverse=True)
    keys = combine(left.keys[used // n_right], right.keys[used % n_right])
    return Groups(codes.astype("int32", copy=False), keys, xp.full(len(keys), -1))
