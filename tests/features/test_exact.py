import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statistic_laws import NASTY, nasty_floats, nasty_ints

from tabgpu.features import exact

UNIT = Fraction(1, 2**exact.UNIT)


def value(x):
    return Fraction(int(x)) if isinstance(x, np.integer | np.bool_) else Fraction(float(x))


def assert_exact(x):
    assert exact.sum_exact(np, x) * UNIT == sum(map(value, x))
    assert exact.sum_squares_exact(np, x) * UNIT**2 == sum(value(v) ** 2 for v in x)


@settings(deadline=None, max_examples=30)
@given(st.lists(nasty_floats, max_size=30))
def test_sums_of_any_float64_are_exact(values):
    assert_exact(np.array(values, np.float64))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=30))
def test_sums_of_any_float32_are_exact(values):
    assert_exact(np.array(values, np.float32))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(width=16, allow_nan=False, allow_infinity=False), max_size=30))
def test_sums_of_any_float16_are_exact(values):
    assert_exact(np.array(values, np.float16))


@settings(deadline=None, max_examples=30)
@given(
    st.lists(nasty_ints, max_size=30),
    st.sampled_from(["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]),
)
def test_sums_of_any_integers_are_exact(values, dtype):
    bounds = np.iinfo(dtype)
    assert_exact(np.array(values, np.int64).astype(dtype))
    assert_exact(np.array([bounds.min, bounds.max] * 7, dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_sums_of_many_values_are_exact(dtype):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(20_000) * 1e6).astype(dtype)
    assert_exact(x)
    assert_exact(np.full(20_000, x[0]))


def test_values_of_all_sizes_at_once_are_summed_exactly():
    rng = np.random.default_rng(1)
    x = np.ldexp(rng.standard_normal(500), rng.integers(-1074, 1020, 500))
    assert_exact(np.concatenate([x, -x[::2], NASTY]))


def test_more_values_than_one_slice_takes(monkeypatch):
    x = np.random.default_rng(2).standard_normal(100)
    whole = exact.sum_exact(np, x), exact.sum_squares_exact(np, x)
    monkeypatch.setattr(exact, "_CACHED", 7)
    assert (exact.sum_exact(np, x), exact.sum_squares_exact(np, x)) == whole


def moments(x):
    total, squares = exact.sum_exact(np, x), exact.sum_squares_exact(np, x)
    return exact.mean_of(len(x), total), exact.deviation_of(len(x), total, squares)


def assert_nearest_to_root(found, square):
    """No float is nearer to the root of `square`, a Fraction."""
    below, above = ((Fraction(found) + Fraction(math.nextafter(found, to))) / 2 for to in (-math.inf, math.inf))
    assert max(below, 0) ** 2 <= square <= above**2


@settings(deadline=None, max_examples=30)
@given(st.lists(nasty_floats, min_size=1, max_size=20))
def test_mean_and_deviation_are_rounded_once(values):
    x = np.array(values, np.float64)
    exactly = [Fraction(v) for v in values]
    mean, deviation = moments(x)
    true_mean = sum(exactly) / len(x)
    assert mean == float(true_mean)
    assert_nearest_to_root(deviation, sum((v - true_mean) ** 2 for v in exactly) / len(x))


def test_timestamps_a_second_apart_keep_their_deviation():
    x = 1_700_000_000_000_000_000 + np.arange(1000) * 1_000_000_000
    mean, deviation = moments(x)
    assert mean == 1_700_000_000_000_000_000 + 499_500_000_000
    assert deviation == pytest.approx(math.sqrt((1000**2 - 1) / 12) * 1e9, rel=1e-15)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=6), st.sampled_from([5e-324, 2.0**-1030, 1.0, 2.0**52 + 1]))
def test_deviations_of_few_bits_are_rounded_to_the_nearest(values, unit):
    x = np.array(values) * unit
    exactly = [Fraction(v) for v in x.tolist()]
    mean = sum(exactly) / len(x)
    assert_nearest_to_root(moments(x)[1], sum((v - mean) ** 2 for v in exactly) / len(x))


def test_equal_values_have_no_deviation():
    for v in (0.1, 1e30, 5e-324, 1.7e308):
        assert moments(np.full(7, v)) == (v, 0.0)


def test_nothing_has_no_moments():
    assert all(math.isnan(m) for m in moments(np.array([])))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_fixed_point_is_the_value_to_half_a_unit(values):
    y = np.array(values)
    shift = 52 - math.frexp(float(np.abs(y).max()))[1]
    high, low = exact.fixed_point(np, y, shift)
    assert ((low >= 0) & (low < 2**26)).all()
    assert (np.abs(high) <= 2**26).all()
    for v, h, w in zip(values, high.tolist(), low.tolist(), strict=True):
        assert h == int(h)
        assert abs(Fraction(v) * Fraction(2) ** shift - (int(h) * 2**26 + int(w))) <= Fraction(1, 2)


def test_fixed_point_of_the_smallest_and_largest_values():
    for v in (5e-324, 1.7e308):
        shift = 52 - math.frexp(v)[1]
        high, low = exact.fixed_point(np, np.array([v]), shift)
        assert Fraction(int(high[0]) * 2**26 + int(low[0])) / Fraction(2) ** shift == Fraction(v)


def test_grouped_sums_are_exact_and_cover_all_groups():
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 5, 10_000)
    limb = rng.integers(-(2**26), 2**26, 10_000)
    sums = exact.grouped_sums(np, groups, limb, 7)
    assert sums.dtype == np.float64
    assert sums.tolist() == [int(limb[groups == g].sum()) for g in range(7)]
    assert exact.grouped_counts(np, groups, 7).tolist() == [int((groups == g).sum()) for g in range(7)]
    none = groups[:0]
    assert exact.grouped_sums(np, none, limb[:0], 3).tolist() == exact.grouped_counts(np, none, 3).tolist() == [0] * 3
