"""The GPU engine on the stand-in for its libraries gives what the CPU engine gives; run by `test_gpu_engine_laws`."""

from __future__ import annotations

import datetime
import gc
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from contract import rapids_stand_in as stand_in
from contract.device import Device
from engine_laws import (
    ENGINE,
    category,
    check_column,
    differing,
    moment,
    numeric,
    published,
    values,
    write,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tabgpu.columns import Chunk
from tabgpu.config import ColumnOptions
from tabgpu.engine.cpu import CpuEngine
from tabgpu.engine.halving import read_halving
from tabgpu.engine.memory import PoolNumbers
from tabgpu.errors import DataError
from tabgpu.files import File, Part, make_parts, read_footer
from tabgpu.hashing import KeyTable
from tabgpu.schema import ColumnType, unify

CPU = CpuEngine()


@pytest.fixture(autouse=True)
def streams_wait_for_one_another() -> Iterator[None]:
    stand_in.LIMITS.clear()
    stand_in.VIOLATIONS.clear()
    ENGINE.on_host.clear()
    yield
    gc.collect()
    assert stand_in.VIOLATIONS == []


def columns_of(path: Path, **declared: ColumnOptions) -> tuple[Part, list[ColumnType]]:
    footer = read_footer(File(str(path), path.name))
    (part,) = make_parts([footer], 10**6)
    return part, list(unify([footer], declared).columns.values())


def decoded(engine: Any, part: Part, columns: list[ColumnType], chunk_rows: int, skip: int = 0) -> dict[str, list[Any]]:
    out: dict[str, list[Any]] = {c.name: [] for c in columns}
    for chunk in engine.read(part, columns, chunk_rows, skip):
        for c in columns:
            if engine is ENGINE:
                check_column(chunk[c.name], c)
                assert isinstance(chunk[c.name].values, Device)
            assert len(chunk[c.name]) <= chunk_rows
            out[c.name] += values(chunk[c.name])
    return out


def same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and (a == b) and (not isinstance(a, float) or np.signbit(a) == np.signbit(b))


def compare(part: Part, columns: list[ColumnType], chunk_rows: int, skip: int = 0) -> None:
    got = decoded(ENGINE, part, columns, chunk_rows, skip)
    expected = decoded(CPU, part, columns, chunk_rows, skip)
    for name in expected:
        assert len(got[name]) == len(expected[name])
        assert all(map(same, got[name], expected[name])), name


WHEN = st.datetimes(datetime.datetime(1600, 1, 1), datetime.datetime(2250, 1, 1))
SPAN = st.timedeltas(datetime.timedelta(-(10**6)), datetime.timedelta(10**6))
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any], list[str]]] = {
    "bool": (pa.bool_(), st.booleans(), ["numeric", "categorical"]),
    "i8": (pa.int8(), st.integers(-128, 127), ["numeric", "categorical"]),
    "u16": (pa.uint16(), st.integers(0, 2**16 - 1), ["numeric", "categorical"]),
    "i64": (pa.int64(), st.integers(-(2**63), 2**63 - 1), ["numeric", "categorical"]),
    "u64": (pa.uint64(), st.integers(0, 2**64 - 1), ["numeric", "categorical"]),
    "f32": (pa.float32(), st.floats(width=32), ["numeric", "categorical"]),
    "f64": (pa.float64(), st.floats(), ["numeric", "categorical"]),
    "d9": (pa.decimal128(9, 2), st.decimals(-(10**6), 10**6, places=2), ["numeric", "categorical"]),
    "d18": (pa.decimal128(18, 4), st.decimals(-(10**13), 10**13, places=4), ["numeric"]),
    "d38": (pa.decimal128(38, 6), st.decimals(-(10**30), 10**30, places=6), ["numeric", "categorical"]),
    "text": (pa.string(), st.sampled_from(["", "a", "é", "b" * 40]), ["categorical"]),
    "digits": (pa.string(), st.sampled_from(["1", "-2.5", "1e3"]), ["numeric", "categorical"]),
    "iso": (pa.large_string(), st.sampled_from(["2013-10-01", "1969-12-31 23:59:59"]), ["datetime", "categorical"]),
    "coded": (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["u", "v"]), ["categorical"]),
    "day": (pa.date32(), WHEN.map(lambda t: t.date()), ["datetime"]),
    "ms": (pa.timestamp("ms"), WHEN, ["datetime"]),
    "us": (pa.timestamp("us", "Europe/Paris"), WHEN, ["datetime"]),
    "span": (
        pa.duration("us"),
        st.timedeltas(datetime.timedelta(-(10**6)), datetime.timedelta(10**6)),
        ["numeric", "categorical"],
    ),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.Table, dict[str, ColumnOptions]]:
    names = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4, unique=True))
    n = draw(st.integers(1, 40))
    missing = draw(st.sampled_from([0, 1]))
    arrays, declared = {}, {}
    for name in names:
        kind, strategy, kinds = KINDS[name]
        one = (st.none() | strategy) if missing else strategy
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        arrays[name] = pa.array(draw(st.lists(one, min_size=n, max_size=n)), plain).cast(kind)
        declared[name] = ColumnOptions(kind=draw(st.sampled_from(kinds)))
    return pa.table(arrays), declared


@settings(deadline=None, max_examples=50)
@given(tables(), st.integers(1, 50), st.integers(1, 50), st.integers(0, 20), st.integers(1, 50))
def test_what_is_read_is_what_the_cpu_engine_reads(
    tmp_path_factory: pytest.TempPathFactory,
    made: tuple[pa.Table, dict[str, ColumnOptions]],
    chunk_rows: int,
    piece_rows: int,
    skip: int,
    group_rows: int,
) -> None:
    table, declared = made
    path = write(tmp_path_factory.mktemp("t") / "x.parquet", table, row_group_size=group_rows)
    part, columns = columns_of(path, **declared)
    stand_in.LIMITS["rows"] = piece_rows
    ENGINE.on_host.clear()
    compare(part, columns, chunk_rows, min(skip, table.num_rows))
    assert ENGINE.on_host == {}


def test_what_libcudf_cannot_read_alike_is_read_on_the_host(tmp_path: Path) -> None:
    n = 50
    rng = np.random.default_rng(0)
    table = pa.table(
        {
            "half": rng.standard_normal(n).astype(np.float16),
            "int": pa.array(rng.integers(0, 5, n), mask=rng.random(n) < 0.3),
            "clock": pa.array(rng.integers(0, 86_400_000, n).astype(np.int32), pa.time32("ms")),
            "huge": pa.array([Decimal(int(i)).scaleb(-2) for i in rng.integers(0, 10**9, n)], pa.decimal256(50, 2)),
            "empty": pa.nulls(n),
            "a.b": rng.integers(0, 9, n),
            "text": pa.array([f"t{i}" for i in rng.integers(0, 5, n)]),
            "bytes": pa.array([f"t{i}".encode() for i in rng.integers(0, 5, n)]),
        }
    )
    path = write(tmp_path / "x.parquet", table, row_group_size=20)
    part, columns = columns_of(path, bytes=ColumnOptions(kind="categorical"))
    for piece_rows in (7, 20, 100):
        stand_in.LIMITS["rows"] = piece_rows
        for chunk_rows, skip in ((1, 0), (9, 5), (50, 0), (100, 21)):
            compare(part, columns, chunk_rows, skip)
    named = {name.split("'")[1] for name in ENGINE.on_host}
    assert named == {"half", "clock", "huge", "empty", "a.b", "bytes"}
    assert "the column 'half' is read on the host: libcudf has no halffloat" in ENGINE.notes


def test_times_of_96_bits_are_read_on_the_host(tmp_path: Path) -> None:
    table = pa.table({"t": pa.array([1, None, 2], pa.timestamp("us"))})
    path = write(tmp_path / "x.parquet", table, use_deprecated_int96_timestamps=True)
    compare(*columns_of(path), 2)
    assert list(ENGINE.on_host.values()) == ["times of 96 bits are checked on the host"]


@pytest.mark.parametrize(
    ("array", "column"),
    [
        (pa.array([1, 300]), numeric("int8")),
        (pa.array([1.5]), numeric("int64")),
        (pa.array(["1", "x"]), numeric("float64")),
        (pa.array(["x", None]), moment("us")),
        (pa.array(["2013-10-01", "2013-10-01T00:00Z"]), moment("us")),
        (pa.array([1, 2**62], pa.timestamp("ms")), moment("ns")),
        (pa.array([0, -(2**30), None], pa.date32()), moment("ns")),
        (pa.array([1], pa.timestamp("ns")), moment("s")),
        (pa.array([2**62], pa.duration("ms")), numeric("int64", "ns")),
        (pa.array([1.5]), category()),
        (pa.array([b"a", b"b", b"caf\xe9", b"a", b"caf\xe9"]).view(pa.string()), category()),
    ],
)
def test_what_does_not_fit_is_refused_in_the_same_words(tmp_path: Path, array: pa.Array, column: ColumnType) -> None:
    path = write(tmp_path / "x.parquet", {"x": array})
    part, _ = columns_of(path)
    said = []
    for engine in (CPU, ENGINE):
        with pytest.raises(DataError) as caught:
            decoded(engine, part, [column], 100)
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert "'x' of x.parquet" in said[0]


@pytest.mark.parametrize(
    ("array", "column"),
    [
        (pa.array([2**40 * 1000, None], pa.timestamp("ns")), moment("us")),  # a coarser unit, exactly
        (pa.array([1000, None], pa.timestamp("ms")), moment("s")),
        (pa.array([1.0, None]), numeric("int64")),
        (pa.array([300, None]), numeric("int16")),
        (pa.array([1, None]), category()),
        (pa.array([True, None, False]), category()),
        (pa.array([2**53 + 1, None]), numeric("float64")),
        (pa.array([1.1, None, float("nan")]), numeric("float32")),
        (pa.array([Decimal("-0.01"), None, Decimal(2**60), Decimal("1e20")], pa.decimal128(30, 2)), numeric("float64")),
        (pa.array([0.0, -0.0, float("nan"), None, 2.5]), category("float64")),
        (pa.nulls(3, pa.string()), category()),
        (pa.nulls(3, pa.string()), numeric("float32")),
        (pa.nulls(3, pa.string()), moment("s")),
        (pa.nulls(3, pa.int64()), category("int64")),
    ],
)
def test_what_fits_though_the_file_differs_from_the_training(
    tmp_path: Path, array: pa.Array, column: ColumnType
) -> None:
    path = write(tmp_path / "x.parquet", {"x": pa.concat_arrays([array, array])})
    part, _ = columns_of(path)
    for chunk_rows in (1, 2, 100):
        compare(part, [column], chunk_rows)


def test_a_file_that_libcudf_refuses_is_read_on_the_host_from_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "x.parquet", {"x": list(range(100)), "s": [f"s{i % 7}" for i in range(100)]})
    part, columns = columns_of(path)
    stand_in.LIMITS["rows"] = 30
    read_chunk = stand_in.ChunkedParquetReader.read_chunk

    def fail(reader: Any) -> Any:
        if reader._start >= 60:
            raise RuntimeError("CUDF failure at: unsupported encoding\nmore")
        return read_chunk(reader)

    monkeypatch.setattr(stand_in.ChunkedParquetReader, "read_chunk", fail)
    compare(part, columns, 20)
    assert ENGINE.on_host == {str(path): "CUDF failure at: unsupported encoding"}


def test_rows_that_libcudf_does_not_find_are_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "x.parquet", {"x": list(range(100))})
    part, columns = columns_of(path)
    stand_in.LIMITS["rows"] = 40
    monkeypatch.setattr(stand_in.ChunkedParquetReader, "has_next", lambda reader: reader._start < 80)
    compare(part, columns, 1000)
    assert "does not hold the rows" in ENGINE.on_host[str(path)]


def test_chunks_that_do_not_fit_are_halved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "x.parquet", {"x": list(range(4000)), "s": [f"s{i % 7}" for i in range(4000)]})
    part, columns = columns_of(path)
    stand_in.LIMITS["bytes"] = 20_000
    numbers = PoolNumbers(used=0, reserved=0, ceiling=100_000, device_free=100_000)
    monkeypatch.setattr(ENGINE._memory, "numbers", lambda: numbers, raising=False)
    told: list[str] = []
    got = [c for chunk in read_halving(ENGINE, part, columns, 4000, note=told.append) for c in values(chunk["x"])]
    assert got == list(range(4000))
    assert "fragmented" in told[0]
    assert "x.parquet, row group 0 is read on in chunks of 2,000 rows" in told[0]
    assert ENGINE.on_host == {}


def test_states_of_halves_are_those_of_the_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", {"x": list(range(1000))})
    part, columns = columns_of(path)
    (read,) = ENGINE.read(part, columns, 1000)
    chunk = Chunk(read, ENGINE.to_device(np.arange(1000, dtype=np.uint64)), ENGINE.xp)
    assert int(chunk["x"].values.sum()) == 499_500
    assert chunk.take(slice(500, None)).n_rows == 500


def test_two_readers_at_once_have_two_streams(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", {"x": list(range(100)), "s": ["a", None] * 50}, row_group_size=50)
    part, columns = columns_of(path)
    for both in zip(ENGINE.read(part, columns, 30), ENGINE.read(part, columns, 30), strict=True):
        assert values(both[0]["x"]) == values(both[1]["x"])
        assert values(both[0]["s"]) == values(both[1]["s"])
    assert len({id(s) for s in ENGINE._streams._idle}) == len(ENGINE._streams._idle) >= 2


def test_a_reader_that_is_given_up_lets_go(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", {"x": list(range(100)), "s": ["a", None] * 50})
    part, columns = columns_of(path)
    idle = len(ENGINE._streams._idle)
    reading = ENGINE.read(part, columns, 30)
    next(reading)
    reading.close()
    assert len(ENGINE._streams._idle) >= max(idle, 1)


def test_urls_are_read_on_the_host(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", {"x": [1, 2, 3]})
    part = Part(File(path.as_uri(), "x.parquet"), (0,), 0, 3)
    compare(part, [ColumnType("x", "numeric", "int64")], 2)
    assert list(ENGINE.on_host.values()) == ["it lies on another machine"]


@pytest.mark.parametrize("path", published(), ids=lambda path: path.name)
def test_files_of_other_writers_are_read_as_on_the_cpu(path: Path) -> None:
    assert differing(ENGINE, CPU, path, 1000) == []


def test_a_written_file_is_what_the_stand_in_thinks(tmp_path: Path) -> None:
    """The physical types that decide who reads a column are those that Arrow writes."""
    array = pa.array([Decimal("1.25"), None])
    widths = {"INT32": pa.decimal128(9, 2), "INT64": pa.decimal128(18, 2), "FIXED_LEN_BYTE_ARRAY": pa.decimal128(38, 2)}
    for physical, kind in widths.items():
        path = tmp_path / f"{physical}.parquet"
        pq.write_table(pa.table({"x": array.cast(kind)}), path, store_decimal_as_integer=True)
        assert pq.ParquetFile(path).schema.column(0).physical_type == physical
        compare(*columns_of(path), 10)
    assert ENGINE.on_host == {}


def test_what_lies_on_the_device_stays_there_and_what_is_shared_stays_shared() -> None:
    """A table that two steps look up is moved once, and looked up once in each chunk."""
    table, there = KeyTable(np.array([3, 5], "uint64")), ENGINE.to_device(np.arange(3))
    value = {"a": (table, there, None), 7: [table, np.arange(2), "text"]}
    placed = ENGINE.place(value)
    (first, same, nothing), (second, moved, text) = placed["a"], placed[7]
    assert first is second
    assert isinstance(first.keys, Device)
    assert same is there
    assert (nothing, moved.tolist(), text) == (None, [0, 1], "text")
    assert ENGINE.place(placed) is placed
