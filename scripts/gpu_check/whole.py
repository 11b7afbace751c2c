"""End to end: one pipeline over the click-log data of benchmark W2, on the GPU and on the CPU of the same machine.

Both are processes of their own, as a user starts them, imports and start of CUDA included. Metrics have to agree, and
the peak of the device's memory to stay under what was predicted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .arguments import Task, task_of
from .device import ENGINE_MODULES, missing

AUC_TOLERANCE = 0.005  # histograms of the device and of the host round gradients differently
_COMMAND = "from tabgpu.cli import main; main()"


def main() -> None:
    task = task_of("whole")
    began = time.monotonic()
    lacking = [] if task.dry else missing(*ENGINE_MODULES)
    if lacking:
        task.report.left_out("end to end", f"not installed: {', '.join(lacking)}")
        return
    config = write_pipeline(task)
    there = run(config, "cpu" if task.dry else "gpu", task, task.budget_s)
    if there is None:
        return
    alone(task, there)
    here = there if task.dry else run(config, "cpu", task, task.budget_s - 3 - (time.monotonic() - began))
    if here is not None:
        compare(task, there, here)


def write_pipeline(task: Task) -> Path:
    """The data, and a pipeline over it, as a file."""
    from bench import make_w2

    file = task.shared / "w2.parquet"
    make_w2.make(file, 4_000 if task.dry else 1_000_000)
    config = {
        "version": 1,
        "name": "w2",
        "data": {"source": str(file), "target": "y"},
        "split": {"by": "random", "valid": 0.1, "test": 0.1},
        "features": [
            {"standardize": {"columns": make_w2.NUMBERS}},
            {"target_encode": {"columns": make_w2.STRINGS, "folds": 5}},
            {"categorify": {"columns": make_w2.STRINGS[:8]}},
        ],
        "model": {"objective": "binary:logistic", "rounds": 3 if task.dry else 50, "params": {"max_depth": 8}},
        "output": str(task.folder / "runs"),
    }
    path = task.folder / "w2.yaml"
    path.write_text(json.dumps(config), encoding="utf-8")  # YAML reads JSON
    return path


@dataclass(frozen=True)
class Run:
    """Wall seconds of a process, and what the run says of itself."""

    seconds: float
    summary: dict[str, Any]


def run(config: Path, engine: str, task: Task, within_s: float) -> Run | None:
    """Run the pipeline; None where it failed or took too long, which is then a row."""
    command = [sys.executable, "-c", _COMMAND, "run", str(config), "--json", "--set", f"engine={engine}"]
    began = time.monotonic()
    try:
        done = subprocess.run(
            command, cwd=task.folder, capture_output=True, text=True, check=False, timeout=max(1.0, within_s)
        )
    except subprocess.TimeoutExpired:
        task.report.add(f"run on {engine}", note=f"not ended after {time.monotonic() - began:.0f} s")
        return None
    if done.returncode:
        task.report.add(f"run on {engine}", failed=True, note=f"code {done.returncode}: {done.stderr[-500:]}")
        return None
    return Run(time.monotonic() - began, json.loads(done.stdout))


def alone(task: Task, there: Run) -> None:
    """What the run on the device says of itself."""
    device = there.summary.get("device_memory") or {}
    if device.get("measured_peak_bytes") and device.get("predicted_peak_bytes"):
        peak, planned = device["measured_peak_bytes"], device["predicted_peak_bytes"]
        task.report.add("peak of device memory", peak, planned, unit="B", of="predicted", high=1.0)
    elif not task.dry:
        task.report.left_out("peak of device memory", "the run does not tell it")
    for stage, peak in (device.get("stages") or {}).items():
        task.report.add(f"peak in stage {stage}", peak, unit="B", group="the run on the device")
    for stage, seconds in there.summary["timings_s"].items():
        task.report.add(f"stage {stage}", seconds, unit="s", group="the run on the device")


def compare(task: Task, there: Run, here: Run) -> None:
    """Both runs side by side."""
    high = None if task.dry else 1.0
    of = "this host's CPU"
    group = "against the CPU engine"
    task.report.add("wall, imports included", there.seconds, here.seconds, unit="s", of=of, high=high, group=group)
    inside = [sum(one.summary["timings_s"].values()) for one in (there, here)]
    task.report.add("stages alone", inside[0], inside[1], unit="s", of=of, high=high, group=group)
    aucs = [one.summary["metrics"]["test"]["auc"] for one in (there, here)]
    difference = abs(aucs[0] - aucs[1])
    task.report.add("difference of the test AUC", difference, AUC_TOLERANCE, of="allowed", high=1.0, group=group)
    same = there.summary["rows"] == here.summary["rows"]
    task.report.add("rows of each side are the same", failed=not same, group=group)


if __name__ == "__main__":
    main()
