"""Run contenders as processes, interleaved, and compare what they cost.

A contender is a command. Each repeat runs every contender once, in an order that turns, so that a slow minute of the
machine hits all of them. Of each process with its children: CPU seconds (user and system), wall seconds, peak RSS of
the largest process, and peak of anonymous and shared memory of all together, read every 20 ms. A crash or a kill is a
result too: it is shown with its exit code, never dropped.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ENVIRONMENT = {"OMP_WAIT_POLICY": "passive", "POLARS_MAX_THREADS": "2", "OMP_NUM_THREADS": "2"}
TABGPU = [sys.executable, "-c", "from tabgpu.cli import main; main()"]  # that of this interpreter
COSTS = {"cpu_s": "CPU s", "wall_s": "wall s", "peak_rss_mb": "RSS MB", "peak_anonymous_mb": "anon. MB"}


@dataclass(frozen=True)
class Sample:
    """What one process cost, and what it wrote to standard output."""

    cpu_s: float
    wall_s: float
    peak_rss_mb: float
    peak_anonymous_mb: float
    exit_code: int
    output: str


def run(command: Sequence[str], folder: Path) -> Sample:
    """Run one command in `folder` to its end; its standard error goes to ours where it fails."""
    began = time.monotonic()
    with open(folder / "stderr", "w+b") as errors, open(folder / "stdout", "w+b") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=output,
            stderr=errors,
            env={**os.environ, **ENVIRONMENT},
            stdin=subprocess.DEVNULL,
        )
        watch = _Watch(process.pid)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.monotonic() - began
        peak = watch.stop()
        errors.seek(0)
        output.seek(0)
        if process.returncode:
            print(f"exit {process.returncode}: {' '.join(command)}\n{errors.read().decode()[-3000:]}")
        rss = usage.ru_maxrss * (1 if platform.system() == "Darwin" else 1024)
        return Sample(
            round(usage.ru_utime + usage.ru_stime, 3),
            round(wall, 3),
            round(rss / 1e6, 1),
            round(peak / 1e6, 1),
            process.returncode,
            output.read().decode(),
        )


class _Watch:
    """Thread that keeps the peak of anonymous and shared memory of a process and its children (Linux)."""

    def __init__(self, pid: int) -> None:
        self._pid, self._peak, self._over = pid, 0, threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def _loop(self) -> None:
        while not self._over.wait(0.02):
            self._peak = max(self._peak, sum(_anonymous(pid) for pid in process_tree(self._pid)))

    def stop(self) -> int:
        self._over.set()
        self._thread.join()
        return self._peak


def process_tree(pid: int) -> list[int]:
    """The process, and all below it."""
    found = [pid]
    for parent in found:
        for tasks in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += [int(child) for child in tasks.read_text().split()]
            except (OSError, ValueError):
                continue  # it ended while we looked
    return found


def _anonymous(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon", "RssShmem")))


def interleave(contenders: Mapping[str, Sequence[str]], repeats: int, folder: Path) -> dict[str, list[Sample]]:
    """Run every contender `repeats` times, the order turning by one each time."""
    names = list(contenders)
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    for repeat in range(repeats):
        for i in range(len(names)):
            name = names[(repeat + i) % len(names)]
            samples[name].append(run(contenders[name], folder))
    return samples


def report(title: str, samples: Mapping[str, Sequence[Sample]], base: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Print a table with best, median and spread; return it all as one JSON object."""
    print(f"\n{title}: best / median (lowest to highest); x: median of the ratios to {base!r}, run by run")
    for name, runs in samples.items():
        cells = [f"{name:24}"]
        for cost, label in COSTS.items():
            values = [getattr(s, cost) for s in runs]
            ratios = [v / max(getattr(b, cost), 1e-9) for v, b in zip(values, samples[base], strict=True)]
            spread = f"({min(values):.4g} to {max(values):.4g})"
            cells.append(
                f"{label} {min(values):.4g} / {statistics.median(values):.4g} {spread} x{statistics.median(ratios):.2f}"
            )
        failed = [s.exit_code for s in runs if s.exit_code]
        print("  " + "  ".join(cells) + (f"  FAILED {failed}" if failed else ""))
    runs = {name: [{**asdict(s), "output": None} for s in each] for name, each in samples.items()}
    return {"benchmark": title, "base": base, "facts": dict(facts), "versions": versions(), "runs": runs}


def versions() -> dict[str, str | None]:
    """What was measured, and on what."""
    found: dict[str, str | None] = {"python": platform.python_version(), "cpus": str(os.cpu_count())}
    for name in ("tabgpu", "numpy", "pyarrow", "pandas", "polars", "xgboost-cpu", "xgboost"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def save(result: Mapping[str, Any], file: Path | None) -> None:
    """Write the JSON object where it is wanted."""
    if file is not None:
        file.write_text(json.dumps(result, indent=1) + "\n")
