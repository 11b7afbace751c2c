"""Numeric steps: clip, log, standardize, quantile bins."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from step_laws import check_step, chunk_of, fit, numbers, times

from tabgpu.columns import Chunk, Column
from tabgpu.errors import ConfigError
from tabgpu.features.contract import Field
from tabgpu.features.numeric import Clip, Log, QuantileBins, Standardize

CUTS = st.lists(st.integers(0, 40), max_size=3)
INT_TYPES = ("int8", "uint8", "int16", "uint32", "int64", "uint64")
HARD = [1e30, 1e-30, 5e-324, -5e-324, 2.0**53 + 1, -0.0, math.inf, -math.inf, 1.7e308, -1.7e308]


@st.composite
def columns(draw, datetimes=False):
    """A numeric or datetime column of any type, with missing values."""
    dtype = draw(st.sampled_from((*INT_TYPES, "float16", "float32", "float64", *(["time"] if datetimes else []))))
    if dtype == "time":
        return times(draw(st.lists(st.none() | st.integers(-(2**62), 2**62), max_size=40)))
    if dtype.startswith("float"):
        width = int(dtype[5:])
        plain = st.floats(allow_nan=False, allow_infinity=False, width=width)
        hard = st.sampled_from(HARD) if width == 64 else st.sampled_from([math.inf, -math.inf, -0.0])
        return numbers(draw(st.lists(st.none() | plain | hard, max_size=40)), dtype)
    limits = np.iinfo(dtype)
    return numbers(draw(st.lists(st.none() | st.integers(int(limits.min), int(limits.max)), max_size=40)), dtype)


BOUND = st.none() | st.sampled_from([-(2.0**70), -300.0, -1.5, 0, 0.0, 3, 200, 300.0, 2.0**70])


@settings(deadline=None, max_examples=50)
@given(columns(), BOUND, BOUND, CUTS)
def test_clip(column, lower, upper, cuts):
    if lower is not None and upper is not None and lower > upper:
        lower, upper = upper, lower
    step = Clip("clip", ("x",), lower, upper)
    chunk = chunk_of(x=column)
    check_step(step, chunk, chunk, cuts)
    made = step.transform(chunk, None, False)["x"]
    assert made.missing().tolist() == column.missing().tolist()
    for before, after, missing in zip(column.values.tolist(), made.values.tolist(), made.missing(), strict=True):
        if not missing and abs(before) != math.inf:
            bound = max(before, lower if lower is not None else before)
            bound = min(bound, upper if upper is not None else bound)
            exact = made.values.dtype.kind in "iu" or column.values.dtype.kind == "f"
            largest = np.finfo(made.values.dtype).max.item() if made.values.dtype.kind == "f" else math.inf
            bound = max(-largest, min(largest, bound))
            assert after == (bound if exact else float(bound))


def test_clip_keeps_integers_where_bounds_are_whole():
    chunk = chunk_of(x=numbers([-128, 5, 127], "int8"))
    made = Clip("clip", ("x",), -3.0, 1000).transform(chunk, None, False)["x"].values
    assert (made.dtype, made.tolist()) == (np.dtype("int8"), [-3, 5, 127])
    made = Clip("clip", ("x",), 0.5, None).transform(chunk, None, False)["x"].values
    assert (made.dtype, made.tolist()) == (np.dtype("float64"), [0.5, 5.0, 127.0])
    made = Clip("clip", ("x",), 1000, None).transform(chunk, None, False)["x"].values
    assert (made.dtype, made.tolist()) == (np.dtype("float64"), [1000.0] * 3)


def test_clip_of_large_integers_is_exact():
    chunk = chunk_of(x=numbers([2**53 + 1, 2**53 + 3], "int64"))
    assert Clip("clip", ("x",), 0, 2**53 + 2).transform(chunk, None, False)["x"].values.tolist() == [
        2**53 + 1,
        2**53 + 2,
    ]


@settings(deadline=None, max_examples=50)
@given(columns(), st.sampled_from([1.0, 0.0, 2.5, -3.0]), CUTS)
def test_log(column, offset, cuts):
    step = Log("log", ("x",), offset)
    chunk = chunk_of(x=column)
    check_step(step, chunk, chunk, cuts)
    made = step.transform(chunk, None, False)["x"].values
    wide = made.dtype.name == "float64"
    for before, after in zip(column.floats("float64").tolist(), made.tolist(), strict=True):
        shifted = (before + offset) if wide else float(np.float32(before) + np.float32(offset))
        if math.isnan(before) or before <= -offset:
            assert math.isnan(after)
        elif offset == 1.0:
            assert after == pytest.approx(
                math.log1p(before) if before < math.inf else math.inf, rel=1e-14 if wide else 1e-6
            )
        elif shifted > 0:
            assert after == pytest.approx(math.log(shifted), rel=1e-14 if wide else 1e-6, abs=1e-15 if wide else 1e-6)


def test_log_keeps_small_values():
    chunk = chunk_of(x=numbers([1e-20]))
    assert Log("log", ("x",)).transform(chunk, None, False)["x"].values[0] == 1e-20


@settings(deadline=None, max_examples=50)
@given(columns(datetimes=True), columns(), CUTS)
def test_standardize_pieces(column, other, cuts):
    step = Standardize("standardize", ("x",))
    check_step(step, chunk_of(x=column), chunk_of(x=other), cuts)


@settings(deadline=None, max_examples=50)
@given(st.sampled_from(INT_TYPES), st.data())
def test_standardize_of_integers_against_fractions(dtype, data):
    limits = np.iinfo(dtype)
    base = data.draw(st.integers(int(limits.min), int(limits.max) - 100))
    values = data.draw(st.lists(st.integers(base, base + 100), min_size=1, max_size=30))
    step = Standardize("standardize", ("x",))
    chunk = chunk_of(x=numbers(values, dtype))
    fitted = fit(step, [chunk])
    made = step.transform(chunk, fitted, False)["x"].values
    mean, deviation = Fraction(sum(values), len(values)), fitted.deviations[0]  # the true mean, not its float64
    for value, z in zip(values, made.tolist(), strict=True):
        expected = float(value - mean) / deviation if deviation else 0.0
        assert z == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_standardize_nanoseconds_a_second_apart():
    start, second = 1_700_000_000_000_000_000, 10**9
    chunk = chunk_of(t=times([start + k * second for k in range(101)]))
    step = Standardize("standardize", ("t",))
    fitted = fit(step, [chunk])
    assert fitted.deviations[0] == pytest.approx(second * math.sqrt((101**2 - 1) / 12), rel=1e-14)
    expected = (np.arange(101) - 50) / math.sqrt((101**2 - 1) / 12)
    np.testing.assert_allclose(step.transform(chunk, fitted, False)["t"].values, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("center", "dtype"), [(2**62, "int64"), (-(2**62), "int64"), (2**63, "uint64")])
def test_standardize_subtracts_large_integers_exactly(center, dtype):
    chunk = chunk_of(x=numbers([center - 1000, None, center + 1000], dtype))  # float64 steps by 1024 there
    step = Standardize("standardize", ("x",))
    made = step.transform(chunk, fit(step, [chunk]), False)["x"].values
    np.testing.assert_array_equal(made, np.array([-1, np.nan, 1], "float32"))


def test_standardize_by_hand():
    step = Standardize("standardize", ("a", "b", "c"))
    chunk = chunk_of(
        a=numbers([1.0, None, 3.0, math.inf]), b=numbers([7, 7, None, 7], "int16"), c=numbers([None] * 4, "float32")
    )
    fitted = fit(step, [chunk])
    made = step.transform(chunk, fitted, False)
    np.testing.assert_array_equal(made["a"].values, np.array([-1, np.nan, 1, 3.4028235e38], "float32"))
    np.testing.assert_array_equal(made["b"].values, np.array([0, 0, np.nan, 0], "float32"))
    seen = chunk_of(a=numbers([2.0]), b=numbers([9], "int16"), c=numbers([5.0], "float32"))
    late = step.transform(seen, fitted, False)
    assert late["a"].values[0] == 0
    assert late["b"].values[0] == 0
    assert np.isnan(late["c"].values[0])  # nothing was learnt, so nothing is said


@settings(deadline=None, max_examples=50)
@given(columns(datetimes=True), st.integers(2, 12), CUTS)
def test_quantile_bins_against_numpy(column, bins, cuts):
    step = QuantileBins("bins", ("x",), bins)
    chunk = chunk_of(x=column)
    fitted = check_step(step, chunk, chunk.take(slice(0, 3)), cuts)
    present = column.values[~column.missing()]
    made = step.transform(chunk, fitted, False)["x_bin"]
    assert made.missing().tolist() == column.missing().tolist()
    if len(present) == 0:
        return
    probabilities = [i / bins for i in range(1, bins)]
    edges = np.unique(np.quantile(present, probabilities, method="inverted_cdf"))
    assert made.values[~column.missing()].tolist() == np.searchsorted(edges, present, side="left").tolist()


def test_quantile_bins_are_of_equal_population():
    chunk = chunk_of(x=numbers(np.random.default_rng(0).permutation(1000).tolist(), "int64"))
    step = QuantileBins("bins", ("x",), 10)
    made = step.transform(chunk, fit(step, [chunk]), False)["x_bin"].values
    assert np.bincount(made).tolist() == [100] * 10


def test_quantile_bins_tell_large_integers_apart():
    chunk = chunk_of(x=numbers([2**53, 2**53 + 1], "int64"))
    step = QuantileBins("bins", ("x",), 2)
    assert step.transform(chunk, fit(step, [chunk]), False)["x_bin"].values.tolist() == [0, 1]


@pytest.mark.parametrize(
    "step", [Clip("s", ("c",), 0.0), Log("s", ("c",)), Standardize("s", ("c",)), QuantileBins("s", ("c",))]
)
def test_levels_are_refused(step):
    fields = {"c": Field("categorical", "int32"), "x": Field("numeric", "float64")}
    with pytest.raises(ConfigError, match="cannot use column 'c', which is categorical") as caught:
        step.outputs(fields)
    assert "'numeric'" in caught.value.expected
    assert "--set data.columns.c.kind=numeric" in caught.value.remedy


def test_other_refusals():
    fields = {
        "t": Field("datetime", "int64", "ns"),
        "x": Field("numeric", "float64"),
        "x_bin": Field("numeric", "int8"),
    }
    with pytest.raises(ConfigError, match="datetime"):
        Clip("clip", ("t",), 0.0).outputs(fields)
    with pytest.raises(ConfigError, match=r"lower 2\.0 above upper 1\.0"):
        Clip("clip", ("x",), 2.0, 1.0).outputs(fields)
    with pytest.raises(ConfigError, match="there is one of that name already"):
        QuantileBins("bins", ("x",)).outputs(fields)
    with pytest.raises(ConfigError, match="Did you mean 'x_bin'"):
        Log("log", ("x_bins",)).outputs(fields)


@pytest.mark.parametrize("unit", ["int", "ns"])
def test_large_integers_are_centred_on_their_true_mean(unit: str) -> None:
    """The mean of these is no float64: rounding it would shift every value by a part of the deviation."""
    start = 2**53 if unit == "int" else 1_700_000_000_000_000_000
    step = 1 if unit == "int" else 100
    values = np.array([0, 1, 2], dtype=np.int64) * step + start
    kind = {"kind": "numeric"} if unit == "int" else {"kind": "datetime", "unit": "ns"}
    chunk = Chunk({"a": Column(values, **kind)}, np.arange(3, dtype=np.uint64), np)
    step_ = Standardize("scale", ("a",))
    (statistic,) = step_.statistics()
    fitted = step_.fit((statistic.finish(statistic.observe(chunk, None), None),))
    done = step_.transform(chunk, fitted, training=True)["a"].values
    assert done == pytest.approx([-(1.5**0.5), 0, 1.5**0.5], abs=1e-6)
