"""The plan as arithmetic: terms add up, choices follow the limit, and what cannot fit is said with the sum."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabgpu.errors import ResourceError
from tabgpu.planning import DataShape, Learned, Plan, Settings, Work, choose_chunk_rows, make

FEATURES = tuple(f"f{i}" for i in range(30))
WORK = Work(FEATURES, ({"name": "survey", "steps": [], "columns": ["y"]},), {})


def settings_of(limit: int, chunk_rows: int | None = None, params: dict[str, int] | None = None) -> Settings:
    return Settings(("cpu", "asked for"), ("serial", "none"), (limit, "memory.limit"), chunk_rows, params or {})


def plan(n_rows: int, limit: int, **options: object) -> Plan:
    shape = DataShape(n_rows, 4, 130, 200_000, 500_000, 0)
    return make(shape, settings_of(limit, **options), WORK)  # type: ignore[arg-type]


def test_in_core_where_it_fits_and_external_where_it_does_not() -> None:
    assert plan(5_000_000, 4_000_000_000).matrix == "in_core"
    assert plan(8_000_000, 1_000_000_000).matrix == "external"
    assert plan(100_000, 4_000_000_000).cache == "memory"
    assert plan(40_000_000, 4_000_000_000).cache == "disk"


@given(n_rows=st.integers(1, 10**9), limit=st.integers(10**8, 10**12), row_bytes=st.integers(8, 20_000))
@settings(max_examples=50, deadline=None)
def test_a_plan_keeps_to_the_limit_or_says_that_it_cannot(n_rows: int, limit: int, row_bytes: int) -> None:
    shape = DataShape(n_rows, 1, row_bytes, 100_000, 500_000, 0)
    try:
        made = make(shape, settings_of(limit), WORK)
    except ResourceError:
        return  # what it says is tested below
    assert sum(t.bytes for t in made.terms) == made.peak_bytes <= limit
    assert all(0 <= t.bytes <= t.high for t in made.terms)
    printed = made.to_json()
    assert sum(t["bytes"] for t in printed["predicted"]["terms"]) == printed["predicted"]["host_peak_bytes"]


def test_what_cannot_fit_names_the_largest_term_and_its_knob() -> None:
    with pytest.raises(ResourceError, match=r"histograms.*max_depth"):
        plan(1_000_000, 1_000_000_000, params={"max_depth": 20})
    with pytest.raises(ResourceError, match=r"chunks in flight.*memory\.chunk_rows"):
        plan(1_000_000, 700_000_000, chunk_rows=500_000)


def test_chunks_are_row_groups_where_these_are_not_too_large() -> None:
    assert choose_chunk_rows(DataShape(10**7, 1, 100, 123_456, 493_824, 0), 4 * 10**9)[0] == 123_456
    assert choose_chunk_rows(DataShape(10**7, 1, 100, 10**7, 10**7, 0), 4 * 10**9)[0] == 500_000
    assert choose_chunk_rows(DataShape(10**7, 1, 100, 10, 499_990, 0), 4 * 10**9)[0] == 499_990
    assert choose_chunk_rows(DataShape(10**7, 1, 10**6, 10**6, 10**6, 0), 10**9)[0] == 1_000


def test_what_was_learned_takes_the_place_of_bounds() -> None:
    shape = DataShape(10**6, 1, 130, 10**5, 500_000, 700_000_000)
    before = make(shape, settings_of(8 * 10**9), WORK)
    after = make(shape, settings_of(8 * 10**9), WORK, Learned(50_000_000, 800_000, 900_000))
    assert before.cache_bytes > after.cache_bytes
    assert sum(t.high for t in before.terms) > sum(t.high for t in after.terms)
    assert before.to_json()["predicted"]["host_peak_high_bytes"] > before.peak_bytes


def test_no_model_needs_no_matrix() -> None:
    made = make(
        DataShape(10**6, 1, 130, 10**5, 500_000, 0),
        Settings(("cpu", ""), ("serial", ""), (10**9, ""), None, None),
        WORK,
    )
    assert (made.matrix, made.cache, made.cache_bytes) == (None, None, 0)
