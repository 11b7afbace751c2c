"""Signals that come while XGBoost builds a matrix wait until it has ended."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabgpu.config.yaml12 import dump
from tabgpu.interrupts import deferred


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_and_is_raised_again(number: signal.Signals) -> None:
    heard: list[int] = []
    old = signal.signal(number, lambda n, frame: heard.append(n))
    try:
        with deferred() as waiting:
            with deferred():
                signal.raise_signal(number)
                assert not heard
            assert list(waiting) == [number]
            assert not heard
        assert heard == [number]
    finally:
        signal.signal(number, old)


def test_other_threads_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def work() -> None:
        with deferred() as waiting:
            seen.append((list(waiting), signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [([], before)]


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("limit", ["8GB", "225MB"])
def test_killed_while_a_matrix_is_built(number: signal.Signals, expected: int, limit: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = {f"x{i}": rng.normal(size=150_000).astype(np.float32) for i in range(15)}
    pq.write_table(pa.table({**table, "y": (table["x0"] > 0).astype(np.int8)}), tmp_path / "in.parquet")
    file = tmp_path / "p.yaml"
    data = {"source": str(tmp_path / "in.parquet"), "target": "y"}
    model = {"objective": "binary:logistic", "rounds": 100_000, "cuts": "exact"}
    memory = {"limit": limit, "chunk_rows": 20_000}
    split = {"valid": 0, "test": 0}
    file.write_text(
        dump({"version": 1, "data": data, "split": split, "model": model, "memory": memory, "output": str(tmp_path)})
    )
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    for trial in range(3):
        command = [sys.executable, "-m", "tabgpu", "run", str(file)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if line.startswith("train: up to"):
                    break
            else:
                pytest.fail("the run ended before it came to train")
            time.sleep(random.Random(trial).uniform(0, 0.6))
            process.send_signal(number)
            rest = process.stderr.read()
            assert process.wait(timeout=60) == expected, rest
        assert "Traceback" not in rest
        assert json.loads((tmp_path / "p" / "last" / "status.json").read_text())["status"] == "interrupted"
