"""What an engine reads: what is in files and tables is in the chunks, however they are cut."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from engine_laws import ENGINE, HERE, category, check_column, moment, numeric, on_device, read, values, write

from tabgpu.columns import Column
from tabgpu.config import ColumnOptions
from tabgpu.engine.conversion import to_column
from tabgpu.engine.cpu import _batches
from tabgpu.errors import DataError
from tabgpu.files import File, Part, find, make_parts, open_parquet, read_footer
from tabgpu.schema import ColumnType, unify


@pytest.fixture(scope="module")
def hard(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pa.Table]:
    """A table of all kinds; its text falls back from dictionary to plain pages."""
    rng, n = np.random.default_rng(0), 900
    mask = rng.random(n) < 0.2
    table = pa.table(
        {
            "few": pa.array([f"k{i}" for i in rng.integers(0, 5, n)], mask=mask),
            "many": [f"a rather long and quite unique value {i * 7919 % 1000:06d}" for i in range(n)],
            "dict": pa.DictionaryArray.from_arrays(
                pa.array(rng.integers(0, 4, n), pa.int8(), mask=mask), ["u", "v", "w", "z"]
            ),
            "int": pa.array(rng.integers(-(2**62), 2**62, n), mask=mask),
            "float": pa.array(rng.standard_normal(n).astype(np.float32), mask=mask),
            "half": pa.array(rng.standard_normal(n).astype(np.float16), mask=mask),
            "time": pa.array(rng.integers(0, 10**17, n), pa.timestamp("us", "Europe/Paris"), mask=mask),
            "bool": pa.array(rng.random(n) < 0.5, mask=mask),
            "decimal": pa.array([Decimal(int(i)).scaleb(-2) for i in rng.integers(0, 10**6, n)], mask=mask),
            "empty": pa.nulls(n),
            "a.b": rng.integers(0, 9, n),
            "a": rng.integers(0, 9, n),
        }
    )
    path = tmp_path_factory.mktemp("hard") / "hard.parquet"
    pq.write_table(table, path, row_group_size=400, dictionary_pagesize_limit=4000, data_page_size=2000)
    return path, table


@pytest.mark.parametrize(
    ("chunk_rows", "part_rows"), [(1, 10**6), (7, 400), (150, 1), (400, 1), (650, 10**6), (900, 900)]
)
def test_chunks_and_parts_change_nothing(hard: tuple[Path, pa.Table], chunk_rows: int, part_rows: int) -> None:
    path, table = hard
    got = read(path, part_rows, chunk_rows, int=ColumnOptions(kind="categorical"))
    assert got["time"] == table["time"].cast(pa.int64()).to_pylist()
    assert got["bool"] == [None if v is None else int(v) for v in table["bool"].to_pylist()]
    assert got["decimal"] == [None if v is None else float(v) for v in table["decimal"].to_pylist()]
    for name in set(table.column_names) - {"time", "bool", "decimal"}:
        assert got[name] == table[name].to_pylist(), name


def test_a_chunk_of_a_row_group_has_one_dictionary(hard: tuple[Path, pa.Table]) -> None:
    path, _ = hard
    footer = read_footer(find(str(path), Path("/"), "data.source")[0])
    (part, *_) = make_parts([footer], 1)
    (chunk,) = ENGINE.read(part, list(unify([footer], {}).columns.values()), 400)
    assert chunk["many"].levels is not None
    assert len(chunk["many"].levels) == 400
    assert chunk["many"].levels.values.type == pa.string()


def test_levels_of_plain_pages_do_not_pile_up(tmp_path: Path) -> None:
    """Arrow keeps those of all row groups that one reader has read."""
    path = write(tmp_path / "x.parquet", {"s": [f"v{i}" for i in range(400)]}, use_dictionary=False, row_group_size=100)
    got = read(path, chunk_rows=30)
    assert got["s"] == [f"v{i}" for i in range(400)]
    with pq.ParquetFile(path, read_dictionary=["s"]) as parquet:
        assert max(len(b.column(0).dictionary) for b in parquet.iter_batches(30)) > 100
    seen = []
    with open_parquet(str(path)) as parquet:
        for batch in _batches(parquet, Part(File(str(path), "x"), (0, 1, 2, 3), 0, 400), ["s"], ["s"], 30):
            seen.append(len(batch.column(0).dictionary))
    assert max(seen) == 100


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_delta_encoded_text_after_row_groups_with_dictionaries(tmp_path: Path, encoding: str) -> None:
    text = [f"t{i % 50}" for i in range(100)]
    schema = pa.schema({"s": pa.string(), "i": pa.int64()})
    table = pa.table({"s": text, "i": range(100)}, schema)
    write(tmp_path / "a.parquet", table)
    write(tmp_path / "b.parquet", table, use_dictionary=False, column_encoding={"s": encoding})
    assert read(tmp_path, chunk_rows=30) == {"s": text * 2, "i": [*range(100)] * 2}


@pytest.mark.parametrize(
    "error",
    [
        OSError("Not yet implemented: DecodeArrow of DictAccumulator for DeltaByteArrayDecoder."),
        pa.ArrowCapacityError("array cannot contain more than 2147483646 bytes, have 2500000000"),
    ],
)
def test_text_is_read_on_as_plain_where_dictionaries_end(
    monkeypatch: pytest.MonkeyPatch, hard: tuple[Path, pa.Table], error: Exception
) -> None:
    """Rows are neither lost nor doubled."""
    path, table = hard

    class Failing(pq.ParquetFile):
        coded: list[str] | None = None

        def iter_batches(self, *args: Any, **kwargs: Any) -> Any:
            for i, batch in enumerate(super().iter_batches(*args, **kwargs)):
                if self.coded and kwargs["row_groups"] == [1] and i == 1:
                    raise error
                yield batch

    def opened(path: str, **options: Any) -> pq.ParquetFile:
        parquet = Failing(path, **options)
        parquet.coded = options.get("read_dictionary")
        return parquet

    monkeypatch.setattr("tabgpu.engine.cpu.open_parquet", opened)
    got = read(path, chunk_rows=150)
    assert got["many"] == table["many"].to_pylist()
    assert got["few"] == table["few"].to_pylist()


def test_files_that_differ_are_one_table(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"x": pa.nulls(1), "t": pa.array([1], pa.date32()), "c": ["u"]})
    write(
        tmp_path / "b.parquet",
        {"x": [1], "t": pa.array([5], pa.timestamp("ms", "UTC")), "c": pa.array(["v"], pa.large_string())},
    )
    write(
        tmp_path / "c.parquet",
        {"x": [1.5], "late": pa.array([7], pa.uint8()), "c": pa.array(["u"]).dictionary_encode()},
    )
    write(tmp_path / "d.parquet", {"x": pa.array([], pa.int8())})
    assert read(tmp_path) == {
        "x": [None, 1.0, 1.5],
        "t": [86_400_000, 5, None],
        "c": ["u", "v", "u"],
        "late": [None, None, 7],
    }


def test_folders_give_columns(tmp_path: Path) -> None:
    for value, x in (("01234", 1), ("__HIVE_DEFAULT_PARTITION__", 2), ("a%2Fb", 3)):
        write(tmp_path / f"zip={value}" / "day=2013-10-01" / "x.parquet", {"x": [x, x]})
    got = read(tmp_path, day=ColumnOptions(kind="datetime"), chunk_rows=1)
    assert got["zip"] == ["01234", "01234", None, None, "a/b", "a/b"]
    assert got["day"] == [1_380_585_600_000_000] * 6
    with pytest.raises(DataError, match=r"'zip' of .*a%2Fb.* holds what cannot be used"):
        read(tmp_path, zip=ColumnOptions(kind="numeric"))
    url = find(tmp_path.as_uri(), Path("/"), "data.source")
    assert [dict(f.partition)["zip"] for f in url] == ["01234", None, "a/b"]


def test_a_file_may_have_what_folders_gave_in_training_and_the_other_way_round(tmp_path: Path) -> None:
    zip_code = ColumnType("zip", "categorical", "int32", levels="text", partition=True)
    path = write(tmp_path / "x.parquet", {"zip": ["7", None]})
    (chunk,) = ENGINE.read(Part(File(str(path), "x"), (0,), 0, 2), [zip_code], 10)
    assert values(chunk["zip"]) == ["7", None]
    folder = Part(File(str(path), "x", (("n", "4"),)), (0,), 0, 2)
    assert [values(c["n"]) for c in ENGINE.read(folder, [ColumnType("n", "numeric", "int64")], 1)] == [[4], [4]]


def test_a_file_without_the_wanted_columns_gives_missing(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", {"y": [1, 2, 3]}, row_group_size=2)
    part = Part(File(str(path), "x"), (0, 1), 0, 3)
    for columns in ([numeric("int8")], [category()], [moment("s"), ColumnType("y", "numeric", "int64")]):
        chunks = list(ENGINE.read(part, columns, 2))
        assert [len(c[columns[0].name]) for c in chunks] == [2, 1]
        assert all(c["x"].missing().all() for c in chunks)
    assert list(ENGINE.read(part, [], 2)) == [{}, {}]


def test_old_timestamps_of_96_bits(tmp_path: Path) -> None:
    times = [
        datetime.datetime(1, 1, 1),
        datetime.datetime(9999, 12, 31, 23, 59, 59),
        datetime.datetime(2013, 10, 1, 6, 0, 0, 123456),
        None,
    ]
    table = pa.table({"t": pa.array(times, pa.timestamp("us")), "s": ["a", "b", "c", "d"]})
    path = write(tmp_path / "x.parquet", table, use_deprecated_int96_timestamps=True)
    assert pq.ParquetFile(path).schema.column(0).physical_type == "INT96"
    assert read(path)["t"] == table["t"].cast(pa.int64()).to_pylist()


def test_numbers_declared_categorical(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.parquet",
        {"f": [0.0, -0.0, float("nan"), None], "d": [Decimal("0.29"), None, Decimal("1.00"), Decimal("0.29")]},
    )
    declared = {n: ColumnOptions(kind="categorical") for n in ("f", "d")}
    assert read(path, **declared) == {"f": [0.0, 0.0, None, None], "d": [0.29, None, 1.0, 0.29]}


def test_tables_in_memory(hard: tuple[Path, pa.Table]) -> None:
    _, table = hard
    pieces = pa.concat_tables([table.slice(i, 300).combine_chunks() for i in (0, 300, 600)])
    footer = read_footer(find(str(hard[0]), Path("/"), "data.source")[0])
    columns = list(unify([footer], {}).columns.values())
    for one in (table, pieces, table.slice(100, 50), table.slice(0, 0), pa.table(table.schema.empty_table())):
        for column in columns:
            got = ENGINE.from_arrow(one, columns, "a table")[column.name]
            check_column(got, column)
            back = ENGINE.to_arrow(got)
            again = to_column(back, column, HERE)
            assert values(again) == values(got)
            if column.name in ("few", "many", "dict", "int", "float"):
                assert values(got) == one[column.name].to_pylist()
    assert values(ENGINE.from_arrow(pa.table({"y": [1, 2]}), [category()], "t")["x"]) == [None, None]
    with pytest.raises(DataError, match="the frame has 2 columns called 'x'"):
        ENGINE.from_arrow(pa.table([[1], [2]], names=["x", "x"]), [numeric("int64")], "the frame")


@pytest.mark.parametrize(
    "levels",
    [
        [["a", "b"], ["c", "a"]],
        [["a", "a"], ["b", "a"]],
        [["a", None], ["b", "a"]],
        [[f"a{i}" for i in range(100)], [f"b{i}" for i in range(100)]],
        [],
    ],
)
def test_chunks_of_a_dictionary_column_may_differ(levels: list[list[str | None]]) -> None:
    chunks = [
        pa.DictionaryArray.from_arrays(pa.array([*range(len(lv)), None], pa.int8()), pa.array(lv)) for lv in levels
    ]
    column = pa.chunked_array(chunks, pa.dictionary(pa.int8(), pa.string()))
    got = ENGINE.from_arrow(pa.table({"x": column}), [category()], "t")["x"]
    check_column(got, category())
    assert values(got) == column.to_pylist()


def test_arrow_types_on_the_way_out() -> None:
    tokyo = to_column(pa.array([1, None], pa.timestamp("ms", "Asia/Tokyo")), moment("ms", "Asia/Tokyo"), HERE)
    text = to_column(pa.array(["a", None]), category(), HERE)
    numbers = Column(np.array([1, 2], "int8"), valid=np.array([True, False]))
    assert ENGINE.to_arrow(on_device(tokyo)).type == pa.timestamp("ms", "Asia/Tokyo")
    assert ENGINE.to_arrow(on_device(text)).type == pa.dictionary(pa.int32(), pa.string())
    assert ENGINE.to_arrow(on_device(Column(np.array([1.0, np.nan])))).to_pylist() == [1.0, None]
    assert ENGINE.to_arrow(on_device(numbers)).to_pylist() == [1, None]


def test_matrix_is_float32_with_nan_where_missing() -> None:
    n = 5000
    columns = {
        "f": Column(np.arange(n, dtype=np.float64)),
        "i": Column(np.arange(n), valid=np.arange(n) % 3 > 0),
        "c": Column(np.arange(n, dtype=np.int32) - 1, "categorical"),
        "u": Column(np.full(n, 2**63, np.uint64)),
        "big": Column(np.full(n, 1e300)),
        "h": Column(np.full(n, 0.5, np.float16)),
    }
    columns = {name: on_device(column) for name, column in columns.items()}
    names = ["i", "c", "f", "u", "big", "h", "f"]
    got = ENGINE.matrix(columns, names, n)
    assert got.flags.c_contiguous
    got = ENGINE.to_host(got)
    assert got.dtype == np.float32
    i = np.where(np.arange(n) % 3 > 0, np.arange(n), np.nan)
    c = np.where(np.arange(n) > 0, np.arange(n) - 1, np.nan)
    f = np.arange(n)
    expected = np.column_stack([i, c, f, np.full(n, 2.0**63), np.full(n, np.inf), np.full(n, 0.5), f])
    np.testing.assert_array_equal(got, expected.astype(np.float32))
    assert ENGINE.matrix(columns, [], n).shape == (n, 0)
    assert ENGINE.matrix({"f": on_device(Column(np.zeros(0)))}, ["f"], 0).shape == (0, 1)


def test_arrays_go_to_the_device_and_come_back() -> None:
    array = np.arange(3)
    np.testing.assert_array_equal(ENGINE.to_host(ENGINE.to_device(array)), array)
    np.testing.assert_array_equal(ENGINE.to_host(array), array)
    placed = ENGINE.place({"a": (array, [1.5, None])})
    assert type(placed["a"][0]) is type(ENGINE.to_device(array))
    assert (ENGINE.to_host(placed["a"][0]).tolist(), placed["a"][1]) == ([0, 1, 2], [1.5, None])


@pytest.mark.parametrize("skip", [0, 1, 399, 400, 650, 899, 900])
def test_rows_that_are_known_are_left_out(hard: tuple[Path, pa.Table], skip: int) -> None:
    path, _ = hard
    footer = read_footer(find(str(path), Path("/"), "data.source")[0])
    (part,) = make_parts([footer], 900)
    columns = list(unify([footer], {}).columns.values())
    for wanted in (columns, [c for c in columns if c.name in ("int", "few")], [category()]):
        everything = [c for chunk in ENGINE.read(part, wanted, 150) for c in values(chunk[wanted[0].name])]
        rest = [chunk for chunk in ENGINE.read(part, wanted, 150, skip) if check_chunk(chunk, wanted)]
        assert [v for chunk in rest for v in values(chunk[wanted[0].name])] == everything[skip:]


def check_chunk(chunk: dict[str, Column], columns: list[ColumnType]) -> bool:
    for column in columns:
        check_column(chunk[column.name], column)
    return True
