"""Exact quantiles from histograms that are refined where the wanted ranks lie.

Values become unsigned keys of the same width in the same order. The first pass counts the top 16 bits of the keys; the
buckets that hold the wanted ranks are then counted again, by 16 more bits, or by all that are left once no more than
2^20 rows lie in them. So quantiles are values of the data, found in one to four passes with little memory, and the
same for any order of the rows. Nothing here estimates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..columns import Array, ArrayModule, Chunk
from ..wire import record
from .contract import Again, Statistic
from .counts import Counts, counts_of, merge, to_host
from .exact import grouped_counts
from .moments import present

_STEP = 16  # bits a pass
_EXACT = 2**20  # rows in the wanted buckets from which on all bits are counted at once


@record
@dataclass(frozen=True, eq=False)
class Histogram:
    """Counts of the values' keys without their last bits.

    Parameters
    ----------
    counts : Counts
        By key.
    dtype : str
        Of the values.
    """

    counts: Counts
    dtype: str


@record
@dataclass(frozen=True, eq=False)
class Refinement:
    """Which buckets are to be counted more finely.

    Parameters
    ----------
    buckets : array of uint64
        Sorted: keys of the buckets, without their last `from_bits` bits.
    below : array of int64
        Number of values below each bucket.
    from_bits, to_bits : int
        How many bits are left out now and in the next pass.
    n_present : int
        Number of values in all.
    """

    buckets: Array
    below: Array
    from_bits: int
    to_bits: int
    n_present: int


@dataclass(frozen=True)
class Quantiles(Statistic):
    """Quantiles of a numeric or datetime column: actual values, as NumPy's ``method="inverted_cdf"``.

    The result is a tuple of Python ints or floats, one for each probability, or of None if all values are missing. A
    quantile is the smallest value with at least ``p * n`` values at or below it (Hyndman & Fan 1996, definition 1),
    equal to ``numpy.quantile(present, p, method="inverted_cdf")`` for float64 `p`. Infinite values count; -0.0 is 0.0.

    Parameters
    ----------
    column : str
        Its name.
    probabilities : tuple of float
        Between 0 and 1.
    """

    column: str
    probabilities: tuple[float, ...]
    max_passes = 4

    @property
    def columns(self) -> tuple[str, ...]:
        """The one column."""
        return (self.column,)

    def observe(self, chunk: Chunk, request: Refinement | None) -> Histogram:
        """Histogram of one chunk."""
        xp = chunk.xp
        values = present(chunk[self.column])
        keys = ordered_keys(xp, values)
        width = 8 * values.dtype.itemsize
        if request is None:
            buckets = (keys >> np.uint64(max(0, width - _STEP))).astype("int64")
            rows = grouped_counts(xp, buckets, 2 ** min(width, _STEP))
            seen = xp.flatnonzero(rows)
            return Histogram(counts_of(seen.astype("uint64"), [rows[seen]]), values.dtype.name)
        wanted, buckets = xp.asarray(request.buckets), keys >> np.uint64(request.from_bits)
        at = xp.minimum(xp.searchsorted(wanted, buckets), len(wanted) - 1)
        found, rows = xp.unique(keys[wanted[at] == buckets] >> np.uint64(request.to_bits), return_counts=True)
        return Histogram(counts_of(found, [rows]), values.dtype.name)

    def merge(self, left: Histogram, right: Histogram) -> Histogram:
        """Counts of equal keys added."""
        if left.dtype != right.dtype:
            raise TypeError(f"column {self.column!r} is {left.dtype} in one chunk and {right.dtype} in another")
        return Histogram(merge(left.counts, right.counts), left.dtype)

    def finish(self, state: Histogram, request: Refinement | None) -> tuple[int | float | None, ...] | Again:
        """The quantiles, or the buckets that hold them."""
        keys, rows = to_host(state.counts.keys), to_host(state.counts.rows)
        width = 8 * np.dtype(state.dtype).itemsize
        if request is None:
            n_present, bits = int(rows.sum()), max(0, width - _STEP)
        else:
            n_present, bits = request.n_present, request.to_bits
        if n_present == 0 or not self.probabilities:
            return (None,) * len(self.probabilities)
        below = np.cumsum(rows) - rows
        if request is not None:  # counts begin anew in each bucket of the last pass
            last = np.searchsorted(to_host(request.buckets), keys >> np.uint64(request.from_bits - bits))
            first = np.searchsorted(last, np.arange(len(request.buckets)))
            below += (to_host(request.below) - below[first])[last]
        ranks = np.array([_rank(n_present, p) for p in self.probabilities], dtype=np.int64)
        place = np.searchsorted(below, ranks, side="right") - 1
        if bits == 0:
            return tuple(_values(keys[place], state.dtype))
        chosen = np.unique(place)
        to_bits = 0 if int(rows[chosen].sum()) <= _EXACT else max(0, bits - _STEP)
        return Again(Refinement(keys[chosen], below[chosen], bits, to_bits, n_present))


def ordered_keys(xp: ArrayModule, values: Array) -> Array:
    """Map values to unsigned keys that have the same order.

    Parameters
    ----------
    xp : module
        NumPy or CuPy.
    values : array of int, uint or float of 8 to 64 bits
        Shape (n,), not NaN. -0.0 counts as 0.0.

    Returns
    -------
    array of uint64
        Shape (n,), below 2^width.

    Examples
    --------
    >>> ordered_keys(np, np.array([-1.0, -0.0, 0.0, 2.0], "float16")).tolist()
    [17407, 32768, 32768, 49152]
    """
    kind, width = values.dtype.kind, 8 * values.dtype.itemsize
    if kind in "ub":
        return values.astype("uint64")
    unsigned = f"uint{width}"
    sign = xp.asarray(1 << (width - 1), dtype=unsigned)
    if kind == "i":
        return (values.view(unsigned) ^ sign).astype("uint64")
    bits = (values + values.dtype.type(0)).view(unsigned)
    return xp.where(bits >= sign, ~bits, bits ^ sign).astype("uint64")


def _values(keys: np.ndarray, dtype: str) -> Any:
    """Undo `ordered_keys`: a list of Python numbers."""
    kind = np.dtype(dtype)
    if kind.kind in "ub":
        return keys.astype(kind).tolist()
    width = 8 * kind.itemsize
    unsigned = np.dtype(f"uint{width}")
    sign = unsigned.type(1 << (width - 1))
    bits = keys.astype(unsigned)
    if kind.kind == "i":
        return (bits ^ sign).view(kind).tolist()
    return np.where(bits >= sign, bits ^ sign, ~bits).view(kind).tolist()


def _rank(n: int, p: float) -> int:
    """Position, from 0, of the quantile among `n` sorted values, in the float64 arithmetic of NumPy."""
    return min(max(math.ceil(n * p - 1), 0), n - 1)
