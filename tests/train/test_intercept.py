"""The intercept from exact sums: the same for any split of the rows, and what XGBoost finds on one process."""

from __future__ import annotations

import itertools
import json
from functools import reduce
from typing import Any

import numpy as np
import pytest
import xgboost
from hypothesis import given, settings
from hypothesis import strategies as st

from tabgpu import wire
from tabgpu.train.intercept import LabelSums, intercept

LABELS = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=30)


@settings(max_examples=50, deadline=None)
@given(labels=LABELS, weights=st.randoms(use_true_random=False), cuts=st.lists(st.integers(0, 30), max_size=4))
def test_sums_do_not_depend_on_the_split_or_the_order(labels: list[float], weights: Any, cuts: list[int]) -> None:
    label = np.array(labels, np.float32)
    weight = np.array([weights.choice([0, 0.1, 1, 3e7]) for _ in labels], np.float32)
    edges = sorted({0, len(labels), *(c for c in cuts if c < len(labels))})
    pieces = [slice(a, b) for a, b in itertools.pairwise(edges)]
    for of in (weight, None):
        whole = LabelSums().with_rows(np, label, of)
        parts = [LabelSums().with_rows(np, label[p], None if of is None else of[p]) for p in pieces]
        assert reduce(LabelSums.merge, parts) == reduce(LabelSums.merge, parts[::-1]) == whole
        assert wire.unpack(wire.pack(whole)) == whole


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "objective", ["binary:logistic", "reg:squarederror", "count:poisson", "reg:gamma", "reg:tweedie"]
)
def test_it_is_what_xgboost_finds_on_one_process(objective: str, weighted: bool) -> None:
    rng = np.random.default_rng(7)
    x = rng.normal(size=(3_000, 2)).astype(np.float32)
    label = rng.exponential(2.0, 3_000).astype(np.float32) + np.float32(0.1)
    if objective == "binary:logistic":
        label = (label > 2).astype(np.float32)
    weight = rng.exponential(size=3_000).astype(np.float32) if weighted else None
    matrix = xgboost.QuantileDMatrix(x, label, weight=weight)
    booster = xgboost.train({"objective": objective, "verbosity": 0}, matrix, 1)
    told = json.loads(booster.save_config())["learner"]["learner_model_param"]["base_score"]
    ours = intercept(LabelSums().with_rows(np, label, weight), objective, {})
    assert ours == pytest.approx(float(told.strip("[]")), rel=2e-7)


def test_what_is_left_to_xgboost() -> None:
    sums = LabelSums().with_rows(np, np.array([0, 1, 1, 1], np.float32))
    assert intercept(sums, "reg:absoluteerror", {}) is None
    assert intercept(sums, "binary:logistic", {"base_score": 0.5}) is None
    assert intercept(LabelSums(), "reg:squarederror", {}) is None
    assert intercept(LabelSums().with_rows(np, np.ones(3, np.float32)), "binary:logistic", {}) is None
    assert intercept(LabelSums().with_rows(np, np.zeros(3, np.float32)), "count:poisson", {}) is None
    assert intercept(LabelSums().with_rows(np, np.zeros(3, np.float32)), "reg:squarederror", {}) == 0.0
    assert intercept(sums, "binary:logistic", {"scale_pos_weight": 3}) == pytest.approx(0.9)
