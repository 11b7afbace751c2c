"""The rows of a round follow from what rows are: not from where they lie, nor in how many matrices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import pipeline, visits, write_parts

import tabgpu
from tabgpu.train.sampling import RowSampler, row_hashes, share_of

IDENTITY = np.random.default_rng(0).integers(0, 2**63, 40_000).astype("uint64")


@settings(deadline=None, max_examples=30)
@given(
    order=st.randoms(use_true_random=False),
    share=st.floats(0.01, 0.99),
    rounds=st.integers(0, 5000),
    seed=st.integers(0, 2**40),
)
def test_a_draw_follows_the_row(order: object, share: float, rounds: int, seed: int) -> None:
    hashes = row_hashes(np, IDENTITY[:500])
    weight = np.linspace(0, 2, 500).astype("float32")
    whole = RowSampler(np, hashes, None, share, seed).weights(rounds)
    assert set(whole.tolist()) <= {0.0, 1.0}
    places = np.array(order.sample(range(500), 500))  # type: ignore[attr-defined]  # a Random
    assert np.array_equal(RowSampler(np, hashes[places], None, share, seed).weights(rounds), whole[places])
    assert np.array_equal(RowSampler(np, hashes, weight, share, seed).weights(rounds), whole * weight)
    pieces = [RowSampler(np, h, None, share, seed).weights(rounds) for h in (hashes[:123], hashes[123:])]
    assert np.array_equal(np.concatenate(pieces), whole)


def test_draws_are_as_many_as_asked_for_and_independent() -> None:
    hashes = row_hashes(np, IDENTITY)
    for seed in (0, 1):
        drawn = np.array([RowSampler(np, hashes, None, 0.7, seed).weights(r) for r in range(20)])
        assert np.abs(drawn.mean(axis=1) - 0.7).max() < 0.01
        together = np.corrcoef(drawn)
        assert np.abs(together - np.eye(20)).max() < 0.03
    assert np.abs(drawn.sum(axis=0).var() / (20 * 0.7 * 0.3) - 1) < 0.05  # rows are drawn as often as by chance
    again = RowSampler(np, hashes, None, 0.7, 2).weights(0)
    assert abs(np.corrcoef(again, drawn[0])[0, 1]) < 0.03


def test_who_draws() -> None:
    assert share_of({"subsample": 0.5}) == 0.5
    for params in ({}, {"subsample": 1}, {"subsample": 0.5, "sampling_method": "gradient_based"}):
        assert share_of(params) is None
    assert share_of({"subsample": 0.5, "num_parallel_tree": 4}) is None


@pytest.mark.parametrize("weighted", [False, True])
def test_a_sampled_model_does_not_depend_on_files_or_their_order(tmp_path: Path, weighted: bool) -> None:
    """With a key, rows keep their identity wherever they lie; XGBoost's own draw would follow their order."""
    table = visits(600)
    models = []
    for name, rows in (("one", table), ("other", table.take(np.random.default_rng(1).permutation(600)))):
        source = write_parts(rows, tmp_path / name, [600] if name == "one" else [100, 500], 70)
        config = pipeline(source, tmp_path / "runs")
        config["data"] |= {"key": "id", **({"weight": "w", "derive": {"w": "1 + visits % 3"}} if weighted else {})}
        config["data"]["columns"] = {"spent": {"kind": "ignore"}}
        config["data"]["filter"] = "not missing(visits)"
        config["features"] = [{"categorify": {"columns": ["town", "shop"]}}]
        config["model"] = {**config["model"], "params": {"subsample": 0.6, "colsample_bytree": 0.5}}
        done = tabgpu.run(config)
        whole = tabgpu.run(config, set={"model.params.subsample": 1.0})
        assert done.summary["model_digest"] != whole.summary["model_digest"]
        models.append((done.metrics, done.model.predict_proba(table)))
    assert models[0][0] == models[1][0]
    assert np.array_equal(models[0][1], models[1][1])
