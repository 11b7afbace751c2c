"""The plan on a GPU: two limits kept, matrix in core or external, fixed pools, and what is said where it cannot fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabgpu.errors import ConfigError, ResourceError
from tabgpu.hardware import GpuFacts
from tabgpu.planning import DataShape, Device, Learned, Plan, Settings, Work, device_limit, make
from tabgpu.planning.device import CONTEXT_BYTES, device_of

GB = 10**9
LEARNED = Learned(50_000_000, 800_000, 1_000_000)


def settings_of(limit: int = 40 * GB, host: int = 200 * GB, **changes: Any) -> Settings:
    changes = {"params": {}, "max_bin": 255, "device": Device((limit, "asked for"), limit), **changes}
    return replace(Settings(("gpu", ""), ("serial", ""), (host, "there"), None, None, sample_rows=200_000), **changes)


def plan(n_rows: int, limit: int = 40 * GB, n_features: int = 30, learned: Learned | None = None, **kw: Any) -> Plan:
    shape = DataShape(n_rows, 1, 4 * n_features + 8, 500_000, 500_000, 0)
    return make(shape, settings_of(limit, **kw), Work(tuple(f"f{i}" for i in range(n_features)), (), {}), learned)


def bytes_of(made: Plan) -> dict[str, int]:
    return {t.name: t.bytes for t in made.device_terms}


_POOLS = st.sampled_from([("async", None), ("fixed", None), ("fixed", 2 * GB), ("fixed", 12 * GB)])


@given(
    st.integers(1, 3 * 10**9), st.integers(1, 500), st.integers(GB, 140 * GB), st.integers(GB, 500 * GB), _POOLS,
    st.integers(1, 4), st.booleans(),
)  # fmt: skip
@settings(max_examples=50, deadline=None)
def test_terms_add_up_and_both_limits_are_kept(
    n_rows: int, n_features: int, limit: int, host: int, pool: tuple[Any, Any], readers: int, knows: bool
) -> None:
    device = Device((limit, ""), limit, *pool)
    learned = Learned(10**6, n_rows * 4 // 5, n_rows) if knows else None
    try:
        made = plan(n_rows, limit, n_features, learned, host=host, device=device, readers=readers)
    except ResourceError:
        return
    assert made.device_peak_bytes == sum(t.bytes for t in made.device_terms) <= limit
    assert made.peak_bytes <= host
    assert all(0 <= t.bytes <= t.high for t in made.device_terms)
    printed = made.to_json()["predicted"]
    assert sum(t["bytes"] for t in printed["device_terms"]) == printed["device_peak_bytes"]
    if made.pool_bytes is not None:
        assert made.pool_bytes % 256 == 0
        assert made.pool_bytes + CONTEXT_BYTES <= limit
    options = made.matrix_options
    assert bool(options) == (made.matrix == "external")
    assert 0 <= options.get("cache_host_ratio", 0) <= 1


@given(st.integers(1, 10**9), st.integers(1, 10**9), st.integers(2, 300), st.integers(2 * GB, 80 * GB))
@settings(max_examples=50, deadline=None)
def test_more_rows_never_need_less(n_rows: int, more: int, n_features: int, limit: int) -> None:
    made: list[Plan | None] = []
    for n in (n_rows, n_rows + more):
        try:
            made.append(plan(n, limit, n_features))
        except ResourceError:
            made.append(None)
    small, large = made
    if large is None:
        return
    assert small is not None
    assert large.matrix == "external" or small.matrix == "in_core"
    if (small.matrix, small.cache) == (large.matrix, large.cache) and large.matrix == "in_core":
        assert (small.device_peak_bytes or 0) <= (large.device_peak_bytes or 0)


def test_the_matrix_is_kept_where_it_fits() -> None:
    small, middle, large = (plan(n, 20 * GB, 100) for n in (10**6, 10**8, 2 * 10**8))
    assert (small.matrix, small.cache, small.matrix_options) == ("in_core", "device", {})
    assert (middle.matrix, middle.cache) == ("in_core", "disk")
    assert large.matrix == "external"
    assert 0 < large.matrix_options["cache_host_ratio"] <= 1
    assert large.matrix_options["min_cache_page_bytes"] >= 1 << 20
    pinned = next(t.bytes for t in large.terms if t.name == "pinned matrix")
    on_device = bytes_of(large).get("matrix", 0)
    assert pinned + on_device == 2 * 10**8 * 100
    assert pinned == -(-2 * 10**10 * large.matrix_options["cache_host_ratio"] // 1)


@pytest.mark.parametrize("pool", [("async", None), ("fixed", None), ("fixed", 5 * GB)])
def test_an_external_matrix_takes_what_others_leave(pool: tuple[Any, Any]) -> None:
    learned = Learned(2 * GB if pool[0] == "async" else GB // 5, 2 * 10**8, 2 * 10**8)
    made = plan(2 * 10**8, 20 * GB, 100, learned, device=Device((20 * GB, ""), 22 * GB, *pool))
    assert made.matrix == "external"
    if pool[0] == "async":
        assert (made.device_peak_bytes or 0) > 19 * GB


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ({"n_rows": 10**6, "n_features": 19_500, "params": {"max_depth": 12}}, ["histograms", "max_depth=6"]),
        ({"n_rows": 2 * 10**9, "limit": 20 * GB}, ["row state", "cluster.workers"]),
        ({"n_rows": 10**6, "limit": 4 * GB, "chunk_rows": 10**8, "readers": 4, "part": 10**8}, ["reading ahead"]),
        ({"n_rows": 10**8, "limit": 20 * GB, "device": Device((20 * GB, ""), 22 * GB, "fixed", 18 * GB)},
         ["rest of the pool", "memory.pool.size"]),
        ({"n_rows": 10**6, "limit": 20 * GB, "device": Device((20 * GB, ""), 22 * GB, "fixed", 256)},
         ["the fixed pool", "memory.pool.size", "reading ahead"]),
    ],
)  # fmt: skip
def test_what_cannot_fit_names_the_largest_term_and_its_knob(case: dict[str, Any], words: list[str]) -> None:
    part = case.pop("part", 500_000)
    n_features = case.pop("n_features", 30)
    n_rows, limit = case.pop("n_rows"), case.pop("limit", 130 * GB)
    shape = DataShape(n_rows, 1, 4 * n_features + 8, part, part, 0)
    with pytest.raises(ResourceError) as caught:
        make(shape, settings_of(limit, **case), Work(tuple(map(str, range(n_features))), (), {}))
    for word in words:
        assert word in str(caught.value)


def test_a_pinned_matrix_that_the_host_cannot_hold_is_said() -> None:
    with pytest.raises(ResourceError, match="pinned matrix"):
        plan(4 * 10**8, 40 * GB, 200, host=30 * GB)


def test_missing_values_cost_a_ninth_bit_that_255_bins_do_not() -> None:
    known = replace(LEARNED, train_rows=10**8, used_rows=10**8)
    asked = plan(10**8, max_bin=256, learned=known)
    assert any("max_bin=255" in reason for reason in asked.reasons)
    none = plan(10**8, max_bin=256, learned=replace(known, has_missing=False))
    fewer = plan(10**8, max_bin=255, learned=known)
    for made in (none, fewer):
        assert not any("max_bin=" in reason for reason in made.reasons)
        assert bytes_of(made)["matrix"] * 9 == bytes_of(asked)["matrix"] * 8
    sparse = plan(10**8, max_bin=256, learned=replace(known, has_complete_row=False))
    assert bytes_of(sparse)["matrix"] * 9 == bytes_of(asked)["matrix"] * 13


def test_features_alone_need_no_matrix() -> None:
    made = plan(10**6, params=None)
    assert (made.matrix, made.cache, made.cache_bytes) == (None, None, 0)
    assert set(bytes_of(made)) >= {"CUDA context", "reading ahead", "chunk at work", "allowance"}


def test_the_cpu_engine_has_no_device_terms() -> None:
    made = plan(10**6, device=None)
    assert made.device_peak_bytes is None
    assert made.to_json()["predicted"]["device_peak_bytes"] is None
    assert (made.readers, made.device_limit_bytes, made.pool_bytes, made.matrix_options) == (1, None, None, {})


def test_each_reader_takes_memory() -> None:
    one, four = (plan(10**6, readers=n) for n in (1, 4))
    assert bytes_of(four)["reading ahead"] == 4 * bytes_of(one)["reading ahead"]
    assert four.peak_bytes > one.peak_bytes
    on_cpu = [plan(10**6, device=None, readers=n, host=4 * GB).peak_bytes for n in (1, 4)]
    assert on_cpu[1] > on_cpu[0]


# --- the limit of the device -----------------------------------------------------------------------------------------

GPUS = [GpuFacts(0, "H200", 140 * GB, 130 * GB), GpuFacts(1, "H200", 140 * GB, 100 * GB)]


@pytest.mark.parametrize(
    ("setting", "expected", "word"),
    [
        ("auto", 90 * GB, "GPU 1"),
        (0.5, 50 * GB, "GPU 1"),
        ("40GB", 40 * GB, "memory.device_limit"),
        (40 * GB, 40 * GB, "memory.device_limit"),
        ("120GB", 120 * GB, "only 100 GB"),
        ("1TB", 140 * GB, "above it"),
    ],
)
def test_the_gpu_with_the_least_free_decides(setting: Any, expected: int, word: str) -> None:
    size, reason = device_limit(setting, GPUS)
    assert size == expected
    assert word in reason


def test_pools() -> None:
    assert device_of("auto", ("async", "auto"), GPUS) == Device(device_limit("auto", GPUS), 140 * GB)
    assert device_of("auto", ("fixed", "auto"), GPUS).pool_bytes is None
    made = device_of("auto", ("fixed", 0.5), GPUS)
    assert (made.pool, made.pool_bytes) == ("fixed", 70 * GB - 70 * GB % 256)
    with pytest.raises(ConfigError, match=r"memory\.pool\.size is 0\.7 \(98 GB\).*XGBoost"):
        device_of("auto", ("fixed", 0.7), GPUS)
    with pytest.raises(ResourceError, match="no GPU"):
        device_of("auto", ("async", "auto"), [])
