"""Own cuts: XGBoost takes them as meant, they depend on the sample's values alone, and lose nothing that matters."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import xgboost
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tabgpu.train import metrics
from tabgpu.train.booster import TrainSpec, predict, train
from tabgpu.train.cuts import FAR, bin_starts, choose, matrix_of

VALUES = st.one_of(
    st.floats(width=32, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 1.0, 2.0, 3.0, np.nan, 1e30, -1e30, 1e-30, 1e-45, float(np.float32(3.4e38))]),
)


def used_cuts(matrix: xgboost.QuantileDMatrix) -> list[np.ndarray]:
    pointers, values = matrix.get_quantile_cut()
    return [values[a + 1 : b] for a, b in pairwise(pointers)]  # the first is the minimum


@settings(deadline=None, max_examples=50)
@given(
    column=hnp.arrays(np.float32, st.integers(0, 60), elements=VALUES),
    max_bin=st.integers(2, 20),
    seed=st.integers(0, 9),
)
def test_starts_are_values_of_the_column_and_do_not_depend_on_order(
    column: np.ndarray, max_bin: int, seed: int
) -> None:
    starts = bin_starts(column, max_bin)
    shuffled = np.random.default_rng(seed).permutation(column)
    assert starts.tobytes() == bin_starts(shuffled, max_bin).tobytes()
    distinct = np.unique(column[~np.isnan(column)])
    assert min(1, len(distinct)) <= len(starts) <= max_bin
    assert (np.diff(starts) > 0).all()
    assert np.isin(starts, distinct).all()
    assert np.array_equal(starts[:1], distinct[:1])
    if len(distinct) <= max_bin:
        assert np.array_equal(starts, distinct)


@settings(deadline=None, max_examples=30)
@given(
    sample=hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 40), st.integers(1, 4)),
        elements=VALUES.filter(lambda v: not abs(v) > 9e37),
    ),
    max_bin=st.integers(2, 16),
)
def test_xgboost_takes_the_cuts_as_meant(sample: np.ndarray, max_bin: int) -> None:
    names = [f"f{j}" for j in range(sample.shape[1])]
    cuts = used_cuts(matrix_of(choose(sample, max_bin), max_bin, names, nthread=1))
    for j, used in enumerate(cuts):
        starts = bin_starts(sample[:, j], max_bin)
        meant = starts[1:] if len(starts) == max_bin or not len(starts) else [*starts[1:], FAR]
        assert np.array_equal(used[:-1], meant)
        assert used[-1] == FAR + FAR


def test_there_is_one_zero() -> None:
    for zeros in ([0.0, -0.0], [-0.0, 0.0]):
        starts = bin_starts(np.array([*zeros, 1], "float32"), 8)
        assert not np.signbit(starts).any()


def test_median_and_quartiles_are_cuts() -> None:
    """With 256 bins; a bin less moved the AUC of a model that needs the median by several thousandths."""
    starts = bin_starts(np.arange(102_400, dtype="float32"), 256)
    assert {25_600, 51_200, 76_800} <= set(starts.tolist())


def test_evenly_many_rows_a_bin() -> None:
    column = np.random.default_rng(0).standard_normal(50_000).astype("float32")
    starts = bin_starts(column, 256)
    assert len(starts) == 256
    share = np.histogram(column, np.append(starts, np.inf))[0] / len(column) * 256
    assert share.min() > 0.98
    assert share.max() < 1.02


def test_heavy_values_stand_alone_and_cost_no_others() -> None:
    random = np.random.default_rng(0)
    column = random.standard_normal(50_000).astype("float32")
    column[random.random(len(column)) < 0.8] = 0
    column[random.random(len(column)) < 0.1] = 1
    starts = bin_starts(column, 256)
    assert len(starts) == 256
    for value in (0, 1):
        (place,) = np.flatnonzero(starts == value)
        inside = column[(column >= value) & (column < starts[place + 1])]
        assert (inside == value).all()


@pytest.mark.parametrize(("distinct", "expected"), [(255, 255), (256, 256), (257, 240)])
def test_few_values_have_a_bin_each(distinct: int, expected: int) -> None:
    column = np.random.default_rng(0).integers(0, distinct, 20_000).astype("float32")
    starts = bin_starts(column, 256)
    assert expected <= len(starts) <= 256
    if distinct <= 256:
        assert set(range(distinct)) <= set(starts.tolist())


@pytest.mark.parametrize("max_bin", [64, 200])
def test_model_sees_values_beyond_the_sample_as_present(max_bin: int) -> None:
    """A split of present against missing must send the same rows the same way in training and in prediction."""
    sample = np.linspace(-5, -4, 200, dtype="float32").reshape(-1, 1)  # XGBoost alone would end the last bin at 1e-5
    features = np.concatenate([sample, np.full((100, 1), 7, "float32"), np.full((100, 1), np.nan, "float32")])
    label = np.isnan(features[:, 0]).astype("float32")
    ref = matrix_of(choose(sample, max_bin), max_bin, ["f0"], nthread=1)
    matrix = xgboost.QuantileDMatrix(features, label=label, feature_names=["f0"], ref=ref, max_bin=max_bin)
    spec = TrainSpec("binary:logistic", 5, {"max_depth": 2, "nthread": 1}, max_bin=max_bin)
    trained = train(spec, matrix)
    predicted = predict(trained.model, features, 4)
    assert np.array_equal(predicted > 0.5, label > 0.5)


def test_no_missing_value_in_the_reference_doubles_the_storage() -> None:
    random = np.random.default_rng(0)
    dense = random.standard_normal((500, 2)).astype("float32")
    sample = dense.copy()
    sample[:250, 0] = np.nan  # shorter, and another column all missing
    sample[:, 1] = np.nan
    ref = matrix_of(choose(sample, 256), 256, ["a", "b"], nthread=1)
    assert ref.num_nonmissing() == ref.num_row() * 2
    for features, label in ((dense, 0), (np.where(dense > 1, np.nan, dense), 1)):
        matrix = xgboost.QuantileDMatrix(features, label=np.full(500, label), feature_names=["a", "b"], ref=ref)
        assert matrix.num_nonmissing() == np.isfinite(features).sum()


def test_no_accuracy_is_lost() -> None:
    random = np.random.default_rng(1)
    features = random.standard_normal((20_000, 6)).astype("float32")
    features[:, 5] = np.exp(3 * features[:, 5])
    margin = features[:, 0] * features[:, 1] + np.log(features[:, 5])
    label = (margin + 2 * random.standard_normal(len(margin)) > 0).astype("float32")
    names = [f"f{j}" for j in range(6)]
    spec = TrainSpec("binary:logistic", 20, {"max_depth": 4, "nthread": 1})
    areas = []
    for ref in (None, matrix_of(choose(features[:10_000:2], 256), 256, names, nthread=1)):
        matrix = xgboost.QuantileDMatrix(
            features[:10_000], label=label[:10_000], feature_names=names, ref=ref, max_bin=256
        )
        predicted = predict(train(spec, matrix).model, features[10_000:], 19)
        areas.append(metrics.finish(metrics.observe("binary", predicted, label[10_000:])).values["auc"])
    assert abs(areas[0] - areas[1]) < 0.003
