"""Parquet to tables of libcudf, piece by piece, and which columns libcudf reads like the CPU engine.

libcudf's chunked reader decodes no more than a limit of bytes at a time, also within a row group. Columns whose values
it would read otherwise than Arrow, or not at all, are read on the host by the CPU engine and moved: `host_reason` says
which, and why. Everything is decided from the footer, before a row is read.

libcudf does not verify the checksums of pages: a flipped bit that decompression does not notice is a wrong value, as in
most readers. Whoever must know reads once with the CPU engine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat
import pylibcudf

from ...files import Part, first_line
from ...schema import ColumnType
from ..memory import is_out_of_memory
from .streams import Streams

_TEXT_BYTES = 64  # a row of text: its offset and some 60 bytes; longer text makes pieces of fewer rows
_MOST_TEXT = 2**31 - 1  # bytes in a piece that holds text, so that offsets stay 32 bits wide
_UNITS = ("s", "ms", "us", "ns")
_WIDEST_DECIMAL = 16  # bytes
_LEAST_PASS = 64 * 2**20  # bytes of pages that are decompressed together: less would take many launches for few rows


class UnreadableError(Exception):
    """libcudf cannot read a file; the CPU engine may, or can say what is wrong with it."""


@dataclass(frozen=True)
class Sources:
    """Where the wanted columns of a file come from.

    Parameters
    ----------
    device : dict of str to pyarrow.DataType
        Read by libcudf: name, and type in the file as Arrow calls it.
    host : dict of str to str
        Read by the CPU engine: name, and why.
    """

    device: dict[str, pa.DataType]
    host: dict[str, str]


def sort_columns(parquet: pq.ParquetFile, columns: Sequence[ColumnType], part: Part) -> Sources:
    """Decide for each wanted column that the file has who reads it."""
    schema = parquet.schema_arrow
    leaves = {leaf.path: leaf for leaf in (parquet.schema.column(i) for i in range(len(parquet.schema)))}
    sources = Sources({}, {})
    for column in columns:
        if column.name not in schema.names:
            continue
        arrow = schema.field(column.name).type
        reason = (
            "it lies on another machine" if "://" in part.file.path else _leaf_reason(leaves.get(column.name), arrow)
        )
        reason = reason or host_reason(arrow, column)
        if reason:
            sources.host[column.name] = reason
        else:
            sources.device[column.name] = arrow
    return sources


def _leaf_reason(leaf: pq.ColumnSchema | None, arrow: pa.DataType) -> str | None:
    """Say why libcudf does not read what the footer describes as Arrow does; None where it does."""
    if leaf is None or "." in leaf.path:
        return "its name has a dot, or it is nested"
    if leaf.physical_type == "INT96":
        return "times of 96 bits are checked on the host"
    if leaf.physical_type == "FIXED_LEN_BYTE_ARRAY" and not (pat.is_decimal(arrow) and leaf.length <= _WIDEST_DECIMAL):
        return f"libcudf has no {arrow}"
    if leaf.physical_type == "BYTE_ARRAY" and not is_text(arrow):
        return f"libcudf takes {arrow} for text"
    return None


def host_reason(arrow: pa.DataType, column: ColumnType) -> str | None:
    """Say why a type is not converted on the device to what a column is to be; None where it is.

    Parameters
    ----------
    arrow : pyarrow.DataType
        Type in the file or frame.
    column : ColumnType
        The unified type.

    Examples
    --------
    >>> host_reason(pa.float16(), ColumnType("x", "numeric", "float16"))
    'libcudf has no halffloat'
    >>> host_reason(pa.int8(), ColumnType("x", "numeric", "int64")) is None
    True
    """
    if pat.is_dictionary(arrow):
        arrow = arrow.value_type
    if is_text(arrow):
        return None
    if pat.is_timestamp(arrow) or pat.is_date(arrow):
        unit = arrow.unit if pat.is_timestamp(arrow) else "ms" if pat.is_date64(arrow) else "s"
        return None if column.kind == "datetime" and _finer(unit, column.unit) else f"{arrow} is no {column.kind} as is"
    if column.kind == "datetime":
        return f"{arrow} is no time"
    if pat.is_duration(arrow):
        exact = column.levels != "text" and _finer(arrow.unit, column.unit)
        return None if exact else f"{arrow} does not fit {column.unit}"
    return _number_reason(arrow, column)


def _number_reason(arrow: pa.DataType, column: ColumnType) -> str | None:
    target = column.levels if column.kind == "categorical" else column.dtype
    whole = pat.is_integer(arrow) or pat.is_boolean(arrow)
    if pat.is_decimal(arrow):
        return None if target == "float64" else f"{arrow} does not fit {target}"
    if not (whole or pat.is_float32(arrow) or pat.is_float64(arrow)):
        return f"libcudf has no {arrow}"
    if target == "text":
        return None if whole else f"{arrow} is no text"
    source = np.dtype("uint8") if pat.is_boolean(arrow) else np.dtype(arrow.to_pandas_dtype())
    goal = np.dtype(target)
    return None if goal.kind == "f" or np.can_cast(source, goal) else f"{arrow} may not fit {target}"


def is_text(arrow: pa.DataType) -> bool:
    """Whether values are text, in dictionaries or not."""
    if pat.is_dictionary(arrow):
        arrow = arrow.value_type
    return bool(pat.is_string(arrow) or pat.is_large_string(arrow) or pat.is_string_view(arrow))


def _finer(unit: str, than: str | None) -> bool:
    return than is not None and _UNITS.index(unit) <= _UNITS.index(than)


def piece_bytes(types: Sequence[pa.DataType], chunk_rows: int) -> int:
    """Bytes that `chunk_rows` rows of these types take as a table of libcudf."""
    bits = sum(8 * _TEXT_BYTES if is_text(t) else _bits(t) for t in types)
    n_bytes = max(chunk_rows * bits // 8, 1)
    return min(n_bytes, _MOST_TEXT) if any(map(is_text, types)) else n_bytes


def _bits(arrow: pa.DataType) -> int:
    if pat.is_dictionary(arrow):
        arrow = arrow.value_type
    return max(int(arrow.bit_width), 8) + 1  # one for the mask


class Pieces:
    """Tables of a part's device columns, cut to the number of rows asked for.

    Parameters
    ----------
    part : Part
        The part.
    types : mapping of str to pyarrow.DataType
        Its columns that libcudf reads.
    chunk_rows : int
        Rows that one piece should have.
    streams : Streams
        On whose reader's stream all is done.
    """

    def __init__(self, part: Part, types: dict[str, pa.DataType], chunk_rows: int, streams: Streams) -> None:
        limit = piece_bytes(list(types.values()), chunk_rows)
        self.streams = streams
        self._table: pylibcudf.Table | None = None
        self._start = 0
        self.names: list[str] = []
        try:
            source = pylibcudf.io.SourceInfo([part.file.path])
            builder = pylibcudf.io.parquet.ParquetReaderOptions.builder(source)
            options = builder.use_arrow_schema(False).use_pandas_metadata(False).build()
            options.set_row_groups([list(part.groups)])
            options.set_column_names(list(types))
            self._reader = pylibcudf.io.parquet.ChunkedParquetReader(
                options, stream=streams.reader, chunk_read_limit=limit, pass_read_limit=max(2 * limit, _LEAST_PASS)
            )
        except (RuntimeError, ValueError, OverflowError, OSError) as error:
            raise _unreadable(error) from error

    def ahead(self, most: int) -> int:
        """Rows to take next, up to `most`, so that no two pieces need joining; 0 at the end."""
        left = self._left()
        return math.ceil(left / math.ceil(left / most)) if left else 0

    def take(self, n_rows: int) -> list[pylibcudf.Column]:
        """Columns of the next `n_rows` rows, in the order of `names`, joined where they lie in several pieces.

        They are views of a piece: whoever is done with them says so to the streams before letting go.
        """
        slices = []
        while n_rows:
            n = min(self._left(), n_rows)
            if n == 0:
                raise UnreadableError(f"it ends {n_rows} rows early")
            slices += pylibcudf.copying.slice(self._table, [self._start, self._start + n], stream=self.streams.reader)
            self._start += n
            n_rows -= n
        whole = slices[0] if len(slices) == 1 else pylibcudf.concatenate.concatenate(slices, stream=self.streams.reader)
        return list(whole.columns())

    def skip(self, n_rows: int) -> None:
        """Leave out the next `n_rows` rows."""
        while n_rows:
            n = min(self._left(), n_rows)
            if n == 0:
                raise UnreadableError(f"it ends {n_rows} rows early")
            self._start += n
            n_rows -= n

    def _left(self) -> int:
        """Rows left of the piece, after reading the next one where none are."""
        try:
            while self._table is None or self._start == self._table.num_rows():
                self._table = None  # its memory is free before the next piece takes some
                if not self._reader.has_next():
                    return 0
                read = self._reader.read_chunk()
                self._table, self._start, self.names = read.tbl, 0, read.column_names()
        except (RuntimeError, ValueError, OverflowError) as error:
            raise _unreadable(error) from error
        return int(self._table.num_rows() - self._start)


def _unreadable(error: Exception) -> Exception:
    """What libcudf raised, as UnreadableError; running out of memory stays what it is."""
    return error if is_out_of_memory(error) else UnreadableError(first_line(error))
