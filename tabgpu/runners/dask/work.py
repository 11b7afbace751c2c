"""What runs on a worker (and, for the lock, on the scheduler): the few functions that Dask is asked to call.

Rows, jobs and tasks come in the form of `tabgpu.wire`. What several tasks share is a `Parcel`: it is sent to one
worker, goes on from worker to worker, is taken apart once in each process, and is forgotten there when Dask lets go of
it.
States stay on the worker that observed them, packed and on the host, until they are merged or asked for. A worker does
one task at a time, whatever its number of threads: these are for the libraries that a task calls.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pickle import PickleBuffer
from typing import Any, TypeVar

import pyarrow as pa
from distributed import Reschedule, get_worker
from distributed.worker import thread_state

from ... import wire
from ...data.rows import Recipe, Rows
from ...data.target import Target
from ...engine import Engine
from ...engine import resolve as resolve_engine
from ...engine.memory import MemorySettings
from ...errors import TabgpuError
from ...merging import merge_tree

T = TypeVar("T")
State = bytes  # a packed state; empty where a task had no rows

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h; the values are those it reaches by itself
_SET_UP: dict[str, MemorySettings] = {}  # by engine: how this process has set up its memory
_ONE_AT_A_TIME = threading.RLock()  # chunks of two tasks at once are not in the plan


class Parcel:
    """A packed value, and the value itself once a process has taken it apart.

    Parameters
    ----------
    modules : tuple of str
        Where the classes of its records are: they are imported before it is taken apart.
    blob : bytes-like
        As `wire.pack` made it.
    """

    def __init__(self, modules: tuple[str, ...], blob: Any) -> None:
        self.modules, self.blob = modules, blob
        self._value: Any = None

    def __reduce__(self) -> tuple[type[Parcel], tuple[tuple[str, ...], PickleBuffer]]:
        return type(self), (self.modules, PickleBuffer(self.blob))

    def __sizeof__(self) -> int:
        return 2 * len(self.blob)  # packed and taken apart

    def open(self, make: Callable[[bytes], T]) -> T:
        """The value: made by `make` of the blob at the first call in each process."""
        with _ONE_AT_A_TIME:
            if self._value is None:
                for module in self.modules:
                    import_module(module)
                self._value = make(self.blob)
        value: T = self._value
        return value


def hold(parcel: Parcel) -> Parcel:
    """The task whose result a parcel is: unlike scattered data, it is made again where its worker is lost."""
    return parcel


def describe_rows(rows: Rows, engine: str, memory: MemorySettings | None) -> bytes:
    """What `rows_of` makes the same rows of, on another machine and perhaps another engine.

    Parameters
    ----------
    rows : Rows
        To describe.
    engine : str
        Name of the workers' engine.
    memory : MemorySettings, optional
        How each worker sets up the memory of its device; None leaves it as it is.
    """
    described = (engine, memory, rows.recipe, dict(rows.tables), rows.target, rows.readers)
    return wire.pack(described, rows.engine.to_host)


def rows_of(parcel: Parcel) -> Rows:
    """The rows that `describe_rows` described, on this worker's engine."""
    return parcel.open(_make_rows)


def _make_rows(blob: bytes) -> Rows:
    name, memory, recipe, tables, target, readers = wire.unpack(blob)
    assert isinstance(recipe, Recipe)
    assert target is None or isinstance(target, Target)
    return Rows(engine_of(name, memory), recipe, tables, target, readers)


def engine_of(name: str, memory: MemorySettings | None) -> Engine:
    """The engine of this worker, its memory set up: one in each process."""
    prepare()
    engine = _resolve(name)
    if memory is not None and _SET_UP.get(name) != memory:
        engine.setup(memory)
        _SET_UP[name] = memory
    return engine


@cache
def _resolve(name: str) -> Engine:
    return resolve_engine(name)[0]


@cache
def prepare() -> None:
    """Set up this process for our work, once.

    pyarrow gets as many threads as the worker has. And memory that is freed may be kept for the next array: a nanny
    has the C library give all of it back at once (``MALLOC_TRIM_THRESHOLD_``), which doubled the time of a pass.
    """
    pa.set_cpu_count(threads())
    if "MALLOC_TRIM_THRESHOLD_" in os.environ:
        tune = getattr(ctypes.CDLL(None), "mallopt", None)
        for parameter, n_bytes in ((_M_MMAP_THRESHOLD, 32 << 20), (_M_TRIM_THRESHOLD, 64 << 20)):
            if tune is not None:
                tune(parameter, n_bytes)


def threads() -> int:
    """Threads of this worker."""
    return int(get_worker().state.nthreads)


def job_of(parcel: Parcel, rows: Rows | None) -> Any:
    """The job in a parcel, its arrays where `rows` are."""
    return parcel.open(lambda blob: wire.unpack(blob, rows.engine.to_device) if rows else wire.unpack(blob))


def observe(rows: Parcel, job: Parcel, task: bytes) -> State:
    """Observe one task: the state of all its chunks together."""
    with _ONE_AT_A_TIME:
        opened = rows_of(rows)
        placed, described = job_of(job, opened), wire.unpack(task)
        with noted(described):
            state = merge_tree(_while_wanted(placed.observe(opened, described)), placed.merge)
        return b"" if state is None else wire.pack(state, opened.engine.to_host)


def merge(rows: Parcel, job: Parcel, *states: State) -> State:
    """Merge states that other tasks made."""
    with _ONE_AT_A_TIME:
        opened = rows_of(rows)
        placed = job_of(job, opened)
        some = [wire.unpack(state, opened.engine.to_device) for state in states if state]
        return wire.pack(placed.merge(some), opened.engine.to_host) if some else b""


def do(rows: Parcel, job: Parcel, task: bytes) -> bytes:
    """Do the work for one task: its packed answer."""
    with _ONE_AT_A_TIME:
        opened = rows_of(rows)
        placed, described = job_of(job, opened), wire.unpack(task)
        with noted(described):
            return wire.pack(placed.do(opened, described), opened.engine.to_host)


def name_of(task: object) -> str:
    """What a task is called in messages: its part, where it has one."""
    return str(getattr(task, "part", task))


@contextmanager
def noted(task: object) -> Iterator[None]:
    """Errors that are not meant for the user say where they happened."""
    try:
        yield
    except TabgpuError:
        raise
    except Exception as error:
        error.add_note(f"on worker {get_worker().address}, with {name_of(task)}")
        raise


def _while_wanted(items: Iterable[T]) -> Iterator[T]:
    """`items`, until the running task is cancelled: Dask can stop none that runs."""
    worker, key = get_worker(), thread_state.key
    for item in items:
        yield item
        task = worker.state.tasks.get(key)
        if task is not None and task.state == "cancelled":
            raise Reschedule  # which is not done, unless someone wants it again
