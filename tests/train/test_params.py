"""Parameters: the names are those of the installed XGBoost, misspelt ones are refused, all others pass."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import xgboost

from tabgpu.errors import ConfigError
from tabgpu.train import params as module
from tabgpu.train.params import KNOWN, check_params, samples, wants_gpu

BINARY = "binary:logistic"
NOT_PARAMETERS = {"name", "num_feature", "num_trees", "rng_state", "updater_seq"}  # what is saved and cannot be set
OLD_OR_UNSUITABLE = {  # of the exact and linear methods, which cannot train on bins
    "default_direction", "feature_selector", "max_row_perbatch", "opt_dense_col", "tolerance", "top_k",
}  # fmt: skip


def names_in(config: Any) -> set[str]:
    found: set[str] = set()
    for key, value in config.items():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                found |= names_in(item)
            elif isinstance(item, str):
                found.add(key)
    return found


def names_of_installed() -> set[str]:
    """All names in the parameter structures of boosters of every kind."""
    label = np.array([0, 1, 1, 0], dtype="float32")
    found: set[str] = set()
    objectives = [
        BINARY, "multi:softprob", "rank:ndcg", "reg:quantileerror", "reg:expectileerror", "survival:aft", "reg:tweedie",
        "reg:pseudohubererror", "count:poisson",
    ]  # fmt: skip
    of_objective = {"multi:softprob": {"num_class": 2}, "reg:quantileerror": {"quantile_alpha": 0.5}}
    for objective in objectives:
        for more in ({}, {"booster": "dart"}, {"booster": "gblinear"}, {"tree_method": "exact"}):
            given = {"objective": objective, "verbosity": 0, **of_objective.get(objective, {}), **more}
            if objective == "reg:expectileerror":
                given["expectile_alpha"] = 0.5
            matrix = xgboost.DMatrix(np.arange(8.0).reshape(4, 2), label=label)
            try:
                booster = xgboost.Booster(given, [matrix])
                found |= names_in(json.loads(booster.save_config()))
            except xgboost.core.XGBoostError as error:
                if "Unknown objective" not in str(error):  # a later version has it
                    raise
    return found - NOT_PARAMETERS - OLD_OR_UNSUITABLE


def test_names_are_those_of_the_installed_version() -> None:
    installed = names_of_installed()
    assert len(installed) > 50
    elsewhere = set(module._ELSEWHERE)
    assert installed <= KNOWN | elsewhere, installed - KNOWN - elsewhere
    of_no_structure = {"eval_metric", "use_rmm", "verbosity"}
    of_later_versions = {"expectile_alpha"}
    assert KNOWN - installed <= of_no_structure | of_later_versions, KNOWN - installed


def test_what_is_known_passes_as_it_is() -> None:
    given = {
        "max_depth": 8,
        "eta": 0.1,
        "lambda": 2,
        "eval_metric": ["auc"],
        "nthread": 1,
        "monotone_constraints": {"a": 1},
    }
    assert check_params(given, BINARY) == given
    assert check_params({"quantile_alpha": 0.5}, "reg:quantileerror") == {"quantile_alpha": 0.5}
    assert check_params({"lambdarank_unbiased": True}, "rank:ndcg") == {"lambdarank_unbiased": True}


@pytest.mark.parametrize("name", ["max_dpeth", "ETA", "learning-rate", "sub_sample"])
def test_misspelt_names_are_refused_with_the_nearest(name: str) -> None:
    nearest = {"max_dpeth": "max_depth", "ETA": "eta", "learning-rate": "learning_rate", "sub_sample": "subsample"}
    with pytest.raises(ConfigError, match=f"Did you mean '{nearest[name]}'") as caught:
        check_params({name: 1}, BINARY)
    assert f"model.params.{name}" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("objective", "model.objective"),
        ("num_boost_round", "model.rounds"),
        ("n_estimators", "model.rounds"),
        ("early_stopping_rounds", "model.early_stopping"),
        ("seed", "model.seed"),
        ("random_state", "model.seed"),
        ("device", "engine"),
        ("gpu_id", "engine"),
    ],
)
def test_what_has_a_key_of_its_own_is_refused_with_it(name: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_params({name: 0}, BINARY)
    assert f"--set {key}=" in caught.value.remedy


def test_parameters_of_other_objectives_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'reg:quantileerror'"):
        check_params({"quantile_alpha": 0.5}, BINARY)


@pytest.mark.parametrize("name", ["max_depth", "max_leaves", "max_bin", "max_cached_hist_node", "num_parallel_tree"])
def test_what_the_plan_reckons_with_is_a_whole_number(name: str) -> None:
    for value in (0, 6, np.int64(6)):
        assert check_params({name: value}, BINARY) == {name: value}
    for bad in ("six", "6", 6.0, 6.5, True, -1, None, [6]):
        with pytest.raises(ConfigError, match=rf"model\.params\.{name} is .*whole number") as caught:
            check_params({name: bad}, BINARY)
        assert f"--set model.params.{name}=" in caught.value.remedy


def test_what_an_objective_cannot_do_without() -> None:
    for kind in ("quantile", "expectile"):
        with pytest.raises(ConfigError, match=rf"model\.params\.{kind}_alpha is not set"):
            check_params({}, f"reg:{kind}error")
        check_params({f"{kind}_alpha": 0.5}, f"reg:{kind}error")
    with pytest.raises(ConfigError, match=r"num_class is set.*'multi:\.\.\.'"):
        check_params({"num_class": 3}, BINARY)


@pytest.mark.parametrize(
    "given",
    [{"tree_method": "exact"}, {"booster": "gblinear"}, {"updater": "grow_colmaker"}, {"process_type": "update"}],
)
def test_what_cannot_train_on_bins_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="unbinned"):
        check_params(given, BINARY)


def test_gpu_hist_is_understood() -> None:
    given = {"tree_method": "gpu_hist"}
    assert wants_gpu(given)
    assert check_params(given, BINARY) == {"tree_method": "hist"}
    assert given == {"tree_method": "gpu_hist"}
    assert not wants_gpu({"tree_method": "hist"})


def test_sampling_is_seen() -> None:
    assert not samples({"subsample": 1, "colsample_bytree": 1.0, "rate_drop": 0, "one_drop": False})
    assert samples({"rate_drop": "0.1"})
    assert samples({"subsample": "half"}), "XGBoost is asked about it"
    assert all(samples({name: 0.5}) for name in module.SAMPLING)


def test_neither_names_nor_metrics_nor_terms_import_xgboost() -> None:
    code = "import sys, tabgpu.train.params, tabgpu.train.metrics, tabgpu.terms; sys.exit('xgboost' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
