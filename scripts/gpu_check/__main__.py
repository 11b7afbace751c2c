"""Run all parts, each as a process with a time budget, print one table, write JSON; see `scripts/gpu-check`.

Exit codes: 0 every law holds (other rows may miss their bars: look at the table), 1 a law failed, 4 there is no device
or nothing to prove with. What is not installed is said, and the parts that need it are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from .device import ENGINE_MODULES, missing
from .laws import ROOT
from .rows import Report, Row, read_rows, table

BUDGETS = {"laws": 135.0, "memory": 45.0, "ratios": 50.0, "whole": 65.0}  # seconds: under five minutes in all
_NEEDED = ("numpy", "pyarrow", "xgboost", "psutil")
_FOR_PIPELINES = ("pydantic", "yaml", "click", "tzdata")
_WORTH_KNOWING = ("xgboost", "cupy", "cudf", "rmm", "cuda", "numpy", "pyarrow", "pandas", "nvidia-nccl", "numba")


def main() -> int:
    args = _arguments()
    lacking = missing(*_NEEDED, *(() if args.dry else ("cupy",)))
    if lacking:
        return _nothing(f"not installed in {sys.executable}: {', '.join(lacking)}")
    facts = {"dry": args.dry, **machine(args.dry)}
    if not args.dry and "device" not in facts:
        return _nothing(f"no device: {facts['no_device']}. Try scripts/gpu-check --dry on a machine without one")
    print("\n".join(f"{key:<12}{value}" for key, value in facts.items() if key != "versions"), flush=True)
    rows: list[Row] = []
    out_of_reach = missing(*_FOR_PIPELINES, *(() if args.dry else ENGINE_MODULES))
    if out_of_reach:
        print(f"left out: what needs {', '.join(out_of_reach)}", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="gpu-check-", dir=args.folder) as folder,
        ThreadPoolExecutor(2 if args.dry else 1) as together,  # what is measured is alone on the device
    ):
        for found in together.map(lambda part: run(part, Path(folder), args), args.parts):
            rows += found
    print(table(rows))
    failed = [row for row in rows if row.part == "laws" and row.ok is False]
    if args.json:
        told = {**facts, "left_out": out_of_reach, "rows": [row.to_json() for row in rows]}
        args.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    missed = sum(row.ok is False for row in rows)
    print(f"\n{'A law FAILED' if failed else 'No law failed'}; {missed} of {len(rows)} rows miss their bar")
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/gpu-check", description="Prove on a GPU what needs one.")
    parser.add_argument("--dry", action="store_true", help="the CPU in the device's place, at tiny sizes")
    parser.add_argument("--parts", nargs="+", choices=list(BUDGETS), default=list(BUDGETS))
    parser.add_argument("--json", type=Path, help="write all that was found to this file")
    parser.add_argument("--folder", type=Path, help="where scratch files lie; a temporary folder by default")
    parser.add_argument("--scale-budget", type=float, default=1.0, help="multiplies the time of every part")
    return parser.parse_args()


def _nothing(why: str) -> int:
    print(f"Nothing can be proven here: {why}", file=sys.stderr)
    return 4


@dataclass(frozen=True)
class _Ended:
    code: int | None  # None where its time ran out
    seconds: float
    output: str


def run(part: str, folder: Path, args: argparse.Namespace) -> list[Row]:
    """Rows of one part; how it ended is a row too, if it did not end well."""
    print(f"== {part}", file=sys.stderr, flush=True)
    own = folder / part
    own.mkdir()
    file = folder / f"{part}.jsonl"
    budget = BUDGETS[part] * args.scale_budget
    command = [sys.executable, "-m", f"gpu_check.{part}", "--rows", str(file), "--folder", str(own)]
    command += ["--budget", str(budget), *(["--dry"] if args.dry else [])]
    ended = _within(command, budget)
    shutil.rmtree(own, ignore_errors=True)
    report = Report(file, part)
    if ended.code is None:
        report.add("the part itself", failed=True, note=f"its time of {budget:g} s ran out, and it was ended")
    elif ended.code:
        report.add("the part itself", failed=True, note=f"ended with {ended.code}: {ended.output[-800:]}")
    elif not file.exists():
        report.add("the part itself", failed=True, note="it found nothing")
    return read_rows(file)


def _within(command: list[str], budget: float) -> _Ended:
    """Run a command, and end it with all its children when its time is up."""
    began = time.monotonic()
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryFile("w+") as output:
        child = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code: int | None = child.wait(budget)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with suppress(ProcessLookupError):  # its children may outlive it
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        output.seek(0)
        return _Ended(code, time.monotonic() - began, output.read().strip())


def machine(dry: bool) -> dict[str, Any]:
    """Device, driver and versions."""
    names = {d.name: d.version for d in distributions() if d.name.lower().startswith(_WORTH_KNOWING)}
    facts: dict[str, Any] = {
        "host": f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}",
        "versions": dict(sorted(names.items())),
    }
    if dry:
        return facts
    code = (
        "import cupy, json; r = cupy.cuda.runtime; p = r.getDeviceProperties(0); f, t = r.memGetInfo();"
        "print(json.dumps([p['name'].decode(), r.driverGetVersion(), r.runtimeGetVersion(), f, t,"
        " [p['major'], p['minor']]]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        return {**facts, "no_device": (done.stderr.strip().splitlines() or ["CuPy ended without a word"])[-1]}
    name, driver, runtime, free, total, capability = json.loads(done.stdout)
    gpus = import_module("tabgpu.hardware").SystemHardware().gpus()
    facts["device"] = f"{name}, compute capability {capability[0]}.{capability[1]}"
    facts["memory"] = f"{free / 1e9:.1f} of {total / 1e9:.1f} GB free"
    facts["cuda"] = f"driver {gpus[0].driver if gpus else '?'}, CUDA {driver // 1000}.{driver % 1000 // 10}, " + (
        f"CuPy's runtime {runtime // 1000}.{runtime % 1000 // 10}"
    )
    return facts


if __name__ == "__main__":
    sys.exit(main())
