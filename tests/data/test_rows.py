"""Rows: identities, what is read for what is asked, and which rows a run uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import visits, write_parts

from tabgpu.columns import Chunk
from tabgpu.data.expressions import parse
from tabgpu.data.rows import JoinRecipe, Recipe, Rows, Use
from tabgpu.data.splits import OUTSIDE, RandomSplit
from tabgpu.data.target import Target, task_of
from tabgpu.engine.cpu import CpuEngine
from tabgpu.errors import ConfigError, DataError
from tabgpu.files import Part, find, make_parts, read_footer
from tabgpu.schema import ColumnType, unify

TABLE = visits(120)


def open_rows(folder: Path, **options: Any) -> tuple[Rows, list[Part]]:
    footers = [read_footer(f) for f in find(str(folder), folder, "data.source")]
    columns = tuple(unify(footers, {}).columns.values())
    tables = options.pop("tables", {})
    return Rows(CpuEngine(), Recipe(columns, **options), tables), make_parts(footers, 50)


def read(rows: Rows, parts: list[Part], names: list[str], chunk_rows: int = 1000) -> list[Chunk]:
    return [chunk for part in parts for chunk in rows.open(part, names, chunk_rows)]


def identities(rows: Rows, parts: list[Part], chunk_rows: int = 1000) -> list[int]:
    return np.concatenate([c.identity for c in read(rows, parts, ["age"], chunk_rows)]).tolist()


@given(chunk_rows=st.integers(1, 130), row_group_size=st.integers(1, 130))
@settings(max_examples=10, deadline=None)
def test_identity_is_file_and_row_number(
    chunk_rows: int, row_group_size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    one = identities(*open_rows(write_parts(TABLE, tmp_path_factory.mktemp("a"), [70, 50], 1000)))
    other = write_parts(TABLE, tmp_path_factory.mktemp("b"), [70, 50], row_group_size)
    assert identities(*open_rows(other), chunk_rows=chunk_rows) == one
    assert len(set(one)) == 120


def test_identity_follows_the_file_and_not_the_folder_it_lies_in(tmp_path: Path) -> None:
    first = write_parts(TABLE, tmp_path / "a", [70, 50], 1000)
    moved = write_parts(TABLE.slice(70), tmp_path / "b", [50], 1000)
    (moved / "00.parquet").rename(moved / "01.parquet")
    assert identities(*open_rows(moved)) == identities(*open_rows(first))[70:]


def test_a_key_column_is_the_identity(tmp_path: Path) -> None:
    first = write_parts(TABLE, tmp_path / "a", [120], 1000)
    backwards = write_parts(TABLE.take(np.arange(120)[::-1]), tmp_path / "b", [60, 60], 1000)
    for key in ("id", "shop"):
        assert identities(*open_rows(backwards, key=key))[::-1] == identities(*open_rows(first, key=key))
    with pytest.raises(DataError, match="'town' has missing values"):
        identities(*open_rows(first, key="town"))


def test_only_what_is_needed_is_read(tmp_path: Path) -> None:
    derive = (("double", "age * 2"), ("more", "double + visits"))
    rows, parts = open_rows(write_parts(TABLE, tmp_path / "a", [120], 1000), derive=derive)
    assert [c.name for c in rows.sources(["more"])[0]] == ["age", "visits"]
    assert [c.name for c in rows.sources(["double"])[0]] == ["age"]
    (chunk,) = read(rows, parts[:1], ["more"])
    assert list(chunk.columns) == ["more"]
    expected = 2 * chunk_values(TABLE, "age") + chunk_values(TABLE, "visits")
    assert np.allclose(chunk["more"].floats(), expected[: chunk.n_rows], equal_nan=True)


def chunk_values(table: pa.Table, name: str) -> np.ndarray:
    return table[name].to_pandas().to_numpy(dtype=np.float64)


def test_a_new_column_may_not_take_a_name_that_is_there(tmp_path: Path) -> None:
    folder = write_parts(TABLE, tmp_path / "a", [120], 1000)
    with pytest.raises(ConfigError, match=r"data\.derive\.age makes a column 'age', which is there"):
        open_rows(folder, derive=(("age", "visits + 1"),))


def test_a_join_sees_the_columns_before_it_and_a_derivation_those_it_brings(tmp_path: Path) -> None:
    towns = pa.table({"town": [f"town {i}" for i in range(12)], "size": np.arange(12)})
    types = (ColumnType("town", "categorical", "int32", levels="text"), ColumnType("size", "numeric", "int64"))
    join = JoinRecipe("towns", ("town",), "t_", types)
    folder = write_parts(TABLE, tmp_path / "a", [120], 1000)
    rows, parts = open_rows(folder, joins=(join,), derive=(("big", "t_size > 5"),), tables={"towns": towns})
    assert [c.name for c in rows.sources(["big"])[0]] == ["town"]
    column = read(rows, parts[:1], ["big"])[0]["big"]
    town = [None if t is None else int(t.split()[1]) for t in TABLE["town"].to_pylist()[: len(column)]]
    assert column.values[~column.missing()].tolist() == [t > 5 for t in town if t is not None]
    assert column.missing().tolist() == [t is None for t in town]


def test_which_rows_are_used(tmp_path: Path) -> None:
    rows, parts = open_rows(write_parts(TABLE, tmp_path / "a", [120], 1000))
    use = Use(RandomSplit(0.2, 0.2, 1), parse("visits > 2", "data.filter"), "age")
    chunks = read(rows, parts, ["age", "visits"])
    sides = np.concatenate([rows.assign(c, use, None) for c in chunks])
    usable = (np.nan_to_num(chunk_values(TABLE, "visits"), nan=-1) > 2) & ~np.isnan(chunk_values(TABLE, "age"))
    assert (sides[~usable] == OUTSIDE).all()
    assert set(sides[usable]) == {0, 1, 2}
    given_side = np.concatenate([rows.assign(c, use, 2) for c in chunks])
    assert set(given_side[usable]) == {2}
    halved = Use(use.splitter, use.filter, use.target, sample=0.5)
    fewer = np.concatenate([rows.assign(c, halved, None) for c in chunks])
    assert 0 < (fewer != OUTSIDE).sum() < usable.sum()
    assert ((fewer == sides) | (fewer == OUTSIDE)).all()


def test_target_becomes_numbers() -> None:
    engine = CpuEngine()
    types = [ColumnType("y", "categorical", "int32", levels="text")]
    column = engine.from_arrow(pa.table({"y": ["no", "yes", None, "yes"]}), types, "here")["y"]
    target = Target("y", "binary", pa.array(["no", "yes"]))
    encoded = target.encode(column, np, "here")
    assert encoded.values[encoded.valid].tolist() == [0, 1, 1]
    assert encoded.missing().tolist() == [False, False, True, False]
    other = engine.from_arrow(pa.table({"y": ["no", "maybe"]}), types, "here")["y"]
    with pytest.raises(DataError, match="1 values in here that are neither of 'no', 'yes'"):
        target.encode(other, np, "here")
    numbers = engine.from_arrow(pa.table({"y": [1, 2, 1]}), [ColumnType("y", "numeric", "int64")], "here")["y"]
    assert Target("y", "binary", pa.array([1, 2])).encode(numbers, np, "here").values.tolist() == [0, 1, 0]


def test_tasks_of_objectives() -> None:
    assert task_of("binary:logistic") == "binary"
    assert task_of("reg:tweedie") == task_of("count:poisson") == "regression"
    with pytest.raises(ConfigError, match="multi:softprob"):
        task_of("multi:softprob")


def test_the_recipe_travels(tmp_path: Path) -> None:
    from tabgpu import wire

    rows, parts = open_rows(write_parts(TABLE, tmp_path / "a", [120], 1000), derive=(("d", "age + 1"),))
    assert wire.unpack(wire.pack(rows.recipe)) == rows.recipe
    assert wire.unpack(wire.pack(tuple(parts))) == tuple(parts)
