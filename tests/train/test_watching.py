"""The metrics of a round: their direction is that of XGBoost, and what is no number is never the best."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabgpu.errors import DataError
from tabgpu.train.watching import better, default_metrics, maximised, parse


def test_the_direction_of_metrics_is_that_of_xgboost() -> None:
    for metric in ("auc", "aucpr", "pre", "pre@3", "map", "map@2-", "ndcg", "ndcg@5", "ndcg-"):
        assert maximised(metric), metric
    for metric in ("logloss", "error", "error@0.7", "rmse", "mae", "mape", "mphe", "poisson-nloglik", "cox-nloglik"):
        assert not maximised(metric), metric
    assert default_metrics("count:poisson") == ()


@given(st.lists(st.floats(allow_nan=False, width=32), min_size=2, max_size=8), st.sampled_from(["auc", "rmse"]))
def test_the_first_of_the_best_stays(values: list[float], metric: str) -> None:
    best = 0
    for done in range(2, len(values) + 1):
        if better(metric, "valid", values[:done], best):
            best = done - 1
    assert best == values.index(max(values) if metric == "auc" else min(values))


def test_not_a_number_is_refused() -> None:
    for metric in ("auc", "rmse"):
        with pytest.raises(DataError, match="not a number after round 2"):
            better(metric, "valid", [0.5, math.nan], 0)


@given(st.dictionaries(st.sampled_from(["auc", "error@0.7", "poisson-nloglik"]), st.floats(), min_size=1))
def test_what_xgboost_writes_is_read(values: dict[str, float]) -> None:
    text = "[7]" + "".join(f"\tvalid-{metric}:{value}" for metric, value in values.items())
    assert repr(parse(text)) == repr({"valid": values})
    assert parse("") == {}
