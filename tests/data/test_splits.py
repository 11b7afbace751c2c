"""Splits: functions of the row alone; times and gaps as they are written."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabgpu import wire
from tabgpu.columns import Chunk, Column, Levels
from tabgpu.data.splits import (
    OUTSIDE,
    ColumnSplit,
    GroupSplit,
    RandomSplit,
    TimeSplit,
)
from tabgpu.data.times import nanoseconds, parse_gap, parse_time
from tabgpu.errors import ConfigError, DataError
from tabgpu.hashing import hash_levels, splitmix64


def text(values, levels=None, kind=None):
    levels = sorted({v for v in values if v is not None}) if levels is None else levels
    codes = np.array([-1 if v is None else levels.index(v) for v in values], dtype=np.int32)
    return Column(codes, kind="categorical", levels=Levels(pa.array(levels, kind or pa.string()), hash_levels))


def times(values, unit="s"):
    valid = np.array([v is not None for v in values], dtype=bool)
    return Column(np.array([v or 0 for v in values], dtype=np.int64), kind="datetime", valid=valid, unit=unit)


def chunk_of(n, first=0, **columns):
    return Chunk(columns, splitmix64(np.arange(first, first + n, dtype=np.uint64)), np)


SPLITTERS = [
    RandomSplit(0.2, 0.3, seed=4),
    TimeSplit("t", 10, 14, gap=2),
    GroupSplit(("g",), 0.3, 0.3, seed=1),
    GroupSplit(("g", "t"), 0.3, 0.3),
    ColumnSplit("c"),
]


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.integers(0, 20)),
            st.one_of(st.none(), st.sampled_from("abcdef")),
            st.one_of(st.none(), st.sampled_from(["train", "valid", "test"])),
        ),
        min_size=1,
        max_size=20,
    ),
    st.sampled_from([1, 7, 3]),
)
def test_chunks_change_nothing(rows, size):
    def made(first, last):
        t, g, c = zip(*rows[first:last], strict=True) if rows[first:last] else ((), (), ())
        return chunk_of(len(t), first, t=times(t), g=text(g), c=text(c))

    for splitter in SPLITTERS:
        whole = splitter.assign(made(0, len(rows)))
        assert whole.dtype == np.int8
        pieces = [splitter.assign(made(k, k + size)) for k in range(0, len(rows), size)]
        assert whole.tolist() == np.concatenate(pieces).tolist()
        assert splitter.assign(made(0, 0)).tolist() == []
        assert wire.unpack(wire.pack(splitter)) == splitter


def test_random_fractions_hold_and_test_rows_stay():
    chunk = chunk_of(50_000)
    part = RandomSplit(0.1, 0.2, seed=7).assign(chunk)
    share = np.bincount(part, minlength=3) / len(part)
    assert np.abs(share - [0.7, 0.1, 0.2]).max() < 0.006  # more than 3 standard deviations
    other = RandomSplit(0.3, 0.2, seed=7).assign(chunk)
    assert ((part == 2) == (other == 2)).all()
    assert (other[part == 1] == 1).all()
    assert (RandomSplit(0.1, 0.2, seed=8).assign(chunk) != part).mean() > 0.3
    assert not RandomSplit(0, 0).assign(chunk).any()
    again = RandomSplit(0.1, 0.2, seed=7).assign(chunk.take(np.arange(50_000)[::-1]))
    assert (again[::-1] == part).all()


def test_thresholds_are_exact():
    keys = splitmix64(np.arange(1000, dtype=np.uint64) ^ np.uint64(splitmix64(3)))
    expected = [2 if k < 0.25 * 2**64 else 1 if k < 0.5 * 2**64 else 0 for k in map(int, keys)]
    chunk = Chunk({}, np.arange(1000, dtype=np.uint64), np)
    assert RandomSplit(0.25, 0.25, seed=3).assign(chunk).tolist() == expected


@pytest.mark.parametrize(("valid", "test"), [(0.5, 0.5), (-0.1, 0.2), (0.2, 1.5), (float("nan"), 0.1)])
def test_fractions_must_leave_something(valid, test):
    for make in (lambda: RandomSplit(valid, test), lambda: GroupSplit(("g",), valid, test)):
        with pytest.raises(ConfigError, match=r"split\.valid"):
            make()


def test_groups_stay_whole():
    groups = [f"g{i % 97}" if i % 97 else None for i in range(5000)]
    numbers = Column(np.arange(5000) % 13, valid=np.arange(5000) % 13 != 5)
    chunk = chunk_of(5000, g=text(groups), k=numbers)
    for columns in (("g",), ("k",), ("g", "k")):
        part = GroupSplit(columns, 0.3, 0.3).assign(chunk)
        tuples = list(zip(groups, numbers.values.tolist(), strict=True))
        tuples = [tuple(None if n == 5 and c == "k" else (g if c == "g" else n) for c in columns) for g, n in tuples]
        parts = {}
        for key, p in zip(tuples, part.tolist(), strict=True):
            assert parts.setdefault(key, p) == p
        assert set(parts.values()) == {0, 1, 2}


def test_time_boundaries_and_gaps():
    t = times([0, 7, 8, 9, 10, 11, 12, 14, None])
    chunk = chunk_of(9, t=t)
    assert TimeSplit("t", 10, 14, gap=2).assign(chunk).tolist() == [0, 0, -1, -1, 1, 1, -1, 2, OUTSIDE]
    assert TimeSplit("t", 10).assign(chunk).tolist() == [0, 0, 0, 0, 1, 1, 1, 1, OUTSIDE]
    assert TimeSplit("t", None, 10).assign(chunk).tolist() == [0, 0, 0, 0, 2, 2, 2, 2, OUTSIDE]
    assert TimeSplit("t", 10, 10).assign(chunk).tolist() == [0, 0, 0, 0, 2, 2, 2, 2, OUTSIDE]
    year = Column(np.array([2012, 2013, 2014], dtype=np.int16))
    assert TimeSplit("y", 2013, 2014).assign(chunk_of(3, y=year)).tolist() == [0, 1, 2]
    assert TimeSplit("y", 2013, 10**6).assign(chunk_of(3, y=year)).tolist() == [0, 1, 1]
    assert TimeSplit("y", -(10**6)).assign(chunk_of(3, y=year)).tolist() == [1, 1, 1]
    part = Column(np.array([2012.0, np.nan, 2014.0]))
    assert TimeSplit("y", 2013).assign(chunk_of(3, y=part)).tolist() == [0, -1, 1]


def test_time_refusals():
    for arguments in ((10, 9, 0), (10, 12, -1)):
        with pytest.raises(ConfigError, match="under split"):
            TimeSplit("t", *arguments)
    with pytest.raises(DataError, match="holds text"):
        TimeSplit("t", 1).assign(chunk_of(1, t=text(["a"])))


def test_column_split():
    named = text(["test", None, "train", "valid"], ["valid", "other", "train", "test"])
    assert ColumnSplit("c").assign(chunk_of(4, c=named)).tolist() == [2, -1, 0, 1]
    coded = Column(np.array([0, 1, 2, 9], dtype=np.uint8), valid=np.array([True, True, True, False]))
    assert ColumnSplit("c").assign(chunk_of(4, c=coded)).tolist() == [0, 1, 2, -1]
    assert ColumnSplit("c").assign(chunk_of(2, c=Column(np.array([1.0, np.nan])))).tolist() == [1, -1]
    assert ColumnSplit("c").assign(chunk_of(2, c=text([2, 0], kind=pa.int64()))).tolist() == [2, 0]
    for wrong in (text(["train", "holdout"]), Column(np.array([0, 3])), Column(np.array([0.5, np.nan]))):
        with pytest.raises(DataError, match=r"holdout|3|0\.5"):
            ColumnSplit("c").assign(chunk_of(2, c=wrong))


# ---- times ----


@settings(deadline=None, max_examples=50)
@given(st.datetimes(timezones=st.sampled_from([UTC, ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Kolkata")])))
def test_times_are_those_of_python(moment):
    expected = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    for value in (moment, moment.isoformat()):
        if isinstance(value, str) and len(value.partition("T")[2].partition("+")[2]) > 5:
            continue  # an offset with seconds, as before 1900: refused
        if moment.year > 1 and moment.year < 9999:
            assert nanoseconds(value) == expected * 1000
    naive = moment.replace(tzinfo=None, fold=0)  # text does not tell which of two equal hours is meant
    if 1900 < moment.year < 9999:
        berlin = naive.replace(tzinfo=ZoneInfo("Europe/Berlin"))
        seconds = (berlin - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        assert nanoseconds(naive.isoformat(), "Europe/Berlin") == seconds * 1000


def test_times_as_written():
    assert parse_time("2013-10-01", "s") == 1380585600
    assert parse_time("2013-10-01", "s", "America/New_York") == 1380585600 + 4 * 3600
    assert parse_time("2013-10-01", "ms", "+01:00") == (1380585600 - 3600) * 1000
    assert parse_time("2013-10-01T00:00:00Z", "us", "Asia/Kolkata") == 1380585600 * 10**6
    assert parse_time(date(2013, 10, 1), "ns") == 1380585600 * 10**9
    assert parse_time("1969-12-31 23:59:59.999999999", "ns") == -1
    assert parse_time("1969-12-31T23:59:59.5", "ms") == -500
    assert parse_time("19691231T235959.123456789", "ns") == -876543211
    assert parse_time(2013, None) == 2013


@pytest.mark.parametrize(
    ("value", "unit", "zone"),
    [
        ("soon", "s", None),
        ("2013", "s", None),
        ("2013-02-30", "s", None),
        ("", "s", None),
        (5, "s", None),
        (True, None, None),
        ("2013-10-01", None, None),
        ("2013-10-01T00:00:00.5", "s", None),
        ("2013-10-01T00:00:00.1234567891", "ns", None),
        ("2013-10-01T00:00:00+01:00:30", "s", None),
        ("9999-12-31", "ns", None),
        ("2013-10-01", "s", "Europe/Berlni"),
        ("2013-10-01", "s", "../etc"),
    ],
)
def test_what_is_no_time_is_refused(value, unit, zone):
    with pytest.raises(ConfigError, match=r"split\.valid"):
        parse_time(value, unit, zone, "split.valid")


def test_gaps():
    assert parse_gap("7d", "s") == 7 * 86400
    assert parse_gap("1d 12h", "ms") == 36 * 3600 * 1000
    assert parse_gap("2w", "ns") == 14 * 86400 * 10**9
    assert parse_gap("500ms", "ms") == 500
    assert parse_gap(None, "s") == 0
    assert parse_gap(3, None) == parse_gap("3", None) == 3
    for wrong in ("500ms", "7", "d", "7m", "7 days", "-7d", "1.5d", "", 7, "9" * 30 + "w", "1" + "0" * 20 + "s", True):
        with pytest.raises(ConfigError, match=r"split\.gap"):
            parse_gap(wrong, "s")
