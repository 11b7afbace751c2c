"""Signals wait within `deferred`, as while XGBoost builds a matrix, and do afterwards what they would have done."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabgpu.config.yaml12 import dump
from tabgpu.interrupts import deferred

BOTH = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = [signal.getsignal(number) for number in BOTH]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in zip(BOTH, before, strict=True):
        signal.signal(number, handler)


def test_a_signal_waits_and_is_raised_once() -> None:
    seen: list[int] = []

    def work() -> None:
        with deferred() as waiting:
            assert not waiting
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            seen.extend(waiting)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert seen == [signal.SIGINT, signal.SIGINT]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_handlers_are_called_where_they_return_the_program_goes_on() -> None:
    came: list[int] = []

    def note(number: int, frame: Any) -> None:
        came.append(number)

    for number in BOTH:
        signal.signal(number, note)
    with deferred():
        for number in (*BOTH, *BOTH):
            signal.raise_signal(number)
        assert came == []
    assert came == [signal.SIGTERM, signal.SIGINT]
    assert [signal.getsignal(number) for number in BOTH] == [note, note]


def test_nested_blocks_hand_on() -> None:
    seen: list[int] = []

    def work() -> None:
        with deferred() as outer:
            with deferred() as inner:
                signal.raise_signal(signal.SIGINT)
                seen.append(len(outer))
            seen.extend((len(inner), len(outer)))

    with pytest.raises(KeyboardInterrupt):
        work()
    assert seen == [0, 1, 1]


def test_an_error_in_the_block_stays_unless_a_signal_waits() -> None:
    with pytest.raises(ValueError, match="ours"), deferred():
        raise ValueError("ours")

    def work() -> None:
        with deferred():
            signal.raise_signal(signal.SIGINT)
            raise ValueError("ours")

    with pytest.raises(KeyboardInterrupt) as caught:
        work()
    assert isinstance(caught.value.__context__, ValueError)


def test_ignored_and_foreign_handlers_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with deferred() as waiting:
        signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert not waiting
    monkeypatch.setattr(signal, "getsignal", lambda number: None)  # one that C code has set
    with deferred():
        monkeypatch.undo()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_signal_while_handlers_are_put_back_leaves_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    real, before = signal.signal, signal.getsignal(signal.SIGTERM)

    def interrupted(number: int, handler: Any) -> Any:
        old = real(number, handler)
        if handler is signal.default_int_handler:
            monkeypatch.undo()
            signal.raise_signal(signal.SIGINT)
        return old

    monkeypatch.setattr(signal, "signal", interrupted)
    with pytest.raises(KeyboardInterrupt), deferred():
        pass
    assert signal.getsignal(signal.SIGTERM) == before


def test_other_threads_do_nothing() -> None:
    found: list[Any] = []

    def work() -> None:
        with deferred() as waiting:
            found.append((list(waiting), signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [([], signal.default_int_handler)]


@pytest.mark.parametrize("number", BOTH)
def test_the_default_action_ends_the_process(number: signal.Signals) -> None:
    code = (
        "import signal; from tabgpu.interrupts import deferred\n"
        f"signal.signal({number:d}, signal.SIG_DFL)\n"
        f"with deferred():\n    signal.raise_signal({number:d}); print('inside', flush=True)\nprint('after')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-number, "inside\n", "")


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_killed_while_a_matrix_is_built(number: signal.Signals, expected: int, tmp_path: Path) -> None:
    """Whole runs; `train/test_matrix.py` tries more moments, and external matrices."""
    rng = np.random.default_rng(0)
    table = {f"x{i}": rng.normal(size=150_000).astype(np.float32) for i in range(15)}
    pq.write_table(pa.table({**table, "y": (table["x0"] > 0).astype(np.int8)}), tmp_path / "in.parquet")
    file = tmp_path / "p.yaml"
    data = {"source": str(tmp_path / "in.parquet"), "target": "y"}
    model = {"objective": "binary:logistic", "rounds": 100_000, "cuts": "exact"}
    memory = {"limit": "8GB", "chunk_rows": 20_000}
    split = {"valid": 0, "test": 0}
    file.write_text(
        dump({"version": 1, "data": data, "split": split, "model": model, "memory": memory, "output": str(tmp_path)})
    )
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    for trial in range(2):
        command = [sys.executable, "-m", "tabgpu", "run", str(file)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if line.startswith("train: up to"):
                    break
            else:
                pytest.fail("the run ended before it came to train")
            time.sleep(random.Random(f"{number} {trial}").uniform(0, 0.6))
            process.send_signal(number)
            rest = process.stderr.read()
            assert process.wait(timeout=60) == expected, rest
        assert "Traceback" not in rest
        assert json.loads((tmp_path / "p" / "last" / "status.json").read_text())["status"] == "interrupted"
