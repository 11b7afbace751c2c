"""The GPU engine keeps the laws of engines on a stand-in for its libraries, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("what", "at_least"),
    [("engine/test_cpu.py", 30), ("engine/test_damage.py", 7), ("contract/gpu_engine_cases.py", 35)],
)
def test_the_gpu_engine_does_what_the_cpu_engine_does(what: str, at_least: int) -> None:
    """The cases of the CPU engine run unchanged; `gpu_engine_cases` compares both, and watches over the streams."""
    paths = os.pathsep.join([str(TESTS), str(TESTS / "engine")])
    environment = {**os.environ, "TABGPU_TEST_ENGINE": "stand-in", "PYTHONPATH": paths}
    slow = "test_chunks_and_parts_change_nothing and 1-1000000"  # `gpu_engine_cases` has chunks of one row
    options = [
        "-q",
        "-k",
        f"not ({slow})",
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore:overflow encountered in cast",
    ]  # CuPy says nothing
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(TESTS / what)],
        cwd=TESTS.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    output = result.stdout + result.stderr
    assert result.returncode == 0, output[-6000:]
    (passed,) = [line for line in output.splitlines() if " passed" in line]
    assert int(passed.split(" passed")[0].split()[-1]) >= at_least
