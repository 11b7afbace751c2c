"""64-bit keys: hashes of levels and of row identities, and a lookup table over keys.

A level of a categorical column is known by its key, the xxhash64 (seed 0) of its bytes; numbers and row identities go
through splitmix64, a bijection of 64-bit integers. Keys mean the same in every chunk, on every worker and engine, so
tables over keys can be merged and looked up anywhere. Two keys are reserved: `MISSING_KEY` and `UNSEEN_KEY`.

Two distinct levels out of ``n`` share a key with a probability of about ``n**2 / 2**65`` (3e-8 for a million levels);
they are then one level to everything that follows.

`hash_levels` works on the host, where levels live. The rest computes on NumPy and CuPy arrays alike. What a table over
keys holds beside them is the matter of whoever owns it (see `tabgpu.features.counts`).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from .columns import Array, ArrayModule
from .wire import record

MISSING_KEY = 2**64 - 1  # sorts last
UNSEEN_KEY = 2**64 - 3
_SPARE_KEY = 2**64 - 2  # stands in for a level whose hash is a reserved key

_MASK = 2**64 - 1
_GAMMA, _MIX1, _MIX2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(p)
    for p in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)
_BLOCK = 8192  # strings hashed at once, so that all that is between stays in the cache
_LONGEST_BUCKET = 64  # beyond this, keys are not spread like hashes and bisection is faster than probing


def array_module(array: Any) -> ArrayModule:
    """Return the module of an array: CuPy for arrays of the device, else NumPy.

    CuPy is taken from the modules already loaded: an array of the device cannot exist without it.
    """
    return sys.modules["cupy"] if hasattr(array, "__cuda_array_interface__") else np


def splitmix64(x: Any) -> Any:
    """Mix the bits of 64-bit integers: a bijection whose output looks random (Steele, Lea & Flood 2014).

    Parameters
    ----------
    x : int or array of uint64
        Any shape; left as it is. An int is taken modulo 2^64.

    Returns
    -------
    int or array of uint64
        Of the same shape.

    Examples
    --------
    >>> hex(splitmix64(0))
    '0xe220a8397b1dcdaf'
    >>> int(splitmix64(np.zeros(1, "uint64"))[0]) == splitmix64(0)
    True
    """
    if isinstance(x, int):
        z = (x + _GAMMA) & _MASK
        z = ((z ^ (z >> 30)) * _MIX1) & _MASK
        z = ((z ^ (z >> 27)) * _MIX2) & _MASK
        return z ^ (z >> 31)
    z = x + np.uint64(_GAMMA)
    z ^= z >> np.uint64(30)
    z *= np.uint64(_MIX1)
    z ^= z >> np.uint64(27)
    z *= np.uint64(_MIX2)
    z ^= z >> np.uint64(31)
    return z


def combine(a: Array, b: Array) -> Array:
    """Return the key of the pairs ``(a, b)``; ``combine(a, b)`` and ``combine(b, a)`` differ.

    Parameters
    ----------
    a, b : array of uint64
        Keys, of shapes that broadcast. For three parts: ``combine(combine(a, b), c)``.

    Returns
    -------
    array of uint64
        For a fixed `a` (or `b`) a bijection of the other.
    """
    return splitmix64(splitmix64(a) ^ b)


def value_keys(values: Array) -> Array:
    """Return the keys of numbers: splitmix64 of the value as int64, or of the bits as float64.

    Parameters
    ----------
    values : array of an int, uint, bool or float dtype
        Shape (n,). -0.0 counts as 0.0. Equal values of different widths get equal keys; ints and floats do not.

    Returns
    -------
    array of uint64
        Shape (n,). NaN becomes `MISSING_KEY`, which is the key of no number.
    """
    if values.dtype.kind == "f":
        wide = values.astype("float64") + 0.0  # turns -0.0 into 0.0
        keys = splitmix64(wide.view("uint64"))
        _reserve(keys)
        keys[wide != wide] = np.uint64(MISSING_KEY)
        return keys
    wide = values if values.dtype == "uint64" else values.astype("int64").view("uint64")
    keys = splitmix64(wide)
    _reserve(keys)
    return keys


def hash_levels(values: pa.Array) -> np.ndarray:
    """Return the key of each level: the xxhash64 (seed 0) of its bytes.

    Strings count as their UTF-8 bytes, decimals as their text, integers, booleans, dates and times as int64 (uint64
    beyond its range as its own 8 bytes), floats as float64 with -0.0 as 0.0; numbers little-endian.

    Parameters
    ----------
    values : pyarrow.Array
        Shape (n,); may be sliced.

    Returns
    -------
    numpy.ndarray
        uint64, shape (n,). Nulls become `MISSING_KEY`; no level gets a reserved key.

    Raises
    ------
    TypeError
        If values of that type cannot be levels (nested types).

    Examples
    --------
    >>> [hex(k) for k in hash_levels(pa.array(["", "UA"]))]
    ['0xef46db3751d8e999', '0x9e3abc9bbc6c67a2']
    """
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    kind = values.type
    if pa.types.is_null(kind):
        return np.full(len(values), MISSING_KEY, np.uint64)
    if pa.types.is_decimal(kind) or pa.types.is_string_view(kind):
        values = values.cast(pa.large_string())
    elif pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        values = values.cast(pa.large_binary())
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        keys = _hash_bytes(values, np.int32)
    elif pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        keys = _hash_bytes(values, np.int64)
    else:
        keys = _hash_lanes(_lanes(values))
    _reserve(keys)
    if values.null_count:
        keys[values.is_null().to_numpy(zero_copy_only=False)] = MISSING_KEY
    return keys


def argsort_keys(keys: Array) -> Array:
    """Return the order that sorts keys, as a stable ``argsort`` does.

    Keys are spread like hashes, so that sorting by their top 32 bits, which NumPy does by radix 16 bits at a time, all
    but sorts them, and the merge sort that follows has little to do: 22 against 57 ns a key for 95,000 keys.

    Parameters
    ----------
    keys : array of uint64
        Shape (n,).

    Returns
    -------
    array of int64
        Shape (n,).
    """
    xp = array_module(keys)
    if len(keys) < 1000:
        return xp.argsort(keys, kind="stable")
    order = xp.argsort((keys >> np.uint64(32)).astype("uint16"), kind="stable")
    order = order[xp.argsort((keys >> np.uint64(48)).astype("uint16")[order], kind="stable")]
    return order[xp.argsort(keys[order], kind="stable")]


@record
@dataclass(frozen=True, eq=False)
class KeyTable:
    """Lookup from keys to their rows in a sorted table.

    Only the keys travel. An index over their top bits, two to four buckets a key, is built at the first lookup; keys
    that are not spread like hashes are found by bisection: right, but not fast.

    Parameters
    ----------
    keys : array of uint64
        Sorted, unique, shape (n,).

    Examples
    --------
    >>> KeyTable(np.array([3, 5, 8], "uint64")).lookup(np.array([8, 4, 3], "uint64")).tolist()
    [2, -1, 0]
    """

    keys: Array

    def __len__(self) -> int:
        return len(self.keys)

    @cached_property
    def _index(self) -> tuple[np.uint64, Array] | None:
        """Shift to a bucket and the first row of each bucket; None where bisection serves better."""
        xp = array_module(self.keys)
        bits = len(self.keys).bit_length() + 1
        shift = np.uint64(64 - bits)
        buckets = (self.keys >> shift).astype("int64")
        size = xp.bincount(buckets, minlength=2**bits)
        if int(size.max()) > _LONGEST_BUCKET:
            return None
        starts = xp.cumsum(size) - size
        return shift, starts.astype("int32" if len(self.keys) < 2**31 else "int64")

    def lookup(self, keys: Array) -> Array:
        """Find the row of each key.

        Parameters
        ----------
        keys : array of uint64
            Shape (m,), on the device of the table. Sorted queries are about twice as fast.

        Returns
        -------
        array of int32 (int64 for tables of 2^31 rows and more)
            Shape (m,); -1 where a key is not in the table.
        """
        xp = array_module(self.keys)
        n = len(self.keys)
        if n == 0 or len(keys) == 0:
            return xp.full(len(keys), -1, dtype="int32")
        index = self._index
        if index is None:
            rows = xp.minimum(xp.searchsorted(self.keys, keys), n - 1)
        else:
            shift, starts = index
            rows = xp.minimum(starts[(keys >> shift).astype("int64")], n - 1)
            # Within a bucket keys ascend: step until the row's key is not below the query.
            behind = xp.flatnonzero(self.keys[rows] < keys)
            while len(behind):
                ahead = rows[behind] + 1
                behind, ahead = behind[ahead < n], ahead[ahead < n]
                rows[behind] = ahead
                behind = behind[self.keys[ahead] < keys[behind]]
        found = self.keys[rows] == keys
        return xp.where(found, rows, -1).astype("int32" if n < 2**31 else "int64")


def _reserve(keys: Array) -> None:
    """Move keys of levels off the reserved keys, in place."""
    keys[(keys == np.uint64(MISSING_KEY)) | (keys == np.uint64(UNSEEN_KEY))] = np.uint64(_SPARE_KEY)


def _lanes(values: pa.Array) -> Array:
    """Fixed-width values as the 8 bytes that are hashed."""
    kind = values.type
    if pa.types.is_floating(kind):
        host = values.fill_null(0).to_numpy(zero_copy_only=False).astype("<f8") + 0.0
        return host.view(np.uint64)
    if pa.types.is_boolean(kind):
        values = values.cast(pa.uint8())
    elif pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        values = values.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    elif not pa.types.is_integer(kind):
        raise TypeError(f"values of type {kind} cannot be levels")
    host = values.fill_null(0).to_numpy(zero_copy_only=False)
    return host if host.dtype == np.uint64 else host.astype(np.int64).view(np.uint64)


def _rotate(x: Array, bits: int) -> Array:
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


def _round(accumulator: Any, lane: Array) -> Array:
    return _rotate(accumulator + lane * _P2, 31) * _P1


def _add_lane(h: Array, lane: Array) -> Array:
    return _rotate(h ^ _round(np.uint64(0), lane), 27) * _P1 + _P4


def _avalanche(h: np.ndarray) -> np.ndarray:
    h ^= h >> np.uint64(33)
    h *= _P2
    h ^= h >> np.uint64(29)
    h *= _P3
    h ^= h >> np.uint64(32)
    return h


def _hash_lanes(lanes: np.ndarray) -> np.ndarray:
    """xxhash64 of values of 8 bytes each."""
    start = np.full(len(lanes), int(_P5) + 8, np.uint64)
    return _avalanche(_add_lane(start, lanes))


def _hash_bytes(values: pa.Array, offset_dtype: type) -> np.ndarray:
    """xxhash64 of byte strings of any lengths (specification: Cyan4973/xxHash, doc/xxhash_spec.md)."""
    n = len(values)
    keys = np.empty(n, np.uint64)
    if n == 0:
        return keys
    _, offsets_buffer, data_buffer = values.buffers()
    offsets: Array = np.frombuffer(offsets_buffer, offset_dtype)[values.offset : values.offset + n + 1]
    data = np.frombuffer(data_buffer if data_buffer is not None else b"", np.uint8)
    for i in range(0, n, _BLOCK):
        keys[i : i + _BLOCK] = _hash_block(data, offsets[i : i + _BLOCK + 1].astype(np.int64))
    return keys


def _hash_block(data: np.ndarray, offsets: np.ndarray) -> Array:
    """xxhash64 of the strings between neighbouring offsets."""
    length = np.diff(offsets)
    at = offsets[:-1].copy()  # the next byte to hash, of each string
    h = np.full(len(at), _P5, np.uint64)
    if int(length.max()) >= 32:
        _add_stripes(h, data, at, length)
    h += length.astype(np.uint64)
    rest = length & 31
    for k in range(int(rest.max()) >> 3):
        rows = _rows(rest >= 8 * k + 8)
        h[rows] = _add_lane(h[rows], _overlapping(data, np.uint64)[at[rows]])
        at[rows] += 8
    rows = _rows((rest & 4) != 0)
    if rows is not None:
        word = _overlapping(data, np.uint32)[at[rows]].astype(np.uint64)
        h[rows] = _rotate(h[rows] ^ (word * _P1), 23) * _P2 + _P3
        at[rows] += 4
    for k in range(int((rest & 3).max())):
        rows = _rows((rest & 3) > k)
        byte = data[at[rows]].astype(np.uint64)
        h[rows] = _rotate(h[rows] ^ (byte * _P5), 11) * _P1
        at[rows] += 1
    return _avalanche(h)


def _rows(mask: np.ndarray) -> Any:
    """Index of the rows in `mask`: a slice when it is all of them, None when it is none."""
    rows = np.flatnonzero(mask)
    if len(rows) == len(mask):
        return slice(None)
    return rows if len(rows) else None


def _overlapping(data: np.ndarray, dtype: type) -> np.ndarray:
    """View bytes as the little-endian words that begin at each of them."""
    width = np.dtype(dtype).itemsize
    return np.ndarray((len(data) - width + 1,), np.dtype(dtype).newbyteorder("<"), data, strides=(1,))


def _add_stripes(h: np.ndarray, data: np.ndarray, at: np.ndarray, length: np.ndarray) -> None:
    """Hash the whole stripes of 32 bytes of the strings that have any, in place; moves `at` behind them."""
    words = _overlapping(data, np.uint64)
    rows = np.flatnonzero(length >= 32)
    stripes = length[rows] >> 5
    start = np.array([int(_P1) + int(_P2) & _MASK, int(_P2), 0, -int(_P1) & _MASK], np.uint64)
    state = np.repeat(start[None, :], len(rows), axis=0)
    lane_at = at[rows, None] + np.array([0, 8, 16, 24])
    for k in range(int(stripes.max())):
        active = _rows(stripes > k)
        state[active] = _round(state[active], words[lane_at[active] + 32 * k])
    v = [np.ascontiguousarray(state[:, i]) for i in range(4)]
    merged = _rotate(v[0], 1) + _rotate(v[1], 7) + _rotate(v[2], 12) + _rotate(v[3], 18)
    for lane in v:
        merged = (merged ^ _round(np.uint64(0), lane)) * _P1 + _P4
    h[rows] = merged
    at[rows] += stripes << 5
