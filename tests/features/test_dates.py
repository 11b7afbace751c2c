"""Calendar parts: equal to Python's datetime, zoneinfo and pandas, and the same however rows are cut."""

from __future__ import annotations

import zoneinfo
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabgpu.columns import Chunk, Column
from tabgpu.errors import ConfigError
from tabgpu.features.contract import Field
from tabgpu.features.dates import PARTS, Dates, zone_table

ZONES = (None, "UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "+02:00", "-09:30")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
LOW, HIGH = -2_208_988_800, 4_102_444_800  # 1900 and 2100


def chunk_of(values, unit="s", valid=None, zone=None) -> Chunk:
    values = np.asarray(values, dtype=np.int64)
    return Chunk({"t": Column(values, "datetime", valid, unit=unit, zone=zone)}, np.arange(len(values), dtype="u8"), np)


def parts_of(chunk: Chunk, zone=None, parts=PARTS) -> dict[str, np.ndarray]:
    made = Dates("dates", ("t",), parts, zone).transform(chunk, None, False)
    return {name.removeprefix("t_"): column.values for name, column in made.items()}


def python_parts(second: int, zone: str | None) -> dict[str, int]:
    moment = EPOCH + timedelta(seconds=second)
    if zone in ("+02:00", "-09:30"):
        moment += timedelta(hours=2) if zone == "+02:00" else -timedelta(hours=9, minutes=30)
    elif zone is not None:
        moment = moment.astimezone(zoneinfo.ZoneInfo(zone))
    return {
        "year": moment.year,
        "month": moment.month,
        "day": moment.day,
        "weekday": moment.weekday(),
        "hour": moment.hour,
        "minute": moment.minute,
        "second": moment.second,
        "dayofyear": moment.timetuple().tm_yday,
        "week": moment.isocalendar().week,
        "quarter": (moment.month + 2) // 3,
        "is_weekend": int(moment.weekday() >= 5),
    }


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(LOW, HIGH), min_size=1, max_size=20), st.sampled_from(ZONES), st.sampled_from(list(TICKS)))
def test_parts_are_those_of_python(seconds, zone, unit):
    rest = TICKS[unit] - 1  # the last tick of each second: rounding down must hold on both sides of 1970
    made = parts_of(chunk_of([s * TICKS[unit] + rest for s in seconds], unit), zone)
    for i, second in enumerate(seconds):
        assert {name: int(values[i]) for name, values in made.items()} == python_parts(second, zone)


def test_every_day_of_six_centuries():
    days = pd.date_range("1677-10-01", "2262-04-01", freq="D", unit="s")
    made = parts_of(chunk_of(days.astype("int64").to_numpy()))
    names = {"weekday": "day_of_week", "dayofyear": "day_of_year"}
    for part in ("year", "month", "day", "weekday", "dayofyear", "quarter"):
        np.testing.assert_array_equal(made[part], getattr(days, names.get(part, part)))
    np.testing.assert_array_equal(made["week"], days.isocalendar().week.to_numpy())


def test_years_far_before_the_calendar():
    values = [int(np.datetime64(text, "s").astype("int64")) for text in ("-0401-02-28", "0000-12-31", "9999-12-31")]
    made = parts_of(chunk_of(values))
    assert made["year"].tolist() == [-401, 0, 9999]
    assert made["dayofyear"].tolist() == [59, 366, 365]


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Africa/Casablanca", "Pacific/Apia"])
def test_both_clock_changes_to_the_second(zone):
    changes, _ = zone_table(zone)
    seconds = [int(change) + step for change in changes for step in (-1, 0)]
    made = parts_of(chunk_of(seconds), zone, ("day", "hour", "minute", "second"))
    for i, second in enumerate(seconds):
        expected = python_parts(second, zone)
        assert {name: int(values[i]) for name, values in made.items()} == {name: expected[name] for name in made}


def test_hour_that_the_clock_repeats():
    # 2013-10-27 in Berlin: 02:30 comes twice, an hour apart; 2013-03-31: 02:30 does not come
    at = [int(datetime(2013, 10, 27, h, 30, tzinfo=UTC).timestamp()) for h in (0, 1, 2)]
    at += [int(datetime(2013, 3, 31, h, 30, tzinfo=UTC).timestamp()) for h in (0, 1)]
    assert parts_of(chunk_of(at), "Europe/Berlin", ("hour",))["hour"].tolist() == [2, 2, 3, 1, 3]


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(-(2**62), 2**62), max_size=30), st.integers(0, 30), st.sampled_from(ZONES))
def test_pieces_give_the_pieces(values, cut, zone):
    chunk = chunk_of(values, "ns", valid=np.arange(len(values)) % 3 > 0)
    step = Dates("dates", ("t",), PARTS, zone)
    whole = step.transform(chunk, None, False)
    for piece in (slice(None, cut), slice(cut, None)):
        for name, column in step.transform(chunk.take(piece), None, False).items():
            np.testing.assert_array_equal(column.values, whole[name].values[piece])
            np.testing.assert_array_equal(column.valid, whole[name].valid[piece])


def test_missing_stays_missing_and_empty_stays_empty():
    chunk = chunk_of([0, 5], valid=np.array([True, False]))
    made = Dates("dates", ("t",), ("hour",)).transform(chunk, None, False)["t_hour"]
    assert made.missing().tolist() == [False, True]
    empty = Dates("dates", ("t",), PARTS, "Europe/Berlin").transform(chunk.take(slice(0, 0)), None, False)
    assert {len(column) for column in empty.values()} == {0}


def test_zone_of_the_column_unless_the_step_has_one():
    chunk = chunk_of([0], zone="Asia/Kolkata")
    assert parts_of(chunk, None, ("hour", "minute")) == {"hour": [5], "minute": [30]}
    assert parts_of(chunk, "UTC", ("hour",)) == {"hour": [0]}


def test_output_names_and_types():
    fields = {"t": Field("datetime", "int64", "s")}
    step = Dates("dates", ("t",), PARTS)
    outputs = step.outputs(fields)
    made = step.transform(chunk_of([0]), None, False)
    assert list(outputs) == list(made) == [f"t_{part}" for part in PARTS]
    assert {n: f.dtype for n, f in outputs.items()} == {n: c.values.dtype.name for n, c in made.items()}


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (Dates("d", ("t",), ("hour",), "Berlin"), "Did you mean 'Europe/Berlin'"),
        (Dates("d", ("t",), ("hour",), "Europe/Berln"), "Did you mean 'Europe/Berlin'"),
        (Dates("d", ("t",), ("hour",), "Europe"), "Time zone 'Europe' is not known"),
        (Dates("d", ("t",), ("hour",), "../zone"), "is not known"),
        (Dates("d", ("t",), ("hours",)), "Did you mean 'hour'"),
        (Dates("d", ("x",), ("hour",)), "cannot use column 'x', which is numeric"),
        (Dates("d", ("tt",), ("hour",)), "Did you mean 't'"),
        (Dates("d", ("t", "t"), ("hour",)), "'t_hour'"),
        (Dates("d", ("z",), ("hour",)), "'Nowhere'"),
    ],
)
def test_refusals(step, words):
    fields = {"t": Field("datetime", "int64", "s"), "x": Field("numeric", "float64")}
    fields["z"] = Field("datetime", "int64", "s", zone="Nowhere")
    with pytest.raises(ConfigError, match="Expected") as caught:
        step.outputs(fields)
    assert words in str(caught.value)
    assert "features" in caught.value.remedy


def test_no_zone_changes_twice_within_a_day():
    """The scan of `zone_table` steps by days; a finer scan of the busiest zones finds no change more."""
    for zone in ("Africa/Casablanca", "America/Argentina/San_Luis", "Asia/Gaza"):
        clock = zoneinfo.ZoneInfo(zone)
        changes, offsets = zone_table(zone)
        seconds = np.arange(0, 2**31, 7 * 3600 + 1800)
        expected = [
            int((EPOCH + timedelta(seconds=int(s))).astimezone(clock).utcoffset().total_seconds()) for s in seconds
        ]
        np.testing.assert_array_equal(offsets[np.searchsorted(changes, seconds, side="right")], expected)
