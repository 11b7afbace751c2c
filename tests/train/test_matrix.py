"""Matrices: both kinds give the same model, with XGBoost's cuts the one of pandas; no files stay."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xgboost
from hypothesis import given, settings
from hypothesis import strategies as st

from tabgpu.cache import Block, Blocks, BlockWriter
from tabgpu.errors import DataError, ResourceError
from tabgpu.train import cuts, matrix
from tabgpu.train.booster import TrainSpec, train
from tabgpu.train.iterator import BlockIterator

NAMES = [f"f{i}" for i in range(5)]
SPEC = TrainSpec("binary:logistic", rounds=4, params={"max_depth": 4, "nthread": 1})


def data(n_rows: int = 3000, seed: int = 0, missing: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    features = random.standard_normal((n_rows, len(NAMES))).astype("float32")
    features[:, 1] = random.integers(0, 7, n_rows)
    features[:, 2] = np.where(random.random(n_rows) < missing, np.nan, np.exp(features[:, 2]))
    label = (features[:, 0] + np.nan_to_num(features[:, 2]) + random.standard_normal(n_rows) > 1).astype("float32")
    return features, label


def blocks_of(features: np.ndarray, label: np.ndarray, block_rows: int) -> Blocks:
    with BlockWriter(NAMES, block_rows) as writer:
        writer.append(Block(features, label))
        return writer.finish()


def build(blocks: Blocks, ref: xgboost.DMatrix | None = None, **options: Any) -> matrix.Matrix:
    return matrix.Builder(**options)(blocks, ref)


@settings(deadline=None, max_examples=12)
@given(block_rows=st.integers(50, 4000), own=st.booleans(), seed=st.integers(0, 3))
def test_kind_and_blocks_change_nothing(
    tmp_path_factory: pytest.TempPathFactory, block_rows: int, own: bool, seed: int
) -> None:
    features, label = data(1000, seed)
    ref = cuts.matrix_of(cuts.choose(features[::2], 256), 256, NAMES, nthread=1) if own else None
    whole = build(blocks_of(features, label, 5000), kind="in_core", ref=ref, nthread=1)
    split = blocks_of(features, label, block_rows)
    directory = tmp_path_factory.mktemp("matrix")
    core = build(split, kind="in_core", ref=ref, nthread=1)
    external = build(split, kind="external", ref=ref, directory=directory, nthread=1)
    models = {train(SPEC, m, [(m, "train")]).model for m in (whole, core, external)}
    assert len(models) == 1


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_exact_cuts_give_the_model_of_pandas(missing: float) -> None:
    features, label = data(missing=missing)
    plain = xgboost.QuantileDMatrix(pd.DataFrame(features, columns=NAMES), label=label, nthread=1)
    params = {"objective": "binary:logistic", "max_depth": 4, "nthread": 1}
    expected = xgboost.train(params, plain, num_boost_round=4)
    ours = train(SPEC, build(blocks_of(features, label, 777), kind="in_core", nthread=1))
    booster = xgboost.Booster(model_file=bytearray(ours.model))
    assert booster.get_dump(with_stats=True) == expected.get_dump(with_stats=True)
    rows = xgboost.DMatrix(features, feature_names=NAMES)
    assert np.array_equal(booster.predict(rows), expected.predict(rows))


def test_files_go_with_the_matrix(tmp_path: Path) -> None:
    blocks = blocks_of(*data(), 1000)
    external = build(blocks, kind="external", directory=tmp_path, nthread=1)
    assert [p.name.startswith("tabgpu-matrix-") for p in tmp_path.iterdir()] == [True]
    train(SPEC, external)
    del external
    gc.collect()
    assert not list(tmp_path.iterdir())


class Broken:
    """Blocks whose third pass fails."""

    def __init__(self, blocks: Blocks, error: BaseException) -> None:
        self.columns, self.n_rows, self.n_features, self.has_missing = blocks.columns, blocks.n_rows, 5, False
        self._blocks, self._error, self._passes = blocks, error, 0

    def __iter__(self) -> Iterator[Block]:
        self._passes += 1
        for number, block in enumerate(self._blocks):
            if self._passes == 2 and number == 1:
                raise self._error
            yield block


@pytest.mark.parametrize("kind", ["in_core", "external"])
@pytest.mark.parametrize("error", [OSError("gone"), KeyboardInterrupt()])
def test_failure_while_building_leaves_nothing(tmp_path: Path, kind: str, error: BaseException) -> None:
    broken = Broken(blocks_of(*data(), 1000), error)
    with pytest.raises(type(error)):
        build(broken, kind=kind, directory=tmp_path, nthread=1)
    assert not list(tmp_path.iterdir())


def test_rows_are_counted_at_the_end() -> None:
    blocks = blocks_of(*data(), 1000)
    blocks.n_rows += 1
    with pytest.raises(DataError, match="holds 3,000 of 3,001 rows"):
        build(blocks, kind="in_core", nthread=1)


def test_external_needs_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10_000))
    with pytest.raises(ResourceError, match=r"needs 1\d+ kB .* 10 kB are free.*cache\.dir"):
        build(blocks_of(*data(), 1000), kind="external", directory=tmp_path, nthread=1)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="directory"):
        build(blocks_of(*data(), 1000), kind="external")


@pytest.mark.parametrize("returns", [False, True])
@pytest.mark.parametrize(("kind", "own", "calls"), [("in_core", False, 24), ("external", True, 12)])
def test_a_signal_at_any_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, own: bool, calls: int, returns: bool
) -> None:
    """The interrupt comes out, nothing stays; where the handler returns, the matrix is made after all."""
    features, label = data()
    blocks = blocks_of(features, label, 700)
    ref = cuts.matrix_of(cuts.choose(features, 256), 256, NAMES, nthread=1) if own else None
    next_block, count = BlockIterator.next, 0

    def interrupted(self: BlockIterator, give: Callable[..., None]) -> bool:
        nonlocal count
        count += 1
        if count == wanted:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        return next_block(self, give)

    monkeypatch.setattr(BlockIterator, "next", interrupted)
    handler = signal.signal(signal.SIGINT, (lambda *_: None) if returns else signal.default_int_handler)
    try:
        for wanted in range(1, calls + 1):
            count = 0
            if returns:
                made = build(blocks, kind=kind, ref=ref, directory=tmp_path, nthread=1)
                assert (made.num_row(), count) == (3000, wanted + calls)
                del made
            else:
                with pytest.raises(KeyboardInterrupt):
                    build(blocks, kind=kind, ref=ref, directory=tmp_path, nthread=1)
            if kind == "external":
                gc.collect()
                assert not list(tmp_path.iterdir())
    finally:
        signal.signal(signal.SIGINT, handler)


TRIALS = """
import os, random, signal, sys, tempfile, threading, time
import numpy as np
from tabgpu.cache import Block, BlockWriter
from tabgpu.train import matrix

kind, number = sys.argv[1], int(sys.argv[2])
names = [f"f{i}" for i in range(20)]
rows = np.random.default_rng(0).standard_normal((50_000, 20)).astype("float32")
with BlockWriter(names, 2_000) as writer:
    writer.append(Block(rows, rows[:, 0]))
    blocks = writer.finish()
directory = tempfile.mkdtemp()

def leave(number, frame):
    raise SystemExit(number)

def in_a_finalizer(what):
    global caught  # Python cannot raise it there, where the folder of the matrix before goes away
    caught += isinstance(what.exc_value, (KeyboardInterrupt, SystemExit))

caught = 0
sys.unraisablehook = in_a_finalizer
signal.signal(signal.SIGTERM, leave)
began = time.monotonic()
matrix.Builder(kind, directory=directory)(blocks)
whole = time.monotonic() - began
for trial in range(15):
    wait = random.Random(trial).uniform(0, whole)
    threading.Timer(wait, os.kill, (os.getpid(), number)).start()
    try:
        matrix.Builder(kind, directory=directory)(blocks)
        time.sleep(2 * whole + 1)
    except (KeyboardInterrupt, SystemExit):
        caught += 1
assert not os.listdir(directory)
print(caught)
"""


@pytest.mark.parametrize("kind", ["in_core", "external"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_at_random_moments(kind: str, number: signal.Signals) -> None:
    """In a process of its own, which an exception in a callback of XGBoost would end."""
    done = subprocess.run(
        [sys.executable, "-c", TRIALS, kind, str(int(number))],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_WAIT_POLICY": "passive"},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "15\n", "")
