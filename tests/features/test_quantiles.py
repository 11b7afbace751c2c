import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statistic_laws import any_floats, check_laws, chunk_of, nasty_ints, run
from test_moments import column

from tabgpu.columns import Column
from tabgpu.features import quantiles as module
from tabgpu.features.statistics import Quantiles

probabilities = st.lists(st.floats(0, 1) | st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0]), max_size=6).map(tuple)


def reference(present, wanted):
    """As NumPy has it, for probabilities in float64."""
    if not len(present):
        return (None,) * len(wanted)
    wide = present.astype(np.float64) if present.dtype.kind == "f" else present
    return tuple(np.quantile(wide, np.array(wanted, np.float64), method="inverted_cdf").tolist())


@settings(deadline=None, max_examples=30)
@given(
    st.lists(any_floats | st.none(), max_size=30),
    st.sampled_from(["float64", "float32", "float16"]),
    probabilities,
    st.integers(0, 99),
)
def test_floats_obey_the_laws_and_agree_with_numpy(values, dtype, wanted, seed):
    made = column(values, dtype)
    found = check_laws(Quantiles("x", wanted), chunk_of(x=made), seed)
    assert found == reference(made.values[~np.isnan(made.values)], wanted)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(nasty_ints | st.none(), max_size=30),
    st.sampled_from(["int64", "uint64", "int8", "uint16", "int32"]),
    probabilities,
    st.integers(0, 99),
)
def test_integers_obey_the_laws_and_agree_with_numpy(values, dtype, wanted, seed):
    bounds = np.iinfo(dtype)
    values = [None if v is None else min(max(v, bounds.min), bounds.max) for v in values]
    made = column(values, dtype)
    found = check_laws(Quantiles("x", wanted), chunk_of(x=made), seed)
    there = sorted(v for v in values if v is not None)
    ranks = reference(np.arange(len(there)), wanted)
    assert found == tuple(None if r is None else there[r] for r in ranks)
    assert all(v is None or type(v) is int for v in found)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_many_values_agree_with_numpy(dtype):
    x = np.random.default_rng(0).standard_normal(20_000).astype(dtype)
    wanted = tuple(np.linspace(0, 1, 101).tolist())
    found, states = run(Quantiles("x", wanted), [chunk_of(x=x)])
    assert found == reference(x, wanted)
    assert len(states) == 2


def test_many_rows_in_one_bucket_are_refined_step_by_step(monkeypatch):
    monkeypatch.setattr(module, "_EXACT", 3)
    rng = np.random.default_rng(0)
    values = 1_700_000_000_000_000_000 + rng.integers(0, 1000, 300)
    statistic = Quantiles("t", (0.0, 0.3, 0.5, 1.0))
    chunk = chunk_of(t=Column(values, "datetime", unit="ns"))
    found = check_laws(statistic, chunk)
    assert found == reference(values, statistic.probabilities)
    assert len(run(statistic, [chunk])[1]) == 4 == statistic.max_passes


def test_zeros_are_one_value_and_infinities_count():
    x = np.array([-0.0, 0.0, np.inf, -np.inf])
    found = check_laws(Quantiles("x", (0.0, 0.5, 0.75, 1.0)), chunk_of(x=x))
    assert str(found) == "(-inf, 0.0, 0.0, inf)"


@settings(deadline=None, max_examples=30)
@given(
    st.lists(any_floats.filter(lambda v: v == v), min_size=2, max_size=20),
    st.sampled_from(["float64", "float32", "float16"]),
)
def test_keys_are_ordered_like_the_values(values, dtype):
    with np.errstate(over="ignore"):
        x = np.array(values).astype(dtype)
    keys = module.ordered_keys(np, x)
    assert ((keys[:, None] < keys) == (x[:, None] < x)).all()
    assert module._values(keys, dtype) == x.tolist()


def test_chunks_of_different_types_are_refused():
    statistic = Quantiles("x", (0.5,))
    states = [statistic.observe(chunk_of(x=np.zeros(1, d)), None) for d in ("float32", "int32")]
    with pytest.raises(TypeError, match="'x' is float32 in one chunk and int32 in another"):
        statistic.merge(*states)
