"""Device memory in numbers: settings, peaks of stages, and why an allocation failed.

Nothing here touches a device: `tabgpu.engine.gpu.memory` builds the pools and hands numbers over. Errors are known by
the names of their classes and by what they say, because each library has its own: RMM and libcudf raise MemoryError or
RuntimeError with ``std::bad_alloc``, CuPy has a class of its own, XGBoost raises XGBoostError with a sentence.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ..errors import TabgpuError
from ..units import format_bytes
from ..wire import record

PoolKind = Literal["async", "fixed", "given"]

_CLASSES = ("MemoryError", "OutOfMemoryError", "ArrowMemoryError")
_SAYINGS = ("bad_alloc", "out of memory", "out_of_memory", "memoryallocation", "memory allocation error")
_ASKED = re.compile(
    r"(?:failed to allocate|allocating|requested memory:|requested bytes)\s*([\d,]+(?:\.\d+)?)"
    r"\s*(bytes|[kmgt]i?b|b)?\b",
    re.IGNORECASE,
)
_UNITS = {"bytes": 1, "b": 1, **{f"{letter}b": 1000 ** (n + 1) for n, letter in enumerate("kmgt")}}
_UNITS |= {f"{letter}ib": 1024 ** (n + 1) for n, letter in enumerate("kmgt")}


@record
@dataclass(frozen=True)
class MemorySettings:
    """How the memory of one device is to be set up, in absolute bytes.

    Fractions are of no use here: on a slice of a device (MIG) libraries take them of the whole device.

    Parameters
    ----------
    pool : {'async', 'fixed', 'given'}
        ``async``: CUDA's own pool of the device, which XGBoost shares. ``fixed``: a pool of RMM of exactly
        `pool_bytes`, XGBoost beside it. ``given``: what is set up already, as by dask-cuda, is kept.
    limit_bytes : int, optional
        Ceiling on what RMM, libcudf, cuDF and CuPy together hold. None sets none.
    pool_bytes : int, optional
        Size of a ``fixed`` pool; the rest below the limit is XGBoost's.
    spill : bool
        Whether cuDF may move frames to the host when memory runs out.
    """

    pool: PoolKind = "async"
    limit_bytes: int | None = None
    pool_bytes: int | None = None
    spill: bool = True


@dataclass(frozen=True)
class DeviceMemoryUse:
    """What a device's memory was used for, in bytes.

    Parameters
    ----------
    limit_bytes : int, optional
        The ceiling; None where there is none, as on the CPU.
    peak_bytes : int, optional
        Most that was in use at once; None on the CPU. In an ``async`` pool XGBoost's share is in it.
    stage_peaks : mapping of str to int
        The same for each stage.
    spilled_bytes : int
        What was moved to the host because memory ran out.
    """

    limit_bytes: int | None = None
    peak_bytes: int | None = None
    stage_peaks: Mapping[str, int] = field(default_factory=dict)
    spilled_bytes: int = 0


class Meter(Protocol):
    """Reads how much of a pool is in use."""

    def used(self) -> int:
        """Bytes in use now."""

    def high(self) -> int:
        """Most bytes in use at once since `reset`."""

    def reset(self) -> None:
        """Let `high` begin anew, at what is in use now."""


class StagePeaks:
    """Peaks of nested stages, out of a meter that knows but one high-water mark.

    Before the mark is reset it is written down for every stage that is open, so that no stage loses what happened in
    the stages inside it.

    Parameters
    ----------
    meter : Meter
        Is read when a stage begins and ends.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._open: list[str] = []
        self._peaks: dict[str, int] = {}
        self._total = 0
        self._lock = threading.Lock()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Note the peak of what runs inside under `name`; a second time the larger peak stays."""
        with self._lock:
            self._write_down()
            self._open.append(name)
        try:
            yield
        finally:
            with self._lock:
                self._write_down()
                self._open.remove(name)

    def _write_down(self) -> None:
        high = self._meter.high()
        self._total = max(self._total, high)
        for name in self._open:
            self._peaks[name] = max(self._peaks.get(name, 0), high)
        self._meter.reset()

    def read(self) -> tuple[int, dict[str, int]]:
        """Peak of all, and of each stage so far."""
        with self._lock:
            self._write_down()
            return self._total, dict(self._peaks)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of any of the libraries means that memory did not suffice.

    Our own errors are answers already: ResourceError, though a MemoryError, may speak of a disk.

    Examples
    --------
    >>> is_out_of_memory(RuntimeError("std::bad_alloc: out_of_memory: RMM failure"))
    True
    >>> is_out_of_memory(RuntimeError("CUDF failure at: reader_impl.cu: corrupted page header"))
    False
    """
    if isinstance(error, TabgpuError):
        return False
    said = str(error).lower()
    return any(c.__name__ in _CLASSES for c in type(error).__mro__) or any(words in said for words in _SAYINGS)


def asked_bytes(error: BaseException) -> int | None:
    """How many bytes a failed allocation asked for, where its message says so.

    Examples
    --------
    >>> asked_bytes(MemoryError("Maximum pool size exceeded (failed to allocate 32.000 MiB)"))
    33554432
    >>> asked_bytes(MemoryError()) is None
    True
    """
    match = _ASKED.search(str(error))
    return int(float(match[1].replace(",", "")) * _UNITS[(match[2] or "b").lower()]) if match else None


@dataclass(frozen=True)
class PoolNumbers:
    """State of a pool in bytes when an allocation failed.

    Parameters
    ----------
    used : int
        In use.
    reserved : int
        Held by the pool: in use, or free in blocks of whatever size.
    ceiling : int
        Most that the pool may hold.
    device_free : int
        What the driver could still give, to anyone.
    """

    used: int
    reserved: int
    ceiling: int
    device_free: int

    @property
    def within_reach(self) -> int:
        """Bytes that could still be had, in blocks of whatever size."""
        more = min(self.device_free, max(self.ceiling - self.reserved, 0))
        return max(min(self.reserved - self.used + more, self.ceiling - self.used), 0)


def judge(asked: int | None, pool: PoolNumbers) -> str:
    """Say in one sentence why an allocation failed: exhaustion, fragmentation, or somebody else on the device.

    Parameters
    ----------
    asked : int, optional
        Bytes asked for; None where that is not known.
    pool : PoolNumbers
        The pool at that moment.

    Examples
    --------
    >>> print(judge(3_000, PoolNumbers(used=6_000, reserved=10_000, ceiling=10_000, device_free=0)))
    The device's memory is fragmented: 3 kB were asked for and 4 kB are free, but in smaller pieces (6 kB of 10 kB used)
    >>> print(judge(5_000, PoolNumbers(used=6_000, reserved=10_000, ceiling=10_000, device_free=0)))
    The device's memory is exhausted: 5 kB were asked for, 4 kB are free (6 kB of 10 kB used)
    """
    free, left = pool.within_reach, pool.ceiling - pool.used
    there = f"({format_bytes(pool.used)} of {format_bytes(pool.ceiling)} used)"
    if asked is None:
        return f"The device's memory did not suffice: {format_bytes(free)} are free {there}"
    wish = f"{format_bytes(asked)} were asked for"
    if asked <= free:
        what = f"fragmented: {wish} and {format_bytes(free)} are free, but in smaller pieces"
    elif asked <= left:
        what = f"taken by others: {wish}, the limit leaves {format_bytes(left)}, the driver {format_bytes(free)}"
    else:
        what = f"exhausted: {wish}, {format_bytes(free)} are free"
    return f"The device's memory is {what} {there}"
