"""Categorify, count encoding and crosses: codes, counts and keys against plain Python."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from step_laws import check_step, chunk_of, fields_of, fit, levels_of, numbers, pieces_of, times, values_of

from tabgpu import wire
from tabgpu.errors import ConfigError
from tabgpu.features.categorical import Categorify, CountEncode, Cross, ascending
from tabgpu.features.contract import Field
from tabgpu.hashing import MISSING_KEY, UNSEEN_KEY, combine, hash_levels, value_keys

CUTS = st.lists(st.integers(0, 40), max_size=3)
WORDS = st.lists(st.none() | st.sampled_from(["a", "b", "ab", "é", "", "longer than a lane", "~"]), max_size=40)
INTS = st.lists(st.none() | st.sampled_from([2**53, 2**53 + 1, -(2**63), 0, 3]), max_size=40)


def column_of(values, kind):
    return {
        "text": lambda: levels_of(values, spare=["spare"]),
        "int64": lambda: numbers(values, "int64"),
        "float": lambda: numbers([None if v is None else v / 4 for v in values]),
        "int levels": lambda: levels_of(values, type_=pa.int64()),
        "time": lambda: times(values),
    }[kind]()


@st.composite
def pairs_of_columns(draw):
    """The values of a column in the training rows, in other rows, and both as columns of one kind."""
    kind = draw(st.sampled_from(["text", "int64", "float", "int levels", "time"]))
    source = WORDS if kind == "text" else INTS
    training, other = draw(source), draw(source)
    return training, other, column_of(training, kind), column_of(other, kind), kind


def rank(value):
    return value.encode() if isinstance(value, str) else value


@settings(deadline=None, max_examples=50)
@given(pairs_of_columns(), st.integers(1, 4), st.none() | st.integers(1, 4), CUTS)
def test_codes_levels_and_counts(drawn, min_count, max_levels, cuts):
    training, other, column, other_column, kind = drawn
    step = Categorify("categorify", ("c",), min_count, max_levels)
    chunk = chunk_of(c=column)
    fitted = check_step(step, chunk, chunk_of(c=other_column), cuts)
    vocabulary = fitted.vocabularies[0]

    if kind == "float":
        training, other = ([None if v is None else v / 4 for v in values] for values in (training, other))
    counts = Counter(v for v in training if v is not None)
    order = sorted((v for v in counts if counts[v] >= min_count), key=lambda v: (-counts[v], rank(v)))[:max_levels]
    codes = {v: i + 2 for i, v in enumerate(order)}
    for values, columns in ((training, chunk), (other, chunk_of(c=other_column))):
        made = step.transform(columns, fitted, False)["c"]
        assert made.values.tolist() == [0 if v is None else codes.get(v, 1) for v in values]
    # the inverse, the counts and the keys say the same as the codes
    assert vocabulary.levels.to_pylist() == [None, None, *order]
    in_training = step.transform(chunk, fitted, True)["c"].values
    assert vocabulary.counts.tolist() == np.bincount(in_training, minlength=len(vocabulary)).tolist()
    keys = vocabulary.global_levels.keys
    assert keys[:2].tolist() == [MISSING_KEY, UNSEEN_KEY]
    assert vocabulary.codes.take(vocabulary.table.lookup(keys)).tolist() == list(range(len(vocabulary)))


def test_numbers_of_large_vocabularies():
    rng = np.random.default_rng(0)
    values = [f"{v:x}" for v in rng.integers(0, 3000, 20_000) ** 2]
    chunk = chunk_of(c=levels_of(values))
    step = Categorify("categorify", ("c",), min_count=3)
    fitted = fit(step, pieces_of(chunk, [700, 9000]))
    counts = Counter(values)
    order = sorted((v for v in counts if counts[v] >= 3), key=lambda v: (-counts[v], v.encode()))
    assert fitted.vocabularies[0].levels.to_pylist()[2:] == order
    codes = {v: i + 2 for i, v in enumerate(order)}
    assert step.transform(chunk, fitted, True)["c"].values.tolist() == [codes.get(v, 1) for v in values]


TEXTS = st.text("ab\0é", max_size=10) | st.sampled_from(["prefix__", "prefix__1", "prefix__2", "prefix_"])


@settings(deadline=None, max_examples=50)
@given(st.lists(TEXTS, unique=True, max_size=30), st.integers(0, 5))
def test_texts_are_sorted_by_their_bytes(texts, skipped):
    array = pa.array(texts, pa.large_string())[skipped:]
    assert [texts[skipped:][i] for i in ascending(array)] == sorted(texts[skipped:], key=str.encode)


def test_all_missing_at_fit_and_at_transform():
    none, some = chunk_of(c=levels_of([None, None])), chunk_of(c=levels_of(["a", None, "a"]))
    step = Categorify("categorify", ("c",))
    empty = fit(step, [none])
    assert empty.vocabularies[0].levels.to_pylist() == [None, None]
    assert step.transform(some, empty, False)["c"].values.tolist() == [1, 0, 1]
    known = fit(step, [some])
    assert step.transform(none, known, False)["c"].values.tolist() == [0, 0]
    assert step.transform(none.take(slice(0, 0)), known, False)["c"].values.tolist() == []
    assert fit(step, [some.take(slice(0, 0))]).vocabularies[0].counts.tolist() == [0, 0]


def test_codes_are_those_of_the_level_not_of_the_chunk():
    step = Categorify("categorify", ("c",))
    fitted = fit(step, [chunk_of(c=levels_of(["x", "y", "y"]))])
    assert step.transform(chunk_of(c=levels_of(["y", "x"])), fitted, False)["c"].values.tolist() == [2, 3]
    assert step.transform(chunk_of(c=levels_of(["x", "y"], spare=["q"])), fitted, False)["c"].values.tolist() == [3, 2]


def test_levels_survive_the_wire():
    step = Categorify("categorify", ("c",))
    chunk = chunk_of(c=levels_of(["x", None, "y", "y"]))
    fitted = fit(step, [chunk])
    travelled = wire.unpack(wire.pack(fitted))
    assert wire.pack(travelled) == wire.pack(fitted)
    assert travelled.vocabularies[0].global_levels.keys.tolist() == fitted.vocabularies[0].global_levels.keys.tolist()


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.none() | st.sampled_from("abc"), st.none() | st.integers(0, 2)), max_size=40), CUTS)
def test_counts_of_columns_and_groups(rows, cuts):
    chunk = chunk_of(a=levels_of([r[0] for r in rows]), b=numbers([r[1] for r in rows], "int8"))
    step = CountEncode("count", ("a", ("a", "b"), "b"))
    half = chunk.take(slice(0, len(rows) // 2))
    fitted = check_step(step, half, chunk, cuts)
    made = step.transform(chunk, fitted, False)
    assert list(made) == ["a_count", "a_b_count", "b_count"]
    seen = rows[: len(rows) // 2]
    assert made["a_count"].values.tolist() == [sum(s[0] == r[0] for s in seen) for r in rows]
    assert made["b_count"].values.tolist() == [sum(s[1] == r[1] for s in seen) for r in rows]
    assert made["a_b_count"].values.tolist() == [seen.count(r) for r in rows]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.none() | st.sampled_from("abc"), st.none() | st.integers(0, 2)), max_size=40), CUTS)
def test_crosses_tell_combinations_apart(rows, cuts):
    chunk = chunk_of(a=levels_of([r[0] for r in rows]), b=numbers([r[1] for r in rows], "int8"))
    step = Cross("cross", (("a", "b"), ("b", "a")))
    check_step(step, chunk, chunk, cuts)
    made = step.transform(chunk, None, False)
    assert list(made) == ["a_x_b", "b_x_a"]
    for column in made.values():
        assert not column.missing().any()
        assert column.levels.values.to_pylist() == column.levels.keys.tolist()
        keys = column.levels.keys[column.values].tolist()
        assert len(set(zip(keys, rows, strict=True))) == len(set(keys)) == len(set(rows))


def test_key_of_a_cross():
    chunk = chunk_of(a=levels_of(["x", None]), b=numbers([5, 7], "int8"))
    column = Cross("cross", (("a", "b"),)).transform(chunk, None, False)["a_x_b"]
    parts = hash_levels(pa.array(["x"])), value_keys(np.array([5, 7]))
    expected = [combine(parts[0], parts[1][:1])[0], combine(np.array([MISSING_KEY], "u8"), parts[1][1:])[0]]
    assert column.levels.keys[column.values].tolist() == expected


def test_a_cross_can_be_categorified_counted_and_crossed():
    chunk = chunk_of(a=levels_of(["x", "x", "y", None]), b=numbers([1, 1, 1, None], "int8"))
    crossed = chunk.with_columns(Cross("cross", (("a", "b"),)).transform(chunk, None, False))
    categorify = Categorify("categorify", ("a_x_b",), min_count=2)
    codes = categorify.transform(crossed, fit(categorify, [crossed]), False)["a_x_b"].values
    assert codes.tolist() == [2, 2, 1, 1]
    count = CountEncode("count", ("a_x_b", ("a", "b")))
    made = values_of(count.transform(crossed, fit(count, [crossed]), False))
    assert made == {"a_x_b_count": [2, 2, 1, 1], "a_b_count": [2, 2, 1, 1]}


def test_encoded_columns_can_be_counted():
    chunk = chunk_of(c=levels_of(["x", None, "y", "y", "z"]))
    categorify = Categorify("categorify", ("c",), min_count=2)
    encoded = chunk.with_columns(categorify.transform(chunk, fit(categorify, [chunk]), True))
    count = CountEncode("count", ("c",))
    assert count.transform(encoded, fit(count, [encoded]), False)["c_count"].values.tolist() == [2, 1, 2, 2, 2]


def test_refusals():
    chunk = chunk_of(a=levels_of(["x"]), a_count=numbers([1]), a_x_b=numbers([1]), b=numbers([1]))
    fields = fields_of(chunk) | {"e": Field("categorical", "int32", encoded=True)}
    for step in (CountEncode("count", ("a",)), Cross("cross", (("a", "b"),)), CountEncode("count", ("b", "b"))):
        with pytest.raises(ConfigError, match="there is one of that name already"):
            step.outputs(fields)
    with pytest.raises(ConfigError, match="'e', which an earlier step has encoded"):
        Categorify("categorify", ("e",)).outputs(fields)
    for step in (CountEncode("s", (("a", "q"),)), Cross("s", (("a", "q"),)), Categorify("s", ("q",))):
        with pytest.raises(ConfigError, match="'q', which is not there"):
            step.outputs(fields)


def test_encoded_codes_go_to_the_model():
    field = Categorify("categorify", ("c",)).outputs({"c": Field("categorical", "int32")})["c"]
    assert field.to_model
    assert not Cross("cross", (("c", "c"),)).outputs({"c": Field("categorical", "int32")})["c_x_c"].to_model
