import math
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statistic_laws import any_floats, check_laws, chunk_of, nasty_ints

from tabgpu.columns import Column
from tabgpu.features.statistics import Moments, MomentsResult, Range, RangeResult


def column(values, kind):
    """Floats with NaN, or nullable integers."""
    if kind.startswith("float"):
        with np.errstate(over="ignore"):
            return Column(np.array([math.nan if v is None else v for v in values], kind))
    return Column(
        np.array([0 if v is None else v for v in values], kind), valid=np.array([v is not None for v in values], bool)
    )


float_values = st.lists(any_floats | st.none(), max_size=20)
int_values = st.lists(nasty_ints | st.none(), max_size=20)


@settings(deadline=None, max_examples=30)
@given(float_values, st.sampled_from(["float64", "float32", "float16"]), st.integers(0, 99))
def test_floats_obey_the_laws(values, dtype, seed):
    made = column(values, dtype)
    found = made.values[np.isfinite(made.values)].astype(np.float64)
    n_infinite = int(np.isinf(made.values).sum())
    bounds = check_laws(Range("x"), chunk_of(x=made), seed)
    assert (bounds.n_present, bounds.n_infinite) == (len(found) + n_infinite, n_infinite)
    assert bounds.n_present + bounds.n_missing == len(values)
    assert (bounds.min, bounds.max) == ((found.min(), found.max()) if len(found) else (None, None))
    moments = check_laws(Moments("x"), chunk_of(x=made), seed)
    assert (moments.count, moments.n_infinite) == (len(found), n_infinite)
    if len(found):
        mean = sum(map(Fraction, found.tolist())) / len(found)
        variance = sum((Fraction(v) - mean) ** 2 for v in found.tolist()) / len(found)
        assert moments.mean == float(mean)
        assert moments.std == pytest.approx(exact_root(variance), rel=4e-16)


def exact_root(x):
    """Root of a fraction of any size as a float."""
    shift = 4300
    return math.isqrt((x.numerator << (2 * shift)) // x.denominator) / (1 << shift)


@settings(deadline=None, max_examples=30)
@given(int_values, st.integers(0, 99))
def test_integers_obey_the_laws(values, seed):
    made = column(values, "int64")
    there = [v for v in values if v is not None]
    bounds = check_laws(Range("x"), chunk_of(x=made), seed)
    assert bounds == RangeResult(
        min(there, default=None), max(there, default=None), len(there), len(values) - len(there), 0
    )
    moments = check_laws(Moments("x"), chunk_of(x=made), seed)
    assert moments.count == len(there)
    if there:
        assert moments.mean == sum(there) / len(there)


def test_bounds_are_python_numbers_of_the_right_type_and_never_minus_zero():
    result = check_laws(Range("x"), chunk_of(x=np.array([-0.0, 0.0], np.float32)))
    assert (type(result.min), math.copysign(1, result.min), math.copysign(1, result.max)) == (float, 1.0, 1.0)
    assert type(check_laws(Range("x"), chunk_of(x=np.array([3], np.uint8))).max) is int


def test_nanosecond_timestamps_a_second_apart_keep_their_deviation():
    values = 1_700_000_000_000_000_000 + np.arange(50) * 1_000_000_000
    result = check_laws(Moments("t"), chunk_of(t=Column(values, "datetime", unit="ns")))
    assert result.std == pytest.approx(math.sqrt((50**2 - 1) / 12) * 1e9, rel=1e-15)


def test_a_column_with_nothing_in_it():
    result = check_laws(Moments("x"), chunk_of(x=pa.array([None, None], pa.float64())))
    assert result.count == 0
    assert math.isnan(result.mean)
    assert math.isnan(result.std)
    assert check_laws(Range("x"), chunk_of(x=pa.array([None], pa.int32()))) == RangeResult(None, None, 0, 1, 0)


def test_infinite_values_are_counted_and_left_out():
    result = check_laws(Moments("x"), chunk_of(x=np.array([np.inf, 1.0, 3.0, -np.inf, np.nan])))
    assert result == MomentsResult(2, 2.0, 1.0, 2)


def test_statistics_are_equal_by_value():
    assert Moments("x") == Moments("x") != Moments("y")
    assert len({Moments("x"), Moments("x"), Range("x"), Range("x")}) == 2
