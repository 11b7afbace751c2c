"""The GPU engine on a GPU gives what the CPU engine gives, keeps to its ceiling, and gets over a lack of memory."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from engine_laws import differing, published, values, write

from tabgpu.columns import Column
from tabgpu.config import ColumnOptions
from tabgpu.engine import resolve
from tabgpu.engine.cpu import CpuEngine
from tabgpu.engine.halving import read_halving
from tabgpu.engine.memory import MemorySettings
from tabgpu.errors import DataError, ResourceError
from tabgpu.files import File, Part, make_parts, read_footer
from tabgpu.schema import ColumnType, unify

pytestmark = pytest.mark.gpu

CPU = CpuEngine()
N = 200_000
GB = 10**9
ON_HOST = {"half", "clock", "huge", "empty", "a.b", "bytes"}


@pytest.fixture(scope="module")
def gpu() -> Iterator[Any]:
    try:
        engine, _ = resolve("gpu")
    except ResourceError as error:
        pytest.skip(str(error))
    engine.setup(MemorySettings("async", limit_bytes=8 * GB))
    yield engine
    engine.release()


@pytest.fixture(scope="module")
def table() -> pa.Table:
    rng = np.random.default_rng(0)
    mask = rng.random(N) < 0.1
    whole = rng.integers(-(2**40), 2**40, N)
    decimals = [None if m else Decimal(int(i)).scaleb(-2) for i, m in zip(whole[:N], mask, strict=True)]
    large = [Decimal(int(i)) * 10**15 for i in whole]
    columns = {
        "bool": pa.array(rng.random(N) < 0.5, mask=mask),
        **{f"i{b}": pa.array(rng.integers(-100, 100, N).astype(f"int{b}"), mask=mask) for b in (8, 16, 32, 64)},
        **{f"u{b}": pa.array(rng.integers(0, 200, N).astype(f"uint{b}"), mask=mask) for b in (8, 16, 32, 64)},
        "wide": pa.array(rng.integers(-(2**62), 2**62, N)),
        "f32": pa.array(rng.standard_normal(N).astype(np.float32), mask=mask),
        "f64": pa.array(np.where(rng.random(N) < 0.1, np.nan, rng.standard_normal(N))),
        "d9": pa.array([None if d is None else d % 1000 for d in decimals], pa.decimal128(9, 2)),
        "d18": pa.array(decimals, pa.decimal128(18, 2)),
        "d38": pa.array(large, pa.decimal128(38, 4)),
        "few": pa.array([f"k{i}" for i in rng.integers(0, 5, N)], mask=mask),
        "many": pa.array([f"a rather long value é {i}" for i in rng.integers(0, 150_000, N)]),
        "dict": pa.array([f"d{i}" for i in rng.integers(0, 50, N)]).dictionary_encode(),
        "digits": pa.array([str(i) for i in rng.integers(0, 500, N)], mask=mask),
        "iso": pa.array(np.datetime_as_string(np.datetime64("2013-01-01") + rng.integers(0, 900, N)), mask=mask),
        "ids": pa.array(rng.integers(0, 2**60, N), mask=mask),
        "sizes": pa.array(rng.choice([0.0, -0.0, np.nan, 2.5], N)),
        "day": pa.array(rng.integers(-9000, 20000, N).astype(np.int32), pa.int32()).cast(pa.date32()),
        "ms": pa.array(rng.integers(-(10**12), 10**12, N), pa.timestamp("ms"), mask=mask),
        "us": pa.array(rng.integers(0, 10**15, N), pa.timestamp("us", "Europe/Paris"), mask=mask),
        "ns": pa.array(rng.integers(0, 10**18, N), pa.timestamp("ns"), mask=mask),
        "span": pa.array(rng.integers(0, 10**12, N), pa.duration("us"), mask=mask),
        "none": pa.nulls(N, pa.string()),
        "half": pa.array(rng.standard_normal(N).astype(np.float16)),
        "clock": pa.array(rng.integers(0, 86_400_000, N).astype(np.int32), pa.time32("ms")),
        "huge": pa.array(large, pa.decimal256(50, 2)),
        "empty": pa.nulls(N),
        "a.b": pa.array(rng.integers(0, 9, N)),
        "bytes": pa.array([f"b{i}".encode() for i in rng.integers(0, 9, N)]),
    }
    return pa.table(columns)


DECLARED = {
    "digits": ColumnOptions(kind="numeric"),
    "iso": ColumnOptions(kind="datetime"),
    "ids": ColumnOptions(kind="categorical"),
    "sizes": ColumnOptions(kind="categorical"),
    "i16": ColumnOptions(kind="categorical"),
    "d9": ColumnOptions(kind="categorical"),
    "bytes": ColumnOptions(kind="categorical"),
}


@pytest.fixture(scope="module")
def source(table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> tuple[Part, list[ColumnType]]:
    path = write(tmp_path_factory.mktemp("gpu") / "x.parquet", table, row_group_size=70_000, data_page_size=50_000)
    footer = read_footer(File(str(path), "x.parquet"))
    (part,) = make_parts([footer], N)
    return part, list(unify([footer], DECLARED).columns.values())


def whole(engine: Any, part: Part, columns: list[ColumnType], chunk_rows: int, skip: int = 0) -> dict[str, list[Any]]:
    out: dict[str, list[Any]] = {c.name: [] for c in columns}
    for chunk in engine.read(part, columns, chunk_rows, skip):
        for name, column in chunk.items():
            out[name] += values(column)
    return out


@pytest.mark.parametrize(("chunk_rows", "skip"), [(30_000, 0), (70_000, 100_001), (N, 0)])
def test_every_type_is_read_as_on_the_cpu(
    gpu: Any, source: tuple[Part, list[ColumnType]], chunk_rows: int, skip: int
) -> None:
    part, columns = source
    gpu.on_host.clear()
    got, expected = whole(gpu, part, columns, chunk_rows, skip), whole(CPU, part, columns, chunk_rows, skip)
    for column in columns:
        assert got[column.name] == expected[column.name], column.name
    assert {name.split("'")[1] for name in gpu.on_host} == ON_HOST  # and nothing else, quietly


@pytest.mark.parametrize("path", published(), ids=lambda path: path.name)
def test_files_of_other_writers_are_read_as_on_the_cpu(gpu: Any, path: Path) -> None:
    assert differing(gpu, CPU, path, 1000) == []


def test_keys_of_levels_are_those_of_the_host(gpu: Any, source: tuple[Part, list[ColumnType]]) -> None:
    """libcudf's xxhash64 of text is the one of `tabgpu.hashing`: else nothing would fit between engines."""
    from tabgpu.hashing import hash_levels

    part, columns = source
    text = [c for c in columns if c.name in ("few", "many", "dict", "none")]
    for chunk in gpu.read(part, text, 50_000):
        for column in chunk.values():
            np.testing.assert_array_equal(gpu.to_host(column.levels.keys), hash_levels(column.levels.values))


def test_tables_go_in_and_come_out(gpu: Any, table: pa.Table, source: tuple[Part, list[ColumnType]]) -> None:
    _, columns = source
    small = table.slice(1000, 5000)
    got, expected = (e.from_arrow(small, columns, "a table") for e in (gpu, CPU))
    for column in columns:
        assert gpu.to_arrow(got[column.name]).equals(CPU.to_arrow(expected[column.name])), column.name


def test_the_matrix_is_that_of_the_cpu(gpu: Any, table: pa.Table, source: tuple[Part, list[ColumnType]]) -> None:
    _, columns = source
    small = table.slice(0, 20_000)
    names = [c.name for c in columns]
    got, expected = (e.matrix(e.from_arrow(small, columns, "t"), names, 20_000) for e in (gpu, CPU))
    assert (got.dtype, got.flags.c_contiguous) == (np.float32, True)
    np.testing.assert_array_equal(gpu.to_host(got), expected)


def test_half_floats_stay_half(gpu: Any) -> None:
    array = np.array([1.5, np.nan, 65504], np.float16)
    column = gpu.from_arrow(pa.table({"x": array}), [ColumnType("x", "numeric", "float16")], "t")["x"]
    assert column.values.dtype == np.float16
    np.testing.assert_array_equal(gpu.to_host(gpu.matrix({"x": column}, ["x"], 3))[:, 0], array.astype(np.float32))


def test_wrong_values_are_refused_in_the_same_words(gpu: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", {"x": pa.array([1, 2**62], pa.timestamp("ms"))})
    part = Part(File(str(path), "x.parquet"), (0,), 0, 2)
    said = []
    for engine in (CPU, gpu):
        with pytest.raises(DataError) as caught:
            list(engine.read(part, [ColumnType("x", "datetime", "int64", unit="ns")], 10))
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_the_ceiling_is_kept_and_the_reason_given(gpu: Any) -> None:
    gpu.setup(MemorySettings("async", limit_bytes=1 * GB))
    kept = gpu.xp.zeros(600 * 10**6, "uint8")
    with gpu.stage("too much"), pytest.raises((MemoryError, RuntimeError)) as caught:
        gpu.xp.zeros(900 * 10**6, "uint8")
    assert gpu.is_out_of_memory(caught.value)
    assert "exhausted" in gpu.explain(caught.value)
    with gpu.stage("enough"):
        gpu.xp.zeros(300 * 10**6, "uint8")
    use = gpu.memory
    assert 9 * 10**8 <= use.stage_peaks["enough"] <= use.peak_bytes <= use.limit_bytes == GB
    del kept, caught
    gpu.setup(MemorySettings("async", limit_bytes=8 * GB))


def test_chunks_that_do_not_fit_are_halved(gpu: Any, source: tuple[Part, list[ColumnType]]) -> None:
    part, columns = source
    wanted = [c for c in columns if c.name in ("wide", "f64", "many")]
    expected = whole(CPU, part, wanted, N)
    told: list[str] = []
    gpu.setup(MemorySettings("async", limit_bytes=30 * 10**6))
    got: dict[str, list[Any]] = {c.name: [] for c in wanted}
    for chunk in read_halving(gpu, part, wanted, N, note=told.append):
        for name, column in chunk.items():
            got[name] += values(column)
    gpu.setup(MemorySettings("async", limit_bytes=8 * GB))
    assert got == expected
    assert told


def test_idle_frames_are_moved_to_the_host(gpu: Any) -> None:
    cudf = pytest.importorskip("cudf")
    gpu.setup(MemorySettings("async", limit_bytes=1 * GB))
    frame = cudf.DataFrame({"x": gpu.xp.arange(40 * 10**6)}).copy(deep=True)  # 320 MB that cuDF owns
    assert gpu._ready().spilling()
    gpu.xp.zeros(800 * 10**6, "uint8")
    assert gpu.memory.spilled_bytes >= 320 * 10**6
    assert int(frame["x"].iloc[-1]) == 40 * 10**6 - 1
    gpu.setup(MemorySettings("async", limit_bytes=8 * GB))


@pytest.mark.parametrize("pool", ["async", "fixed"])
def test_xgboost_trains_beside_the_pool(gpu: Any, pool: str) -> None:
    import xgboost

    gpu.setup(MemorySettings(pool, limit_bytes=4 * GB, pool_bytes=2 * GB))  # type: ignore[arg-type]  # one of two
    rng = np.random.default_rng(0)
    x = rng.standard_normal((50_000, 10)).astype(np.float32)
    features, label = gpu.to_device(x), gpu.to_device((x[:, 0] + x[:, 1] > 0).astype(np.float32))
    with gpu.stage("train"), gpu.training():
        matrix = xgboost.QuantileDMatrix(features, label)
        booster = xgboost.train({"device": gpu.device, "objective": "binary:logistic"}, matrix, 5)
        gpu.check_trained(booster)
        predicted = gpu.to_host(booster.inplace_predict(features))
        del matrix
    assert ((predicted > 0.5) == gpu.to_host(label)).mean() > 0.8
    assert gpu.memory.stage_peaks["train"] > x.nbytes
    gpu.setup(MemorySettings("async", limit_bytes=8 * GB))


def test_many_chunks_read_ahead_are_not_overwritten(gpu: Any, source: tuple[Part, list[ColumnType]]) -> None:
    """Two readers in threads, while this thread works: what is read stays what it was."""
    from tabgpu.data.prefetch import prefetch

    part, columns = source
    wanted = [c for c in columns if c.name in ("wide", "few", "f32")]
    sums = [int(c["wide"].values.astype(np.uint64).sum()) for c in CPU.read(part, wanted, 10_000)]
    for _ in range(3):
        readers = [prefetch(gpu.read(part, wanted, 10_000)) for _ in range(2)]
        got: list[list[int]] = [[], []]
        for both in zip(*readers, strict=True):
            for i, chunk in enumerate(both):
                noise: list[Column] = [chunk["f32"].take(gpu.xp.argsort(chunk["wide"].values)) for _ in range(3)]
                assert len(noise) == 3
                got[i].append(int(chunk["wide"].values.astype("uint64").sum()))
        assert sum(got[0]) % 2**64 == sum(got[1]) % 2**64 == sum(sums) % 2**64
