"""Columns of libcudf to columns of a unified type, on the device: the same values as `tabgpu.engine.conversion` makes.

Numbers, dates and times are converted by array arithmetic. Text becomes codes: libcudf hashes it row by row, equal
hashes are one level (as everywhere in tabgpu, see `tabgpu.hashing`), and one row of each level is brought to the host.
What becomes of a level (text parsed as a number or a time, bytes that are not UTF-8, numbers as text) is then decided
by the CPU engine's own conversion, once a level and not once a row. Values that need care that the device cannot give
(decimals beyond 2^53) go the same way, row by row.

Everything returned is a copy: tables of libcudf stay with their reader (see `tabgpu.engine.gpu.streams`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import cupy
import numpy as np
import pyarrow as pa
import pyarrow.types as pat
import pylibcudf

from ...columns import Array, Column, Levels
from ...hashing import UNSEEN_KEY, hash_levels
from ...schema import ColumnType
from .. import conversion as host
from ..conversion import Origin
from .streams import Streams

_NUMBERS = {
    **{name: name.lower() for name in ("INT8", "INT16", "INT32", "INT64", "FLOAT32", "FLOAT64")},
    **{name: name.lower() for name in ("UINT8", "UINT16", "UINT32", "UINT64")},
    "BOOL8": "uint8",
    **{"DECIMAL32": "int32", "DECIMAL64": "int64", "DECIMAL128": "int64"},  # the last in two words
    "TIMESTAMP_DAYS": "int32",
    **{f"{kind}_{unit}": "int64" for kind in ("TIMESTAMP", "DURATION") for unit in ("SECONDS", "MILLISECONDS")},
    **{f"{kind}_{unit}": "int64" for kind in ("TIMESTAMP", "DURATION") for unit in ("MICROSECONDS", "NANOSECONDS")},
}
_UNITS = {"SECONDS": "s", "MILLISECONDS": "ms", "MICROSECONDS": "us", "NANOSECONDS": "ns"}
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_EXACT_POWER = 22  # 10^22 is the largest power of ten that float64 holds exactly


@dataclass(frozen=True)
class Raw:
    """Values of a fixed width as libcudf holds them: a view of its memory, and where they are there."""

    values: Array
    valid: Array | None


def to_column(
    source: pylibcudf.Column, arrow: pa.DataType, column: ColumnType, origin: Origin, streams: Streams
) -> Column:
    """Turn one column of libcudf into a column of the unified type.

    Parameters
    ----------
    source : pylibcudf.Column
        Shape (n_rows,), of a type for which `reading.host_reason` has no objection.
    arrow : pyarrow.DataType
        What Arrow calls its type.
    column : ColumnType
        The type over all files.
    origin : Origin
        For messages.
    streams : Streams
        `source` was made on the reader's.

    Raises
    ------
    DataError
        If a value does not fit: names column, place and value.
    """
    if pat.is_dictionary(arrow):
        arrow = arrow.value_type
    if source.size() == 0:
        return move(host.to_column(pa.array([], arrow), column, origin))
    if source.type().id() == pylibcudf.TypeId.STRING:
        return _text(source, column, origin, streams)
    raw = _raw(source)
    if column.kind == "datetime":
        return _datetime(raw, _time_unit(source), column, origin)
    if pat.is_decimal(arrow):
        raw = _decimals(raw, -source.type().scale(), column, origin)
    elif pat.is_duration(arrow):
        raw = replace(raw, values=_scaled(raw, arrow.unit, str(column.unit), pa.duration(arrow.unit), column, origin))
    return _categorical(raw, arrow, column, origin) if column.kind == "categorical" else _numeric(raw, column)


def move(column: Column) -> Column:
    """A column of the host, moved."""
    levels = None if column.levels is None else Levels(column.levels.values, _keys)
    valid = None if column.valid is None else cupy.asarray(column.valid)
    return replace(column, values=cupy.asarray(column.values), valid=valid, levels=levels)


def repeat(value: str | None, column: ColumnType, n_rows: int, origin: Origin) -> Column:
    """Column that holds one value, given as text, in all rows; see `tabgpu.engine.conversion.repeat`."""
    one = move(host.repeat(value, column, 1, origin))
    return one.take(cupy.zeros(n_rows, "int8"))


def _keys(levels: pa.Array) -> Array:
    return cupy.asarray(hash_levels(levels))


def _raw(source: pylibcudf.Column) -> Raw:
    """Views of values and mask, without what lies before a slice's offset."""
    name = source.type().id().name
    dtype, words = np.dtype(_NUMBERS[name]), 2 if name == "DECIMAL128" else 1
    start, n_rows, width = source.offset(), source.size(), dtype.itemsize * words
    values = cupy.asarray(source.data()).view("uint8")[start * width : (start + n_rows) * width].view(dtype)
    return Raw(values.reshape(n_rows, 2) if words == 2 else values, _valid(source))


def _valid(source: pylibcudf.Column) -> Array | None:
    if source.null_count() == 0:
        return None
    start, n_rows = source.offset(), source.size()
    mask = cupy.asarray(source.null_mask()).view("uint8")[start // 8 : (start + n_rows + 7) // 8]
    return cupy.unpackbits(mask, bitorder="little")[start % 8 : start % 8 + n_rows].astype(bool)


def _numeric(raw: Raw, column: ColumnType) -> Column:
    values = raw.values.astype(column.dtype)
    if raw.valid is None or values.dtype.kind != "f":
        return Column(values, valid=raw.valid)
    values[~raw.valid] = np.nan
    return Column(values)


def _time_unit(source: pylibcudf.Column) -> str:
    """Unit of a time: 'D' for days."""
    return _UNITS.get(source.type().id().name.partition("_")[2], "D")


def _datetime(raw: Raw, unit: str, column: ColumnType, origin: Origin) -> Column:
    kind = pa.date32() if unit == "D" else pa.timestamp(unit)
    values = _scaled(raw, unit, str(column.unit), kind, column, origin)
    return Column(values, "datetime", raw.valid, unit=column.unit, zone=column.zone)


def _scaled(raw: Raw, unit: str, to: str, kind: pa.DataType, column: ColumnType, origin: Origin) -> Array:
    """int64 counts in a unit as fine or finer; the CPU engine refuses what int64 cannot hold."""
    factor = 86_400 * _PER_SECOND[to] if unit == "D" else _PER_SECOND[to] // _PER_SECOND[unit]
    values = raw.values.astype("int64")
    if factor == 1:
        return values
    if raw.valid is not None:
        values[~raw.valid] = 0
    ends = np.array([int(values.min()), int(values.max())])
    if int(ends[0]) * factor < -(2**63) or int(ends[1]) * factor >= 2**63:
        host.to_column(pa.array(ends).cast(pa.int32() if unit == "D" else pa.int64()).cast(kind), column, origin)
        raise OverflowError(f"{column.name}: {ends} in {unit} as {to}")  # not reached: Arrow refuses it
    return values * np.int64(factor)


def _decimals(raw: Raw, scale: int, column: ColumnType, origin: Origin) -> Raw:
    """Nearest float64 of each decimal; see `tabgpu.engine.conversion`."""
    low, high = (raw.values[:, 0], raw.values[:, 1]) if raw.values.ndim == 2 else (raw.values.astype("int64"), None)
    exact = (low <= 2**53) & (low >= -(2**53))
    if high is not None:
        exact &= high == low >> np.int64(63)
    if not 0 <= scale <= _EXACT_POWER:
        exact[:] = False
    floats = low / 10.0**scale
    inexact = ~exact if raw.valid is None else ~exact & raw.valid
    if bool(inexact.any()):
        rows = cupy.flatnonzero(inexact)
        words = cupy.stack([low[rows], low[rows] >> np.int64(63) if high is None else high[rows]], axis=1)
        buffer = pa.py_buffer(cupy.asnumpy(words).tobytes())
        numbers = pa.Array.from_buffers(pa.decimal128(38, scale), len(rows), [None, buffer])
        floats[rows] = cupy.asarray(
            host.to_column(numbers, replace(column, kind="numeric", dtype="float64"), origin).values
        )
    return Raw(floats, raw.valid)


def _categorical(raw: Raw, arrow: pa.DataType, column: ColumnType, origin: Origin) -> Column:
    """Codes of numbers; -0.0 and 0.0 are one level, NaN is missing."""
    values, valid = raw.values, raw.valid
    if column.levels != "text":
        values = values.astype(column.levels)
    if values.dtype.kind == "f":
        values = values + values.dtype.type(0)
        there = values == values
        valid = there if valid is None else there & valid
    distinct, _, codes = _factorized(values, valid)
    levels = pa.array(cupy.asnumpy(distinct))
    if column.levels == "text" and pat.is_boolean(arrow):
        levels = levels.cast(pa.bool_())
    return _spread(codes, levels, column, origin)


def _text(source: pylibcudf.Column, column: ColumnType, origin: Origin, streams: Streams) -> Column:
    hashes = pylibcudf.hashing.xxhash_64(pylibcudf.Table([source]), seed=0, stream=streams.reader)
    streams.to_arrays()
    keys, first, codes = _factorized(_raw(hashes).values, _valid(source))
    rows = first.astype("int32")
    streams.to_tables()
    if not len(keys):
        return repeat(None, column, len(codes), origin)
    picks = pylibcudf.Column.from_cuda_array_interface(rows, stream=streams.reader)
    bounds = pylibcudf.copying.OutOfBoundsPolicy.DONT_CHECK
    picked = pylibcudf.copying.gather(pylibcudf.Table([source]), picks, bounds, stream=streams.reader)
    levels = picked.columns()[0].to_arrow(stream=streams.reader)
    origin = replace(origin, unique=True, row_of=lambda position: int(first[position]))
    if column.kind == "categorical":  # in a dictionary it is taken as it is, not looked up once more
        levels = pa.DictionaryArray.from_arrays(np.arange(len(levels), dtype=np.int32), levels)
    reserved = int(keys[-1]) >= UNSEEN_KEY  # the host's hash moves such a level to another key
    return _spread(codes, levels, column, origin, None if reserved else keys)


def _factorized(values: Array, valid: Array | None) -> tuple[Array, Array, Array]:
    """Distinct values in order, a row of each, and int32 codes of all rows, -1 where missing."""
    rows = None if valid is None else cupy.flatnonzero(valid)
    there = values if rows is None else values[rows]
    distinct, first, inverse = cupy.unique(there, return_index=True, return_inverse=True)
    if rows is None:
        return distinct, first, inverse.astype("int32")
    codes = cupy.full(len(values), -1, "int32")
    codes[rows] = inverse.astype("int32")
    return distinct, rows[first], codes


def _spread(codes: Array, levels: pa.Array, column: ColumnType, origin: Origin, keys: Array | None = None) -> Column:
    """Column of codes into levels, each as the host converts it; `keys` are the keys of text, where known."""
    if len(levels) == 0:
        return repeat(None, column, len(codes), origin)
    per_level = host.to_column(levels, column, origin)
    if per_level.levels is None:
        return _looked_up(codes, move(per_level))
    if np.array_equal(per_level.values, np.arange(len(per_level.levels))):  # no two have become one
        final = Levels(per_level.levels.values, _keys if keys is None else lambda _: keys)
        return replace(per_level, values=codes, levels=final)
    new = cupy.asarray(np.append(per_level.values, np.int32(-1)))
    return replace(per_level, values=new[codes], levels=Levels(per_level.levels.values, _keys))


def _looked_up(codes: Array, per_level: Column) -> Column:
    """Numbers or times of the levels, row by row."""
    missing, known = codes < 0, cupy.maximum(codes, 0)
    values = per_level.values[known]
    if values.dtype.kind == "f":
        values[missing] = np.nan
        return replace(per_level, values=values)
    valid = ~missing if per_level.valid is None else per_level.valid[known] & ~missing
    return replace(per_level, values=values, valid=valid)
