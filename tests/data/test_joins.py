"""Joins with small tables: what matches, what does not, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabgpu.columns import Chunk, Column, Levels
from tabgpu.data.joins import JoinTable, join_fields
from tabgpu.errors import ConfigError, DataError
from tabgpu.features.contract import Field
from tabgpu.hashing import hash_levels


def numeric(values, dtype="int64"):
    if np.dtype(dtype).kind == "f":
        return Column(np.array([math.nan if v is None else v for v in values], dtype=dtype))
    valid = np.array([v is not None for v in values], dtype=bool)
    return Column(np.array([v or 0 for v in values], dtype=dtype), valid=None if valid.all() else valid)


def text(values, kind=None, spare=()):
    levels = [*spare, *sorted({v for v in values if v is not None}, reverse=True)]
    codes = np.array([-1 if v is None else levels.index(v) for v in values], dtype=np.int32)
    return Column(codes, kind="categorical", levels=Levels(pa.array(levels, kind or pa.string()), hash_levels))


def times(values, unit="s"):
    column = numeric(values)
    return Column(column.values, kind="datetime", valid=column.valid, unit=unit, zone="UTC")


def chunk_of(**columns):
    return Chunk(columns, np.zeros(len(next(iter(columns.values()))), dtype=np.uint64), np)


def fields_of(chunk):
    return {n: Field(c.kind, c.values.dtype.name, c.unit, c.zone) for n, c in chunk.columns.items()}


def build(table, by, data, prefix="t_"):
    return JoinTable.build("small", table, by, prefix, fields_of(table), fields_of(data))


def listed(column):
    values = column.values.tolist()
    if column.levels is not None:
        values = [None if v < 0 else column.levels.values[v].as_py() for v in values]
    return [None if gone else v for v, gone in zip(values, column.missing().tolist(), strict=True)]


names = st.one_of(st.none(), st.sampled_from(["JFK", "LGA", "EWR", "é", ""]))
hours = st.one_of(st.none(), st.integers(-3, 3))
keys = st.tuples(names, hours)


@settings(deadline=None, max_examples=50)
@given(st.lists(keys, max_size=15), st.lists(keys, max_size=15, unique=True), st.sampled_from([1, 7, 4]), st.randoms())
def test_agrees_with_pandas_in_any_chunks_and_order(rows, table_rows, size, random):
    table_rows = [k for k in table_rows if random.random() < 0.8]
    table = chunk_of(
        origin=text([o for o, _ in table_rows]),
        hour=times([h for _, h in table_rows], "s"),
        wind=numeric([i / 2 for i in range(len(table_rows))], "float32"),
        rank=numeric([None if i == 2 else i for i in range(len(table_rows))], "int16"),
        sky=text([["clear", "rain", None][i % 3] for i in range(len(table_rows))]),
    )

    def made(part):
        o, h = [o for o, _ in rows[part]], [None if h is None else h * 1000 for _, h in rows[part]]
        return chunk_of(origin=text(o, spare=["nowhere"]), hour=times(h, "ms"))

    data = made(slice(None))
    joined = build(table, ("origin", "hour"), data)
    columns = joined.join(data)
    assert {n: (c.kind, c.values.dtype.name) for n, c in columns.items()} == {
        n: (f.kind, f.dtype) for n, f in joined.fields.items()
    }

    right = pd.DataFrame(table_rows, columns=["origin", "hour"], dtype=object)
    for name in ("wind", "rank", "sky"):
        right[name] = pd.Series(listed(table[name]), dtype=object)
    left = pd.DataFrame(rows, columns=["origin", "hour"], dtype=object)
    expected = left.merge(right.dropna(subset=["origin", "hour"]), on=["origin", "hour"], how="left")
    for name in ("wind", "rank", "sky"):
        values = [None if pd.isna(v) else v for v in expected[name]]
        assert listed(columns[f"t_{name}"]) == values
        pieces = [listed(joined.join(made(slice(k, k + size)))[f"t_{name}"]) for k in range(0, len(rows), size)]
        assert [v for piece in pieces for v in piece] == values

    order = list(range(len(table_rows)))
    random.shuffle(order)
    again = build(table.take(np.array(order, dtype=np.int64)), ("origin", "hour"), data).join(data)
    assert {n: listed(c) for n, c in again.items()} == {n: listed(c) for n, c in columns.items()}


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint64", "float32", "float64"])
@pytest.mark.parametrize("other", ["int16", "int64", "uint64", "float64"])
def test_numbers_meet_across_widths(dtype, other):
    table = chunk_of(k=numeric([7, 0, 100], other), x=numeric([70, 0, 1000]))
    data = chunk_of(k=numeric([100, 5, None, 7, 0], dtype))
    assert listed(build(table, ("k",), data).join(data)["t_x"]) == [1000, None, None, 70, 0]


def test_numbers_with_the_same_bits_or_nearly_so_do_not_meet():
    table = chunk_of(k=numeric([2**64 - 1, 2**53 + 1], "uint64"), x=numeric([1, 2]))
    data = chunk_of(k=numeric([-1, 2**53, 2**53 + 1]))
    assert listed(build(table, ("k",), data).join(data)["t_x"]) == [None, None, 2]
    fractions = chunk_of(k=numeric([0.5, -0.0, 1e300], "float64"), x=numeric([1, 2, 3]))
    data = chunk_of(k=numeric([0, 0.5, 1e300, 1.5, math.inf], "float64"))
    assert listed(build(fractions, ("k",), data).join(data)["t_x"]) == [2, 1, 3, None, None]


def test_levels_that_are_numbers_meet_numbers():
    table = chunk_of(k=numeric([1, 2]), x=numeric([10, 20]))
    data = chunk_of(k=text([2, None, 3, 1], pa.int64()))
    assert listed(build(table, ("k",), data).join(data)["t_x"]) == [20, None, None, 10]


def test_text_of_all_arrow_types_meets():
    table = chunk_of(k=text(["a", "b"], pa.large_string()), x=numeric([1, 2]))
    data = chunk_of(k=text(["b", "c", None, "a"]))
    assert listed(build(table, ("k",), data).join(data)["t_x"]) == [2, None, None, 1]


def test_a_missing_key_matches_nothing():
    table = chunk_of(k=text(["a"]), x=numeric([1]), n=numeric([0]))
    for data in (chunk_of(k=text([None, "a"])), chunk_of(k=text([None]))):
        assert listed(build(table, ("k",), data).join(data)["t_x"]) == [None, 1][: data.n_rows]
    data = chunk_of(n=numeric([None, 0]))  # what is missing is held as 0
    assert listed(build(table, ("n",), data).join(data)["t_x"]) == [None, 1]


def test_fractions_of_seconds_meet_across_units():
    table = chunk_of(k=times([1500, -500], "ms"), x=numeric([1, 2]))
    data = chunk_of(k=times([1_500_000_000, -500_000_000, 1_500, 1_000_000_000], "ns"))
    assert listed(build(table, ("k",), data).join(data)["t_x"]) == [1, 2, None, None]


def test_what_the_table_lacks_is_missing():
    table = chunk_of(
        k=numeric([1, 2]), i=numeric([5, None], "uint8"), f=numeric([None, 0.5], "float32"), s=text(["a", None])
    )
    data = chunk_of(k=numeric([2, 1]))
    columns = build(table, ("k",), data).join(data)
    assert [listed(columns[n]) for n in ("t_i", "t_f", "t_s")] == [[None, 5], [0.5, None], [None, "a"]]


def test_far_times_meet_without_overflow():
    far = 253_370_764_800  # the year 9999, beyond int64 nanoseconds
    table = chunk_of(k=times([far, -1], "s"), x=numeric([1, 2]))
    data = chunk_of(k=times([far * 10**6, far * 10**6 + 1, -(10**6), None], "us"))
    assert listed(build(table, ("k",), data).join(data)["t_x"]) == [1, None, 2, None]


def test_empty_sides():
    table = chunk_of(k=text([]), x=numeric([]), f=numeric([], "float32"), s=text([]))
    data = chunk_of(k=text(["a", None]))
    joined = build(table, ("k",), data)
    assert {n: listed(c) for n, c in joined.join(data).items()} == {n: [None, None] for n in ("t_x", "t_f", "t_s")}
    assert all(len(c) == 0 for c in joined.join(chunk_of(k=text([]))).values())
    lonely = chunk_of(k=text([None, None]), x=numeric([1, 2]))  # missing keys match nothing, so none is double
    assert listed(build(lonely, ("k",), data).join(data)["t_x"]) == [None, None]


def test_many_levels_beside_few_rows():
    levels = Levels(pa.array([f"k{i}" for i in range(1000)]), hash_levels)
    table = chunk_of(k=text([f"k{i}" for i in range(0, 1000, 3)]), x=numeric(list(range(0, 1000, 3))))
    data = chunk_of(k=Column(np.array([999, -1, 4, 6], dtype=np.int32), kind="categorical", levels=levels))
    assert listed(build(table, ("k",), data).join(data)["t_x"]) == [999, None, None, 6]


def test_duplicate_keys_are_refused_with_an_example():
    table = chunk_of(o=text(["JFK", "JFK", "LGA", "JFK"]), t=times([5400, 5400, 0, 5400]), x=numeric([1, 2, 3, 4]))
    data = chunk_of(o=text(["JFK"]), t=times([0]))
    with pytest.raises(DataError, match=r"'small' has 2 rows .* o 'JFK', t 1970-01-01T01:30:00 UTC"):
        build(table, ("o", "t"), data)


def test_other_kinds_are_refused():
    table = chunk_of(k=numeric([1]), t=times([1]), s=text(["a"]), x=numeric([1]))
    data = chunk_of(k=text(["a"]), t=numeric([1]), s=text([1], pa.int64()))
    with pytest.raises(DataError, match=r"text in the data and a number in the table"):
        build(table.select(["k", "x"]), ("k",), data).join(data)
    with pytest.raises(DataError, match=r"a number in the data and text in the table"):
        build(table.select(["s", "x"]), ("s",), data).join(data)
    with pytest.raises(DataError, match=r"numeric in the data and datetime in the table"):
        build(table.select(["t", "x"]), ("t",), data)
    empty = chunk_of(k=text([], pa.null()))
    assert listed(build(table.select(["k", "x"]), ("k",), empty).join(empty)["t_x"]) == []


def test_names():
    table = {"k": Field("numeric", "int64"), "x": Field("numeric", "float32"), "y": Field("categorical", "int32")}
    data = {"k": Field("numeric", "int8"), "x": Field("numeric", "int8")}
    assert list(join_fields("w", ("k",), "w_", table, data)) == ["w_x", "w_y"]
    assert join_fields("w", ("k",), "w_", table, data)["w_x"] == table["x"]
    with pytest.raises(ConfigError, match=r"'x', which is there already.*--set data\.join\.w\.prefix=w_"):
        join_fields("w", ("k",), "", table, data)
    with pytest.raises(ConfigError, match=r"no column of the data.*Did you mean 'key'"):
        join_fields("w", ("kye",), "", table, {"key": data["k"]})
    with pytest.raises(ConfigError, match=r"no column of the table 'w'"):
        join_fields("w", ("x",), "", {"k": table["k"]}, data)
    with pytest.raises(ConfigError, match=r"brings 0 columns"):
        join_fields("w", ("k",), "", {"k": table["k"]}, data)
