"""Arrow arrays to columns of a unified type, and back: what a value in a file becomes in a chunk.

A column has one type over all files (`tabgpu.schema.ColumnType`); an array of any type that schema allows beside it is
converted to it here, exactly or not at all: a value that does not fit is an error that names column, file and, for text
that is not UTF-8, the row. Numbers and codes are views of Arrow's buffers where they can be, and therefore read-only.

Levels of a chunk are distinct, none is missing, and there are at most as many as rows. The codes of a file whose
dictionary page holds a value twice are refused, because Arrow shifts them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ..columns import Column, Levels
from ..errors import DataError
from ..files import first_line
from ..hashing import hash_levels
from ..schema import ColumnType

_EXACT_POWER = 22  # 10^22 is the largest power of ten that float64 holds exactly


@dataclass(frozen=True)
class Origin:
    """Where an array comes from, for messages.

    Parameters
    ----------
    where : str
        Names file and row groups, or a table in memory.
    first_row : int
        Row number there of the array's first value, from 0.
    unique : bool
        Whether dictionaries are known to hold no value twice, as those that Arrow's Parquet reader makes.
    row_of : callable, optional
        Row number after `first_row` of a position in the array, where an array holds the distinct values alone.
    """

    where: str
    first_row: int = 0
    unique: bool = False
    row_of: Callable[[int], int] = int


def to_column(array: pa.Array, column: ColumnType, origin: Origin) -> Column:
    """Turn one Arrow array into a column of the unified type.

    Parameters
    ----------
    array : pyarrow.Array
        Shape (n_rows,), of any type that can be that column.
    column : ColumnType
        The type over all files.
    origin : Origin
        For messages.

    Returns
    -------
    Column
        Shape (n_rows,); decimals to the nearest float64, int64 beyond 2^53 rounded where the unified type is a float.

    Raises
    ------
    DataError
        If a value does not fit: names column, place and value.
    """
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    try:
        array = _without_views(array)
        if column.kind == "categorical":
            return _categorical(array, column, origin)
        return _datetime(array, column) if column.kind == "datetime" else _numeric(array, column)
    except pa.ArrowMemoryError:
        raise
    except pa.ArrowException as error:
        kind = {"categorical": f"levels of {column.levels}", "datetime": f"times in {column.unit}"}
        raise DataError(
            f"The column {column.name!r} of {origin.where} holds what cannot be used: {first_line(error)}",
            f"Expected {kind.get(column.kind, column.dtype)}, as in the other files",
            f"Write the file again with one type, or set data.columns.{column.name}.kind",
        ) from error


def _without_views(array: pa.Array) -> pa.Array:
    """Text and bytes as arrays that all of Arrow's casts know."""
    if pat.is_string_view(array.type):
        return array.cast(pa.large_string())
    return array.cast(pa.large_binary()) if pat.is_binary_view(array.type) else array


def repeat(value: str | None, column: ColumnType, n_rows: int, origin: Origin) -> Column:
    """Column that holds one value, given as text, in all rows."""
    return to_column(pa.array([value], pa.string()), column, origin).take(np.zeros(n_rows, np.int8))


def to_arrow(column: Column) -> pa.Array:
    """Arrow array of a column of host arrays; see `tabgpu.engine.protocol.Engine.to_arrow`."""
    values = column.values
    if column.kind == "categorical" and column.levels is not None:
        return pa.DictionaryArray.from_arrays(pa.array(values, mask=values < 0), column.levels.values)
    missing = None if column.valid is None else ~column.valid
    if column.kind == "datetime":
        return pa.array(values, mask=missing).cast(pa.timestamp(column.unit, column.zone))
    if values.dtype.kind == "f":
        return pa.array(values, from_pandas=True)  # NaN is missing
    return pa.array(values, mask=missing)


def _valid(array: pa.Array) -> np.ndarray | None:
    return array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None


def _buffer(array: pa.Array, dtype: np.dtype) -> np.ndarray:
    """View the values of a primitive array, whatever stands where it is null."""
    data = array.buffers()[1]
    if data is None or len(array) == 0:
        return np.zeros(len(array), dtype)
    return np.frombuffer(data, dtype, count=len(array), offset=array.offset * dtype.itemsize)


def _numeric(array: pa.Array, column: ColumnType) -> Column:
    if pat.is_dictionary(array.type):
        array = array.dictionary_decode()
    dtype = np.dtype(column.dtype)
    array = _numbers(array, dtype, column.unit)
    valid = _valid(array)
    values = _buffer(array, dtype)
    if dtype.kind != "f":
        return Column(values, valid=valid)
    if valid is not None:
        values = values.copy()
        values[~valid] = np.nan
    return Column(values)


def _numbers(array: pa.Array, dtype: np.dtype, unit: str | None) -> pa.Array:
    """Cast to a dtype: exactly for integers, to the nearest value for floats. NaN becomes null where ints have none."""
    kind = array.type
    if pat.is_temporal(kind):
        array = _counts(array, unit)
    elif pat.is_decimal(kind):
        array = _decimals(array)
    elif pat.is_floating(kind) and dtype.kind != "f":
        array = pc.if_else(pc.is_nan(array), pa.scalar(None, kind), array)
    target = pa.from_numpy_dtype(dtype)
    # int to float64 rounds beyond 2^53: schema.unify has said so as drift
    return array if array.type == target else array.cast(target, safe=dtype.kind != "f")


def _counts(array: pa.Array, unit: str | None) -> pa.Array:
    """int64 counts of `unit`: times of day since midnight, and durations."""
    if unit is None or pat.is_timestamp(array.type) or pat.is_date(array.type):
        raise pa.ArrowInvalid(f"{array.type} is no number")
    if pat.is_duration(array.type):
        return array.cast(pa.duration(unit)).cast(pa.int64())
    narrow = unit in ("s", "ms")
    array = array.cast(pa.time32(unit) if narrow else pa.time64(unit))
    return array.cast(pa.int32() if narrow else pa.int64()).cast(pa.int64())


def _decimals(array: pa.Array) -> pa.Array:
    """Nearest float64 of each decimal.

    Arrow multiplies by a rounded power of ten, which misses the nearest value for one in ten. An integer below 2^53
    over a power of ten up to 10^22 is rounded once, hence right (IEEE 754); what is larger goes through its text.
    """
    scale = array.type.scale
    if array.type.bit_width < 128:
        array = array.cast(pa.decimal128(38, scale))
    if array.type.bit_width == 128 and 0 <= scale <= _EXACT_POWER and len(array):
        words = np.frombuffer(array.buffers()[1], "<i8", 2 * len(array), 16 * array.offset)
        low, high = words[0::2], words[1::2]
        valid = _valid(array)
        exact = (high == low >> 63) & (np.abs(low) <= 2**53) & (low != np.iinfo(np.int64).min)
        if bool((exact if valid is None else exact | ~valid).all()):
            return pa.array(low / 10.0**scale, mask=None if valid is None else ~valid)
    return array.cast(pa.string()).cast(pa.float64())


def _datetime(array: pa.Array, column: ColumnType) -> Column:
    unit = str(column.unit)
    if pat.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    if _is_text(kind):
        array = _parsed(array, unit)
    elif pat.is_date(kind):
        array = array.cast(pa.timestamp("ms" if pat.is_date64(kind) else "s"))
    elif not pat.is_timestamp(kind) and not pat.is_null(kind):
        raise pa.ArrowInvalid(f"{kind} is no date or time")
    zone = array.type.tz if pat.is_timestamp(array.type) else None
    array = array.cast(pa.timestamp(unit, zone)).cast(pa.int64())  # raises where a finer unit overflows
    return Column(_buffer(array, np.dtype(np.int64)), "datetime", _valid(array), unit=unit, zone=column.zone)


def _parsed(text: pa.Array, unit: str) -> pa.Array:
    """Timestamps of ISO 8601 text, all with or all without an offset from UTC."""
    try:
        return text.cast(pa.timestamp(unit))
    except pa.ArrowInvalid:
        return text.cast(pa.timestamp(unit, "UTC"))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pat.is_string(kind) or pat.is_large_string(kind))


def _categorical(array: pa.Array, column: ColumnType, origin: Origin) -> Column:
    text = column.levels == "text"
    if pat.is_null(array.type) or (pat.is_dictionary(array.type) and pat.is_null(array.type.value_type)):
        array = pa.nulls(len(array), pa.string() if text else pa.from_numpy_dtype(np.dtype(str(column.levels))))
    unique = origin.unique and text
    if not pat.is_dictionary(array.type):
        if not text:
            array = _numbers(array, np.dtype(str(column.levels)), column.unit)
        elif pat.is_boolean(array.type):
            array = array.cast(pa.string())
        array, unique = array.dictionary_encode(), text
    codes, levels = _codes(array, column, origin), array.dictionary
    if len(levels) > len(codes):
        codes, levels = _compact(codes, levels)
    levels = _text(levels) if text else _numbers(levels, np.dtype(str(column.levels)), column.unit)
    if text:
        _refuse_bad_text(levels, codes, column, origin)
    if not unique or levels.null_count:
        codes, levels = _merge(codes, levels)
    return Column(codes, "categorical", levels=Levels(levels, hash_levels))


def _codes(array: pa.DictionaryArray, column: ColumnType, origin: Origin) -> np.ndarray:
    """int32 codes, -1 where missing; never beyond the levels."""
    indices = array.indices.cast(pa.int32())
    if indices.null_count:
        indices = pc.fill_null(indices, pa.scalar(-1, pa.int32()))
    codes = _buffer(indices, np.dtype(np.int32))
    if len(codes) and int(codes.max()) >= len(array.dictionary):
        raise DataError(
            f"The column {column.name!r} of {origin.where} has code {int(codes.max())}, and {len(array.dictionary)} "
            "distinct levels",
            "Expected dictionary pages that hold each value once",
            "Write the file again with another writer, or without dictionaries",
        )
    return codes


def _compact(codes: np.ndarray, levels: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """Keep the levels in use: a small chunk of a large row group carries the whole dictionary of the group."""
    used = np.zeros(len(levels) + 1, bool)
    used[codes] = True  # the last place is that of -1
    used[-1] = False
    new = np.cumsum(used, dtype=np.int32) - np.int32(1)
    new[-1] = -1
    return new[codes], levels.take(pa.array(np.flatnonzero(used)))


def _text(levels: pa.Array) -> pa.Array:
    """Levels as text, unchecked; as large_string where they exceed 2 GiB."""
    levels = _without_views(levels)
    kind = levels.type
    if pat.is_string(kind):
        return levels
    if pat.is_fixed_size_binary(kind):
        levels = levels.cast(pa.binary())
    elif not (_is_text(kind) or pat.is_integer(kind) or pat.is_binary(kind) or pat.is_large_binary(kind)):
        raise pa.ArrowInvalid(f"{kind} is no text")
    large = (pat.is_large_string(kind) or pat.is_large_binary(kind)) and levels.nbytes > 2**31
    return levels.cast(pa.large_string() if large else pa.string(), safe=False)


def _refuse_bad_text(levels: pa.Array, codes: np.ndarray, column: ColumnType, origin: Origin) -> None:
    """Refuse levels that are not UTF-8, naming the first row that has one."""
    try:
        levels.validate(full=True)
        return
    except pa.ArrowInvalid as error:
        raws = [raw or b"" for raw in levels.cast(pa.large_binary()).to_pylist()]
        code, raw = next((i, r) for i, r in enumerate(raws) if r != r.decode(errors="ignore").encode())
        rows = np.flatnonzero(codes == code)
        place = f" in row {origin.first_row + origin.row_of(int(rows[0]))} (from 0)" if len(rows) else ""
        raise DataError(
            f"The column {column.name!r} of {origin.where} holds {raw!r}{place}, which is not UTF-8",
            "Expected text in UTF-8",
            f"Write the file again with its text decoded, or set data.columns.{column.name}.kind=ignore",
        ) from error


def _merge(codes: np.ndarray, levels: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """Give equal levels one code (-0.0 and 0.0 too), and missing ones (null, NaN) -1."""
    if pat.is_floating(levels.type):
        values = levels.to_numpy(zero_copy_only=False) + levels.type.to_pandas_dtype()(0)
        levels = pa.array(values, from_pandas=True)
    merged = levels.dictionary_encode()
    if len(merged.dictionary) == len(levels):
        return codes, levels
    new = np.full(len(levels) + 1, -1, np.int32)
    new[:-1] = pc.fill_null(merged.indices, pa.scalar(-1, pa.int32())).to_numpy()
    return new[codes], merged.dictionary
