"""The memory model: terms that move as they should, and that add up to what is measured."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tabgpu.terms import matrix_bytes, matrix_terms

USUAL: dict[str, Any] = {
    "n_rows": 1_000_000, "n_valid": 0, "n_features": 30, "max_bin": 256, "has_missing": False, "kind": "in_core",
    "block_rows": 20_000,
}  # fmt: skip


def total(**changes: Any) -> int:
    terms = matrix_terms(**{**USUAL, **changes})
    assert all(size >= 0 for size in terms.values())
    return sum(terms.values())


def test_storage_of_a_cell() -> None:
    assert matrix_bytes(8, 1, 256, False) == 8 * 8 + 8 + 1 + 8
    assert matrix_bytes(8, 1, 257, False) == 8 * 8 + 16 + 1 + 16
    assert matrix_bytes(8, 1, 256, True) == 8 * 8 + 8 + 1 + 32


def test_more_of_anything_takes_no_less() -> None:
    usual = total()
    more: list[dict[str, Any]] = [
        {"n_rows": 1_100_000}, {"n_valid": 100_000}, {"n_features": 31}, {"max_bin": 512}, {"has_missing": True},
        {"params": {"max_depth": 7}},
    ]  # fmt: skip
    for changes in more:
        assert total(**changes) > usual, changes
    assert total(kind="external") < usual
    assert total(params={"max_cached_hist_node": 8}) < usual
    assert total(params={"max_leaves": 4}) < usual
    assert total(params={"max_depth": 0}) > usual
    assert total(n_rows=100_000, cuts="exact") > total(n_rows=100_000)
    assert total(n_rows=1000, block_rows=20_000) < 10**7
    assert total(n_rows=0, cuts="exact") < 10**7


MEASURE = """
import resource, sys, threading, time
from pathlib import Path
import numpy as np
import tabgpu.train
import xgboost
from tabgpu.cache import Block, BlockWriter
from tabgpu.train import cuts, matrix
from tabgpu.train.booster import TrainSpec, train

def anonymous():
    status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
    return int(status["RssAnon"].split()[0]) * 1024

def run(rows):
    random = np.random.default_rng(0)
    names = [f"f{j}" for j in range(30)]
    with BlockWriter(names, 20_000, directory=sys.argv[1]) as writer:
        for _ in range(rows // 1000):
            features = random.standard_normal((1000, 30), dtype="float32")
            writer.append(Block(features, (features[:, 0] > 0).astype("float32")))
        blocks = writer.finish()
    base = anonymous()
    ref = cuts.matrix_of(cuts.choose(features, 256), 256, names, nthread=1)
    train(TrainSpec("binary:logistic", 2, {"nthread": 1}), matrix.Builder(nthread=1)(blocks, ref))
    return base

run(1000)
peak, running = [0], True
def watch():
    while running:
        peak[0] = max(peak[0], anonymous())
        time.sleep(0.002)
thread = threading.Thread(target=watch)
thread.start()
base = run(400_000)
running = False
thread.join()
print(peak[0] - base)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="measures by /proc")
def test_prediction_is_near_what_is_measured(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", MEASURE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    measured = int(done.stdout)
    predicted = total(n_rows=400_000)
    assert 0.75 < predicted / measured < 1.25
