"""64-bit keys: hashes of levels and of row identities, and a lookup table over keys.

A level of a categorical column is known by its key, the xxhash64 (seed 0) of its bytes; numbers and row identities go
through splitmix64, a bijection of 64-bit integers. Keys mean the same in every chunk, on every worker and engine, so
tables over keys can be merged and looked up anywhere. Two keys are reserved: `MISSING_KEY` and `UNSEEN_KEY`.

Two distinct levels out of ``n`` share a key with a probability of about ``n**2 / 2**65`` (3e-8 for a million levels);
they are then one level to everything that follows.

`hash_levels` works on the host, where levels live (`tabgpu.xxhash64`). The rest computes on NumPy and CuPy arrays
alike. What a table over keys holds beside them is the matter of whoever owns it (see `tabgpu.features.counts`).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa

from .columns import Array, ArrayModule
from .wire import record
from .xxhash64 import hash_bytes, hash_lanes

MISSING_KEY = 2**64 - 1  # sorts last
UNSEEN_KEY = 2**64 - 3
_SPARE_KEY = 2**64 - 2  # stands in for a level whose hash is a reserved key

_MASK = 2**64 - 1
_GAMMA, _MIX1, _MIX2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
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
        keys = hash_bytes(values, np.int32)
    elif pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        keys = hash_bytes(values, np.int64)
    else:
        keys = hash_lanes(_lanes(values))
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
    if len(keys) < 1000 or xp is not np:  # a device sorts by radix itself
        return xp.argsort(keys, kind="stable")
    order = xp.argsort((keys >> np.uint64(32)).astype("uint16"), kind="stable")
    order = order[xp.argsort((keys >> np.uint64(48)).astype("uint16")[order], kind="stable")]
    return order[xp.argsort(keys[order], kind="stable")]


@record
@dataclass(frozen=True, eq=False)
class KeyTable:
    """Lookup from keys to their rows in a sorted table.

    Only the keys travel. An index over their top bits, one or two buckets a key, is built at the first lookup; keys
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

    @classmethod
    def shared(cls, keys: Array) -> KeyTable:
        """The table of these keys that is in use, or a new one: steps with the same levels look up the same table."""
        what = len(keys), int(keys.sum()), array_module(keys).__name__
        table = _TABLES.get(what)
        if table is None or not bool((table.keys == keys).all()):
            table = _TABLES[what] = cls(keys)
        return table

    def __len__(self) -> int:
        return len(self.keys)

    @cached_property
    def _index(self) -> tuple[np.uint64, Array] | None:
        """Shift to a bucket and the first row of each bucket; None where bisection serves better."""
        xp = array_module(self.keys)
        if xp is not np:  # one kernel that bisects, where each step between buckets would wait for the device
            return None
        bits = max(1, len(self.keys).bit_length())
        shift = np.uint64(64 - bits)
        size = xp.bincount((self.keys >> shift).view("int64"), minlength=2**bits)
        if int(size.max()) > _LONGEST_BUCKET:
            return None
        starts = xp.minimum(xp.cumsum(size) - size, len(self.keys) - 1)
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
            rows = starts.take((keys >> shift).view("int64"))
            found = self.keys.take(rows)
            # Within a bucket keys ascend: step until the row's key is not below the query.
            behind = xp.flatnonzero((found < keys) & (keys <= self.keys[-1]))
            while len(behind):
                ahead = rows.take(behind) + rows.dtype.type(1)
                next_keys = self.keys.take(ahead)
                rows[behind], found[behind] = ahead, next_keys
                behind = behind[next_keys < keys.take(behind)]
            return xp.where(found == keys, rows, rows.dtype.type(-1))
        return xp.where(self.keys[rows] == keys, rows, -1).astype("int32" if n < 2**31 else "int64")


_TABLES: WeakValueDictionary[tuple[int, int, str], KeyTable] = WeakValueDictionary()  # for `KeyTable.shared`


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
