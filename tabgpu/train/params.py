"""Names of XGBoost's parameters: a misspelt one is refused, all others pass through.

XGBoost itself only prints a warning for a name that it does not know. The names here are those of all its parameter
structures and their aliases (`Booster.save_config` of boosters of every kind; a test compares the list with the
installed version). Values are XGBoost's to check: `booster.probe` asks it before any work is done. XGBoost is not
imported here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral
from typing import Any

from ..errors import ConfigError, nearest

SAMPLING = ("subsample", "colsample_bytree", "colsample_bylevel", "colsample_bynode")  # 1 means all
DROPPING = ("rate_drop", "one_drop")  # 0 means none

# fmt: off
_COMMON = [
    "alpha", "base_score", "booster", "boost_from_average", "colsample_bylevel", "colsample_bynode",
    "colsample_bytree", "debug_synchronize", "disable_default_eval_metric", "eta", "eval_metric",
    "fail_on_invalid_gpu_id", "gamma", "grow_policy", "interaction_constraints", "lambda", "learning_rate", "max_bin",
    "max_cached_hist_node", "max_cat_threshold", "max_cat_to_onehot", "max_delta_step", "max_depth", "max_leaves",
    "min_child_weight", "min_split_loss", "monotone_constraints", "multi_strategy", "n_jobs", "normalize_type",
    "nthread", "num_parallel_tree", "num_target", "one_drop", "process_type", "rate_drop",
    "refresh_leaf", "reg_alpha", "reg_lambda", "sample_type", "sampling_method", "scale_pos_weight",
    "seed_per_iteration", "skip_drop", "sparse_threshold", "subsample", "tree_method", "updater", "use_rmm",
    "validate_parameters", "verbosity",
]
# fmt: on

_OF_OBJECTIVES = {  # which objectives each belongs to, by prefix
    "aft_loss_distribution": "survival:aft",
    "aft_loss_distribution_scale": "survival:aft",
    "expectile_alpha": "reg:expectileerror",
    "huber_slope": "reg:pseudohubererror",
    "lambdarank_bias_norm": "rank:",
    "lambdarank_normalization": "rank:",
    "lambdarank_num_pair_per_sample": "rank:",
    "lambdarank_pair_method": "rank:",
    "lambdarank_score_normalization": "rank:",
    "lambdarank_unbiased": "rank:",
    "num_class": "multi:",
    "ndcg_exp_gain": "rank:",
    "quantile_alpha": "reg:quantileerror",
    "tweedie_variance_power": "reg:tweedie",
}

_NEEDED = {"reg:quantileerror": "quantile_alpha", "reg:expectileerror": "expectile_alpha"}
_WHOLE = (
    "max_bin",
    "max_cached_hist_node",
    "max_depth",
    "max_leaves",
    "num_parallel_tree",
)  # the plan reckons with them

KNOWN = frozenset([*_COMMON, *_OF_OBJECTIVES])

_ELSEWHERE = {  # what has a key of its own
    "objective": "model.objective",
    "num_boost_round": "model.rounds",
    "num_round": "model.rounds",
    "n_estimators": "model.rounds",
    "early_stopping_rounds": "model.early_stopping",
    "seed": "model.seed",
    "random_state": "model.seed",
    "device": "engine",
    "gpu_id": "engine",
    "predictor": "engine",
}


def check_params(params: Mapping[str, Any], objective: str) -> dict[str, Any]:
    """Parameters fit for XGBoost.

    Parameters
    ----------
    params : mapping
        As written under ``model.params``.
    objective : str
        Name of the objective; parameters of other objectives are refused.

    Returns
    -------
    dict
        The same, ``tree_method: gpu_hist`` written as ``hist`` (`wants_gpu` tells that it stood there).

    Raises
    ------
    ConfigError
        If a name is unknown (with the nearest known one), has a key of its own in the pipeline file, belongs to
        another objective, is missing for this one, has to be a whole number and is none, or asks for a way to train
        that needs more than binned features.

    Examples
    --------
    >>> check_params({"tree_method": "gpu_hist", "max_depth": 8}, "binary:logistic")
    {'tree_method': 'hist', 'max_depth': 8}
    """
    for name, value in params.items():
        _check_name(name, objective)
        if name in _WHOLE:
            _check_whole(name, value)
    _check_needed(params, objective)
    checked = dict(params)
    if wants_gpu(params):
        checked["tree_method"] = "hist"
    _check_binned(checked)
    return checked


def wants_gpu(params: Mapping[str, Any]) -> bool:
    """Whether the parameters ask for the GPU in the way of XGBoost before 2.0: ``tree_method: gpu_hist``."""
    return params.get("tree_method") == "gpu_hist"


def samples(params: Mapping[str, Any]) -> bool:
    """Whether training draws random numbers, by rows, columns or dropped trees.

    Examples
    --------
    >>> samples({"subsample": 0.5}), samples({"subsample": 1.0}), samples({"rate_drop": 0.1})
    (True, False, True)
    """
    drawn = (_number(params.get(name, 1)) != 1 for name in SAMPLING)
    dropped = (_number(params.get(name, 0)) != 0 for name in DROPPING)
    return any(drawn) or any(dropped)


def _number(value: Any) -> float:
    """What is no number is refused by XGBoost later."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _check_name(name: str, objective: str) -> None:
    key = f"model.params.{name}"
    if name in _ELSEWHERE:
        own = _ELSEWHERE[name]
        value = "engine: gpu" if own == "engine" else own
        raise ConfigError(
            f"{key} is set",
            f"Expected what it says under {own}",
            f"Remove {key} and set {value} (--set {'engine=gpu' if own == 'engine' else own + '=...'})",
        )
    if name not in KNOWN:
        raise ConfigError(
            f"{key} is set, and XGBoost has no parameter {name!r}",
            nearest(name, KNOWN),
            f"Correct or remove {key}",
        )
    prefix = _OF_OBJECTIVES.get(name, "")
    if not objective.startswith(prefix):
        raise ConfigError(
            f"{key} is set, and the objective is {objective!r}",
            f"Expected it with the objective {prefix + ('...' if prefix.endswith(':') else '')!r} alone",
            f"Remove {key}, or change model.objective",
        )


def _check_whole(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 0:
        raise ConfigError(
            f"model.params.{name} is {value!r}",
            "Expected a whole number, 0 or more",
            f"Correct model.params.{name} (--set model.params.{name}=...) or remove it",
        )


def _check_needed(params: Mapping[str, Any], objective: str) -> None:
    name = _NEEDED.get(objective)
    if name is not None and params.get(name) is None:
        raise ConfigError(
            f"model.objective is {objective!r}, and model.params.{name} is not set",
            f"Expected the {name.removesuffix('_alpha')} to predict, between 0 and 1",
            f"Set model.params.{name} (--set model.params.{name}=0.5)",
        )


def _check_binned(params: Mapping[str, Any]) -> None:
    """Only the histogram method trains on binned features."""
    allowed = {
        "tree_method": ("hist", "auto"),
        "booster": ("gbtree", "dart"),
        "process_type": ("default",),
        "updater": ("grow_quantile_histmaker", "grow_gpu_hist"),
    }
    for name, choices in allowed.items():
        if name in params and params[name] not in choices:
            raise ConfigError(
                f"model.params.{name} is {params[name]!r}, which needs the features unbinned",
                nearest(str(params[name]), choices),
                f"Set model.params.{name} to {choices[0]!r} or remove it",
            )
