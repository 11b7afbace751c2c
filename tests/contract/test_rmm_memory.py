"""RMM's own pools, limits, counters and callbacks, run over memory of the host, under the engine's memory layer."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("rmm", reason="RMM is not installed here; scripts/contract runs this where it is")
import rmm.mr  # noqa: TID251 - this is about RMM itself

from tabgpu.engine.gpu import memory
from tabgpu.engine.memory import (
    DeviceMemoryUse,
    MemorySettings,
    PoolNumbers,
    StagePeaks,
    asked_bytes,
    is_out_of_memory,
    judge,
)
from tabgpu.errors import ResourceError

MIB = 2**20
LIBC = ctypes.CDLL(None)
LIBC.malloc.restype, LIBC.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
LIBC.free.argtypes = [ctypes.c_void_p]

ALIVE: list[Any] = []  # a pool that goes away in a cycle still calls its callbacks, which the collector has emptied


class Host:
    """Memory of the host as the bottom of a stack; knows how much it has given."""

    def __init__(self, room: int = 2**40) -> None:
        self.state = state = {"given": 0}

        def allocate(n_bytes: int, stream: Any) -> int:
            if state["given"] + n_bytes > room:
                raise MemoryError(f"out of memory (failed to allocate {n_bytes} bytes)")
            state["given"] += n_bytes
            return int(LIBC.malloc(n_bytes))

        def free(pointer: int, n_bytes: int, stream: Any) -> None:
            state["given"] -= n_bytes
            LIBC.free(pointer)

        self.resource = rmm.mr.CallbackMemoryResource(allocate, free)
        ALIVE.append(self.resource)

    @property
    def given(self) -> int:
        return self.state["given"]


class Held:
    """Allocations that are still to be freed."""

    def __init__(self, top: Any) -> None:
        self.top, self.blocks = top, []

    def take(self, n_bytes: int) -> int:
        self.blocks.append((self.top.allocate(n_bytes), n_bytes))
        return len(self.blocks) - 1

    def free(self, *which: int) -> None:
        for i in which or range(len(self.blocks)):
            if self.blocks[i] is not None:
                self.top.deallocate(*self.blocks[i])
                self.blocks[i] = None


def never(n_bytes: int) -> bool:
    return False


@pytest.fixture
def held() -> Iterator[Callable[[Any], Held]]:
    made: list[Held] = []

    def make(top: Any) -> Held:
        made.append(Held(top))
        return made[-1]

    yield make
    for h in made:
        h.free()


def failure(held: Held, n_bytes: int) -> BaseException:
    with pytest.raises((MemoryError, RuntimeError)) as caught:
        held.take(n_bytes)
    return caught.value


def test_a_fixed_pool_takes_its_size_at_once_and_no_more(held: Callable[[Any], Held]) -> None:
    host = Host()
    pool = memory.fixed_pool(host.resource, 64 * MIB + 100)  # rounded down to what RMM takes
    assert host.given == pool.pool_size() == 64 * MIB
    stack = memory.compose(pool, None, never)
    mine = held(stack.top)
    mine.take(40 * MIB)
    error = failure(mine, 32 * MIB)
    assert is_out_of_memory(error)
    assert asked_bytes(error) == 32 * MIB
    assert host.given == 64 * MIB
    mine.free()
    mine.take(64 * MIB)  # freed blocks are one again


def test_fragmentation_is_told_from_exhaustion(held: Callable[[Any], Held]) -> None:
    pool = memory.fixed_pool(Host().resource, 64 * MIB)
    stack = memory.compose(pool, None, never)
    mine = held(stack.top)
    for _ in range(8):
        mine.take(8 * MIB)
    mine.free(0, 2, 4, 6)  # 32 MiB are free, in pieces of 8
    counters = memory.Counters(stack.counters)
    numbers = PoolNumbers(counters.used(), pool.pool_size(), pool.pool_size(), 0)
    assert numbers.within_reach == 32 * MIB
    assert "fragmented: 16.8 MB were asked for and 33.6 MB are free" in judge(
        asked_bytes(failure(mine, 16 * MIB)), numbers
    )
    assert "exhausted: 41.9 MB" in judge(asked_bytes(failure(mine, 40 * MIB)), numbers)
    mine.take(8 * MIB)


def test_the_ceiling_holds_and_says_what_was_asked(held: Callable[[Any], Held]) -> None:
    host = Host()
    stack = memory.compose(host.resource, 10 * MIB, never)
    mine = held(stack.top)
    first = mine.take(8 * MIB)
    error = failure(mine, 4 * MIB)
    assert is_out_of_memory(error)
    assert asked_bytes(error) == 4 * MIB
    assert host.given == 8 * MIB
    mine.free(first)
    mine.take(10 * MIB)


def test_peaks_of_nested_stages_from_rmm_counters(held: Callable[[Any], Held]) -> None:
    stack = memory.compose(Host().resource, None, never)
    mine = held(stack.top)
    before = mine.take(1 * MIB)
    peaks = StagePeaks(memory.Counters(stack.counters))
    with peaks.stage("outer"):
        short = mine.take(10 * MIB)
        mine.free(short)
        with peaks.stage("inner"):
            mine.take(3 * MIB)
        last = mine.take(2 * MIB)
    mine.free(before, last)
    with peaks.stage("later"):
        pass
    assert peaks.read() == (11 * MIB, {"outer": 11 * MIB, "inner": 4 * MIB, "later": 3 * MIB})


def test_the_hook_makes_room_and_the_allocation_is_tried_again(held: Callable[[Any], Held]) -> None:
    asked: list[int] = []

    def free_first(n_bytes: int) -> bool:
        asked.append(n_bytes)
        if len(asked) > 1:
            return False
        mine.free(0)
        return True

    stack = memory.compose(memory.fixed_pool(Host().resource, 8 * MIB), None, free_first)
    mine = held(stack.top)
    mine.take(6 * MIB)
    mine.take(4 * MIB)
    assert asked == [4 * MIB]
    failure(mine, 16 * MIB)
    assert asked == [4 * MIB, 16 * MIB]
    assert stack.counters.allocation_counts.current_bytes == 4 * MIB


@pytest.mark.parametrize("limit", [None, 10 * MIB])
def test_the_hook_serves_a_ceiling_as_it_serves_a_pool(held: Callable[[Any], Held], limit: int | None) -> None:
    """Spilling is tried at our ceiling, not only where the device ends."""
    asked: list[int] = []
    stack = memory.compose(Host(room=12 * MIB).resource, limit, lambda n: bool(asked.append(n)))
    failure(held(stack.top), 14 * MIB)
    assert asked == [14 * MIB]


def test_a_stack_knows_what_it_stands_on() -> None:
    host = Host()
    pool = memory.fixed_pool(host.resource, MIB)
    stack = memory.compose(pool, MIB, never)
    found = memory.resources(stack.top)
    assert (found[0], found[1], found[-2], found[-1]) == (stack.top, stack.counters, pool, host.resource)
    assert isinstance(found[2], rmm.mr.LimitingResourceAdaptor)


def test_memory_goes_back_when_a_stack_is_let_go() -> None:
    host = Host()
    stack = memory.compose(memory.fixed_pool(host.resource, MIB), None, never)
    assert host.given == MIB
    del stack
    gc.collect()
    assert host.given == 0


def test_counters_survive_many_resets(held: Callable[[Any], Held]) -> None:
    stack = memory.compose(Host().resource, None, never)
    mine, counters = held(stack.top), memory.Counters(stack.counters)
    for n in range(1, 20):
        mine.take(n * 1024)
        counters.reset()
        assert counters.used() == counters.high() == sum(range(n + 1)) * 1024


def test_spilling_is_told_to_cudf_before_its_first_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "cudf", raising=False)
    for name in ("CUDF_SPILL", "CUDF_SPILL_ON_DEMAND"):
        monkeypatch.setenv(name, "?")
    memory.configure_spilling(True)
    assert (os.environ["CUDF_SPILL"], os.environ["CUDF_SPILL_ON_DEMAND"]) == ("1", "0")
    memory.configure_spilling(False)
    assert os.environ["CUDF_SPILL"] == "0"
    assert memory.spill(100) == 0  # there is no cuDF to ask


def test_streams_for_each_thread_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    memory.refuse_stream_switches()
    monkeypatch.setenv("CUPY_CUDA_PER_THREAD_DEFAULT_STREAM", "1")
    with pytest.raises(ResourceError, match=r"CUPY_CUDA_PER_THREAD_DEFAULT_STREAM is '1'.*unset CUPY"):
        memory.refuse_stream_switches()


def test_a_reply_of_the_cuda_runtime_is_a_value_or_an_error() -> None:
    from cuda.bindings import runtime  # noqa: TID251 - the replies are its own

    assert memory.answer((runtime.cudaError_t.cudaSuccess, 3)) == 3
    assert memory.answer((runtime.cudaError_t.cudaSuccess, 3, 4)) == (3, 4)
    with pytest.raises(RuntimeError, match="cudaErrorMemoryAllocation") as caught:
        memory.answer((runtime.cudaError_t.cudaErrorMemoryAllocation, None))
    assert is_out_of_memory(caught.value)


class Pool:
    """The driver's default pool, in the test's hands."""

    def __init__(self) -> None:
        self.kept, self.trimmed, self.now, self.mark = 0, 0, 500, 800
        self.handle = "the default pool"

    def keep(self, n_bytes: int) -> None:
        self.kept = n_bytes

    def trim(self) -> None:
        self.trimmed += 1

    def used(self) -> int:
        return self.now

    def reserved(self) -> int:
        return 600

    def high(self) -> int:
        return self.mark

    def reset(self) -> None:
        self.mark = self.now


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `MemoryOfDevice` does to a device, on the host, in order."""
    host, pool = Host(), Pool()
    seen: dict[str, Any] = {"host": host, "pool": pool, "order": [], "current": host.resource}

    def set_current(resource: Any) -> None:
        seen["order"].append("resource")
        seen["current"] = resource

    monkeypatch.setenv("CUDF_SPILL", "?")
    monkeypatch.setenv("CUDF_SPILL_ON_DEMAND", "?")
    configure = memory.configure_spilling
    monkeypatch.setattr(memory, "configure_spilling", lambda on: (seen["order"].append("spilling"), configure(on)))
    monkeypatch.setattr(memory, "DefaultPool", lambda: pool)
    monkeypatch.setattr(rmm.mr, "CudaAsyncViewMemoryResource", lambda handle: host.resource)
    monkeypatch.setattr(rmm.mr, "CudaMemoryResource", lambda: host.resource)
    monkeypatch.setattr(rmm.mr, "set_current_device_resource", set_current)
    monkeypatch.setattr(rmm.mr, "get_current_device_resource", lambda: seen["current"])
    monkeypatch.setattr(memory.cupy.cuda, "set_allocator", lambda allocator: seen["order"].append("cupy"))
    monkeypatch.setattr(memory.cupy.cuda, "set_pinned_memory_allocator", lambda allocator: None)
    monkeypatch.setattr(memory.cupy.cuda.runtime, "deviceSynchronize", lambda: seen["order"].append("wait"))
    for name in ("get_default_memory_pool", "get_default_pinned_memory_pool"):
        monkeypatch.setattr(memory.cupy, name, lambda: SimpleNamespace(free_all_blocks=lambda: None))
    monkeypatch.setattr(memory.runtime, "cudaGetDevice", lambda: (0, 0))
    monkeypatch.setattr(memory.runtime, "cudaMemGetInfo", lambda: (0, 900 * MIB, 1000 * MIB))
    return seen


def test_an_async_pool_is_the_devices_own_with_our_ceiling(device: dict[str, Any], held: Callable[[Any], Held]) -> None:
    of_device = memory.MemoryOfDevice(MemorySettings("async", limit_bytes=10 * MIB))
    assert device["order"] == ["spilling", "resource", "cupy"]
    assert device["pool"].kept == 10 * MIB
    assert device["current"] is of_device.stack.top
    assert of_device.spilling()
    mine = held(device["current"])
    mine.take(8 * MIB)
    failure(mine, 4 * MIB)
    with of_device.peaks.stage("fit"):
        device["pool"].mark = 950
    assert of_device.use() == DeviceMemoryUse(10 * MIB, 950, {"fit": 950}, 0)
    assert of_device.numbers() == PoolNumbers(500, 600, 10 * MIB, 900 * MIB)
    of_device.release()
    assert (device["pool"].trimmed, device["order"][-1]) == (1, "wait")


def test_a_fixed_pool_leaves_the_rest_to_xgboost(device: dict[str, Any], held: Callable[[Any], Held]) -> None:
    of_device = memory.MemoryOfDevice(MemorySettings("fixed", limit_bytes=100 * MIB, pool_bytes=60 * MIB, spill=False))
    assert device["host"].given == 60 * MIB
    assert of_device.shared is None
    assert not of_device.spilling()
    mine = held(device["current"])
    with of_device.peaks.stage("fit"):
        mine.take(50 * MIB)
    assert of_device.use() == DeviceMemoryUse(60 * MIB, 50 * MIB, {"fit": 50 * MIB}, 0)
    error = failure(mine, 20 * MIB)
    assert judge(asked_bytes(error), of_device.numbers()).startswith("The device's memory is exhausted: 21 MB")
    of_device.release()


def test_a_pool_that_does_not_fit_is_exit_4(device: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rmm.mr, "CudaMemoryResource", lambda: Host(room=MIB).resource)
    with pytest.raises(ResourceError, match=r"pool of 62\.9 MB does not fit: 944 MB of the device's 1\.05 GB are free"):
        memory.MemoryOfDevice(MemorySettings("fixed", pool_bytes=60 * MIB))


def test_a_pool_that_is_there_is_kept(device: dict[str, Any], held: Callable[[Any], Held]) -> None:
    """As that of dask-cuda: what it was told about spilling stays too."""
    given = memory.fixed_pool(device["host"].resource, 8 * MIB)
    device["current"] = given
    of_device = memory.MemoryOfDevice(MemorySettings("given"))
    assert device["order"] == ["resource", "cupy"]
    assert os.environ["CUDF_SPILL"] == "?"
    assert memory.resources(device["current"])[2] is given
    held(device["current"]).take(2 * MIB)
    assert of_device.numbers().used == 2 * MIB
    assert of_device.use() == DeviceMemoryUse(None, 2 * MIB, {}, 0)


def test_where_there_is_no_pool_the_devices_own_is_taken(
    device: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a model that is loaded and asked: else each array would be asked of the driver."""
    monkeypatch.setattr(rmm.mr, "CudaMemoryResource", type(device["current"]))
    of_device = memory.MemoryOfDevice(MemorySettings("given"))
    assert of_device.shared is device["pool"]
    assert device["pool"].kept == 1000 * MIB
    assert of_device.use().limit_bytes is None


def test_what_was_there_before_is_put_back(device: dict[str, Any]) -> None:
    """So that a process can have one run after the other, and fixed pools of two sizes."""
    before = device["current"]
    settings = MemorySettings("fixed", limit_bytes=100 * MIB, pool_bytes=60 * MIB)
    of_device = memory.MemoryOfDevice(settings)
    assert device["host"].given == 60 * MIB
    of_device.close()
    del of_device
    gc.collect()
    assert device["current"] is before
    assert device["host"].given == 0


def test_an_engine_lets_go_before_it_sets_up_anew(device: dict[str, Any]) -> None:
    from tabgpu.engine.gpu import GpuEngine

    engine = GpuEngine()
    with engine.stage("start"):  # a run tells its stages before it has planned
        for size in (60, 50):
            engine.setup(MemorySettings("fixed", pool_bytes=size * MIB))
            gc.collect()
            assert device["host"].given == size * MIB
    with engine.stage("fit"):
        pass
    engine.on_host["x"] = "a reason"
    assert engine.memory.stage_peaks
    engine.begin()
    gc.collect()
    assert device["host"].given == 0
    assert (engine.notes, engine.memory.stage_peaks) == ([], {})


def test_another_device_than_the_first_is_refused(device: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.runtime, "cudaGetDevice", lambda: (0, 2))
    with pytest.raises(ResourceError, match=r"device of this thread is 2.*CUDA_VISIBLE_DEVICES=2"):
        memory.MemoryOfDevice(MemorySettings("async", limit_bytes=10 * MIB))


def test_pinned_memory_has_few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy's pool keeps a block of each size: of levels, another in each chunk."""
    asked: list[int] = []
    pool = SimpleNamespace(malloc=asked.append)
    monkeypatch.setattr(memory.cupy, "get_default_pinned_memory_pool", lambda: pool)
    sizes = [0, 1, 2, 3, 512, 513, 8_000, 8_192, 256_000_000]
    for size in sizes:
        memory.pinned(size)
    assert asked == [0, 1, 2, 4, 512, 1024, 8192, 8192, 2**28]


def test_frames_are_moved_before_an_allocation_fails(
    device: dict[str, Any], held: Callable[[Any], Held], monkeypatch: pytest.MonkeyPatch
) -> None:
    of_device = memory.MemoryOfDevice(MemorySettings("async", limit_bytes=10 * MIB))
    mine = held(device["current"])
    mine.take(8 * MIB)

    def spill(n_bytes: int) -> int:
        mine.free(0)
        return 8 * MIB

    monkeypatch.setattr(memory, "spill", spill)
    mine.take(4 * MIB)
    assert of_device.use().spilled_bytes == 8 * MIB
    rmm.mr.set_current_device_resource(device["host"].resource)  # somebody sets another: frames are not moved any more
    assert not of_device.spilling()


def test_what_cycles_hold_is_let_go_before_an_allocation_fails(device: dict[str, Any]) -> None:
    memory.MemoryOfDevice(MemorySettings("async", limit_bytes=10 * MIB, spill=False))
    top = device["current"]

    class Array:
        def __init__(self) -> None:
            self.me, self.pointer = self, top.allocate(8 * MIB)

        def __del__(self) -> None:
            top.deallocate(self.pointer, 8 * MIB)

    Array()
    pointer = top.allocate(4 * MIB)
    assert device["host"].given == 4 * MIB
    top.deallocate(pointer, 4 * MIB)


def test_the_default_pool_is_asked_as_the_driver_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []
    fake = {
        "cudaGetDevice": lambda: (0, 3),
        "cudaDeviceGetDefaultMemPool": lambda device: (0, f"pool of {device}"),
        "cudaMemPoolGetAttribute": lambda pool, attribute: (0, asked.append((pool, attribute.name)) or 77),
        "cudaMemPoolSetAttribute": lambda pool, attribute, value: (
            (asked.append((pool, attribute.name, type(value).__name__, int(value))),) and (0,)
        ),
        "cudaMemPoolTrimTo": lambda pool, keep: asked.append((pool, keep)) or (0,),
    }
    for name, function in fake.items():
        monkeypatch.setattr(memory.runtime, name, function)
    pool = memory.DefaultPool()
    pool.keep(9)
    pool.reset()
    pool.trim()
    assert (pool.used(), pool.reserved(), pool.high()) == (77, 77, 77)
    assert asked == [
        ("pool of 3", "cudaMemPoolAttrReleaseThreshold", "cuuint64_t", 9),
        ("pool of 3", "cudaMemPoolAttrUsedMemHigh", "cuuint64_t", 0),
        ("pool of 3", 0),
        ("pool of 3", "cudaMemPoolAttrUsedMemCurrent"),
        ("pool of 3", "cudaMemPoolAttrReservedMemCurrent"),
        ("pool of 3", "cudaMemPoolAttrUsedMemHigh"),
    ]
