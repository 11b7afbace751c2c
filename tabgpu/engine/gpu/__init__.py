"""The GPU engine: libcudf reads, CuPy computes, RMM gives the memory.

Chunks are CuPy arrays on the device's default stream; readers have streams of their own (`streams`). Rows never pass
through the host, except columns that libcudf does not read like the CPU engine (`reading`): those are read there and
moved. Levels, which are few, lie on the host as with every engine. `tabgpu.engine.resolve` alone imports this package,
once it is known that a device, its driver and the packages are there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import cupy
import numpy as np
import nvtx
import pyarrow as pa

from ...columns import Array, ArrayModule, Column
from ...errors import ResourceError
from ...files import Part, open_parquet
from ...schema import ColumnType
from .. import conversion as host
from ..conversion import Origin
from ..cpu import CpuEngine, damaged, present_columns
from ..memory import DeviceMemoryUse, MemorySettings, asked_bytes, is_out_of_memory, judge
from . import conversion
from .memory import MemoryOfDevice
from .reading import Pieces, Sources, UnreadableError, sort_columns
from .streams import StreamStore

T = TypeVar("T")


class GpuEngine:
    """libcudf and CuPy on the current device.

    Attributes
    ----------
    on_host : dict of str to str
        What was read on the host and moved, a column or the rest of a file, and why.
    """

    name = "gpu"
    device = "cuda"

    def __init__(self) -> None:
        self.on_host: dict[str, str] = {}
        self._host = CpuEngine()
        self._streams = StreamStore()
        self._memory: MemoryOfDevice | None = None

    @property
    def xp(self) -> ArrayModule:
        """CuPy."""
        self._ready()
        return cupy

    def setup(self, settings: MemorySettings) -> None:
        """Set up pool, ceiling and spilling; see `Engine.setup`."""
        if self._memory is None or self._memory.settings != settings:
            self._let_go()  # first, or two fixed pools would have to fit
            self._memory = MemoryOfDevice(settings)

    def begin(self) -> None:
        """Begin anew, in a process that may have had runs before; see `Engine.begin`."""
        self.on_host.clear()
        self._let_go()

    def _let_go(self) -> None:
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.close()

    def _ready(self) -> MemoryOfDevice:
        """The memory, as `setup` has set it up, or as it is found now."""
        if self._memory is None:
            self._memory = MemoryOfDevice(MemorySettings(pool="given"))
        return self._memory

    def read(
        self, part: Part, columns: Sequence[ColumnType], chunk_rows: int, skip: int = 0
    ) -> Iterator[dict[str, Column]]:
        """Read a part as chunks; see `Engine.read`. What libcudf cannot read the CPU engine reads, or refuses."""
        self._ready()
        done = skip
        try:
            for chunk in self._read(part, columns, chunk_rows, skip):
                n_rows = len(next(iter(chunk.values()))) if chunk else min(chunk_rows, part.n_rows - done)
                yield chunk
                del chunk
                done += n_rows
            return
        except UnreadableError as error:
            self.on_host[part.file.path] = str(error)
        yield from map(_moved, self._host.read(part, columns, chunk_rows, done))

    def _read(
        self, part: Part, columns: Sequence[ColumnType], chunk_rows: int, skip: int
    ) -> Iterator[dict[str, Column]]:
        """Chunks of which libcudf makes what it can."""
        sources = _sources(part, columns)
        beside = self._beside(part, [c for c in columns if c.name in sources.host], sources, chunk_rows, skip)
        with self._streams.borrow() as streams:
            pieces = Pieces(part, sources.device, chunk_rows, streams) if sources.device else None
            if pieces:
                pieces.skip(skip)
            row = skip
            while row < part.n_rows:
                found = _moved(next(beside, {}))
                n_rows = min(chunk_rows, part.n_rows - row)
                n_rows = len(next(iter(found.values()))) if found else pieces.ahead(n_rows) if pieces else n_rows
                if n_rows == 0:
                    break
                origin = Origin(f"{part} of {part.file.path}", part.first_row + row)
                if pieces:
                    found |= _converted(pieces, n_rows, columns, sources, origin)
                yield _complete(found, part, columns, n_rows, origin)
                del found
                row += n_rows
            if row != part.n_rows or (pieces and pieces.ahead(1)):
                raise UnreadableError("it does not hold the rows that its footer says")

    def _beside(
        self, part: Part, columns: list[ColumnType], sources: Sources, chunk_rows: int, skip: int
    ) -> Iterator[dict[str, Column]]:
        """Chunks of the columns that are read on the host, which then decide where chunks end; none for none."""
        self.on_host |= {f"the column {name!r}": reason for name, reason in sources.host.items()}
        return self._host.read(part, columns, chunk_rows, skip) if columns else iter(())

    def from_arrow(self, table: pa.Table, columns: Sequence[ColumnType], where: str) -> dict[str, Column]:
        """Columns of a table in memory, which is the host's: converted there, and moved; see `Engine.from_arrow`."""
        self._ready()
        return _moved(self._host.from_arrow(table, columns, where))

    def to_arrow(self, column: Column) -> pa.Array:
        """Arrow array of a column; see `Engine.to_arrow`."""
        valid = None if column.valid is None else self.to_host(column.valid)
        return host.to_arrow(replace(column, values=self.to_host(column.values), valid=valid))

    def to_host(self, array: Array) -> np.ndarray:
        """Copy to the host; arrays of the host as they are."""
        return np.asarray(cupy.asnumpy(array))

    def to_device(self, array: np.ndarray) -> Array:
        """Copy to the device; arrays of the device as they are."""
        self._ready()
        return cupy.asarray(array)

    def place(self, value: T) -> T:
        """A value that travels, its arrays on the device: those that are there stay, what is shared stays shared."""
        self._ready()
        placed: T = _placed(value, {})
        return placed

    def matrix(self, columns: Mapping[str, Column], names: Sequence[str], n_rows: int) -> Array:
        """2-D float32 array for XGBoost; see `Engine.matrix`."""
        out = cupy.empty((n_rows, len(names)), "float32")
        for j, name in enumerate(names):
            column = columns[name]
            values = column.values.astype("float32")
            if column.kind == "categorical" or column.valid is not None:
                values[column.missing()] = np.nan
            out[:, j] = values
        return out

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """An NVTX range around what runs inside, and its peak of device memory."""
        with nvtx.annotate(name, domain="tabgpu"), self._ready().peaks.stage(name):
            yield

    def training(self) -> AbstractContextManager[None]:
        """XGBoost takes its memory from the device's default pool where that is ours, else beside our pool."""
        if self._ready().shared is None:
            return nullcontext()
        import xgboost

        context: AbstractContextManager[None] = xgboost.config_context(use_cuda_async_pool=True)
        return context

    def check_trained(self, booster: Any) -> None:
        """Raise ResourceError unless the booster was trained on a CUDA device; see `trained_on`."""
        found = trained_on(booster)
        if not found.startswith("cuda"):
            raise ResourceError(
                f"XGBoost trained on {found!r}, not on the GPU",
                "Expected it to train on cuda: it falls back to the CPU where it finds no device",
                "Run tabgpu doctor, or pass --set engine=cpu to train on the CPU knowingly",
            )

    @property
    def memory(self) -> DeviceMemoryUse:
        """Ceiling and peaks so far; see `Engine.memory`."""
        return self._ready().use()

    @property
    def notes(self) -> Sequence[str]:
        """What was read on the host, and why; see `on_host`."""
        return [f"{what} is read on the host: {reason}" for what, reason in self.on_host.items()]

    def release(self) -> None:
        """Give back what is free, on the device and on the host."""
        if self._memory is not None:
            self._memory.release()
        self._host.release()

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether RMM, libcudf, CuPy, XGBoost or the host ran out of memory."""
        return is_out_of_memory(error)

    def explain(self, error: BaseException) -> str:
        """Exhaustion, fragmentation or neighbours, from the pool's numbers; see `tabgpu.engine.memory.judge`."""
        if isinstance(error, pa.ArrowMemoryError):
            return self._host.explain(error)
        return judge(asked_bytes(error), self._ready().numbers())


def count_devices() -> int:
    """How many devices CUDA shows this process; makes no context on any of them.

    Raises
    ------
    RuntimeError
        If CUDA does not start here: CuPy's error, with CUDA's words.
    """
    return int(cupy.cuda.runtime.getDeviceCount())


def trained_on(booster: Any) -> str:
    """Device that a booster was trained on, as XGBoost saves it: 'cuda:0', or 'cpu'."""
    config = json.loads(booster.save_config())
    return str(config["learner"]["generic_param"]["device"])


def _placed(value: Any, known: dict[int, tuple[Any, Any]]) -> Any:
    """A value with its arrays on the device; `known` has each value that was met, by its id, and what became of it."""
    if id(value) in known:
        return known[id(value)][1]
    placed = value
    if isinstance(value, np.ndarray):
        placed = cupy.asarray(value)
    elif isinstance(value, list | tuple):
        items = [_placed(v, known) for v in value]
        if any(new is not old for new, old in zip(items, value, strict=True)):
            placed = items if isinstance(value, list) else tuple(items)
    elif isinstance(value, dict):
        new = _changed(value, known)
        placed = {**value, **new} if new else value
    elif is_dataclass(value) and not isinstance(value, type):
        new = _changed({f.name: getattr(value, f.name) for f in fields(value)}, known)
        placed = replace(value, **new) if new else value
    known[id(value)] = value, placed
    return placed


def _changed(held: dict[Any, Any], known: dict[int, tuple[Any, Any]]) -> dict[Any, Any]:
    """Those of the values that are others once they are placed."""
    return {name: new for name, old in held.items() if (new := _placed(old, known)) is not old}


def _sources(part: Part, columns: Sequence[ColumnType]) -> Sources:
    """Who reads which column; refuses a file that is gone, damaged or another than when its parts were made."""
    try:
        with open_parquet(part.file.path) as parquet:
            present_columns(parquet, columns, part)
            return sort_columns(parquet, columns, part)
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise damaged(part, columns, error) from error


def _converted(
    pieces: Pieces, n_rows: int, columns: Sequence[ColumnType], sources: Sources, origin: Origin
) -> dict[str, Column]:
    """Columns of the next rows that libcudf reads."""
    wanted = {column.name: column for column in columns}
    taken = pieces.take(n_rows)
    pieces.streams.to_arrays()
    try:
        return {
            name: conversion.to_column(source, sources.device[name], wanted[name], origin, pieces.streams)
            for name, source in zip(pieces.names, taken, strict=True)
        }
    finally:
        pieces.streams.to_tables()  # before anything of `taken` is freed, also when a value does not fit


def _complete(
    found: dict[str, Column], part: Part, columns: Sequence[ColumnType], n_rows: int, origin: Origin
) -> dict[str, Column]:
    """All columns in order; those that the file lacks as its folder says, or missing."""
    folders = dict(part.file.partition)
    return {
        c.name: found[c.name] if c.name in found else conversion.repeat(folders.get(c.name), c, n_rows, origin)
        for c in columns
    }


def _moved(chunk: Mapping[str, Column]) -> dict[str, Column]:
    return {name: conversion.move(column) for name, column in chunk.items()}
