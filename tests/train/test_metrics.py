"""Metrics: those of scikit-learn, whatever the order and the chunks, and None with a reason where there is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabgpu import wire
from tabgpu.train.metrics import BINARY, REGRESSION, finish, merge, merge_all, observe

TASKS: list[Any] = ["binary", "regression"]


def part(task: str, n: int, seed: int, weighted: bool, ties: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    random = np.random.default_rng(seed)
    prediction = random.random(n).astype("float32")
    if ties:
        prediction = (np.round(prediction * 8) / 8).astype("float32")
    label = (random.random(n) < prediction).astype("float32")
    if task == "regression":
        label = (prediction + 1e3 + random.standard_normal(n)).astype("float32")
    weight = (random.random(n) * random.integers(0, 3, n)).astype("float32") if weighted else None
    return prediction, label, weight


def states(task: Any, rows: tuple[Any, Any, Any], order: np.ndarray, pieces: int) -> list[Any]:
    prediction, label, weight = rows
    return [
        observe(task, prediction[o], label[o], None if weight is None else weight[o])
        for o in np.array_split(order, pieces)
    ]


@settings(deadline=None, max_examples=40)
@given(
    task=st.sampled_from(TASKS),
    n=st.integers(0, 80),
    seed=st.integers(0, 5),
    pieces=st.integers(1, 7),
    weighted=st.booleans(),
    ties=st.booleans(),
)
def test_order_and_chunks_change_no_bit(task: Any, n: int, seed: int, pieces: int, weighted: bool, ties: bool) -> None:
    rows = part(task, n, seed, weighted, ties)
    random = np.random.default_rng(seed)
    whole = observe(task, *rows)
    split = states(task, rows, random.permutation(n), pieces)
    for total in (
        merge_all(split),
        merge_all(reversed(split)),
        merge(whole, observe(task, *(r if r is None else r[:0] for r in rows))),
    ):
        assert wire.pack(total) == wire.pack(whole)
    assert finish(merge_all(split)) == finish(whole)
    assert wire.pack(wire.unpack(wire.pack(whole))) == wire.pack(whole)


@settings(deadline=None, max_examples=40)
@given(n=st.integers(30, 300), seed=st.integers(0, 50), weighted=st.booleans(), ties=st.booleans())
def test_binary_equals_scikit_learn(n: int, seed: int, weighted: bool, ties: bool) -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    prediction, label, weight = part("binary", n, seed, weighted, ties)
    found = finish(observe("binary", prediction, label, weight)).values
    wide = prediction.astype("float64")
    epsilon = float(np.finfo("float32").eps)
    expected = {
        "auc": sklearn.roc_auc_score(label, wide, sample_weight=weight),
        "average_precision": sklearn.average_precision_score(label, wide, sample_weight=weight),
        "logloss": sklearn.log_loss(label, np.clip(wide, epsilon, 1 - epsilon), sample_weight=weight, labels=[0, 1]),
        "accuracy": sklearn.accuracy_score(label, wide > 0.5, sample_weight=weight),
        "brier": sklearn.brier_score_loss(label, wide, sample_weight=weight, pos_label=1),
    }
    assert list(found) == list(BINARY)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-12, abs=1e-12), name


@settings(deadline=None, max_examples=30)
@given(n=st.integers(2, 200), seed=st.integers(0, 50), weighted=st.booleans())
def test_regression_equals_scikit_learn(n: int, seed: int, weighted: bool) -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    prediction, label, weight = part("regression", n + 20, seed, weighted, ties=False)
    found = finish(observe("regression", prediction, label, weight)).values
    wide, target = prediction.astype("float64"), label.astype("float64")
    weights = None if weight is None else weight.astype("float64")
    assert list(found) == list(REGRESSION)
    assert found["rmse"] == pytest.approx(
        sklearn.root_mean_squared_error(target, wide, sample_weight=weights), rel=1e-12
    )
    assert found["mae"] == pytest.approx(sklearn.mean_absolute_error(target, wide, sample_weight=weights), rel=1e-12)
    # scikit-learn's running sums lose digits beside a mean of a thousand deviations; ours do not
    assert found["r2"] == pytest.approx(sklearn.r2_score(target, wide, sample_weight=weights), rel=1e-9)


def test_known_values() -> None:
    prediction = np.array([0.1, 0.4, 0.4, 0.8], "float32")
    label = np.array([0, 0, 1, 1], "float32")
    found = finish(observe("binary", prediction, label)).values
    assert found["auc"] == 3.5 / 4
    assert found["average_precision"] == pytest.approx(0.5 + 0.5 * 2 / 3)
    assert found["accuracy"] == 0.75
    found = finish(observe("regression", np.array([1, 2], "float32"), np.array([1, 4], "float32"))).values
    assert found == {"rmse": 2**0.5, "mae": 1.0, "r2": pytest.approx(1 - 4 / 4.5)}


def test_predictions_of_any_sign_keep_their_order() -> None:
    prediction = np.array([-3e38, -1, -0.0, 0.0, 1e-45, 2, 3e38], "float32")
    label = np.array([0, 0, 0, 1, 1, 1, 1], "float32")
    assert finish(observe("binary", prediction, label)).values["auc"] == (3 * 3 + 2.5) / 12


def test_certain_and_wrong_has_a_finite_log_loss() -> None:
    found = finish(observe("binary", np.array([0, 1], "float32"), np.array([1, 0], "float32"))).values
    assert found["logloss"] == pytest.approx(-np.log(np.finfo("float32").eps))


def test_what_cannot_be_computed_has_a_reason() -> None:
    one = finish(observe("binary", np.array([0.1, 0.9], "float32"), np.ones(2, "float32")))
    assert (one.values["auc"], one.values["average_precision"]) == (None, None)
    assert one.reasons == dict.fromkeys(("auc", "average_precision"), "all rows are of class 1")
    assert one.values["accuracy"] == 0.5
    empty = np.zeros(0, "float32")
    for task in TASKS:
        nothing = finish(observe(task, empty, empty))
        assert set(nothing.values.values()) == {None}
        assert set(nothing.reasons.values()) == {"there are no rows"}
        weightless = finish(observe(task, np.ones(2, "float32"), np.ones(2, "float32"), np.zeros(2, "float32")))
        assert weightless == nothing
    lost = finish(observe("binary", np.array([0.1, np.nan], "float32"), np.array([0, 1], "float32")))
    assert set(lost.reasons.values()) == {"some predictions are missing"}
    same = finish(observe("regression", np.array([1, 2], "float32"), np.ones(2, "float32")))
    assert same.values["r2"] is None
    assert same.reasons == {"r2": "all targets are equal"}
    assert merge_all([]) is None


def test_other_labels_are_a_bug() -> None:
    with pytest.raises(ValueError, match="0 and 1"):
        observe("binary", np.ones(1, "float32"), np.full(1, 2, "float32"))
