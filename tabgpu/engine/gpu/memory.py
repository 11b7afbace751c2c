"""The device's memory: pools, ceiling, peaks, and moving frames to the host when it runs out.

One stack of RMM resources serves RMM, libcudf, cuDF and CuPy, from the bottom up:

1. the pool: a view of the device's default pool (``async``), which XGBoost shares when told so, or a pool of RMM of a
   fixed size (``fixed``), or what is there already (``given``); where that is no pool, the default pool too;
2. a ceiling in absolute bytes, where one is set;
3. counters, for the peaks of a pool that keeps no high-water mark of its own;
4. a hook that moves idle cuDF frames to the host when an allocation fails, and lets it be tried once more.

The hook is ours and not cuDF's, which cuDF pushes on top of whatever is set up when the first frame is made, which
prints to standard output, and which is lost as soon as another resource is set. XGBoost goes past 2 to 4; in an
``async`` pool what it takes is in the pool's own high-water mark, which is why peaks are read from there.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cupy
import rmm.mr
from cuda.bindings import driver, runtime
from rmm.allocators.cupy import rmm_cupy_allocator

from ...errors import ResourceError
from ...units import format_bytes
from ..memory import DeviceMemoryUse, MemorySettings, Meter, PoolNumbers, StagePeaks

_GRAIN = 256  # bytes; RMM refuses pools of other multiples
_STREAM_SWITCHES = ("CUDF_PER_THREAD_STREAM", "RMM_PER_THREAD_DEFAULT_STREAM", "CUPY_CUDA_PER_THREAD_DEFAULT_STREAM")
_Attribute = runtime.cudaMemPoolAttr


def answer(reply: tuple[Any, ...]) -> Any:
    """The value in a reply of the CUDA runtime, which begins with an error code.

    Raises
    ------
    RuntimeError
        If the code is not success.
    """
    code, *values = reply
    if int(code) != 0:
        raise RuntimeError(f"CUDA says {code.name}")
    return values[0] if len(values) == 1 else tuple(values)


class DefaultPool:
    """The default memory pool of the current device, as the driver keeps it. A `Meter`."""

    def __init__(self) -> None:
        device = answer(runtime.cudaGetDevice())
        self.handle = answer(runtime.cudaDeviceGetDefaultMemPool(device))

    def keep(self, n_bytes: int) -> None:
        """Keep up to `n_bytes` of freed memory; by default the driver takes all back at each synchronisation."""
        self._set(_Attribute.cudaMemPoolAttrReleaseThreshold, n_bytes)

    def trim(self) -> None:
        """Give back to the driver what is not in use."""
        answer(runtime.cudaMemPoolTrimTo(self.handle, 0))

    def used(self) -> int:
        """Bytes in use by all who share the pool."""
        return self._get(_Attribute.cudaMemPoolAttrUsedMemCurrent)

    def reserved(self) -> int:
        """Bytes that the pool holds."""
        return self._get(_Attribute.cudaMemPoolAttrReservedMemCurrent)

    def high(self) -> int:
        """Most bytes in use at once since `reset`."""
        return self._get(_Attribute.cudaMemPoolAttrUsedMemHigh)

    def reset(self) -> None:
        """Let `high` begin anew: the driver takes 0 alone, and starts at what is in use."""
        self._set(_Attribute.cudaMemPoolAttrUsedMemHigh, 0)

    def _get(self, attribute: Any) -> int:
        return int(answer(runtime.cudaMemPoolGetAttribute(self.handle, attribute)))

    def _set(self, attribute: Any, value: int) -> None:
        answer(runtime.cudaMemPoolSetAttribute(self.handle, attribute, driver.cuuint64_t(value)))


class Counters:
    """Peaks from RMM's counters, for pools without a high-water mark. A `Meter`.

    Counters can be stacked but not reset: one pair is kept on top of the stack, and exchanged to begin anew.
    """

    def __init__(self, adaptor: rmm.mr.StatisticsResourceAdaptor) -> None:
        self._adaptor = adaptor
        self._base = int(adaptor.push_counters().current_bytes)

    def used(self) -> int:
        """Bytes in use."""
        return self._base + int(self._adaptor.allocation_counts.current_bytes)

    def high(self) -> int:
        """Most bytes in use at once since `reset`."""
        return self._base + int(self._adaptor.allocation_counts.peak_bytes)

    def reset(self) -> None:
        """Let `high` begin anew, at what is in use."""
        self._adaptor.pop_counters()
        self._base = int(self._adaptor.push_counters().current_bytes)


@dataclass(frozen=True)
class Stack:
    """Resources from `compose`: `top` serves all, `counters` are read."""

    top: rmm.mr.DeviceMemoryResource
    counters: rmm.mr.StatisticsResourceAdaptor


def fixed_pool(upstream: rmm.mr.DeviceMemoryResource, n_bytes: int) -> rmm.mr.PoolMemoryResource:
    """A pool that takes its whole size at once and never grows: growing is what fragments it."""
    size = n_bytes // _GRAIN * _GRAIN
    return rmm.mr.PoolMemoryResource(upstream, size, size)


def compose(pool: rmm.mr.DeviceMemoryResource, limit_bytes: int | None, on_failure: Callable[[int], bool]) -> Stack:
    """Put ceiling, counters and hook on top of a pool.

    Parameters
    ----------
    pool : rmm.mr.DeviceMemoryResource
        What gives memory.
    limit_bytes : int, optional
        The ceiling.
    on_failure : callable
        Called with the bytes asked for when there is no room; returns whether to try again.
    """
    limited = pool if limit_bytes is None else rmm.mr.LimitingResourceAdaptor(pool, limit_bytes)
    counters = rmm.mr.StatisticsResourceAdaptor(limited)
    return Stack(rmm.mr.FailureCallbackResourceAdaptor(counters, on_failure), counters)


def resources(top: rmm.mr.DeviceMemoryResource) -> list[rmm.mr.DeviceMemoryResource]:
    """A resource and all that it stands on, from the top down."""
    found = [top]
    while isinstance(found[-1], rmm.mr.UpstreamResourceAdaptor):
        found.append(found[-1].upstream_mr)
    return found


class Hook:
    """Makes room when an allocation fails: moves idle cuDF frames, else lets go of what only cycles hold.

    It knows nothing of those who know it: RMM keeps a bare pointer to it, which the collector of cycles must not clear.

    Parameters
    ----------
    spill : bool
        Whether frames may be moved to the host.
    """

    def __init__(self, spill: bool) -> None:
        self.spilled_bytes = 0
        self.counters: Counters | None = None
        self._spill = spill

    def __call__(self, n_bytes: int) -> bool:
        """Whether to try again to allocate `n_bytes`."""
        spilled = spill(n_bytes) if self._spill else 0
        self.spilled_bytes += spilled
        if spilled or self.counters is None:
            return spilled > 0
        before = self.counters.used()
        gc.collect()
        return self.counters.used() < before


class MemoryOfDevice:
    """What `GpuEngine` knows of its device's memory.

    Parameters
    ----------
    settings : MemorySettings
        What is wished for; set up at once, for this process and its current device.

    Raises
    ------
    ResourceError
        If a pool of the wished size does not fit, the current device is not the first, or streams are switched to one
        for each thread.
    """

    def __init__(self, settings: MemorySettings) -> None:
        refuse_stream_switches()
        refuse_other_devices()
        self.settings = settings
        self._before = rmm.mr.get_current_device_resource()
        if settings.pool != "given":
            configure_spilling(settings.spill)
        # where nobody has made a pool, each array would be asked of the driver, which waits for the device each time
        bare = settings.pool == "given" and type(self._before) is rmm.mr.CudaMemoryResource
        self.shared = DefaultPool() if settings.pool == "async" or bare else None
        limit = None if settings.pool == "fixed" else settings.limit_bytes
        self.hook = Hook(settings.spill)
        self.stack = compose(self._pool(), limit, self.hook)
        rmm.mr.set_current_device_resource(self.stack.top)
        cupy.cuda.set_allocator(rmm_cupy_allocator)
        cupy.cuda.set_pinned_memory_allocator(pinned)
        self._counters = self.hook.counters = Counters(self.stack.counters)
        meter: Meter = self.shared or self._counters
        meter.reset()
        self.peaks = StagePeaks(meter)

    def _pool(self) -> rmm.mr.DeviceMemoryResource:
        """What gives memory, as the settings have it."""
        if self.shared is not None:
            self.shared.keep(self.settings.limit_bytes or answer(runtime.cudaMemGetInfo())[1])
            return rmm.mr.CudaAsyncViewMemoryResource(self.shared.handle)
        if self.settings.pool == "given":
            return self._before
        size = self.settings.pool_bytes
        if size is None:
            raise ValueError("a fixed pool needs pool_bytes")
        try:
            return fixed_pool(rmm.mr.CudaMemoryResource(), size)
        except (MemoryError, RuntimeError) as error:
            free, total = answer(runtime.cudaMemGetInfo())
            raise ResourceError(
                f"A memory pool of {format_bytes(size)} does not fit: {format_bytes(free)} of the device's "
                f"{format_bytes(total)} are free",
                "Expected a pool that leaves room for XGBoost and for what others hold",
                "Lower memory.pool.size, free the device, or pass --set memory.pool=async",
            ) from error

    def use(self) -> DeviceMemoryUse:
        """Ceiling and peaks so far."""
        peak, stages = self.peaks.read()
        fixed = self.settings.pool == "fixed"
        limit = self.settings.pool_bytes if fixed else self.settings.limit_bytes
        return DeviceMemoryUse(limit, peak, stages, self.hook.spilled_bytes)

    def numbers(self) -> PoolNumbers:
        """The pool as it is now."""
        free, total = answer(runtime.cudaMemGetInfo())
        if self.shared is not None:
            ceiling = min(self.settings.limit_bytes or total, total)
            return PoolNumbers(self.shared.used(), self.shared.reserved(), ceiling, free)
        used = self._counters.used()
        pools = [r for r in resources(self.stack.top) if isinstance(r, rmm.mr.PoolMemoryResource)]
        reserved = pools[0].pool_size() if pools else used
        if self.settings.pool == "fixed":
            return PoolNumbers(used, reserved, reserved, 0)
        return PoolNumbers(used, reserved, self.settings.limit_bytes or total, free)

    def release(self) -> None:
        """Wait for the device, and give back what is free where the pool may shrink."""
        cupy.cuda.runtime.deviceSynchronize()  # what was freed in the order of a stream is free only now
        if self.shared is not None:
            self.shared.trim()
        cupy.get_default_memory_pool().free_all_blocks()  # of CuPy itself, from before it was given our allocator
        cupy.get_default_pinned_memory_pool().free_all_blocks()

    def close(self) -> None:
        """Put back the resource that was there before; a fixed pool goes away with the last array in it."""
        self.release()
        rmm.mr.set_current_device_resource(self._before)

    def spilling(self) -> bool:
        """Whether frames can be moved to the host: cuDF was told before its first buffer, and the hook is in place."""
        hooked = any(r is self.stack.top for r in resources(rmm.mr.get_current_device_resource()))
        told = "cudf" not in sys.modules or _spill_manager() is not None
        return self.settings.spill and hooked and told


def refuse_stream_switches() -> None:
    """Refuse streams of their own for each thread: chunks pass from thread to thread on the one default stream.

    Raises
    ------
    ResourceError
        If a library was told to use them.
    """
    for name in _STREAM_SWITCHES:
        if os.environ.get(name, "0") not in ("", "0"):
            raise ResourceError(
                f"{name} is {os.environ[name]!r}",
                "Expected the one default stream: chunks pass from reader threads to the main thread on it",
                f"Run: unset {name}",
            )


def refuse_other_devices() -> None:
    """Refuse a current device that is not the first visible one: readers' threads begin on that, as all threads do.

    Raises
    ------
    ResourceError
        If the calling thread was switched to another.
    """
    device = int(answer(runtime.cudaGetDevice()))
    if device:
        raise ResourceError(
            f"The current CUDA device of this thread is {device}",
            "Expected device 0, the first that CUDA_VISIBLE_DEVICES names: plan and reader threads take that one",
            f"Set CUDA_VISIBLE_DEVICES={device} before Python starts, and leave the current device as it is",
        )


def pinned(n_bytes: int) -> Any:
    """Pinned memory of the host for a copy, from CuPy's pool, rounded up to a power of two.

    The pool keeps a block of each size that was ever asked for; levels have another size in each chunk.
    """
    return cupy.get_default_pinned_memory_pool().malloc(1 << (n_bytes - 1).bit_length() if n_bytes else 0)


def configure_spilling(spill: bool) -> None:
    """Tell cuDF whether frames may be moved; it asks once, when its first buffer is made.

    Without cuDF in this process its environment variables are set, which it reads when imported: nothing here needs
    the second and the 300 MB of the host that importing it takes. Its hook stays off (see the module's docstring).
    """
    cudf = sys.modules.get("cudf")
    if cudf is not None:
        cudf.set_option("spill", spill)
        cudf.set_option("spill_on_demand", False)
    else:
        os.environ["CUDF_SPILL"] = "1" if spill else "0"
        os.environ["CUDF_SPILL_ON_DEMAND"] = "0"


def spill(n_bytes: int) -> int:
    """Move idle frames of at least `n_bytes` to the host; returns the bytes moved, 0 where there are none."""
    manager = _spill_manager()
    return 0 if manager is None else int(manager.spill_device_memory(nbytes=n_bytes))


def _spill_manager() -> Any:
    """The manager of frames of cuDF; None without cuDF or without spilling."""
    if "cudf" not in sys.modules:
        return None
    from cudf.core.buffer.spill_manager import get_global_manager

    return get_global_manager()
