"""A chunk that does not fit is tried again in halves; nothing of the failure stays alive, no row is lost or doubled."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from engine_laws import values, write
from hypothesis import given, settings
from hypothesis import strategies as st

from tabgpu.columns import Chunk, Column
from tabgpu.engine.cpu import CpuEngine
from tabgpu.engine.halving import read_halving, work_halving
from tabgpu.errors import DataError, ResourceError
from tabgpu.files import File, Part
from tabgpu.schema import ColumnType

X = ColumnType("x", "numeric", "int64")
S = ColumnType("s", "categorical", "int32", levels="text")


class Big:
    """Stands for the arrays of a chunk that failed."""


class SmallEngine(CpuEngine):
    """Runs out of memory on chunks of more than `fits` rows, from row `since` on; counts what is alive at release."""

    def __init__(self, fits: int, since: int = 0) -> None:
        self.fits, self.since = fits, since
        self.failed: list[weakref.ref[Big]] = []
        self.alive: list[int] = []

    def read(
        self, part: Part, columns: Sequence[ColumnType], chunk_rows: int, skip: int = 0
    ) -> Iterator[dict[str, Column]]:
        row = skip
        for chunk in super().read(part, columns, chunk_rows, skip):
            rows = len(next(iter(chunk.values())))
            if rows > self.fits and row + rows > self.since:
                self.fail()
            yield chunk
            row += rows

    def fail(self) -> None:
        big = Big()
        self.failed.append(weakref.ref(big))
        raise MemoryError("std::bad_alloc: out_of_memory (failed to allocate 99 bytes)")

    def release(self) -> None:
        self.alive.append(sum(ref() is not None for ref in self.failed))


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> Part:
    table = pa.table({"x": range(1000), "s": [f"v{i % 90}" for i in range(1000)]})
    path = write(tmp_path_factory.mktemp("h") / "x.parquet", table, row_group_size=300)
    return Part(File(str(path), "x.parquet"), (0, 1, 2, 3), 0, 1000)


@settings(deadline=None, max_examples=15)
@given(st.integers(20, 1000), st.integers(1, 1200), st.integers(0, 1100))
def test_every_row_is_read_once_and_in_order(part: Part, fits: int, chunk_rows: int, since: int) -> None:
    for columns in ([X], [X, S]):
        engine, told = SmallEngine(fits, since), list[str]()
        chunks = list(read_halving(engine, part, columns, chunk_rows, smallest=1, note=told.append))
        assert [v for c in chunks for v in values(c["x"])] == list(range(1000))
        if S in columns:
            assert [v for c in chunks for v in values(c["s"])] == [f"v{i % 90}" for i in range(1000)]
        assert len(told) == len(engine.failed) == len(engine.alive)
        assert set(engine.alive) <= {0}


def test_what_never_fits_is_exit_4(part: Part) -> None:
    engine = SmallEngine(fits=0)
    with pytest.raises(
        ResourceError, match=r"^\d+ rows of x.parquet, row groups 0 to 3 do not fit.*failed to allocate 99"
    ):
        list(read_halving(engine, part, [X], 1000, smallest=256))


def test_other_errors_pass(part: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuEngine, "read", lambda *_: iter([{}[0] for _ in "x"]))
    with pytest.raises(KeyError):
        list(read_halving(SmallEngine(1000), part, [X], 100))
    with pytest.raises(ResourceError, match="disk"):
        list(work_halving(SmallEngine(10), chunk_of(30), lambda _: refuse()))


def refuse() -> None:
    raise ResourceError("The disk is full", "", "")


def test_a_part_without_wanted_columns_has_its_rows(part: Part) -> None:
    assert list(read_halving(CpuEngine(), part, [], 400)) == [{}, {}, {}]


def chunk_of(n_rows: int) -> Chunk:
    return Chunk({"x": Column(np.arange(n_rows))}, np.arange(n_rows, dtype=np.uint64), np)


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 60), st.integers(6, 60))
def test_work_is_done_once_for_each_row_and_in_order(n_rows: int, fits: int) -> None:
    engine = SmallEngine(fits)

    def work(chunk: Chunk) -> list[int]:
        if chunk.n_rows > engine.fits:
            engine.fail()
        assert chunk.identity.tolist() == chunk["x"].values.tolist()
        return list(chunk["x"].values.tolist())

    answers = list(work_halving(engine, chunk_of(n_rows), work, smallest=1))
    assert [v for a in answers for v in a] == list(range(n_rows))
    assert max(map(len, answers)) <= fits
    assert set(engine.alive) <= {0}


def test_work_that_never_fits_is_exit_4() -> None:
    engine = SmallEngine(0)

    def work(chunk: Chunk) -> Any:
        engine.fail()

    with pytest.raises(ResourceError, match=r"^100 rows of a chunk do not fit"):
        list(work_halving(engine, chunk_of(400), work, smallest=100))


def test_a_chunk_is_let_go_before_the_next_is_read(part: Part) -> None:
    reading = read_halving(CpuEngine(), part, [X], 100)
    first = weakref.ref(next(reading)["x"].values)
    next(reading)
    gc.collect()
    assert first() is None


def test_a_damaged_file_is_no_lack_of_memory(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError):
        list(read_halving(SmallEngine(10), Part(File(str(tmp_path / "x.parquet"), "x"), (0,), 0, 1), [X], 100))
