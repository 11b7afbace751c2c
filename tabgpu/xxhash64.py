"""xxhash64 with seed 0 of many values at once, in NumPy (specification: Cyan4973/xxHash, doc/xxhash_spec.md).

`hash_bytes` takes texts and bytes as Arrow holds them, `hash_lanes` values of 8 bytes. Every operation is one over a
block of values: those of equal length take the same steps and need no picking (`_hash_alike`), others are picked at
each step. What a level's bytes are, and which keys are reserved, is left to `tabgpu.hashing`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from .columns import Array

_MASK = 2**64 - 1
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


def _rotate(x: Array, bits: int) -> Array:
    """Rotate the bits of an array that nobody else holds, in place."""
    low = x >> np.uint64(64 - bits)
    x <<= np.uint64(bits)
    x |= low
    return x


def _round(accumulator: Any, lane: Array) -> Array:
    mixed = lane * _P2
    mixed += accumulator
    mixed = _rotate(mixed, 31)
    mixed *= _P1
    return mixed


def _add_lane(h: Array, lane: Array) -> Array:
    mixed = _round(np.uint64(0), lane)
    mixed ^= h
    mixed = _rotate(mixed, 27)
    mixed *= _P1
    mixed += _P4
    return mixed


def _add_word(h: Array, word: Array) -> Array:
    return _rotate(h ^ (word.astype(np.uint64) * _P1), 23) * _P2 + _P3


def _add_byte(h: Array, byte: Array) -> Array:
    return _rotate(h ^ (byte.astype(np.uint64) * _P5), 11) * _P1


def _avalanche(h: np.ndarray) -> np.ndarray:
    h ^= h >> np.uint64(33)
    h *= _P2
    h ^= h >> np.uint64(29)
    h *= _P3
    h ^= h >> np.uint64(32)
    return h


def hash_lanes(lanes: np.ndarray) -> np.ndarray:
    """xxhash64 of values of 8 bytes each."""
    start = np.full(len(lanes), int(_P5) + 8, np.uint64)
    return _avalanche(_add_lane(start, lanes))


def hash_bytes(values: pa.Array, offset_dtype: type) -> np.ndarray:
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
    length = offsets[1:] - offsets[:-1]
    if length[0] < 32 and bool((length == length[0]).all()):
        return _hash_alike(data[offsets[0] : offsets[-1]], len(length), int(length[0]))
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
        h[rows] = _add_word(h[rows], _overlapping(data, np.uint32)[at[rows]])
        at[rows] += 4
    for k in range(int((rest & 3).max())):
        rows = _rows((rest & 3) > k)
        h[rows] = _add_byte(h[rows], data[at[rows]])
        at[rows] += 1
    return _avalanche(h)


def _hash_alike(data: np.ndarray, n: int, length: int) -> Array:
    """xxhash64 of n strings of equal length, below 32, one behind the other: three times as fast as `_hash_block`."""

    def words(at: int, dtype: str) -> np.ndarray:
        return np.ndarray((n,), dtype, data, at, (length,))

    h = np.full(n, int(_P5) + length, np.uint64)
    for at in range(0, length - 7, 8):
        h = _add_lane(h, words(at, "<u8"))
    if length & 4:
        h = _add_word(h, words(length & 24, "<u4"))
    for at in range(length & 28, length):
        h = _add_byte(h, words(at, "u1"))
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
    merged = sum(_rotate(lane.copy(), bits) for lane, bits in zip(v, (1, 7, 12, 18), strict=True))
    for lane in v:
        merged = (merged ^ _round(np.uint64(0), lane)) * _P1 + _P4
    h[rows] = merged
    at[rows] += stripes << 5
