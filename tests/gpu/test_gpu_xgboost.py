"""XGBoost on the device: own cuts from the host, blocks of CuPy, external matrices, and never quietly on the CPU."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost

from tabgpu.cache import Block, Blocks, BlockWriter
from tabgpu.train import booster, cuts, matrix
from tabgpu.train.iterator import BlockIterator

pytestmark = pytest.mark.gpu
ROWS, NAMES, BINS = 4_000, [f"f{i}" for i in range(8)], 64
PARAMS = {"max_depth": 4, "eta": 0.3}


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    """Features with ties and missing values, and a label."""
    rng = np.random.default_rng(5)
    features = rng.normal(size=(ROWS, len(NAMES))).astype(np.float32)
    features[:, 2] = np.round(features[:, 2], 1)
    features[rng.random(ROWS) < 0.2, 3] = np.nan
    label = (features[:, 0] + features[:, 2] + rng.normal(size=ROWS) > 0).astype(np.float32)
    return features, label


def blocks_of(rows: tuple[np.ndarray, np.ndarray], block_rows: int) -> Blocks:
    with BlockWriter(NAMES, block_rows) as writer:
        writer.append(Block(*rows))
        return writer.finish()


def own_cuts(rows: tuple[np.ndarray, np.ndarray]) -> xgboost.QuantileDMatrix:
    return cuts.matrix_of(cuts.choose(rows[0], BINS), BINS, NAMES)


def cut_points(made: xgboost.DMatrix) -> list[list[float]]:
    return [a.tolist() for a in made.get_quantile_cut()]


def train(device: Any, made: Any, rounds: int = 8) -> booster.Trained:
    spec = booster.TrainSpec("binary:logistic", rounds, PARAMS, max_bin=BINS, device=device.name)
    with device.training():
        return booster.train(spec, made)


def answers(device: Any, trained: booster.Trained, features: np.ndarray) -> np.ndarray:
    model = booster.load(trained.model, device=device.name)
    predicted = booster.predict(model, device.to_device(features), trained.best_iteration)
    return np.asarray(predicted.get() if hasattr(predicted, "get") else predicted)


def test_cuts_made_on_the_host_are_those_of_the_matrix_on_the_device(device: Any, rows: Any) -> None:
    ref = own_cuts(rows)
    with device.training():
        made = matrix.Builder("in_core", BINS, None, device.to_device)(blocks_of(rows, 900), ref)
        again = matrix.Builder("in_core", BINS, None, device.to_device)(blocks_of(rows, 900), made)
    assert cut_points(made) == cut_points(ref)
    assert cut_points(again) == cut_points(ref)


def test_the_size_of_blocks_changes_nothing(device: Any, rows: Any) -> None:
    build = matrix.Builder("in_core", BINS, None, device.to_device)
    predicted = [
        answers(device, train(device, build(blocks_of(rows, size), own_cuts(rows))), rows[0]) for size in (700, ROWS)
    ]
    np.testing.assert_allclose(predicted[0], predicted[1], rtol=1e-5)


def test_the_model_of_the_device_is_near_that_of_the_host(device: Any, rows: Any) -> None:
    here = train(type(device)(dry=True), matrix.Builder("in_core", BINS)(blocks_of(rows, 900), own_cuts(rows)))
    build = matrix.Builder("in_core", BINS, None, device.to_device)
    there = train(device, build(blocks_of(rows, 900), own_cuts(rows)))
    left, right = (answers(device, trained, rows[0]) for trained in (here, there))
    assert np.abs(left - right).mean() < 0.01


def test_the_model_stays_on_the_device(device: Any, rows: Any) -> None:
    made = matrix.Builder("in_core", BINS, None, device.to_device)(blocks_of(rows, 900), own_cuts(rows))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # XGBoost falls back to the CPU with a warning, in training and in prediction
        trained = train(device, made)
        live = booster.load(trained.model, device=device.name)
        predicted = booster.predict(live, device.to_device(rows[0]), trained.best_iteration)
    assert trained.booster is not None
    for one in (trained.booster, live):
        config = json.loads(one.save_config())
        assert config["learner"]["generic_param"]["device"].split(":")[0] == device.name
    assert type(predicted).__module__.split(".")[0] == device.xp.__name__


@pytest.mark.parametrize("ratio", [0.0, 0.5, 1.0])
def test_an_external_matrix_keeps_the_share_it_is_told(device: Any, rows: Any, ratio: float, tmp_path: Path) -> None:
    """`cache_host_ratio` and `min_cache_page_bytes` as the plan gives them."""
    options = {"cache_host_ratio": ratio, "min_cache_page_bytes": 1 << 20} if device.name == "cuda" else {}
    with device.training():
        made = matrix.Builder("external", BINS, tmp_path, device.to_device, options)(
            blocks_of(rows, 900), own_cuts(rows)
        )
        inside = matrix.Builder("in_core", BINS, None, device.to_device)(blocks_of(rows, 900), own_cuts(rows))
    assert isinstance(made, xgboost.ExtMemQuantileDMatrix)
    left, right = (answers(device, train(device, m), rows[0]) for m in (made, inside))
    np.testing.assert_allclose(left, right, rtol=1e-4)


def test_half_precision_blocks_are_taken_as_they_are(device: Any, rows: Any) -> None:
    """A fact for later: float16 of the device is binned as the float32 of the same value would be."""
    halves = rows[0].astype(np.float16)
    feed = [Block(halves[i : i + 900], rows[1][i : i + 900]) for i in range(0, ROWS, 900)]
    whole = (halves.astype(np.float32), rows[1])
    ref = own_cuts(whole)
    with device.training():
        narrow = xgboost.QuantileDMatrix(BlockIterator(feed, NAMES, to_device=device.to_device), max_bin=BINS, ref=ref)
        wide = matrix.Builder("in_core", BINS, None, device.to_device)(blocks_of(whole, 900), ref)
    left, right = (answers(device, train(device, m), whole[0]) for m in (narrow, wide))
    np.testing.assert_array_equal(left, right)


def test_what_xgboost_takes_is_seen_in_the_shared_pool(device: Any, rows: Any) -> None:
    if device.name == "cpu":
        pytest.skip("a stand-in for the device has no pool")
    with device.training(), device.peak() as found:
        made = matrix.Builder("in_core", BINS, None, device.to_device)(blocks_of(rows, ROWS), own_cuts(rows))
    assert found.high is not None
    assert found.high - found.outside >= rows[0].nbytes  # the block that was moved
    assert found.kept is not None
    assert found.kept >= made.num_row() * len(NAMES) * 6 // 8  # bins of 64 symbols
