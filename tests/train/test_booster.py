"""The round loop: any interruption ends with the same bytes; early stopping and predictions are bound to the best."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import xgboost
from hypothesis import given, settings
from hypothesis import strategies as st

from tabgpu import wire
from tabgpu.errors import ConfigError, DataError
from tabgpu.train.booster import Checkpoint, Trained, TrainSpec, load, predict, probe, train

NAMES = [f"f{i}" for i in range(6)]
SAMPLINGS: list[dict[str, Any]] = [
    {},
    {"subsample": 0.6},
    {"colsample_bytree": 0.5},
    {"subsample": 0.7, "colsample_bytree": 0.6, "colsample_bylevel": 0.7, "colsample_bynode": 0.7},
    {"rate_drop": 0.3} if xgboost.__version__ >= "3.4" else {"booster": "dart", "rate_drop": 0.3},
    {"num_parallel_tree": 2, "subsample": 0.5},
]


@cache
def parts() -> tuple[xgboost.QuantileDMatrix, xgboost.QuantileDMatrix, np.ndarray]:
    random = np.random.default_rng(0)
    features = random.standard_normal((900, len(NAMES))).astype("float32")
    features[random.random(features.shape) < 0.1] = np.nan
    label = (np.nan_to_num(features[:, 0]) + random.standard_normal(900) > 0).astype("float32")
    first = xgboost.QuantileDMatrix(features[:600], label=label[:600], feature_names=NAMES, nthread=1)
    second = xgboost.QuantileDMatrix(features[600:], label=label[600:], feature_names=NAMES, ref=first, nthread=1)
    return first, second, features


def spec(rounds: int = 13, objective: str = "binary:logistic", **options: Any) -> TrainSpec:
    params = {"max_depth": 3, "eta": 0.5, "nthread": 1, **options.pop("params", {})}
    return TrainSpec(objective, rounds, params, **{"checkpoint_every": 4, **options})


def run(wanted: TrainSpec, **options: Any) -> Trained:
    first, second, _ = parts()
    return train(wanted, first, [(first, "train"), (second, "valid")], **options)


@settings(deadline=None, max_examples=20)
@given(
    sampling=st.sampled_from(SAMPLINGS),
    early=st.sampled_from([None, 3]),
    checkpoint_every=st.integers(1, 6),
    data=st.data(),
)
def test_continued_from_any_checkpoint_gives_the_same_bytes(
    sampling: dict[str, Any], early: int | None, checkpoint_every: int, data: st.DataObject
) -> None:
    wanted = spec(params=sampling, early_stopping=early, checkpoint_every=checkpoint_every, seed=7)
    whole = run(wanted)
    kept: list[Checkpoint] = []
    stop_at = data.draw(st.integers(1, 13))
    rounds: list[int] = []

    def should_stop() -> bool:
        return rounds[-1] == stop_at

    part = run(wanted, checkpoint=kept.append, on_round=lambda n, _: rounds.append(n), should_stop=should_stop)
    assert rounds == list(range(1, part.rounds + 1))
    assert part.finished == (whole.rounds <= stop_at)
    for chosen in [None, *kept]:
        travelled = wire.unpack(wire.pack(chosen))
        again = run(wanted, resume=travelled)
        assert again.model == whole.model
        assert (again.history, again.best_iteration, again.rounds) == (
            whole.history,
            whole.best_iteration,
            whole.rounds,
        )


def test_a_stop_is_a_checkpoint_where_it_can_be() -> None:
    kept: list[Checkpoint] = []
    part = run(spec(), checkpoint=kept.append, should_stop=lambda: True)
    assert not part.finished
    assert [c.rounds for c in kept] == [1]


def test_seeds_matter_where_there_is_sampling_alone() -> None:
    assert run(spec(seed=1)).model == run(spec(seed=2)).model
    models = {run(spec(params={"subsample": 0.5}, seed=seed)).model for seed in (1, 2)}
    assert len(models) == 2


def test_every_round_draws_anew() -> None:
    dump = load(run(spec(32, params={"colsample_bytree": 0.17, "max_depth": 1})).model).get_dump()
    columns = [tree.split("[")[1].split("<")[0] for tree in dump]
    assert set(columns) == set(NAMES)
    assert all(len({tuple(columns[i : i + k]) for i in range(0, 32, k)}) > 1 for k in (1, 2, 4, 8))


def test_the_model_does_not_depend_on_checkpoints() -> None:
    models = {
        run(spec(params={"subsample": 0.5, "colsample_bynode": 0.5}, checkpoint_every=k)).model for k in (1, 4, 50)
    }
    assert len(models) == 1


def test_sampling_costs_no_accuracy() -> None:
    """Rows drawn anew each round are as good as those that XGBoost would draw."""
    first, second, _ = parts()
    params = {"subsample": 0.5, "max_depth": 3, "eta": 0.1, "nthread": 1, "objective": "binary:logistic"}
    losses: list[list[float]] = [[], []]
    for seed in range(5):
        found: dict[str, dict[str, list[float]]] = {}
        xgboost.train(
            {**params, "seed": seed}, first, 30, evals=[(second, "valid")], evals_result=found, verbose_eval=False
        )
        losses[0].append(found["valid"]["logloss"][-1])
        losses[1].append(run(spec(30, params={**params, "eta": 0.1}, seed=seed)).history["valid"]["logloss"][-1])
    assert np.mean(losses[1]) == pytest.approx(np.mean(losses[0]), rel=0.03)


def test_the_first_of_equal_rounds_is_the_best() -> None:
    trained = run(spec(20, early_stopping=4, metrics=("error",), params={"eta": 1e-9}))
    assert (trained.best_iteration, trained.rounds) == (0, 5)


def test_early_stopping_is_that_of_xgboost() -> None:
    first, second, _ = parts()
    wanted = spec(60, early_stopping=5)
    ours = run(wanted)
    theirs = xgboost.train(
        {"objective": "binary:logistic", "max_depth": 3, "eta": 0.5, "nthread": 1, "eval_metric": ["auc", "logloss"]},
        first,
        60,
        evals=[(first, "train"), (second, "valid")],
        early_stopping_rounds=5,
        verbose_eval=False,
    )
    assert ours.best_iteration == theirs.best_iteration
    assert ours.rounds == theirs.num_boosted_rounds() == ours.best_iteration + 6 < 60
    assert min(ours.history["valid"]["logloss"]) == ours.history["valid"]["logloss"][ours.best_iteration]
    assert load(ours.model).attr("best_iteration") == str(ours.best_iteration)
    by_area = run(spec(60, early_stopping=5, metrics=("logloss", "auc")))
    areas = by_area.history["valid"]["auc"]
    assert by_area.best_iteration == int(np.argmax(areas))


def test_without_a_part_to_watch_the_last_round_is_the_best() -> None:
    first, _, _ = parts()
    trained = train(spec(3), first)
    assert (trained.best_iteration, trained.rounds, trained.history) == (2, 3, {})
    with pytest.raises(ConfigError, match=r"early_stopping is 2.*split\.valid"):
        train(spec(3, early_stopping=2), first)


def test_without_early_stopping_all_rounds_count() -> None:
    """However the metrics go: they get worse here."""
    _, _, features = parts()
    trained = run(spec(40, params={"eta": 1.0}))
    losses = trained.history["valid"]["logloss"]
    assert int(np.argmin(losses)) < 10
    assert (trained.best_iteration, trained.rounds, len(losses)) == (39, 40, 40)
    every = load(trained.model).predict(xgboost.DMatrix(features, feature_names=NAMES, nthread=1))
    assert np.array_equal(predict(trained.model, features, trained.best_iteration), every)


@pytest.mark.filterwarnings("ignore")  # XGBoost warns of it, in each round
@pytest.mark.parametrize("resumed", [False, True])
def test_a_stopping_metric_that_is_no_number_is_an_error(resumed: bool) -> None:
    first, _, features = parts()
    ones = xgboost.QuantileDMatrix(
        features[600:], label=np.ones(300, "float32"), feature_names=NAMES, ref=first, nthread=1
    )
    wanted = spec(metrics=("logloss", "auc"), early_stopping=3)
    kept: list[Checkpoint] = []
    run(wanted, checkpoint=kept.append, should_stop=lambda: True)
    rounds: list[int] = []
    with pytest.raises(DataError, match="'auc' of the valid side is not a number after round") as caught:
        train(
            wanted,
            first,
            [(ones, "valid")],
            resume=kept[0] if resumed else None,
            on_round=lambda n, _: rounds.append(n),
        )
    assert rounds == []
    assert "model.params.eval_metric" in caught.value.remedy
    assert "split" in caught.value.remedy
    train(spec(metrics=("auc", "logloss"), early_stopping=3), first, [(ones, "valid")])
    trained = train(spec(metrics=("auc",)), first, [(ones, "valid")])
    assert np.isnan(trained.history["valid"]["auc"]).all()
    assert trained.best_iteration == trained.rounds - 1


def test_more_rounds_than_asked_are_refused() -> None:
    kept: list[Checkpoint] = []
    run(spec(8), checkpoint=kept.append)
    with pytest.raises(ConfigError, match=r"8 rounds and model\.rounds is 5"):
        run(spec(5), resume=kept[-1])


@pytest.mark.parametrize("objective", ["binary:logistic", "reg:squarederror", "count:poisson"])
@pytest.mark.parametrize("output", ["value", "margin", "probability"])
def test_predictions_equal_those_of_a_matrix_to_the_bit(objective: str, output: Any) -> None:
    first, second, features = parts()
    trained = train(spec(objective=objective, early_stopping=2), first, [(second, "valid")])
    matrix = xgboost.DMatrix(features, feature_names=NAMES, nthread=1)
    best = trained.best_iteration
    expected = load(trained.model).predict(matrix, output_margin=output == "margin", iteration_range=(0, best + 1))
    for model in (trained.model, load(trained.model, nthread=1)):
        predicted = predict(model, features, best, output)
        assert predicted.dtype == np.float32
        assert np.array_equal(predicted, expected)
        assert np.array_equal(predict(model, np.asfortranarray(features)[5:20], best, output), expected[5:20])
    assert len(predict(trained.model, features[:0], best)) == 0
    if trained.rounds > best + 1:
        assert not np.array_equal(predict(trained.model, features, trained.rounds - 1, output), expected)


def test_intercept_can_be_given_and_is_the_mean_else() -> None:
    first, _, features = parts()
    mean = float(first.get_label().astype("float64").mean())
    estimated = train(spec(3), first).model
    known = train(spec(3, base_score=mean), first).model
    assert np.array_equal(predict(estimated, features, 2), predict(known, features, 2))
    assert not np.array_equal(
        predict(estimated, features, 2), predict(train(spec(3, base_score=0.1), first).model, features, 2)
    )


@pytest.mark.parametrize(
    ("params", "objective", "words"),
    [
        ({"max_depth": "deep"}, "binary:logistic", "max_depth"),
        ({"subsample": 2}, "binary:logistic", "subsample"),
        ({"grow_policy": "lossguid"}, "binary:logistic", "lossguide"),
        ({"monotone_constraints": "(1,1,1,1,1,1,1)"}, "binary:logistic", "constraint"),
        ({"monotone_constraints": {"nosuch": 1}}, "binary:logistic", "Constrained"),
        ({}, "binary:logistc", "no objective 'binary:logistc'. Did you mean 'binary:logistic'"),
        ({"eval_metric": "aucc"}, "binary:logistic", "aucc"),
        ({"eval_metric": "error@x"}, "binary:logistic", "threshold"),
        ({"booster": "gbforest"}, "binary:logistic", "gbforest"),
        ({"num_target": 2}, "reg:squarederror", "base_score|n_targets|labels"),
        ({"base_score": 5}, "binary:logistic", "base_score"),
    ],
)
def test_refused_values_are_the_users_to_repair(params: dict[str, Any], objective: str, words: str) -> None:
    metrics = tuple(params.pop("eval_metric", "").split())
    wanted = spec(2, objective, params=params, metrics=metrics)
    with pytest.raises(ConfigError, match=words) as caught:
        probe(wanted, NAMES)
    assert "\n" not in str(caught.value)
    assert "Stack trace" not in str(caught.value)
    assert "model." in caught.value.remedy
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("objective", "label", "words"),
    [
        ("reg:gamma", 0, "must be positive"),
        ("count:poisson", -1, "must be non-negative"),
        ("reg:tweedie", -1, "must be non-negative"),
        ("reg:squaredlogerror", -1, "greater than -1"),
        ("reg:logistic", 2, "logistic"),
        ("reg:logistic", -7000, r"in \(0,1\)"),
    ],
)
def test_labels_out_of_range_are_the_datas(objective: str, label: float, words: str) -> None:
    _, _, features = parts()
    labels = np.full(900, 0.5, "float32")
    labels[5] = label
    wanted = spec(2, objective)
    probe(wanted, NAMES)
    with pytest.raises(DataError, match=f"do not suit the objective '{objective}': .*{words}") as caught:
        train(wanted, xgboost.QuantileDMatrix(features, label=labels, feature_names=NAMES, nthread=1))
    assert "\n" not in str(caught.value)
    assert "model.objective" in caught.value.remedy
    assert "data.filter" in caught.value.remedy


def test_one_prediction_for_a_row() -> None:
    with pytest.raises(ConfigError, match="2 predictions for each row"):
        probe(spec(objective="reg:quantileerror", params={"quantile_alpha": [0.1, 0.9]}), NAMES)
    probe(spec(objective="reg:quantileerror", params={"quantile_alpha": 0.9}), NAMES)


def test_verbosity_ends_with_the_training(capsys: pytest.CaptureFixture[str]) -> None:
    before = xgboost.get_config()
    wanted = spec(2, params={"verbosity": 3})
    probe(wanted, NAMES)
    assert xgboost.get_config() == before
    first, second, _ = parts()
    trained = train(wanted, first, [(second, "valid")])
    assert xgboost.get_config() == before
    assert "DEBUG" in capsys.readouterr().out
    trained.predict(second)
    assert xgboost.get_config() == before


@pytest.mark.parametrize("params", [{"monotone_constraints": {"f0": 1, "x<1": -1}}, {}])
def test_any_feature_name_passes(params: dict[str, Any]) -> None:
    probe(spec(params=params), ["f0", "x<1", "a[b]", "f1", ""])


def test_probe_passes_what_trains() -> None:
    probe(spec(early_stopping=3, params={"colsample_bynode": 0.5}, max_bin=16), NAMES)
    for objective in ("reg:squarederror", "reg:gamma", "count:poisson", "reg:squaredlogerror", "reg:logistic"):
        probe(spec(objective=objective), NAMES)
