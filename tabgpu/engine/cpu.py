"""The CPU engine: pyarrow reads, NumPy computes.

Text becomes integer codes at the door: pyarrow hands out the dictionaries that Parquet pages carry (`read_dictionary`),
so a string is never made for a row. Values are converted to the unified types in `tabgpu.engine.conversion`.

Whatever pyarrow says of a damaged file becomes a `DataError` that names file, row groups and column; running out of
memory stays a `MemoryError`, which `is_out_of_memory` knows.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pat

from ..columns import Array, ArrayModule, Column
from ..errors import DataError
from ..files import Part, first_line, open_parquet
from ..schema import ColumnType
from .conversion import Origin, repeat, to_arrow, to_column
from .memory import DeviceMemoryUse, MemorySettings, is_out_of_memory

# What Arrow says of delta-encoded text, and of levels beyond 2 GiB
_NO_DICTIONARY = ("Not yet implemented: DecodeArrow of DictAccumulator", "cannot contain more than 2147483646 bytes")
_CHECKED_ROWS = 65_536  # rows read at once where columns are read for a check alone

# The reader is a thread of its own already. On few processors Arrow's pool beside it costs more than it brings: 2.04
# against 1.67 CPU-s to decode 2M rows of 39 columns, and 30-50 MB.
_MANY_CPUS = (os.cpu_count() or 1) > 4

T = TypeVar("T")


class CpuEngine:
    """pyarrow and NumPy on the host."""

    name = "cpu"
    device = "cpu"

    @property
    def xp(self) -> ArrayModule:
        """NumPy."""
        return np

    def begin(self) -> None:
        """Nothing: an engine of the host keeps nothing."""

    def setup(self, settings: MemorySettings) -> None:
        """Nothing: there is no device."""

    def read(
        self, part: Part, columns: Sequence[ColumnType], chunk_rows: int, skip: int = 0
    ) -> Iterator[dict[str, Column]]:
        """Read a part as chunks; see `Engine.read`."""
        rows = 0
        try:
            with open_parquet(part.file.path) as parquet:
                present = present_columns(parquet, columns, part)
                if not present:
                    yield from _rows_only(part, columns, chunk_rows, skip)
                    return
                _refuse_wild_int96(parquet, present, part)
                text = [c.name for c in columns if c.kind == "categorical" and c.levels == "text"]
                for batch in _batches(parquet, part, present, text, chunk_rows):
                    known = min(max(skip - rows, 0), batch.num_rows)
                    if known < batch.num_rows:
                        yield _columns(batch.slice(known), columns, part, rows + known)
                    rows += batch.num_rows
        except pa.ArrowMemoryError:
            raise
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            raise damaged(part, columns, error) from error
        if rows != part.n_rows:  # Arrow stops at the end of the shortest column
            raise damaged(part, columns, OSError(f"it holds {rows} rows, its footer says {part.n_rows}"))

    def from_arrow(self, table: pa.Table, columns: Sequence[ColumnType], where: str) -> dict[str, Column]:
        """Columns of a table in memory; see `Engine.from_arrow`."""
        out = {}
        for column in columns:
            found = table.column_names.count(column.name)
            if found > 1:
                raise DataError(
                    f"{where} has {found} columns called {column.name!r}",
                    "Expected each column name once",
                    "Rename or drop the others",
                )
            array = _whole(table[column.name]) if found else pa.nulls(table.num_rows)
            out[column.name] = to_column(array, column, Origin(where))
        return out

    def to_arrow(self, column: Column) -> pa.Array:
        """Arrow array of a column; see `Engine.to_arrow`."""
        return to_arrow(column)

    def to_host(self, array: Array) -> np.ndarray:
        """The array itself."""
        return np.asarray(array)

    def to_device(self, array: np.ndarray) -> Array:
        """The array itself."""
        return array

    def place(self, value: T) -> T:
        """The value itself."""
        return value

    def matrix(self, columns: Mapping[str, Column], names: Sequence[str], n_rows: int) -> Array:
        """2-D float32 array for XGBoost; see `Engine.matrix`."""
        out = np.empty((n_rows, len(names)), np.float32)
        # 1.5 ns a cell; blocks of rows that fit the cache, or a transposed copy, were no faster (1.6 to 3.8)
        with np.errstate(over="ignore"):  # beyond float32 is inf, which is refused where the matrix is checked
            for j, name in enumerate(names):
                column = columns[name]
                out[:, j] = column.values
                if column.kind == "categorical" or column.valid is not None:
                    out[column.missing(), j] = np.nan
        return out

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Nothing: the memory of the host is measured by `tabgpu.hardware.MemoryMonitor`."""
        return nullcontext()

    def training(self) -> AbstractContextManager[None]:
        """Nothing: XGBoost asks the C library for memory, as all do."""
        return nullcontext()

    def check_trained(self, booster: Any) -> None:
        """Nothing: XGBoost can always train on the CPU."""

    @property
    def memory(self) -> DeviceMemoryUse:
        """No device, no use of it."""
        return DeviceMemoryUse()

    @property
    def notes(self) -> Sequence[str]:
        """None."""
        return ()

    def release(self) -> None:
        """Empty the pools of Arrow and, where it is glibc, of the C library."""
        pa.default_memory_pool().release_unused()
        if sys.platform == "linux":
            trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
            if trim is not None:
                trim(0)

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Arrow and NumPy raise MemoryError, XGBoost ``std::bad_alloc``."""
        return is_out_of_memory(error)

    def explain(self, error: BaseException) -> str:
        """What the library said."""
        return f"The host's memory did not suffice: {first_line(error)}"


def present_columns(parquet: pq.ParquetFile, columns: Sequence[ColumnType], part: Part) -> list[str]:
    """Names of the wanted columns that the file has; refuses a file that is another than when its parts were made."""
    meta = parquet.metadata
    rows = sum(meta.row_group(g).num_rows for g in part.groups if g < meta.num_row_groups)
    if part.groups[-1] >= meta.num_row_groups or rows != part.n_rows:
        raise DataError(
            f"{part} of {part.file.path} had {part.n_rows} rows, and has {rows} now",
            "Expected the file to stay as it was when the run began",
            "Let writers finish, then start anew",
        )
    inside = set(parquet.schema_arrow.names)
    return [c.name for c in columns if c.name in inside]


def _batches(
    parquet: pq.ParquetFile, part: Part, names: list[str], text: list[str], rows: int
) -> Iterator[pa.RecordBatch]:
    """Batches of up to `rows` rows, text as dictionaries; without them where Arrow cannot make them."""
    coded = [n for n in text if n in _leaves(parquet)]  # others make pyarrow fail
    if not coded:
        yield from parquet.iter_batches(rows, row_groups=list(part.groups), columns=names, use_threads=_MANY_CPUS)
        return
    with open_parquet(part.file.path, metadata=parquet.metadata, read_dictionary=coded) as with_dictionaries:
        # one row group at a time: levels of plain pages pile up in Arrow until the reader is a new one
        for group in part.groups:
            done = 0
            try:
                for batch in with_dictionaries.iter_batches(
                    rows, row_groups=[group], columns=names, use_threads=_MANY_CPUS
                ):
                    yield batch
                    done += batch.num_rows
                continue
            except (OSError, pa.ArrowException) as error:
                if not any(words in str(error) for words in _NO_DICTIONARY):
                    raise
            for batch in parquet.iter_batches(rows, row_groups=[group], columns=names, use_threads=_MANY_CPUS):
                skip = min(done, batch.num_rows)  # go on where the dictionaries ended
                done -= skip
                if skip < batch.num_rows:
                    yield batch.slice(skip)


def _leaves(parquet: pq.ParquetFile) -> dict[str, str]:
    """Physical type of each column of the file, by its path."""
    leaves = [parquet.schema.column(i) for i in range(len(parquet.schema))]
    return {leaf.path: leaf.physical_type for leaf in leaves}


def _columns(batch: pa.RecordBatch, columns: Sequence[ColumnType], part: Part, row: int) -> dict[str, Column]:
    """Columns of a batch whose first row is row `row` of the part."""
    origin = Origin(f"{part} of {part.file.path}", part.first_row + row, unique=True)
    folders = dict(part.file.partition)
    inside = set(batch.schema.names)
    out = {}
    for column in columns:
        if column.name in inside:
            out[column.name] = to_column(batch.column(column.name), column, origin)
        else:
            out[column.name] = repeat(folders.get(column.name), column, batch.num_rows, origin)
    return out


def _rows_only(part: Part, columns: Sequence[ColumnType], chunk_rows: int, skip: int) -> Iterator[dict[str, Column]]:
    """Chunks of a file that has none of the wanted columns: all missing, or given by its folder."""
    for start in range(skip, part.n_rows, chunk_rows):
        n = min(chunk_rows, part.n_rows - start)
        yield _columns(pa.RecordBatch.from_arrays([pa.nulls(n)], names=["\0"]), columns, part, start)


def _refuse_wild_int96(parquet: pq.ParquetFile, names: Sequence[str], part: Part) -> None:
    """Refuse INT96 times that int64 microseconds cannot hold: Arrow wraps them without a word.

    They are read once more as seconds, which hold every INT96, and compared.
    """
    old = [path for path, physical in _leaves(parquet).items() if physical == "INT96" and path in names]
    if not old:
        return
    with open_parquet(part.file.path, coerce_int96_timestamp_unit="s") as coarse:
        readers = [p.iter_batches(_CHECKED_ROWS, row_groups=list(part.groups), columns=old) for p in (parquet, coarse)]
        for fine, seconds in zip(*readers, strict=True):
            for name in old:
                micro, whole = (b.column(name).cast(pa.int64()).drop_null().to_numpy() for b in (fine, seconds))
                wild = np.flatnonzero(micro // 1_000_000 != whole)
                if len(wild):
                    raise DataError(
                        f"The column {name!r} of {part} of {part.file.path} holds a time {int(whole[wild[0]])} s from "
                        "1970",
                        "Expected times that fit 64-bit microseconds, 292,000 years around 1970",
                        f"Write the file again without it, or set data.columns.{name}.kind=ignore",
                    )


def damaged(part: Part, columns: Sequence[ColumnType], error: BaseException) -> DataError:
    """Find the column that cannot be read, for the message."""
    culprit = next((f", column {c.name!r}," for c in columns if not _readable(part, c.name)), "")
    return DataError(
        f"{part}{culprit} of {part.file.path} cannot be read: {first_line(error)}",
        "Expected a whole Parquet file whose pages agree with their checksums",
        "Write the file again from its origin, or leave it out of data.source",
    )


def _readable(part: Part, name: str) -> bool:
    try:
        with open_parquet(part.file.path) as parquet:
            if name in parquet.schema_arrow.names:
                for _ in parquet.iter_batches(_CHECKED_ROWS, row_groups=list(part.groups), columns=[name]):
                    pass
    except (OSError, pa.ArrowException):
        return False
    return True


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """One array of a column in memory; text beyond 2 GiB becomes large."""
    if column.num_chunks == 1:
        return column.chunk(0)
    if pat.is_dictionary(column.type):
        chunks = column.chunks
        if any(c.dictionary.null_count for c in chunks):  # Arrow cannot unify these
            chunks = [c.dictionary_decode() for c in chunks]
        else:  # one byte does not suffice for the levels of all
            chunks = [c.cast(pa.dictionary(pa.int32(), column.type.value_type)) for c in chunks]
        column = pa.chunked_array(chunks, None if chunks else column.type)
    elif pat.is_string(column.type) and column.nbytes > 2**31:
        column = pc.cast(column, pa.large_string())
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)
