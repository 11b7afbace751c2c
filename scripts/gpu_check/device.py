"""The device as the parts see it: CuPy or, in a dry run, NumPy; its pool's high-water mark, and clocks that wait.

The meter reads CUDA's default pool itself, through CuPy, and not what tabgpu says of it: so tabgpu's own numbers can be
held against it. Dry runs have no meter: they show that the script runs to its end, and measure no device.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from .moved import MovedEngine

# What each part needs beside what tabgpu itself needs, by the names of the modules
ENGINE_MODULES = ("cupy", "rmm", "pylibcudf", "nvtx", "cuda.bindings")


def missing(*modules: str) -> list[str]:
    """Those that are not installed."""
    return [name for name in modules if not _installed(name)]


def _installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of a module within a package that is not there
        return False


@dataclass(frozen=True)
class Times:
    """Seconds of several repetitions."""

    best: float
    median: float

    @classmethod
    def of(cls, seconds: list[float]) -> Times:
        return cls(min(seconds), statistics.median(seconds))


@dataclass
class Peak:
    """Bytes above what was there before: at most, and still held at the end. None where nobody measures.

    `outside` is what was taken beside the pool, as XGBoost does where it maps memory itself (`GrowOnlyVirtualMemVec`);
    it is in `high` already.
    """

    high: int | None = None
    kept: int | None = None
    outside: int = 0


class Device:
    """The GPU, or the host in its place.

    Attributes
    ----------
    xp : module
        CuPy or NumPy.
    name : str
        'cuda' or 'cpu': what XGBoost calls it.
    """

    def __init__(self, dry: bool) -> None:
        self.name = "cpu" if dry else "cuda"
        self.xp: Any = np if dry else import_module("cupy")
        if not dry:
            runtime = self.xp.cuda.runtime
            self._pool = runtime.deviceGetDefaultMemPool(self.xp.cuda.Device().id)
            # else the pool shrinks at each synchronisation, and timings would be those of the driver
            runtime.memPoolSetAttribute(self._pool, runtime.cudaMemPoolAttrReleaseThreshold, runtime.memGetInfo()[1])
            self.share_pool()

    def share_pool(self) -> None:
        """Let CuPy take its memory from the pool that XGBoost shares; importing cuDF gives it another allocator."""
        if self.name == "cuda":
            self.xp.cuda.set_allocator(self.xp.cuda.MemoryAsyncPool("default").malloc)

    def training(self) -> AbstractContextManager[None]:
        """XGBoost takes its memory from the pool that is measured."""
        if self.name == "cpu":
            return nullcontext()
        context: AbstractContextManager[None] = import_module("xgboost").config_context(use_cuda_async_pool=True)
        return context

    def engine(self) -> MovedEngine:
        """Reads on the host, computes here."""
        return MovedEngine(self.xp, self.name)

    def to_device(self, array: Any) -> Any:
        return self.xp.asarray(array)

    def synchronise(self) -> None:
        """Wait until the device has done all that it was told."""
        if self.name == "cuda":
            self.xp.cuda.runtime.deviceSynchronize()

    def trim(self) -> None:
        """Give back to the driver what is not in use."""
        if self.name == "cuda":
            self.synchronise()
            self.xp.cuda.runtime.memPoolTrimTo(self._pool, 0)

    @contextmanager
    def peak(self) -> Iterator[Peak]:
        """Measure what runs inside."""
        found = Peak()
        if self.name == "cpu":
            yield found
            return
        runtime = self.xp.cuda.runtime
        self.synchronise()
        before, beside = self._attribute(runtime.cudaMemPoolAttrUsedMemCurrent), self._beside()
        runtime.memPoolSetAttribute(self._pool, runtime.cudaMemPoolAttrUsedMemHigh, 0)
        with watching(self._beside) as most:
            yield found
            self.synchronise()
        found.outside = max(0, most() - beside)
        found.high = self._attribute(runtime.cudaMemPoolAttrUsedMemHigh) - before + found.outside
        found.kept = self._attribute(runtime.cudaMemPoolAttrUsedMemCurrent) - before + max(0, self._beside() - beside)

    def _beside(self) -> int:
        """Bytes of the device that are in use, and not the pool's."""
        free, total = self.xp.cuda.runtime.memGetInfo()
        return int(total - free) - self.reserved()

    def _attribute(self, which: int) -> int:
        return int(self.xp.cuda.runtime.memPoolGetAttribute(self._pool, which))

    def reserved(self) -> int:
        """Bytes that the pool holds, in use or not."""
        return 0 if self.name == "cpu" else self._attribute(self.xp.cuda.runtime.cudaMemPoolAttrReservedMemCurrent)

    def free_bytes(self) -> int | None:
        """Free memory of the device; None in a dry run."""
        return None if self.name == "cpu" else int(self.xp.cuda.runtime.memGetInfo()[0])

    def wall(self, work: Callable[[], object], repeats: int = 5, warm: int = 1) -> Times:
        """Seconds of work that the host drives, waiting for the device before and after."""
        for _ in range(warm):
            work()
        seconds = []
        for _ in range(repeats):
            self.synchronise()
            began = time.perf_counter()
            work()
            self.synchronise()
            seconds.append(time.perf_counter() - began)
        return Times.of(seconds)

    def kernel(self, work: Callable[[], object], repeats: int = 10, warm: int = 3) -> Times:
        """Seconds on the device alone, between two events of its stream."""
        if self.name == "cpu":
            return self.wall(work, repeats, warm)
        for _ in range(warm):
            work()
        cuda = self.xp.cuda
        pairs = []
        for _ in range(repeats):
            first, last = cuda.Event(), cuda.Event()
            first.record()
            work()
            last.record()
            pairs.append((first, last))
        self.synchronise()
        return Times.of([cuda.get_elapsed_time(*pair) / 1_000 for pair in pairs])

    def copy_bandwidth(self, n_bytes: int) -> float:
        """Bytes a second of a copy on the device, read and written bytes counted, at best."""
        source = self.xp.arange(n_bytes // 8, dtype="float64")
        target = self.xp.empty_like(source)

        def copy() -> None:
            target[:] = source

        return float(2 * source.nbytes / self.kernel(copy).best)


@contextmanager
def watching(read: Callable[[], int], interval_s: float = 0.005) -> Iterator[Callable[[], int]]:
    """Read a number again and again from another thread; yields what tells the largest so far."""
    seen, over = [read()], threading.Event()

    def watch() -> None:
        while not over.wait(interval_s):
            seen[0] = max(seen[0], read())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield lambda: max(seen[0], read())
    finally:
        over.set()
        thread.join()
