"""How the command line ends: interrupted at any moment, and when its output cannot be written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tables import pipeline, visits, write_parts

from tabgpu import cli, workflow
from tabgpu.config.yaml12 import dump

ENVIRONMENT = {**os.environ, "OMP_WAIT_POLICY": "passive"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_parts(visits(300), tmp_path / "in", [150, 150], 70)
    model = {"objective": "binary:logistic", "rounds": 100_000}
    path = tmp_path / "visits.yaml"
    path.write_text(dump(pipeline(tmp_path / "in", tmp_path / "runs", model=model)))
    return path


def start(*words: Any, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tabgpu", *map(str, words)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, **options)


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("wait", [0.4, 0.9])
def test_interrupted_in_the_first_second(file: Path, number: signal.Signals, expected: int, wait: float) -> None:
    """Most of it goes into imports; with --json there is one object that says so."""
    process = start("run", file, "--json", "--quiet", stdout=subprocess.PIPE)
    time.sleep(wait)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == expected, err
    assert err.strip() == f"tabgpu: {json.loads(out)['message']}"
    assert json.loads(out)["exit_code"] == expected


def test_the_second_interrupt_does_not_cut_through_the_first(file: Path) -> None:
    with start("run", file) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("train: round"):
                break
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(0.003)
        rest = process.stderr.read()
        assert process.wait(timeout=60) == 130
    assert "Traceback" not in rest
    status = file.parent / "runs" / "visits" / "last" / "status.json"
    assert json.loads(status.read_text())["status"] == "interrupted"


def test_the_handler_raises_but_the_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "_came", [])
    with pytest.raises(KeyboardInterrupt):
        cli._interrupt(signal.SIGINT, None)
    cli._interrupt(signal.SIGINT, None)
    with pytest.raises(SystemExit):
        cli._interrupt(signal.SIGTERM, None)


def test_an_interrupt_that_a_library_swallowed_or_renamed_is_one(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "_came", [signal.SIGTERM])
    assert cli._guarded(["run", str(file), "--set", "model.rounds=2"]) == 143
    status = file.parent / "runs" / "visits" / "last" / "status.json"
    assert json.loads(status.read_text())["status"] == "interrupted"

    def renamed(data: Any) -> Any:
        raise RuntimeError("SystemExit: 143")

    monkeypatch.setattr(workflow, "inspect", renamed)
    assert cli._guarded(["inspect", "x"]) == 143
    monkeypatch.setattr(cli, "_came", [])
    capsys.readouterr()
    assert cli._guarded(["inspect", "x"]) == 1
    assert "bug in tabgpu" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full device")
@pytest.mark.parametrize("words", [["--help"], ["inspect", "DATA", "--json"], ["plan", "FILE"]])
def test_output_that_cannot_be_written(file: Path, words: list[str]) -> None:
    places = {"DATA": file.parent / "in", "FILE": file}
    with open("/dev/full", "w") as full, start(*(places.get(w, w) for w in words), stdout=full) as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 4
    assert err.startswith("tabgpu: Standard output cannot be written to: No space left on device. Expected")
    assert err.count("\n") == 1


def test_output_that_nobody_reads(file: Path) -> None:
    with start("inspect", file.parent / "in", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert (process.stderr.read(), process.wait(timeout=60)) == ("", 141)


def test_where_an_interrupt_cannot_be_raised_it_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(sys, "__unraisablehook__", shown.append)
    interrupt, other = SimpleNamespace(exc_value=KeyboardInterrupt()), SimpleNamespace(exc_value=ValueError())
    monkeypatch.setattr(cli, "_came", [])
    cli._unraisable(interrupt)
    monkeypatch.setattr(cli, "_came", [signal.SIGINT])
    cli._unraisable(interrupt)
    cli._unraisable(other)
    assert shown == [interrupt, other]


def test_an_error_keeps_its_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cli, "_write", lambda text: 4)
    assert cli._guarded(["run", "nowhere.yaml", "--json"]) == 2
    assert cli._guarded(["--help"]) == 4


def test_what_xgboost_prints_goes_to_standard_error(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", str(file), "--json", "--set", "model.rounds=2", "--set", "model.params.verbosity=3"]
    assert cli._guarded(words) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["status"] == "done"
    assert "DEBUG" in captured.err
