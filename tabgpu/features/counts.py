"""`Counts`: the one sparse table of whole numbers over keys, and how two of them become one.

Level counts, histograms and target sums are all tables with a sorted 64-bit key a row and a few whole numbers beside
it. `Counts` holds such a table in one canonical form: keys ascend, rows that count nothing are left out, and numbers
have the narrowest dtype that holds them all. So the form is a function of the content, merging is associative and
commutative to the bit, and a million levels that were seen a few times each take 9 MB.

Arrays may be NumPy's or CuPy's; levels are Arrow arrays on the host. What the columns of numbers mean is the matter of
the statistic that fills them (see `tabgpu.features.statistics`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..columns import Array, ArrayModule
from ..hashing import array_module
from ..wire import record

__all__ = ["Counts", "array_module", "merge", "to_host"]


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
    """Add up two tables: rows of equal keys become one, their numbers added.

    Parameters
    ----------
    left, right : Counts
        With equally many columns; both with levels or both without.

    Returns
    -------
    Counts
        Equal to the bit for any order and grouping of merges. Where levels share a key, that of the left stays.

    Examples
    --------
    >>> a = counts_of(np.array([3, 9], "uint64"), [np.array([1, 2])])
    >>> b = counts_of(np.array([4, 9], "uint64"), [np.array([5, 5])])
    >>> merge(a, b).keys.tolist(), merge(a, b).counts[:, 0].tolist()
    ([3, 4, 9], [1, 5, 7])
    """
    if not len(left) or not len(right):
        return left if len(left) else right
    xp = array_module(left.keys)
    both = xp.concatenate([left.keys, right.keys])
    order = xp.argsort(both, kind="stable")  # two sorted runs: NumPy merges them in one go
    both = both[order]
    first = xp.append(xp.asarray([True]), both[1:] != both[:-1])
    source, second = order[first], xp.flatnonzero(~first)

    low = sum(min(0, int(c.counts.min())) for c in (left, right))
    high = sum(max(0, int(c.counts.max())) for c in (left, right))
    counts = xp.concatenate([left.counts, right.counts]).astype(_narrowest(low, high), copy=False)
    table = counts.take(source, axis=0)  # on rows many times as fast as counts[source]
    table[second - xp.arange(1, len(second) + 1)] += counts.take(order[second], axis=0)
    table = table.astype(_narrowest(int(table.min()), int(table.max())), copy=False)
    if left.levels is None or right.levels is None:
        return Counts(both[first], table)
    return Counts(both[first], table, pa.concat_arrays([left.levels, right.levels]).take(pa.array(to_host(source))))


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
