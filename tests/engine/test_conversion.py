"""What one value in a file becomes in a chunk, and which are refused."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from engine_laws import HERE, category, check_column, moment, numeric, values
from hypothesis import given, settings
from hypothesis import strategies as st

from tabgpu.engine.conversion import to_column
from tabgpu.errors import DataError
from tabgpu.schema import ColumnType


@pytest.mark.parametrize(
    ("array", "column", "expected"),
    [
        (pa.array([True, None, False]), numeric("uint8"), [1, None, 0]),
        (pa.array([2**63 + 1, None], pa.uint64()), numeric("uint64"), [2**63 + 1, None]),
        (pa.array([2**53 + 1, None]), numeric("int64"), [2**53 + 1, None]),
        (pa.array([2**53 + 1, None]), numeric("float64"), [2.0**53, None]),
        (pa.array([1.0, float("nan"), None]), numeric("int64"), [1, None, None]),
        (pa.array([1.0, float("nan"), None, -0.0], pa.float16()), numeric("float16"), [1.0, None, None, 0.0]),
        (pa.array([1.5, None], pa.float16()), numeric("float64"), [1.5, None]),
        (pa.array([7, None], pa.time32("ms")), numeric("int64", "us"), [7000, None]),
        (pa.array([7], pa.time32("ms")), numeric("int64", "ms"), [7]),
        (pa.array([7], pa.duration("s")), numeric("int64", "ns"), [7 * 10**9]),
        (pa.array(["1e3", None, "-2"]), numeric("float64"), [1000.0, None, -2.0]),
        (pa.array(["1", None]).dictionary_encode(), numeric("float64"), [1.0, None]),
        (pa.array([4, None]).dictionary_encode(), numeric("int64"), [4, None]),
        (pa.nulls(2), numeric("int64"), [None, None]),
        (pa.nulls(2), numeric("float16"), [None, None]),
        (pa.nulls(2), category(), [None, None]),
        (pa.nulls(2), category("float32"), [None, None]),
        (pa.nulls(2), moment("s"), [None, None]),
        (pa.array(["é", None, ""]), category(), ["é", None, ""]),
        (pa.array(["a", None, "a"], pa.large_string()), category(), ["a", None, "a"]),
        (pa.array(["a", None, "a"], pa.string_view()), category(), ["a", None, "a"]),
        (pa.array([b"a", None, "é".encode()]), category(), ["a", None, "é"]),
        (pa.array([b"ab", None], pa.binary(2)), category(), ["ab", None]),
        (pa.array([1, None]), category(), ["1", None]),
        (pa.array([2**62, 2**62 + 1, None]), category("int64"), [2**62, 2**62 + 1, None]),
        (pa.array([0.0, -0.0, float("nan"), None, 2.5]), category("float64"), [0.0, 0.0, None, None, 2.5]),
        (pa.array([1, 2]).dictionary_encode(), category("float64"), [1.0, 2.0]),
        (pa.array([True, None]), category("uint8"), [1, None]),
        (pa.array([datetime.date(1969, 12, 31), None]), moment("s"), [-86400, None]),
        (pa.array([86_400_000], pa.date64()), moment("us"), [86_400_000_000]),
        (pa.array([1, None], pa.timestamp("s", "Asia/Tokyo")), moment("ms", "Asia/Tokyo"), [1000, None]),
        (pa.array([1, None], pa.timestamp("s")).dictionary_encode(), moment("s"), [1, None]),
        (pa.array(["2013-10-01", None]), moment("us"), [1_380_585_600_000_000, None]),
        (pa.array(["2013-10-01T02:00:00+02:00", "2013-10-01T00:00:01Z"]), moment("s"), [1_380_585_600, 1_380_585_601]),
    ],
)
def test_values_become_those_of_the_unified_type(array: pa.Array, column: ColumnType, expected: list[Any]) -> None:
    got = to_column(array, column, HERE)
    check_column(got, column)
    assert values(got) == expected
    padded = pa.concat_arrays([array, array]).slice(len(array)) if not pa.types.is_dictionary(array.type) else array
    assert values(to_column(padded, column, HERE)) == expected
    assert values(to_column(array.slice(0, 0), column, HERE)) == []


@pytest.mark.parametrize(
    ("array", "column", "said"),
    [
        (pa.array([1.5]), numeric("int64"), "truncated"),
        (pa.array([300]), numeric("int8"), "300"),
        (pa.array([-1]), numeric("uint64"), "-1"),
        (pa.array([" "]), numeric("float64"), "Failed to parse string: ' '"),
        (pa.array([1], pa.timestamp("s")), numeric("int64"), "timestamp"),
        (pa.array([1]), moment("s"), "int64 is no date"),
        (pa.array(["yesterday"]), moment("s"), "yesterday"),
        (pa.array([1], pa.timestamp("ns")), moment("s"), "lose data"),
        (pa.array([2**62], pa.timestamp("s")), moment("ns"), "out of bounds"),
        (pa.array([1.0]), category(), "double is no text"),
        (pa.array(["b"]), category("int64"), "'b'"),
        (pa.array([[1]]), numeric("int64"), "list"),
        (pa.array([[1]]), category(), "list"),
        (pa.array([5], pa.time64("ns")), numeric("int64", "us"), "lose data"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(array: pa.Array, column: ColumnType, said: str) -> None:
    with pytest.raises(DataError, match="The column 'x' of the test holds what cannot be used") as caught:
        to_column(array, column, HERE)
    assert said in caught.value.happened


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.none() | st.integers(-(10**28), 10**28) | st.integers(-(10**6), 10**6), min_size=1, max_size=20),
    st.sampled_from([0, 2, 9, 22, 25]),
    st.sampled_from([pa.decimal128, pa.decimal256]),
)
def test_decimals_become_the_nearest_float(numbers: list[int | None], scale: int, kind: Any) -> None:
    exact = [None if n is None else Decimal(n).scaleb(-scale) for n in numbers]
    got = to_column(pa.array(exact, kind(38, scale)).slice(1), numeric("float64"), HERE)
    assert values(got) == [None if d is None else float(d) for d in exact[1:]]


def test_small_decimals_too() -> None:
    exact = [Decimal("0.29"), None, Decimal("-1.15")]
    for kind in (pa.decimal32(9, 2), pa.decimal64(18, 2)):
        assert values(to_column(pa.array(exact, kind), numeric("float64"), HERE)) == [0.29, None, -1.15]


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.none() | st.sampled_from(["a", "b", "", "é"]), max_size=6),
    st.lists(st.none() | st.integers(0, 5), max_size=20),
    st.sampled_from([pa.int8(), pa.uint8(), pa.int32(), pa.uint64()]),
)
def test_dictionaries_may_hold_null_unused_and_equal_levels(
    levels: list[str | None], picks: list[int | None], indices: pa.DataType
) -> None:
    picks = [p if p is None or p < len(levels) else None for p in picks]
    array = pa.DictionaryArray.from_arrays(pa.array(picks, indices), pa.array(levels, pa.string()))
    got = to_column(array, category(), HERE)
    check_column(got, category())
    assert values(got) == [None if p is None else levels[p] for p in picks]


def test_codes_beyond_the_levels_are_refused() -> None:
    broken = pa.DictionaryArray.from_arrays(pa.array([0, 2], pa.int32()), pa.array(["a", "b"]), safe=False)
    with pytest.raises(DataError, match="code 2, and 2 distinct levels"):
        to_column(broken, category(), HERE)
