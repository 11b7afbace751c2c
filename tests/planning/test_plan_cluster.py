"""Rows shared between workers, what a round moves, and the plan of the fullest worker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabgpu import wire
from tabgpu.errors import ResourceError
from tabgpu.planning import DataShape, Device, Learned, Plan, Settings, Work, assign, make, round_bytes
from tabgpu.planning.cluster import LINKS, built_nodes

GB = 10**9
_LOADS = st.lists(st.integers(0, 10**6), min_size=1, max_size=60)


@given(_LOADS, st.integers(1, 20), st.data())
@settings(max_examples=50, deadline=None)
def test_an_assignment_is_a_balanced_partition(loads: list[int], workers: int, data: st.DataObject) -> None:
    rows = data.draw(st.none() | st.lists(st.integers(0, 10**6), min_size=len(loads), max_size=len(loads)))
    shared = assign(loads, workers, rows)
    assert sorted(task for own in shared for task in own) == list(range(len(loads)))
    assert all(list(own) == sorted(own) and own for own in shared)
    assert len(shared) <= workers
    sums = [sum(loads[i] for i in own) for own in shared]
    assert max(sums) - min(sums) <= max(loads)
    loaded = sum(load > 0 for load in loads)
    if loaded:
        assert min(sums) > 0
        assert len(shared) == min(workers, loaded)
    assert shared == assign(list(loads), workers, rows)


def test_tasks_without_load_are_shared_by_their_rows() -> None:
    shared = assign([10, 10, 0, 0, 0], 2, rows=[10, 10, 100, 60, 40])
    assert shared == ((0, 2), (1, 3, 4))
    assert assign([], 3) == ((),)


def test_what_a_round_moves() -> None:
    bins = 16 * 30 * 256
    assert round_bytes(30, {"max_depth": 1}, 256, 2) == bins
    assert round_bytes(30, {"max_depth": 3}, 256, 4) == bins * 4 * 2 * 3 // 4
    assert round_bytes(30, {"num_parallel_tree": 5}, 256, 2, trees=3) == bins * 32 * 15
    assert round_bytes(30, {}, 256, 1) == 0
    assert built_nodes({"max_depth": 6, "max_leaves": 5}) == 4
    assert built_nodes({"max_depth": 0}) == 2**30


def settings_with(workers: int, **changes: Any) -> Settings:
    usual = Settings(("cpu", ""), ("dask", ""), (4 * GB, ""), None, {}, sample_rows=200_000, workers=workers)
    return replace(usual, **changes)


def plan(tasks: list[int], workers: int, n_features: int = 30, learned: Learned | None = None, **kw: Any) -> Plan:
    largest = max(tasks)
    shape = DataShape(sum(tasks), 4, 4 * n_features + 8, largest, largest, 0, 0, tuple(tasks))
    return make(shape, settings_with(workers, **kw), Work(tuple(map(str, range(n_features))), (), {}), learned)


def test_the_plan_is_that_of_the_fullest_worker() -> None:
    tasks = [400_000] * 10
    alone, shared = plan(tasks, 1), plan(tasks, 4)
    assert (alone.workers, alone.assignment, alone.balance, alone.round_bytes) == (1, (), 1.0, None)
    assert shared.workers == 4
    assert sorted(shared.worker_rows) == [800_000, 800_000, 1_200_000, 1_200_000]
    assert shared.balance == pytest.approx(1.2)
    assert shared.cache_bytes == 1_200_000 * 4 * 32
    assert shared.peak_bytes < alone.peak_bytes
    assert shared.round_bytes == round_bytes(30, {}, 256, 4)
    assert any("1.20 times the mean" in reason for reason in shared.reasons)
    printed = shared.to_json()
    assert (printed["balance"], printed["round_bytes"], printed["workers"]) == (1.2, shared.round_bytes, 4)
    learned = Learned(10**6, 2_000_000, 3_000_000)
    assert plan(tasks, 4, learned=learned).cache_bytes == 900_000 * 4 * 32
    assert wire.unpack(wire.pack(shared)) == shared


@given(st.lists(st.integers(1, 500_000), min_size=1, max_size=40), st.integers(1, 12), st.booleans())
@settings(max_examples=30, deadline=None)
def test_more_workers_never_need_more_each(tasks: list[int], workers: int, gpu: bool) -> None:
    device = Device((10 * GB, ""), 11 * GB) if gpu else None
    one, many = (plan(tasks, n, limit=(50 * GB, ""), device=device) for n in (1, workers))
    assert many.peak_bytes <= one.peak_bytes
    assert (many.device_peak_bytes or 0) <= (one.device_peak_bytes or 0)


def test_fewer_parts_than_workers_use_fewer() -> None:
    made = plan([100_000, 0, 100_000], 8)
    assert made.workers == 2
    assert any("8 were asked for, and there are 2 parts" in reason for reason in made.reasons)


def test_moving_that_outweighs_computing_is_said() -> None:
    for link, warned in (("1 GbE", True), ("NVLink", False)):
        made = plan([500_000] * 8, 8, 200, limit=(40 * GB, ""), params={"max_depth": 10}, link=link)
        assert any("outweighs" in reason for reason in made.reasons) == warned
    assert min(LINKS.values()) > 0


def test_a_worker_that_is_too_small_is_said() -> None:
    with pytest.raises(ResourceError, match="A worker needs"):
        plan([1_000_000] * 4, 2, limit=(150_000_000, ""))
