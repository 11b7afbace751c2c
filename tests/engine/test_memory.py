"""Errors of memory are known, explained, and peaks of stages are right."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabgpu.engine.cpu import CpuEngine
from tabgpu.engine.memory import (
    DeviceMemoryUse,
    MemorySettings,
    PoolNumbers,
    StagePeaks,
    asked_bytes,
    is_out_of_memory,
    judge,
)
from tabgpu.errors import DataError, ResourceError
from tabgpu.wire import pack, unpack


class OutOfMemoryError(Exception):
    """Named as CuPy's is."""


class XGBoostError(ValueError):
    """Named as XGBoost's is."""


POOL = (
    "std::bad_alloc: out_of_memory: RMM failure at:p.hpp:277: Maximum pool size exceeded (failed to allocate 1.5 GiB)"
)
LIMIT = (
    "std::bad_alloc: out_of_memory: RMM failure: Exceeded memory limit 10485760; Allocated bytes 8; Requested bytes 96"
)
BOOSTER = "Memory allocation error on worker 0: std::bad_alloc\n- Free memory: 12.5GB\n- Requested memory: 64GB"


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (MemoryError(POOL), 3 * 2**29),
        (MemoryError(LIMIT), 96),
        (RuntimeError("CUDA error (failed to allocate 2,048 bytes) at: x: cudaErrorMemoryAllocation"), 2048),
        (OutOfMemoryError("Out of memory allocating 1,024 bytes (allocated so far: 2,000 bytes)."), 1024),
        (XGBoostError(BOOSTER), 64 * 10**9),
        (RuntimeError("CUDA says cudaErrorMemoryAllocation"), None),
        (pa.ArrowMemoryError("malloc of size 99 failed"), None),
        (MemoryError(), None),
    ],
)
def test_every_library_is_understood(error: BaseException, asked: int | None) -> None:
    assert is_out_of_memory(error)
    assert asked_bytes(error) == asked


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDF failure at: reader.cpp: corrupted page header"),
        XGBoostError("Check failed: labels.Size() == n"),
        OSError("checksum"),
        ResourceError("The disk is full: out of memory is not the matter", "a", "b"),  # an answer, though a MemoryError
        DataError("a", "b", "c"),
    ],
)
def test_other_errors_are_not_taken_for_it(error: BaseException) -> None:
    assert not is_out_of_memory(error)
    assert not CpuEngine().is_out_of_memory(error)


SIZES = st.integers(0, 1000)


@settings(deadline=None, max_examples=50)
@given(SIZES, SIZES, SIZES, SIZES, st.integers(1, 2000))
def test_the_reason_follows_from_the_numbers(used: int, cached: int, growth: int, free: int, asked: int) -> None:
    pool = PoolNumbers(used, used + cached, used + cached + growth, free)
    assert pool.within_reach == cached + min(growth, free)
    said = judge(asked, pool)
    if asked <= cached + min(growth, free):
        assert "fragmented" in said
    elif asked <= cached + growth:
        assert "taken by others" in said
    else:
        assert "exhausted" in said
    assert "did not suffice" in judge(None, pool)


class Meter:
    """A pool in the test's hands."""

    def __init__(self) -> None:
        self.now = self.mark = 0

    def use(self, n_bytes: int) -> None:
        self.now = n_bytes
        self.mark = max(self.mark, n_bytes)

    def used(self) -> int:
        return self.now

    def high(self) -> int:
        return self.mark

    def reset(self) -> None:
        self.mark = self.now


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.lists(SIZES, max_size=3)), max_size=6))
def test_a_stage_keeps_its_peak_whatever_is_nested_in_it(steps: list[tuple[str, list[int]]]) -> None:
    """Each step opens a stage inside the one before; the expected peaks come from the whole history."""
    meter, expected, total = Meter(), dict[str, int](), 0
    peaks = StagePeaks(meter)
    opened, names = [], []
    for name, sizes in steps:
        stage = peaks.stage(name)
        stage.__enter__()
        opened.append(stage)
        names.append(name)
        for size in [meter.now, *sizes]:
            meter.use(size)
            total = max(total, size)
            for open_name in names:
                expected[open_name] = max(expected.get(open_name, 0), size)
    for stage in reversed(opened):
        stage.__exit__(None, None, None)
    meter.use(5000)
    meter.use(0)
    assert peaks.read() == (5000, expected)


def test_a_stage_ends_when_it_fails() -> None:
    meter = Meter()
    peaks = StagePeaks(meter)

    def fail() -> None:
        with peaks.stage("a"):
            meter.use(7)
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        fail()
    meter.use(9)
    assert peaks.read() == (9, {"a": 7})


def test_settings_travel_and_the_cpu_has_no_device() -> None:
    wish = MemorySettings("fixed", 10**9, 8 * 10**8, spill=False)
    assert unpack(pack(wish)) == wish
    engine = CpuEngine()
    engine.setup(wish)
    with engine.stage("a"), engine.training():
        pass
    engine.check_trained(object())
    assert engine.memory == DeviceMemoryUse(None, None, {}, 0)
    assert engine.explain(MemoryError("malloc of size 99 failed")).endswith("malloc of size 99 failed")
