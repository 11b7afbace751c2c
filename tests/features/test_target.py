"""Target encoding: the formula in fractions, and that no training row sees its own target."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from step_laws import check_step, chunk_of, fields_of, fit, levels_of, numbers, pieces_of

from tabgpu import wire
from tabgpu.errors import ConfigError
from tabgpu.features.contract import Field
from tabgpu.features.statistics import Range, TargetGrid, fold_of
from tabgpu.features.target import TargetEncode

CUTS = st.lists(st.integers(0, 40), max_size=3)
KEYS = st.none() | st.sampled_from("abc")
TARGETS = {
    "binary": (st.none() | st.integers(0, 1), "int8"),
    "integer": (st.none() | st.integers(-1000, 1000), "int32"),
    "large": (st.none() | st.integers(2**40, 2**40 + 9), "int64"),
    "float": (st.none() | st.floats(-1e6, 1e6), "float64"),
    "half": (st.none() | st.floats(-1e4, 1e4, width=16), "float16"),
}


@st.composite
def tables(draw, targets=tuple(TARGETS)):
    values, dtype = TARGETS[draw(st.sampled_from(targets))]
    row = st.tuples(KEYS, st.none() | st.integers(0, 1), values)
    return draw(st.lists(row, max_size=40)), dtype


def chunk_from(rows, dtype):
    return chunk_of(
        a=levels_of([r[0] for r in rows], spare=["d"]),
        b=numbers([r[1] for r in rows], "int8"),
        y=numbers([r[2] for r in rows], dtype),
    )


def step_for(chunk, folds=3, smooth=2.0, seed=1):
    found = Range("y")
    grid = TargetGrid.from_range(found.finish(found.observe(chunk, None), None))
    return TargetEncode("rate", ("a", ("a", "b")), "y", folds, smooth, seed, grid)


def expected_encoding(others, key, smooth):
    """The formula, over the rows that may be seen: pairs of key and target."""
    targets = [Fraction(y) for _, y in others]
    prior = sum(targets) / len(targets) if targets else Fraction(0)
    own = [Fraction(y) for k, y in others if k == key]
    weight = len(own) + Fraction(smooth)
    return float((sum(own) + Fraction(smooth) * prior) / weight) if weight else float(prior)


@settings(deadline=None, max_examples=50)
@given(tables(), st.integers(2, 5), st.sampled_from([0.0, 0.5, 20.0]))
def test_formula(table, folds, smooth):
    rows, dtype = table
    chunk = chunk_from(rows, dtype)
    step = step_for(chunk, folds, smooth)
    fitted = fit(step, [chunk])
    fold = fold_of(chunk, folds, 1).tolist()
    in_training, scored = step.transform(chunk, fitted, True), step.transform(chunk, fitted, False)
    size = max((abs(r[2]) for r in rows if r[2] is not None), default=0)
    for name, key_of in (("rate_a", lambda r: r[0]), ("rate_a_b", lambda r: r[:2])):
        usable = [(key_of(r), r[2], f) for r, f in zip(rows, fold, strict=True) if r[2] is not None]
        for i, row in enumerate(rows):
            everything = [(k, y) for k, y, _ in usable]
            others = [(k, y) for k, y, f in usable if f != fold[i]]
            tolerance = {"rel": 1e-6, "abs": 1e-12 * float(size) + 1e-30}
            assert scored[name].values[i] == pytest.approx(
                expected_encoding(everything, key_of(row), smooth), **tolerance
            )
            assert in_training[name].values[i] == pytest.approx(
                expected_encoding(others, key_of(row), smooth), **tolerance
            )


@settings(deadline=None, max_examples=50)
@given(tables(), tables(), CUTS)
def test_pieces_wire_and_fields(table, other, cuts):
    chunk = chunk_from(*table)
    fitted = check_step(step_for(chunk), chunk, chunk_from(*other), cuts)
    small = fitted.without_folds()
    step = step_for(chunk)
    scored, again = step.transform(chunk, fitted, False), step.transform(chunk, wire.unpack(wire.pack(small)), False)
    for name, column in scored.items():
        assert column.values.tolist() == again[name].values.tolist()
        assert not column.missing().any()
    assert all(encoding.out_of_fold is None for encoding in small.encodings)


@settings(deadline=None, max_examples=50)
@given(tables(("binary", "integer", "float")), st.data())
def test_law_4_a_row_never_sees_its_own_target(table, data):
    rows, dtype = table
    if not rows:
        return
    i = data.draw(st.integers(0, len(rows) - 1))
    changed = [*rows]
    changed[i] = (
        *rows[i][:2],
        data.draw(
            {"int8": st.integers(0, 1), "int32": st.integers(-1000, 1000)}.get(dtype, st.floats(-1e6, 1e6)) | st.none()
        ),
    )
    before, after = chunk_from(rows, dtype), chunk_from(changed, dtype)
    step = TargetEncode(
        "rate",
        ("a", ("a", "b")),
        "y",
        3,
        2.0,
        1,
        {"int8": TargetGrid("integer"), "int32": TargetGrid("integer"), "float64": TargetGrid("float", 30)}[dtype],
    )
    for name, column in step.transform(before, fit(step, [before]), True).items():
        now = step.transform(after, fit(step, [after]), True)[name].values
        assert column.values[i].tobytes() == now[i].tobytes()


def test_encoding_does_see_the_other_folds():
    rows = [("a", 0, k % 2) for k in range(40)]
    changed = [(*row[:2], 1) for row in rows]
    step = step_for(chunk_from(rows, "int8"))
    values = [
        step.transform(c, fit(step, [c]), True)["rate_a"].values
        for c in (chunk_from(rows, "int8"), chunk_from(changed, "int8"))
    ]
    assert (values[0] != values[1]).all()


def test_missing_is_a_level_and_the_unseen_get_the_prior():
    rows = [(None, 0, 1)] * 10 + [("a", 0, 0)] * 10
    chunk = chunk_from(rows, "int8")
    step = step_for(chunk, smooth=0.0)
    fitted = fit(step, [chunk])
    made = step.transform(chunk_from([(None, 0, None), ("a", 0, None), ("new", 0, None)], "int8"), fitted, False)
    assert made["rate_a"].values.tolist() == [1.0, 0.0, 0.5]


def test_a_level_of_one_fold_gets_the_prior_of_the_others():
    chunk = chunk_from([("a", 0, k % 3 % 2) for k in range(50)] + [("b", 0, 1)], "int8")
    step = step_for(chunk, folds=5, smooth=3.0)
    made = step.transform(chunk, fit(step, [chunk]), True)["rate_a"].values
    fold, target = fold_of(chunk, 5, 1), chunk["y"].values
    assert made[50] == np.float32(target[fold != fold[50]].mean())


@pytest.mark.parametrize("smooth", [0.0, 5.0])
def test_rows_of_one_fold_see_nothing(smooth):
    chunk = chunk_from([("a", 0, 1)], "int8")
    step = step_for(chunk, smooth=smooth)
    fitted = fit(step, [chunk])
    assert step.transform(chunk, fitted, True)["rate_a"].values.tolist() == [0.0]
    assert step.transform(chunk, fitted, False)["rate_a"].values.tolist() == [1.0]


def test_target_all_missing_and_no_rows():
    chunk = chunk_from([("a", 0, None), (None, 1, None)], "float64")
    step = step_for(chunk)
    for training in (chunk, chunk.take(slice(0, 0))):
        fitted = fit(step, [training])
        for is_training in (True, False):
            assert step.transform(chunk, fitted, is_training)["rate_a_b"].values.tolist() == [0.0, 0.0]
            assert len(step.transform(chunk.take(slice(0, 0)), fitted, is_training)["rate_a"]) == 0


def test_folds_are_of_the_row_not_of_its_place():
    chunk = chunk_from([("ab"[k % 2], 0, k % 3) for k in range(30)], "int32")
    step = step_for(chunk)
    fitted = fit(step, [chunk])
    order = np.random.default_rng(0).permutation(30)
    whole = step.transform(chunk, fitted, True)["rate_a"].values
    assert step.transform(chunk.take(order), fitted, True)["rate_a"].values.tolist() == whole[order].tolist()


def test_scoring_needs_no_target_and_no_folds():
    chunk = chunk_from([("a", 0, 1), ("b", 1, 0)], "int8")
    step = step_for(chunk)
    fitted = fit(step, [chunk]).without_folds()
    assert step.inputs == ("a", "b")
    assert len(step.transform(chunk.without(["y"]), fitted, False)) == 2
    with pytest.raises(ValueError, match="loaded for scoring"):
        step.transform(chunk, fitted, True)


def test_large_values_stay_within_float32():
    chunk = chunk_of(a=numbers([1, 1, 2], "int8"), y=numbers([1e300, 1e300, -1e300]))
    step = TargetEncode("rate", ("a",), "y", 2, 0.0, 0, TargetGrid("float", 52 - 997))
    made = step.transform(chunk, fit(step, [chunk]), False)["rate_a"].values
    assert np.isfinite(made).all()
    assert made[0] > 3e38 > -3e38 > made[2]


def test_refusals():
    fields = fields_of(chunk_from([], "int8")) | {"rate_a": Field("numeric", "float32")}
    with pytest.raises(ConfigError, match="there is one of that name already"):
        step_for(chunk_from([], "int8")).outputs(fields)
    with pytest.raises(ConfigError, match="'a', which is categorical"):
        TargetEncode("r", ("b",), "a", 2, 0.0, 0, TargetGrid("integer")).outputs(fields)
    with pytest.raises(ConfigError, match="'q', which is not there"):
        TargetEncode("r", (("b", "q"),), "y", 2, 0.0, 0, TargetGrid("integer")).outputs(fields)


def auc(target, score):
    """Area under the curve by ranks, ties at their mean."""
    _, inverse, counts = np.unique(score, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    n_positive = target.sum()
    return (ranks[target == 1].sum() - n_positive * (n_positive + 1) / 2) / (n_positive * (len(target) - n_positive))


@pytest.mark.parametrize("rows_per_key", [1, 3])
def test_law_4_a_noise_key_costs_nothing(rows_per_key):
    xgboost = pytest.importorskip("xgboost")
    rng = np.random.default_rng(0)
    n = 6000
    informative = rng.integers(0, 30, n)
    y = (rng.random(n) < informative / 40 + 0.1).astype("int8")
    noise = rng.permutation(n) // rows_per_key
    chunk = chunk_of(
        a=numbers(informative.tolist(), "int16"), k=numbers(noise.tolist(), "int32"), y=numbers(y.tolist(), "int8")
    )
    training, validation = pieces_of(chunk, [n // 2])
    scores = []
    for columns in (("a",), ("a", "k")):
        step = TargetEncode("rate", columns, "y", 5, 20.0, 0, TargetGrid("integer"))
        fitted = fit(step, [training])

        def matrix(part, is_training, step=step, fitted=fitted):
            made = step.transform(part, fitted, is_training)
            return xgboost.DMatrix(np.column_stack([column.values for column in made.values()]), part["y"].values)

        params = {"objective": "binary:logistic", "max_depth": 3, "eta": 0.2, "nthread": 1}
        model = xgboost.train(params, matrix(training, True), num_boost_round=20)
        scores.append(auc(validation["y"].values, model.predict(matrix(validation, False))))
    assert scores[0] > 0.7
    assert scores[1] > scores[0] - 0.01
