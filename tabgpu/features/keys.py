"""Rows as groups: which rows of a chunk have equal values in some columns, and the key and fold of each.

`local_keys` is where all statistics and steps that group rows begin: codes of the groups of one chunk and a 64-bit key
for each group, which means the same in every chunk. It is on the hot path, and several statistics ask for the same
columns of the same chunk, so a chunk remembers the answer for as long as it lives; the same goes for `fold_of`.

Groups are numbered in the order of their keys. So counts made with them come out sorted, and lookups in tables over
keys walk through memory in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..columns import Array, ArrayModule, Chunk, Column
from ..hashing import MISSING_KEY, argsort_keys, combine, splitmix64, value_keys
from .counts import to_host

_DENSE = 4  # codes are compacted when there are more than this many of them a row
_FLAGS = 64  # compaction marks a table of up to this many places a row; beyond, it sorts


@dataclass(frozen=True)
class Groups:
    """Groups of the rows of one chunk. It never travels: codes mean nothing elsewhere.

    Parameters
    ----------
    codes : array of int32
        Shape (n_rows,): the group of each row.
    keys : array of uint64
        Sorted, unique, shape (n_groups,). Some may have no row.
    places : array of int
        Shape (n_groups,): position in `values` of a value of the group; -1 for the missing one and for tuples.
    values : pyarrow.Array or Array, optional
        Values of a single column, in any order.
    """

    codes: Array
    keys: Array
    places: Array
    values: Any = None

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
    groups = local_groups(chunk, columns)
    return groups.codes, groups.keys


def local_groups(chunk: Chunk, columns: tuple[str, ...]) -> Groups:
    """`local_keys` with the values of the groups."""
    return chunk.remember("groups", tuple(chunk[c] for c in columns), lambda: _groups(chunk, columns))


def fold_of(chunk: Chunk, folds: int, seed: int) -> Array:
    """Return the fold of each row: ``splitmix64(identity ^ splitmix64(seed)) % folds``.

    Parameters
    ----------
    chunk : Chunk
        Any number of rows.
    folds : int
        Number of folds, at most 2^15.
    seed : int
        Another seed gives other folds.

    Returns
    -------
    array of int16
        Shape (n_rows,), from 0. A function of the row's identity alone.
    """

    def make() -> Array:
        mixed = splitmix64(chunk.identity ^ np.uint64(splitmix64(seed)))
        return (mixed % np.uint64(folds)).astype("int16")

    return chunk.remember(("fold", folds, seed), (), make)


def _groups(chunk: Chunk, columns: tuple[str, ...]) -> Groups:
    xp = chunk.xp
    if len(columns) == 1:
        return _column_groups(xp, chunk[columns[0]])
    groups = local_groups(chunk, columns[:1])
    for name in columns[1:]:
        groups = _pairs(xp, groups, local_groups(chunk, (name,)))
    return groups


def _column_groups(xp: ArrayModule, column: Column) -> Groups:
    if column.levels is None:
        codes, values = _factorize(xp, column)
        return _ranked(xp, codes, value_keys(values), values)
    keys = column.levels.keys
    if len(keys) <= _DENSE * len(column):
        return _ranked(xp, column.values, keys, column.levels.values)
    used, codes = xp.unique(column.values, return_inverse=True)
    first = int(used[0] < 0) if len(used) else 0  # code -1, the missing values, sorts first
    groups = _ranked(xp, codes - first, keys[used[first:]])
    places = xp.append(used[first:], xp.asarray([-1], dtype=used.dtype))[groups.places]
    return Groups(groups.codes, groups.keys, places, column.levels.values)


def _ranked(xp: ArrayModule, codes: Array, keys: Array, values: Any = None) -> Groups:
    """Number groups by the order of their keys. Code -1 is the missing one, which gets a group at the end."""
    n = len(keys)
    keys = xp.append(keys, xp.asarray([MISSING_KEY], dtype="uint64"))
    order = argsort_keys(keys)
    ordered = keys[order]
    distinct = xp.ones(n + 1, dtype=bool)
    distinct[1:] = ordered[1:] != ordered[:-1]  # equal ones: an encoded column's own missing level, or a collision
    rank = xp.empty(n + 1, dtype="int32")
    rank[order] = xp.cumsum(distinct) - 1
    places = xp.where(ordered != np.uint64(MISSING_KEY), order, -1)
    return Groups(rank[codes], ordered[distinct], places[distinct], values)


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
    if n_pairs <= _FLAGS * n_rows:
        seen = xp.zeros(n_pairs, dtype=bool)
        seen[codes] = True
        used = xp.flatnonzero(seen)
        number = xp.empty(n_pairs, dtype="int32")
        number[used] = xp.arange(len(used), dtype="int32")
        codes = number[codes]
    else:
        used, codes = xp.unique(codes, return_inverse=True)
    keys = combine(left.keys[used // n_right], right.keys[used % n_right])
    groups = _ranked(xp, codes, keys)
    return Groups(groups.codes, groups.keys, xp.full(len(groups.keys), -1))
