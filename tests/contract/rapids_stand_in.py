"""libcudf, CuPy and RMM for a machine without a GPU: as much of them as `tabgpu.engine.gpu` calls.

Arrays are those of `contract.device`, which refuse what CuPy refuses. Tables hold what libcudf would read from a file,
in libcudf's layout: bytes, masks of bits and offsets, decimals as integers, times without a zone, no dictionaries. They
watch over the streams: `VIOLATIONS` names each column whose memory was looked at before the default stream waited for
the reader that made it, or freed before the reader waited for those who looked.

That the real libraries have these names and arguments is proven elsewhere (`contract.binder`).
"""

from __future__ import annotations

import enum
import itertools
import sys
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat
from contract.device import Device, DeviceModule

from tabgpu.hashing import hash_levels

VIOLATIONS: list[str] = []
CLOCK = itertools.count(1)
LIMITS: dict[str, int] = {}  # the most rows in a piece, if any; bytes at which memory runs out

_NAMES = ["BOOL8", "STRING", "DECIMAL32", "DECIMAL64", "DECIMAL128", "TIMESTAMP_DAYS"]
_NAMES += [f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)] + ["FLOAT32", "FLOAT64"]
_NAMES += [f"TIMESTAMP_{unit}" for unit in ("MILLISECONDS", "MICROSECONDS", "NANOSECONDS")]
TypeId = enum.Enum("TypeId", _NAMES)
_TIMES = {"ms": "TIMESTAMP_MILLISECONDS", "us": "TIMESTAMP_MICROSECONDS", "ns": "TIMESTAMP_NANOSECONDS"}


class Stream:
    """A stream: knows until when it has waited for others."""

    null: Stream

    def __init__(self, non_blocking: bool = False) -> None:
        self.waited: dict[Stream, int] = {}

    def record(self) -> tuple[Stream, int]:
        return self, next(CLOCK)

    def wait_event(self, event: tuple[Stream, int]) -> None:
        stream, time = event
        self.waited[stream] = time


Stream.null = Stream()


class Base:
    """Memory of a column, made on a reader's stream."""

    def __init__(self, name: str, values: Any, mask: np.ndarray | None, scale: int, stream: Stream) -> None:
        self.name, self.values, self.mask, self.scale, self.stream = name, values, mask, scale, stream
        self.made, self.looked = next(CLOCK), 0

    def look(self, array: np.ndarray) -> Device:
        if Stream.null.waited.get(self.stream, 0) < self.made:
            VIOLATIONS.append(f"{self.name} was looked at before it was there")
        self.looked = next(CLOCK)
        return Device(array)

    def __del__(self) -> None:
        if self.looked > self.stream.waited.get(Stream.null, 0):
            VIOLATIONS.append(f"{self.name} was freed while it was looked at")


class Column:
    """Rows `start` to `start + rows` of a base."""

    def __init__(self, base: Base, start: int, rows: int) -> None:
        self.base, self.start, self.rows = base, start, rows

    def type(self) -> SimpleNamespace:
        return SimpleNamespace(id=lambda: TypeId[self.base.name], scale=lambda: self.base.scale)

    def size(self) -> int:
        return self.rows

    def offset(self) -> int:
        return self.start

    def null_count(self) -> int:
        if self.base.mask is None:
            return 0
        there = np.unpackbits(self.base.mask, bitorder="little")[self.start : self.start + self.rows]
        return self.rows - int(there.sum())

    def data(self) -> Device:
        return self.base.look(np.ascontiguousarray(self.base.values).view(np.uint8).ravel())

    def null_mask(self) -> Device | None:
        return None if self.base.mask is None else self.base.look(self.base.mask)

    def to_arrow(self, stream: Stream) -> pa.Array:
        assert stream is self.base.stream
        return self.base.values.slice(self.start, self.rows)

    @staticmethod
    def from_cuda_array_interface(array: Device, stream: Stream) -> Column:
        return Column(Base("INT32", array.get(), None, 0, stream), 0, len(array))


class Table:
    """Columns of equal length."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = list(columns)

    def columns(self) -> list[Column]:
        return self._columns

    def num_rows(self) -> int:
        return self._columns[0].rows


def read_column(array: pa.Array, physical: str, stream: Stream) -> Column:
    """What libcudf makes of a column whose values Arrow reads so."""
    if pat.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind, scale = array.type, 0
    mask = np.packbits(array.is_valid().to_numpy(zero_copy_only=False), bitorder="little")
    if pat.is_string(kind) or pat.is_large_string(kind):
        return Column(Base("STRING", array, mask, 0, stream), 0, len(array))
    if pat.is_decimal(kind):
        words = np.array([int(v.scaleb(kind.scale)) if v is not None else 0 for v in array.to_pylist()], object)
        scale = -kind.scale
        if physical == "FIXED_LEN_BYTE_ARRAY":
            low = (words & (2**64 - 1)).astype(np.uint64).view(np.int64)
            name, values = "DECIMAL128", np.stack([low, (words >> 64).astype(np.int64)], axis=1)
        else:
            name, values = f"DECIMAL{physical[3:]}", words.astype(physical.lower())
    elif pat.is_date(kind):
        name, values = "TIMESTAMP_DAYS", array.cast(pa.date32()).cast(pa.int32()).fill_null(7).to_numpy()
    elif pat.is_timestamp(kind):
        name, values = _TIMES[kind.unit], array.cast(pa.int64()).fill_null(7).to_numpy()
    elif pat.is_duration(kind):
        name, values = "INT64", array.cast(pa.int64()).fill_null(7).to_numpy()
    elif pat.is_boolean(kind):
        name, values = "BOOL8", array.fill_null(True).to_numpy(zero_copy_only=False).astype(np.uint8)
    else:
        assert pat.is_integer(kind) or kind in (pa.float32(), pa.float64()), f"libcudf has no {kind}"
        values = array.fill_null(7).to_numpy()
        name = values.dtype.name.upper()
    return Column(Base(name, values, mask if array.null_count else None, scale, stream), 0, len(array))


class ChunkedParquetReader:
    """Hands out a part in pieces."""

    def __init__(
        self, options: Any, stream: Stream, mr: Any = None, chunk_read_limit: int = 0, pass_read_limit: int = 0
    ) -> None:
        assert chunk_read_limit > 0
        self._names, self._stream, self._start = options.names, stream, 0
        try:
            with pq.ParquetFile(options.path, page_checksum_verification=True) as parquet:
                self._table = parquet.read_row_groups(options.groups[0], columns=options.names)
                leaves = [parquet.schema.column(i) for i in range(len(parquet.schema))]
        except (OSError, pa.ArrowException) as error:
            raise RuntimeError(f"CUDF failure at: reader.cpp: {error}") from error
        self._physical = {leaf.path: leaf.physical_type for leaf in leaves}
        row_bytes = max(self._table.nbytes // max(self._table.num_rows, 1), 1)
        self._rows = min(LIMITS.get("rows", 10**9), max(chunk_read_limit // row_bytes, 1))

    def has_next(self) -> bool:
        return self._start < self._table.num_rows

    def read_chunk(self) -> SimpleNamespace:
        piece = self._table.slice(self._start, self._rows).combine_chunks()
        if piece.nbytes > LIMITS.get("bytes", 10**12):
            raise MemoryError(f"std::bad_alloc: out_of_memory: (failed to allocate {piece.nbytes} bytes)")
        self._start += piece.num_rows
        names = sorted(self._names, key=piece.column_names.index)  # in the order of the file
        arrays = [piece[name].chunk(0) if piece.num_rows else pa.nulls(0) for name in names]
        columns = [read_column(a, self._physical[n], self._stream) for n, a in zip(names, arrays, strict=True)]
        return SimpleNamespace(tbl=Table(columns), column_names=lambda: names)


class ParquetReaderOptions:
    """Collects the options."""

    @classmethod
    def builder(cls, source: str) -> ParquetReaderOptions:
        made = cls()
        made.path = source
        return made

    def use_arrow_schema(self, val: bool) -> ParquetReaderOptions:
        assert not val  # durations come as their integers
        return self

    def use_pandas_metadata(self, val: bool) -> ParquetReaderOptions:
        assert not val
        return self

    def build(self) -> ParquetReaderOptions:
        return self

    def set_row_groups(self, row_groups: list[list[int]]) -> None:
        self.groups = row_groups

    def set_column_names(self, col_names: list[str]) -> None:
        self.names = col_names


def cut(input: Table, indices: list[int], stream: Stream) -> list[Table]:
    start, end = indices
    return [Table([Column(c.base, c.start + start, end - start) for c in input.columns()])]


def concatenate(objects: list[Table], stream: Stream) -> Table:
    columns = []
    for several in zip(*(t.columns() for t in objects), strict=True):
        first, rows = several[0].base, sum(c.rows for c in several)
        values = [c.base.values[c.start : c.start + c.rows] for c in several]
        bits = [_bits(c) for c in several]
        mask = (
            None if all(c.base.mask is None for c in several) else np.packbits(np.concatenate(bits), bitorder="little")
        )
        joined = pa.concat_arrays(values) if first.name == "STRING" else np.concatenate(values)
        columns.append(Column(Base(first.name, joined, mask, first.scale, stream), 0, rows))
    return Table(columns)


def _bits(column: Column) -> np.ndarray:
    if column.base.mask is None:
        return np.ones(column.rows, np.uint8)
    return np.unpackbits(column.base.mask, bitorder="little")[column.start : column.start + column.rows]


def xxhash_64(input: Table, seed: int, stream: Stream) -> Column:
    (column,) = input.columns()
    assert seed == 0
    array = column.to_arrow(stream)
    hashes = hash_levels(array.cast(pa.large_binary()).fill_null(b"whatever"))
    return Column(Base("UINT64", hashes, None, 0, stream), 0, column.rows)


def gather(source_table: Table, gather_map: Column, bounds_policy: int, stream: Stream) -> Table:
    (column,) = source_table.columns()
    picked = column.to_arrow(stream).take(pa.array(gather_map.base.values))
    return Table([Column(Base("STRING", picked, None, 0, stream), 0, len(picked))])


class CuPy(DeviceModule):
    """CuPy's own names, beside those of NumPy."""

    cuda = SimpleNamespace(Stream=Stream, set_allocator=lambda allocator: None, runtime=SimpleNamespace())

    @staticmethod
    def asnumpy(a: Any) -> np.ndarray:
        return a.get() if isinstance(a, Device) else np.asarray(a)

    @staticmethod
    def flatnonzero(a: Device) -> Device:
        return Device(np.flatnonzero(a.inner))


def modules() -> dict[str, ModuleType]:
    """All modules by name, for ``sys.modules``."""
    cupy = CuPy("cupy")
    plc = ModuleType("pylibcudf")
    vars(plc).update(Table=Table, Column=Column, TypeId=TypeId)
    plc.io = SimpleNamespace(
        SourceInfo=lambda sources: sources[0],
        parquet=SimpleNamespace(ParquetReaderOptions=ParquetReaderOptions, ChunkedParquetReader=ChunkedParquetReader),
    )
    plc.copying = SimpleNamespace(slice=cut, gather=gather, OutOfBoundsPolicy=SimpleNamespace(DONT_CHECK=1))
    plc.concatenate = SimpleNamespace(concatenate=concatenate)
    plc.hashing = SimpleNamespace(xxhash_64=xxhash_64)
    resources = ModuleType("rmm.mr")
    for name in ("DeviceMemoryResource", "StatisticsResourceAdaptor", "PoolMemoryResource", "UpstreamResourceAdaptor"):
        setattr(resources, name, type(name, (), {}))
    rmm = ModuleType("rmm")
    rmm.mr = resources
    allocators = ModuleType("rmm.allocators.cupy")
    allocators.rmm_cupy_allocator = None
    nvtx = ModuleType("nvtx")
    bindings = ModuleType("cuda.bindings")
    bindings.driver, bindings.runtime = SimpleNamespace(), SimpleNamespace(cudaMemPoolAttr=None)
    return {
        **{
            "cupy": cupy,
            "pylibcudf": plc,
            "rmm": rmm,
            "rmm.mr": resources,
            "rmm.allocators": ModuleType("rmm.allocators"),
        },
        **{"rmm.allocators.cupy": allocators, "nvtx": nvtx, "cuda": ModuleType("cuda"), "cuda.bindings": bindings},
    }


def engine() -> Any:
    """A `GpuEngine` on this stand-in, in a process that has no other."""
    sys.modules.update(modules())
    from tabgpu.engine.gpu import GpuEngine

    made = GpuEngine()
    made._memory = SimpleNamespace(release=lambda: None)  # there is no device whose memory to set up
    return made
