"""Reading with libcudf: every type equal to the bit to what the CPU engine reads, whatever the chunks."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gpu_device import STANDIN
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tabgpu.columns import Column
from tabgpu.config import ColumnOptions
from tabgpu.engine.cpu import CpuEngine
from tabgpu.files import find, make_parts, read_footer
from tabgpu.schema import ColumnType, unify

pytestmark = pytest.mark.gpu
HOST = CpuEngine()
N = 500
DECLARED = {
    **{
        name: ColumnOptions(kind="categorical")
        for name in ("int16 coded", "float32 coded", "bool coded", "int64 coded")
    },
    "text as number": ColumnOptions(kind="numeric"),
    "text as time": ColumnOptions(kind="datetime"),
}


def all_types() -> pa.Table:
    """A column of every type of the design's table, with missing values, and with what readers get wrong."""
    rng = np.random.default_rng(3)
    gone = rng.random(N) < 0.1
    columns: dict[str, pa.Array] = {}
    for bits in (8, 16, 32, 64):
        for name in (f"int{bits}", f"uint{bits}"):
            ends = np.iinfo(name)
            values = rng.integers(ends.min, ends.max, N, dtype=name, endpoint=True)
            values[:2] = ends.min, ends.max
            columns[name] = pa.array(values, mask=gone)
            columns[f"{name} whole"] = pa.array(values)
    for name in ("float32", "float64"):
        values = rng.normal(size=N).astype(name)
        values[:5] = -0.0, np.inf, -np.inf, np.nan, np.finfo(name).tiny / 4
        columns[name] = pa.array(values, mask=gone)
    columns["float16"] = pa.array(rng.normal(size=N).astype(np.float16), mask=gone)
    columns["bool"] = pa.array(rng.random(N) < 0.5, mask=gone)
    columns["decimal"] = pa.array([Decimal(int(v)).scaleb(-2) for v in rng.integers(-(10**9), 10**9, N)], mask=gone)
    big = [Decimal(int(v)).scaleb(-3) for v in rng.integers(-(2**62), 2**62, N)]
    columns["long decimal"] = pa.array(big, pa.decimal128(30, 3), mask=gone)
    words = np.array(["", "a", "ä", "漢字", "more than thirty-two bytes, for the stripes of the hash", "NA"])
    columns["text"] = pa.array(words[rng.integers(0, len(words), N)], mask=gone)
    columns["many levels"] = pa.array([f"level {i}" for i in range(N)])
    columns["all missing"] = pa.array([None] * N, pa.string())
    columns["dictionary"] = columns["text"].dictionary_encode()
    columns["text as number"] = pa.array([str(v) for v in rng.integers(0, 50, N)], mask=gone)
    columns["text as time"] = pa.array([f"2013-{1 + i % 12:02d}-05 10:00:00" for i in range(N)], mask=gone)
    days = [datetime.date(1900, 1, 1) + datetime.timedelta(int(d)) for d in rng.integers(0, 80_000, N)]
    columns["date"] = pa.array(days, mask=gone)
    for unit in ("ms", "us", "ns"):
        columns[f"time {unit}"] = pa.array(rng.integers(-(10**12), 10**12, N), pa.timestamp(unit), mask=gone)
    columns["time with zone"] = pa.array(rng.integers(0, 10**15, N), pa.timestamp("us", tz="America/New_York"))
    columns["int16 coded"] = pa.array(rng.integers(-3, 3, N).astype(np.int16), mask=gone)
    columns["int64 coded"] = pa.array(rng.integers(-(2**62), 2**62, N), mask=gone)
    columns["float32 coded"] = pa.array(rng.choice(np.array([-0.0, 0.0, 1.5, np.nan], np.float32), N), mask=gone)
    columns["bool coded"] = pa.array(rng.random(N) < 0.5, mask=gone)
    return pa.table(columns)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("types") / "region=north" / "all.parquet"
    path.parent.mkdir()
    pq.write_table(all_types(), path, row_group_size=130, write_page_checksum=True)
    return path


def described(file: Path) -> tuple[list[Any], list[ColumnType]]:
    footers = [read_footer(f) for f in find(str(file.parent.parent), Path("/"), "data.source")]
    return footers, list(unify(footers, DECLARED).columns.values())


def plain(engine: Any, column: Column) -> tuple[Any, ...]:
    """All that a column holds, on the host: bits of values, what is missing, levels, keys."""
    values = engine.to_host(column.values).copy()
    missing = engine.to_host(column.missing())
    keys: Any = None
    if column.levels is not None:  # the order of levels is each reader's own
        level_keys = engine.to_host(column.levels.keys)
        values = np.where(missing, np.uint64(0), level_keys[np.maximum(values, 0)] if len(level_keys) else np.uint64(0))
        texts = dict(zip(level_keys.tolist(), column.levels.values.to_pylist(), strict=True))
        keys = {k: texts[k] for k in set(values[~missing].tolist())}
    values[missing] = 0  # values behind a mask are undefined
    return (
        (column.kind, column.values.dtype.name, column.unit, column.zone, column.valid is not None),
        values.tobytes(),
        missing.tobytes(),
        keys,
    )


def read(engine: Any, file: Path, chunk_rows: int, part_rows: int = 10**6, skip: int = 0) -> list[dict[str, Any]]:
    footers, columns = described(file)
    chunks = []
    for part in make_parts(footers, part_rows):
        for chunk in engine.read(part, columns, chunk_rows, skip):
            assert list(chunk) == [c.name for c in columns]
            chunks.append({name: plain(engine, column) for name, column in chunk.items()})
    return chunks


def joined(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """All rows of each column, so that chunks of different sizes compare."""
    whole: dict[str, Any] = {}
    for chunk in chunks:
        for name, (kind, values, missing, keys) in chunk.items():
            before = whole.get(name, ((), b"", b"", {}))
            whole[name] = (kind[:4], before[1] + values, before[2] + missing, before[3] | (keys or {}))
    return whole


def test_every_type_is_what_the_host_reads(gpu: Any, file: Path) -> None:
    ours, theirs = joined(read(gpu, file, 10**6)), joined(read(HOST, file, 10**6))
    wrong = [name for name in theirs if ours[name] != theirs[name]]
    assert wrong == []


@settings(deadline=None, max_examples=2 if STANDIN else 8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chunk_rows=st.integers(1, 600), part_rows=st.sampled_from([1, 200, 10**6]))
def test_chunks_and_parts_change_nothing(gpu: Any, file: Path, chunk_rows: int, part_rows: int) -> None:
    chunk_rows = max(chunk_rows, 40)
    assert joined(read(gpu, file, chunk_rows, part_rows)) == joined(read(HOST, file, 10**6))


def test_rows_that_are_skipped_are_those_the_host_skips(gpu: Any, file: Path) -> None:
    for skip in (1, 129, 130, 371):
        assert joined(read(gpu, file, 90, skip=skip)) == joined(read(HOST, file, 90, skip=skip))


def test_frames_of_arrow_come_in_and_go_out_as_on_the_host(gpu: Any, file: Path) -> None:
    _, columns = described(file)
    columns = [c for c in columns if c.name != "region"]
    table = all_types()
    ours, theirs = gpu.from_arrow(table, columns, "the test"), HOST.from_arrow(table, columns, "the test")
    for name, column in theirs.items():
        assert plain(gpu, ours[name]) == plain(HOST, column), name
        there, here = gpu.to_arrow(ours[name]), HOST.to_arrow(column)
        assert there.type == here.type, name
        as_bytes = [np.nan_to_num(a.to_numpy(zero_copy_only=False)) if pa.types.is_floating(a.type) else a.to_pylist()
                    for a in (there, here)]  # fmt: skip
        assert list(as_bytes[0]) == list(as_bytes[1]), name


def test_the_matrix_is_that_of_the_host(gpu: Any, file: Path) -> None:
    footers, columns = described(file)
    (part,) = make_parts(footers, 10**6)
    names = [c.name for c in columns if c.kind == "numeric"]

    def matrix(engine: Any) -> np.ndarray:
        made = []
        for chunk in engine.read(part, columns, 200):
            rows = engine.matrix(chunk, names, len(chunk["bool"]))
            assert rows.dtype == np.float32
            assert rows.flags.c_contiguous
            made.append(engine.to_host(rows))
        return np.concatenate(made)

    np.testing.assert_array_equal(matrix(gpu), matrix(HOST))


def test_values_travel_there_and_back(gpu: Any) -> None:
    array = np.arange(5, dtype=np.uint64)
    assert gpu.to_host(gpu.to_device(array)).tolist() == array.tolist()
    placed = gpu.place({"a": [array, 3, "text"]})
    assert gpu.to_host(placed["a"][0]).tolist() == array.tolist()
    assert placed["a"][1:] == [3, "text"]
