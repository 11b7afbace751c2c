"""Statistics on the device: states, requests and results are those of the host, to the bit, however rows are cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from features.statistic_laws import any_floats, chunk_of, nasty_ints, pieces, words
from gpu_device import STANDIN
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tabgpu import wire
from tabgpu.columns import Chunk, Column, Levels
from tabgpu.features.contract import Again, Statistic
from tabgpu.features.statistics import LevelCounts, Moments, Quantiles, Range, Sample, TargetGrid, TargetSums

pytestmark = pytest.mark.gpu
few = settings(
    deadline=None, max_examples=4 if STANDIN else 15, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
table = st.lists(st.tuples(words, nasty_ints | st.none(), st.integers(0, 2), any_floats), min_size=1, max_size=25)


def chunk_from(rows: list[tuple[Any, ...]]) -> Chunk:
    kinds = (pa.string(), pa.int64(), pa.uint8(), pa.float64())
    return chunk_of(
        **{n: pa.array([r[i] for r in rows], k) for i, (n, k) in enumerate(zip("abcd", kinds, strict=True))}
    )


def on_device(chunk: Chunk, engine: Any) -> Chunk:
    """The same rows on the device."""

    def move(column: Column) -> Column:
        levels = column.levels
        if levels is not None:
            levels = Levels(levels.values, lambda _, keys=levels.keys: engine.to_device(keys))
        valid = None if column.valid is None else engine.to_device(column.valid)
        return replace(column, values=engine.to_device(column.values), valid=valid, levels=levels)

    columns = {name: move(column) for name, column in chunk.columns.items()}
    return Chunk(columns, engine.to_device(chunk.identity), engine.xp)


def passes(statistic: Statistic, chunks: Sequence[Chunk], engine: Any = None) -> list[bytes]:
    """Packed state, and request or result, of every pass; on the device where an engine is given."""
    to_host = engine.to_host if engine else np.asarray
    seen, request = [], None
    while True:
        observed = [statistic.observe(chunk, request) for chunk in chunks]
        merged = statistic.merge_all(observed, {}) if len(observed) > 1 else observed[0]
        seen.append(wire.pack(merged, to_host))
        result = statistic.finish(merged, request)
        again = isinstance(result, Again)
        seen.append(wire.pack(result.request if again else result, to_host))
        if not again:
            return seen
        request = result.request


def check(statistic: Statistic, chunk: Chunk, engine: Any) -> None:
    """The host's states and result, whole and in pieces."""
    expected = passes(statistic, [chunk])
    assert passes(statistic, [on_device(chunk, engine)], engine) == expected
    assert passes(statistic, [on_device(piece, engine) for piece in pieces(chunk, 7)], engine) == expected


@few
@given(rows=table, columns=st.sampled_from([("a",), ("b",), ("d",), ("a", "c"), ("b", "a", "d")]))
def test_level_counts(arrays: Any, rows: list[tuple[Any, ...]], columns: tuple[str, ...]) -> None:
    check(LevelCounts(columns), chunk_from(rows), arrays)
    if len(columns) == 1:
        check(LevelCounts(columns, keep_levels=True), chunk_from(rows), arrays)


@few
@given(rows=table, column=st.sampled_from("bcd"))
def test_range_moments_and_quantiles(arrays: Any, rows: list[tuple[Any, ...]], column: str) -> None:
    for statistic in (Range(column), Moments(column), Quantiles(column, (0.0, 0.25, 0.5, 1.0))):
        check(statistic, chunk_from(rows), arrays)


@few
@given(rows=table, column=st.sampled_from("cd"))
def test_target_sums(arrays: Any, rows: list[tuple[Any, ...]], column: str) -> None:
    chunk = chunk_from(rows)
    bounds = Range(column)
    try:
        grid = TargetGrid.from_range(bounds.finish(bounds.observe(chunk, None), None))
    except (OverflowError, ValueError):  # targets that no grid holds are refused before
        return
    check(TargetSums(("a",), column, 3, 1, grid), chunk, arrays)
    check(TargetSums(("a", "b"), column, 3, 1, grid), chunk, arrays)


@few
@given(rows=table, k=st.integers(0, 30))
def test_a_sample_is_the_same_rows(arrays: Any, rows: list[tuple[Any, ...]], k: int) -> None:
    with np.errstate(over="ignore"):
        check(Sample(("b", "d"), k), chunk_from(rows), arrays)


def test_many_rows(arrays: Any) -> None:
    """More rows than a block of threads, and sums that floats would round."""
    rng = np.random.default_rng(0)
    n = 30_000
    text = pa.array([f"level {i}" for i in rng.integers(0, 5_000, n)])
    chunk = chunk_of(a=text, d=rng.normal(1e6, 1.0, n), c=rng.integers(0, 2, n).astype(np.uint8))
    grid = TargetGrid.from_range(Range("d").finish(Range("d").observe(chunk, None), None))
    for statistic in (
        LevelCounts(("a",), keep_levels=True),
        Moments("d"),
        Quantiles("d", (0.1, 0.5, 0.9)),
        TargetSums(("a",), "d", 5, 0, grid),
        TargetSums(("a", "c"), "c", 5, 0, TargetGrid("integer")),
        Sample(("d",), 1_000),
    ):
        expected = passes(statistic, [chunk])
        parts = [on_device(chunk.take(slice(i, i + 9_000)), arrays) for i in range(0, n, 9_000)]
        assert passes(statistic, parts, arrays) == expected, statistic
