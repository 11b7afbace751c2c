"""Filling of missing values in columns of all kinds."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from step_laws import check_step, chunk_of, fields_of, fit, levels_of, numbers, times, values_of

from tabgpu.columns import Levels
from tabgpu.errors import ConfigError, DataError
from tabgpu.features.contract import Field
from tabgpu.features.fill import Fill
from tabgpu.hashing import hash_levels

CUTS = st.lists(st.integers(0, 40), max_size=3)
INTS = st.lists(st.none() | st.integers(-100, 100), min_size=1, max_size=40).filter(any)
FLOATS = st.lists(st.none() | st.floats(-1e6, 1e6), min_size=1, max_size=40).filter(lambda v: set(v) != {None})
WORDS = st.lists(st.none() | st.sampled_from(["a", "b", "ab", "é", ""]), min_size=1, max_size=40)


@settings(deadline=None, max_examples=50)
@given(INTS, FLOATS, st.sampled_from(["mean", "median", "most_frequent", 0, 1.5]), st.booleans(), CUTS)
def test_numbers(ints, floats, value, indicator, cuts):
    n = min(len(ints), len(floats))
    chunk = chunk_of(i=numbers(ints[:n], "int16"), f=numbers(floats[:n], "float32"))
    if set(ints[:n]) == {None} or set(floats[:n]) == {None}:
        return
    step = Fill("fill", ("i", "f"), value, indicator)
    check_step(step, chunk, chunk, cuts)
    made = step.transform(chunk, fit(step, [chunk]), False)
    assert not any(column.missing().any() for column in made.values())
    assert made["i"].valid is None
    for name in ("i", "f"):
        column = chunk[name]
        present = column.values[~column.missing()].tolist()
        expected = {
            "mean": lambda p: float(np.mean(np.array(p, "f8"))),
            "median": lambda p: sorted(p)[(len(p) - 1) // 2],
            "most_frequent": lambda p: min(p, key=lambda v: (-p.count(v), v)),
        }.get(value, lambda _: value)(present)
        values = made[name].values
        assert values[~column.missing()].tolist() == present
        for filled in values[column.missing()].tolist():
            assert filled == pytest.approx(expected, rel=1e-6)
        if indicator:
            assert made[f"{name}_missing"].values.tolist() == column.missing().astype(int).tolist()


@settings(deadline=None, max_examples=50)
@given(WORDS, WORDS, st.sampled_from(["most_frequent", "a", "new"]), CUTS)
def test_levels(words, others, value, cuts):
    if value == "most_frequent" and set(words) == {None}:
        return
    chunk, other = chunk_of(c=levels_of(words, spare=["zz"])), chunk_of(c=levels_of(others))
    step = Fill("fill", ("c",), value, indicator=True)
    fitted = check_step(step, chunk, other, cuts)
    seen = Counter(w for w in words if w is not None)
    level = min(seen, key=lambda w: (-seen[w], w.encode())) if value == "most_frequent" else value
    made = step.transform(other, fitted, False)
    levels = made["c"].levels
    assert levels is not None
    assert [levels.values[code].as_py() for code in made["c"].values] == [level if w is None else w for w in others]
    assert levels.keys.tolist() == hash_levels(levels.values).tolist()
    assert made["c_missing"].values.tolist() == [int(w is None) for w in others]


@pytest.mark.parametrize(
    ("value", "expected"), [("median", 5), ("most_frequent", 9), ("1970-01-01T00:00:01", 10**9), (3, 3)]
)
def test_datetimes(value, expected):
    chunk = chunk_of(t=times([9, None, 5, 9, 1, 2]))
    step = Fill("fill", ("t",), value)
    made = step.transform(chunk, check_step(step, chunk, chunk, [2]), False)["t"]
    assert (made.kind, made.unit, made.valid) == ("datetime", "ns", None)
    assert made.values.tolist() == [9, expected, 5, 9, 1, 2]


@pytest.mark.parametrize(
    ("dtype", "value", "result"),
    [
        ("int8", "median", "int8"),
        ("int8", "most_frequent", "int8"),
        ("int8", "mean", "float64"),
        ("int8", 3.0, "int8"),
        ("int8", 0.5, "float64"),
        ("uint64", 2**64 - 1, "uint64"),
        ("float16", "mean", "float16"),
        ("float32", 7, "float32"),
    ],
)
def test_types(dtype, value, result):
    chunk = chunk_of(x=numbers([1, None, 3], dtype))
    step = Fill("fill", ("x",), value)
    assert step.outputs(fields_of(chunk))["x"].dtype == result
    assert step.transform(chunk, fit(step, [chunk]), False)["x"].values.dtype.name == result


def test_large_integers_stay_exact():
    chunk = chunk_of(x=numbers([2**53 + 1, None, 2**53 + 1], "int64"))
    for value in ("median", "most_frequent", 2**53 + 1):
        step = Fill("fill", ("x",), value)
        assert step.transform(chunk, fit(step, [chunk]), False)["x"].values.tolist() == [2**53 + 1] * 3


def test_integer_levels_are_filled_with_an_integer():
    chunk = chunk_of(c=levels_of([5, None, 7, 7], type_=pa.int64()))
    for value, expected in (("most_frequent", 7), (5, 5), ("6", 6)):
        step = Fill("fill", ("c",), value)
        made = step.transform(chunk, fit(step, [chunk]), False)["c"]
        assert made.levels.values[made.values[1]].as_py() == expected
    with pytest.raises(ConfigError, match="levels are of type int64"):
        Fill("fill", ("c",), "none").transform(chunk, fit(Fill("fill", ("c",), "none"), [chunk]), False)


@pytest.mark.parametrize("type_", [pa.large_string(), pa.bool_(), pa.float64(), pa.date32(), pa.uint8()])
def test_levels_of_many_types(type_):
    values = pa.array([1, None, 1], pa.int32()).cast(type_).to_pylist()
    chunk = chunk_of(c=levels_of(values, type_=type_))
    step = Fill("fill", ("c",), "most_frequent")
    assert step.transform(chunk, fit(step, [chunk]), False)["c"].values.tolist() == [0, 0, 0]


@pytest.mark.parametrize("value", ["mean", "median", "most_frequent"])
def test_nothing_to_learn_from(value):
    chunk = chunk_of(x=numbers([None, None]))
    with pytest.raises(DataError, match="all values are missing in the training rows") as caught:
        fit(Fill("fill", ("x",), value), [chunk])
    assert "data.columns.x.kind=ignore" in caught.value.remedy
    assert "'x'" in caught.value.happened


def test_all_missing_with_a_constant_and_no_rows():
    chunk = chunk_of(x=numbers([None, None]), c=levels_of([None, None]))
    made = Fill("fill", ("x",), 1).transform(chunk, fit(Fill("fill", ("x",), 1), []), False)
    assert values_of(made) == {"x": [1.0, 1.0]}
    step = Fill("fill", ("c",), "none")
    made = step.transform(chunk, step.fit(()), False)["c"]
    assert made.levels.values.take(pa.array(made.values)).to_pylist() == ["none", "none"]
    assert len(step.transform(chunk.take(slice(0, 0)), step.fit(()), False)["c"]) == 0


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("c", "mean", "'most_frequent' or a level"),
        ("t", "mean", "'2013-10-01'"),
        ("t", "yesterday", "'2013-10-01'"),
        ("t", 0.5, "'2013-10-01'"),
        ("x", "medain", "Did you mean 'median'"),
        ("x", float("inf"), "a finite number"),
        ("i", 300, "a value between -128 and 127"),
        ("f", 1e300, "a value between"),
        ("e", "a", "still has its levels"),
    ],
)
def test_refusals(column, value, words):
    fields = {
        "c": Field("categorical", "int32"),
        "e": Field("categorical", "int32", encoded=True),
        "t": Field("datetime", "int64", "ns"),
        "x": Field("numeric", "float64"),
        "f": Field("numeric", "float32"),
        "i": Field("numeric", "int8"),
    }
    with pytest.raises(ConfigError) as caught:
        Fill("fill", (column,), value).outputs(fields)
    assert words in caught.value.expected
    assert repr(column) in caught.value.happened


def test_levels_are_hashed_once():
    calls = []

    def counting(values):
        calls.append(len(values))
        return hash_levels(values)

    column = levels_of(["a", "b", None])
    chunk = chunk_of(c=column).with_columns(
        {"c": type(column)(column.values, "categorical", levels=Levels(column.levels.values, counting))}
    )
    made = Fill("fill", ("c",), "new").transform(chunk, Fill("fill", ("c",), "new").fit(()), False)["c"]
    assert len(made.levels.keys) == 3
    assert calls == [2]
