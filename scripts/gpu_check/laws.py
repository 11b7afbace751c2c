"""The laws: runs every test that is marked `gpu`, and counts by file. A test that was not reached is no success."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from .arguments import Task, task_of
from .device import missing
from .plugin import FILE

ROOT = Path(__file__).resolve().parent.parent.parent
MARK = "pytest.mark.gpu"
STANDIN = "TABGPU_GPU_STANDIN"  # tests/gpu then take the CPU engine for the device
_OF_ARRAYS = ("test_gpu_statistics.py", "test_gpu_xgboost.py")  # read no pipeline file
_OTHER_FILES = ("tests/test_", "tests/contract")  # speak of the mark, and have no such test


def main() -> None:
    task = task_of("laws")
    lacking = missing("pytest", "hypothesis")
    if lacking:
        task.report.left_out("all", f"not installed: {', '.join(lacking)}")
        return
    outcomes = task.folder / "outcomes.jsonl"
    outcomes.touch()
    files = marked_files() if not task.dry else ["tests/gpu"]
    lacking = missing("pydantic", "yaml", "click")
    if lacking:
        task.report.left_out("pipelines, reading, memory", f"not installed: {', '.join(lacking)}")
        files = [f for f in files if f.endswith(_OF_ARRAYS)]
    code, output = run(files, outcomes, task)
    found = [json.loads(line) for line in outcomes.read_text(encoding="utf-8").splitlines()]
    by_file: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for one in found:
        by_file[one["test"].split("::")[0]].append(one)
    for file, tests in sorted(by_file.items()):
        report(task, file, tests)
    if code not in (0, 1):
        why = "out of time" if code is None else f"pytest ended with {code}"
        task.report.add("pytest", failed=True, note=f"{why}: {output[-600:]}")
    elif code == 1 and all(one["outcome"] != "failed" for one in found):
        task.report.add("pytest", failed=True, note=output[-600:])


def marked_files() -> list[str]:
    """Test files with tests for a GPU, so that nothing else is collected."""
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    names = [p.relative_to(ROOT).as_posix() for p in paths if MARK in p.read_text(encoding="utf-8")]
    return [n for n in names if not n.startswith(_OTHER_FILES)]


def run(files: list[str], outcomes: Path, task: Task) -> tuple[int | None, str]:
    """Exit code of pytest, None where its time ran out, and what it printed."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "gpu_check.plugin", "-p", "no:cacheprovider"]
    # a warning of some library is no broken law
    command += ["-W", "default", "--tb=short", f"--basetemp={task.folder / 'tests'}", *files]
    environment = {**os.environ, FILE: str(outcomes)}
    if task.dry:
        environment[STANDIN] = "1"
    began = time.monotonic()
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=task.budget_s - 2
        )
    except subprocess.TimeoutExpired as error:
        return None, f"{time.monotonic() - began:.0f} s, {error.cmd[0]}"
    return done.returncode, done.stdout + done.stderr


def report(task: Task, file: str, tests: list[dict[str, Any]]) -> None:
    """One row a file: how many passed of how many that ran."""
    counts = Counter(one["outcome"] for one in tests)
    ran = counts["passed"] + counts["failed"]
    notes = [f"{one['test'].split('::')[-1]}: {one['why']}" for one in tests if one["outcome"] == "failed"]
    skipped = Counter(one["why"].removeprefix("Skipped: ") for one in tests if one["outcome"] == "skipped")
    notes += [f"{n} skipped ({why})" for why, n in skipped.items()]
    failed = None if not ran else counts["failed"] > 0
    name = file.removeprefix("tests/").removesuffix(".py")
    task.report.add(name, counts["passed"], ran, unit="tests", of="run", failed=failed, note="; ".join(notes))


if __name__ == "__main__":
    main()
