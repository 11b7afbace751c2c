"""Trials in real child processes: what goes wrong there becomes an answer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tabgpu.doctor import trial
from tabgpu.doctor.trial import judge, run
from tabgpu.engine import resolve
from tabgpu.engine.cpu import CpuEngine

SAY = f"""print('{trial._MARK}' + '{{"step": "train two rounds"}}', flush=True)\n"""


def test_the_cpu_engine_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "numpy.py").write_text("raise SystemError('a module of the working folder')")
    monkeypatch.chdir(tmp_path)
    found = run("cpu")
    assert (found.passed, found.failure, found.step) == (True, "", "train two rounds")
    assert judge(found).severity == "ok"


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "it was ended by SIGSEGV"),
        ("import os; os.abort()", "it was ended by SIGABRT"),
        ("import os; os._exit(7)", "it ended with exit code 7"),
        ("import os; os._exit(0)", "it ended too early"),
        ("raise MemoryError('std::bad_alloc')", "it ended with exit code 1: MemoryError: std::bad_alloc"),
    ],
)
def test_a_child_that_dies(code: str, failure: str) -> None:
    found = run("gpu", code=SAY + code)
    assert (found.passed, found.step, found.failure) == (False, "train two rounds", failure)
    finding = judge(found)
    assert finding.severity == "broken"
    assert failure in finding.happened


def test_a_child_that_hangs() -> None:
    found = run("gpu", timeout_s=3, code=SAY + "import time; time.sleep(60)")
    assert (found.passed, found.failure) == (False, "it did not end within 3.00 s")
    assert found.step == "train two rounds"
    assert found.seconds < 20


def test_a_gpu_engine_that_cannot_be_had() -> None:
    found = run("gpu")
    assert not found.passed
    assert found.step in ("import packages", "set up the engine")
    assert "Error" in found.failure


class Wrong(CpuEngine):
    """An engine that counts wrong, or trains wrong."""

    def to_host(self, array: np.ndarray) -> np.ndarray:
        return array + 1


def test_wrong_numbers_fail_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = resolve("cpu")
    columns = trial._count_groups(engine)
    trial._train(engine, columns)
    with pytest.raises(ValueError, match="the groups have"):
        trial._count_groups(Wrong())
    with pytest.raises(ValueError, match="does not fit its target"):
        trial._train(Wrong(), columns)
    monkeypatch.setattr("tabgpu.engine.resolve", lambda name: (Wrong(), ""))
    with pytest.raises(SystemExit) as caught:
        trial.main("cpu", imports_only=False)
    assert caught.value.code == 1
    assert "ValueError: the groups have" in capsys.readouterr().out


def test_imports_alone(capsys: pytest.CaptureFixture[str]) -> None:
    trial.main("cpu", imports_only=True)
    out = capsys.readouterr().out
    assert "passed" in out
    assert "count groups" not in out
