"""One schema over files that differ: the order of files changes nothing, and what cannot be one column is refused."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabgpu import wire
from tabgpu.config import ColumnOptions
from tabgpu.errors import ConfigError, DataError, TabgpuError
from tabgpu.files import File, Footer
from tabgpu.schema import ColumnType, Schema, unify

NUMBERS = [pa.bool_(), pa.int8(), pa.int64(), pa.uint8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64()]
OTHERS = [
    pa.null(),
    pa.string(),
    pa.large_string(),
    pa.dictionary(pa.int8(), pa.string()),
    pa.dictionary(pa.int8(), pa.int64()),
    pa.decimal128(9, 2),
    pa.timestamp("ms"),
    pa.timestamp("ns", "Europe/Paris"),
    pa.timestamp("us", "UTC"),
    pa.date32(),
    pa.time32("ms"),
    pa.time64("us"),
    pa.duration("s"),
    pa.list_(pa.int8()),
    pa.binary(),
]


def foot(
    name: str, *columns: tuple[str, pa.DataType] | pa.Field, folder: dict[str, str | None] | None = None
) -> Footer:
    return Footer(File(f"/d/{name}", name, tuple((folder or {}).items())), pa.schema(list(columns)), (1,), (1,))


def one(*types: pa.DataType, **declared: Any) -> ColumnType:
    """The unified type of a column that has these types in as many files."""
    footers = [foot(f"f{i}", ("x", t)) for i, t in enumerate(types)]
    return unify(footers, {"x": ColumnOptions(**declared)} if declared else {}).columns["x"]


def verdict(footers: list[Footer], declared: dict[str, ColumnOptions]) -> Any:
    """Types by name, or that the files are refused: which of several mistakes is told first may differ."""
    try:
        schema = unify(footers, declared)
        return {**schema.columns}, set(schema.refused)
    except TabgpuError:
        return "refused"


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_order_of_files_changes_nothing(data: st.DataObject) -> None:
    pool = data.draw(st.sampled_from([NUMBERS, [*NUMBERS, pa.null()], OTHERS, NUMBERS + OTHERS]))
    columns = st.dictionaries(st.sampled_from(["x", "X", "y", "k"]), st.sampled_from(pool), max_size=3)
    folders = st.sampled_from([{}, {}, {"k": "1"}, {"k": None, "X": "a"}])
    contents = data.draw(st.lists(st.tuples(columns, folders), min_size=1, max_size=4))
    kind = data.draw(st.sampled_from([None, "numeric", "categorical", "datetime", "ignore"]))
    declared = {"x": ColumnOptions(kind=kind)} if kind else {}
    order = data.draw(st.permutations(range(len(contents))))

    def footers(order: Any) -> list[Footer]:
        return [foot(f"f{at}", *contents[i][0].items(), folder=contents[i][1]) for at, i in enumerate(order)]

    assert verdict(footers(range(len(contents))), declared) == verdict(footers(order), declared)


@pytest.mark.parametrize(
    ("types", "dtype"),
    [
        ([pa.int64(), pa.float64()], "float64"),
        ([pa.int8(), pa.float16()], "float64"),
        ([pa.int32(), pa.float32()], "float64"),
        ([pa.float16(), pa.float32()], "float32"),
        ([pa.int8(), pa.int32()], "int32"),
        ([pa.uint8(), pa.int8()], "int16"),
        ([pa.uint32(), pa.int8()], "int64"),
        ([pa.int64(), pa.uint64(), pa.float32()], "float64"),
        ([pa.bool_(), pa.int64()], "int64"),
        ([pa.bool_()], "uint8"),
        ([pa.null(), pa.int16()], "int16"),
        ([pa.null()], "float32"),
        ([pa.decimal128(9, 2), pa.int64()], "float64"),
        ([pa.decimal256(60, 2)], "float64"),
        ([pa.uint64()], "uint64"),
    ],
)
def test_numbers_widen_in_either_order(types: list[pa.DataType], dtype: str) -> None:
    assert one(*types) == one(*types[::-1]) == ColumnType("x", "numeric", dtype)


def test_times_of_day_and_durations_are_numbers_in_the_finest_unit() -> None:
    assert one(pa.time32("s"), pa.time64("us")) == ColumnType("x", "numeric", "int64", unit="us")
    assert one(pa.duration("ms")) == ColumnType("x", "numeric", "int64", unit="ms")
    with pytest.raises(DataError, match=r"time32\[s\]\) in f0 and a number \(int64\) in f1"):
        one(pa.time32("s"), pa.int64())


@pytest.mark.parametrize(
    ("types", "unit", "zone"),
    [
        ([pa.date32()], "s", None),
        ([pa.date64()], "ms", None),
        ([pa.timestamp("s"), pa.date32(), pa.timestamp("us")], "us", None),
        ([pa.timestamp("ns", "Europe/Berlin"), pa.null()], "ns", "Europe/Berlin"),
        ([pa.timestamp("ms", "UTC"), pa.timestamp("ms", "+00:00")], "ms", None),
        ([pa.timestamp("ms", "UTC"), pa.timestamp("ms", "Europe/Berlin"), pa.timestamp("ms")], "ms", None),
        ([pa.timestamp("ms", "Europe/Berlin"), pa.timestamp("us", "Europe/Berlin")], "us", "Europe/Berlin"),
    ],
)
def test_times_take_the_finest_unit_and_keep_a_zone_that_all_share(
    types: list[pa.DataType], unit: str, zone: str | None
) -> None:
    assert one(*types) == one(*types[::-1]) == ColumnType("x", "datetime", "int64", unit=unit, zone=zone)
    assert one(*types, zone="Asia/Tokyo").zone == "Asia/Tokyo"


def test_text_and_dictionaries_are_categories() -> None:
    text = ColumnType("x", "categorical", "int32", levels="text")
    assert one(pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())) == text
    assert one(pa.dictionary(pa.int8(), pa.int64()), pa.dictionary(pa.int32(), pa.float32())).levels == "float64"
    assert one(pa.int8(), kind="categorical").levels == "int8"
    assert one(pa.float16(), kind="categorical").levels == "float32"
    assert one(pa.bool_(), kind="categorical").levels == "uint8"
    assert one(pa.binary(), kind="categorical") == one(pa.null(), kind="categorical") == text
    assert one(pa.json_(), pa.string()) == text


def test_a_declaration_wins_over_every_file() -> None:
    assert one(pa.int64(), pa.string(), kind="categorical").levels == "text"
    assert one(pa.int64(), pa.string(), kind="numeric") == ColumnType("x", "numeric", "float64")
    assert one(pa.dictionary(pa.int8(), pa.int64()), kind="numeric").dtype == "int64"
    assert one(pa.string(), pa.timestamp("s"), kind="datetime").unit == "us"
    assert one(pa.null(), kind="datetime").kind == "datetime"
    ignore = unify(
        [foot("a", ("x", pa.int8()), ("X", pa.int8())), foot("b", ("x", pa.string()))],
        {"x": ColumnOptions(kind="ignore")},
    )
    assert list(ignore.columns) == ["X"]
    for kind, held in [("datetime", pa.int64()), ("numeric", pa.timestamp("s")), ("categorical", pa.date32())]:
        with pytest.raises(ConfigError, match=rf"data\.columns\.x\.kind is '{kind}', but f0 holds"):
            one(held, kind=kind)


@pytest.mark.parametrize(
    ("types", "said"),
    [
        ([pa.int64(), pa.string()], r"a number \(int64\) in f0 and text in f1"),
        ([pa.string(), pa.timestamp("s")], r"text in f0 and a date or time \(timestamp\[s\]\) in f1"),
        ([pa.int64(), pa.dictionary(pa.int8(), pa.int64())], r"a number \(int64\) in f0 and a category of int64 in f1"),
        ([pa.int64(), pa.uint64()], r"a number \(int64\) in f0 and a number \(uint64\) in f1"),
        ([pa.date32(), pa.int32()], "a date or time .* in f0 and a number .* in f1"),
    ],
)
def test_what_cannot_be_one_column_names_both_files(types: list[pa.DataType], said: str) -> None:
    with pytest.raises(DataError, match=f"'x' is {said}") as caught:
        one(*types)
    assert "data.columns.x.kind" in caught.value.remedy
    with pytest.raises(DataError, match=r"in f0 and .* in f1"):
        one(*types[::-1])


def test_text_and_floats_are_no_common_category() -> None:
    with pytest.raises(DataError, match="text in f1"):
        one(pa.float64(), pa.string(), kind="categorical")


def test_drift_is_told() -> None:
    footers = [
        foot("a", ("x", pa.int64()), ("t", pa.date32())),
        foot("b", ("x", pa.float32()), ("late", pa.string())),
        foot("c", ("x", pa.null()), ("t", pa.timestamp("ms"))),
    ]
    schema = unify(footers, {})
    assert list(schema.columns) == ["x", "t", "late"]
    assert schema.drift == (
        "'x' is int64 in a and float32 in b: read as float64",
        "'t' is date32[day] in a and timestamp[ms] in c: read as UTC in ms",
        "'t' is not in 'b': missing there",
        "'late' is not in 'a', 'c': missing there",
    )
    assert unify(footers[:1] * 3, {}).drift == ()
    # nullability is no type
    assert unify([foot("a", pa.field("x", pa.int8(), nullable=False)), foot("b", ("x", pa.int8()))], {}).drift == ()


def test_columns_that_cannot_be_used_are_kept_aside() -> None:
    footers = [foot("a", ("l", pa.int8()), ("b", pa.binary()), ("x", pa.int8())), foot("b", ("l", pa.list_(pa.int8())))]
    schema = unify(footers, {})
    assert list(schema.columns) == ["x"]
    assert schema.refused == {
        "l": "is nested (list<item: int8>)",
        "b": "holds bytes (binary); declare kind: categorical to use them as levels",
    }
    for name, said in [("l", "which is nested"), ("b", "holds bytes"), ("xx", "Did you mean 'x'")]:
        with pytest.raises(ConfigError, match=said):
            schema.require(name, "data.target")
    assert schema.require("x", "data.target").dtype == "int8"
    assert unify([foot("a", ("i", pa.month_day_nano_interval()))], {}).refused == {
        "i": "is of the type month_day_nano_interval"
    }
    with pytest.raises(ConfigError, match=r"data\.columns\.nil names"):
        unify(footers, {"nil": ColumnOptions(kind="numeric")})


def test_duplicate_names_and_twins_that_differ_in_case_are_refused() -> None:
    with pytest.raises(DataError, match="/d/a has more than one column called 'x'"):
        unify([foot("a", ("x", pa.int8()), ("x", pa.string()))], {})
    for order in (1, -1):
        twins = [foot("a", ("X", pa.int8())), foot("b", ("x", pa.int8()))][::order]
        with pytest.raises(DataError, match="called 'X' in a and 'x' in b"):
            unify(twins, {})
    with pytest.raises(DataError, match="called 'Zip' in a and 'zip' in b"):
        unify([foot("a", folder={"Zip": "1"}), foot("b", ("zip", pa.int8()))], {})
    both = unify([foot("a", ("X", pa.int8()), ("x", pa.int8())), foot("b", ("x", pa.int8()))], {})
    assert list(both.columns) == ["X", "x"]
    assert list(
        unify([foot("a", ("X", pa.int8())), foot("b", ("x", pa.int8()))], {"X": ColumnOptions(kind="ignore")}).columns
    ) == ["x"]


def test_values_of_folders_are_text_unless_declared() -> None:
    footers = [foot(f"zip={v}/f", ("x", pa.int8()), folder={"zip": v}) for v in ("01234", None)]
    assert unify(footers, {}).columns["zip"] == ColumnType("zip", "categorical", "int32", levels="text", partition=True)
    assert unify(footers, {"zip": ColumnOptions(kind="numeric")}).columns["zip"].dtype == "int64"
    half = [*footers, foot("zip=1.5/f", ("x", pa.int8()), folder={"zip": "1.5"})]
    assert unify(half, {"zip": ColumnOptions(kind="numeric")}).columns["zip"].dtype == "float64"
    day = unify(footers, {"zip": ColumnOptions(kind="datetime")}).columns["zip"]
    assert (day.kind, day.partition) == ("datetime", True)
    assert unify([*footers, foot("g", ("x", pa.int8()))], {}).drift == ("'zip' is not in 'g': missing there",)


def test_a_column_inside_wins_over_the_folder_but_not_in_some_files_alone() -> None:
    inside = foot("k=1/a", ("k", pa.int32()), folder={"k": "1"})
    assert unify([inside], {}).columns["k"] == ColumnType("k", "numeric", "int32")
    for order in (1, -1):
        with pytest.raises(DataError, match="'k' is in k=1/a, and given by the names of folders"):
            unify([inside, foot("k=2/b", ("x", pa.int8()), folder={"k": "2"})][::order], {})


def test_types_travel() -> None:
    column = one(pa.timestamp("ns", "Europe/Paris"))
    assert wire.unpack(wire.pack(column)) == column
    assert Schema({}).require  # a schema of nothing is legal
    assert unify([], {}) == Schema({}, {}, ())
