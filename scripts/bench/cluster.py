"""Benchmark cluster: training 5,000,000 x 30 on two single-thread workers against two threads of one process.

    python scripts/bench/cluster.py --rows 5000000 --repeats 1 [--json FILE] [--scale 0.1]

Contenders: tabgpu on one process, tabgpu with ``cluster.workers: 2`` in core and external, and XGBoost's own
`xgboost.dask` on the same files. Of each: wall and processor seconds, those of starting workers apart, and the peak RSS
of each worker. The gate: both cluster models are equal to the bit, and so is that of one process. Needs the extra
`cluster`. The targets: at most 1.15 times the wall of one process once workers are there, at most 600 MB a worker in
core and 450 MB external.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from make_train5m import make
from measure import TABGPU, process_tree, run, save, versions
from train5m import write_pipeline

HERE = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(description="Two workers against two threads on 5M x 30.")
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the rows")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", default="1800MB", help="memory.limit in core: of client and workers together")
    parser.add_argument("--external", default="1100MB", help="memory.limit at which the matrix is external")
    parser.add_argument("--without-peer", action="store_true", help="leave xgboost.dask out")
    parser.add_argument("--folder", type=Path, default=HERE.parent.parent / "build" / "bench")
    parser.add_argument("--json", type=Path, help="write all that was measured to this file")
    args = parser.parse_args()
    rows, folder = int(args.rows * args.scale), args.folder.resolve()
    data = folder / f"train5m_{rows}"
    make(data, rows)
    pipeline = write_pipeline(data, folder, args.rounds, "900MB")
    tabgpu = [*TABGPU, "run", str(pipeline), "--json"]
    workers = [
        *tabgpu,
        "--set",
        "cluster.workers=2",
        "--set",
        "model.params.nthread=1",
        "--set",
        "memory.chunk_rows=50000",
    ]
    contenders = {
        "one process": tabgpu,
        "workers in core": [*workers, "--set", f"memory.limit={args.limit}"],
        "workers external": [*workers, "--set", f"memory.limit={args.external}"],
    }
    if not args.without_peer:
        contenders["xgboost.dask"] = [sys.executable, str(HERE / "cluster_peer.py"), str(data), str(args.rounds)]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    names = list(contenders)
    for repeat in range(args.repeats):
        for i in range(len(names)):
            name = names[(repeat + i) % len(names)]
            found[name].append(measured(name, contenders[name], folder))
    facts = {"rows": rows, "rounds": args.rounds, "equal_models": gate(found)}
    show(found, facts)
    save({"benchmark": "cluster", "facts": facts, "versions": versions(), "runs": found}, args.json)
    return max(r["exit_code"] != 0 for runs in found.values() for r in runs)


def measured(name: str, command: Sequence[str], folder: Path) -> dict[str, Any]:
    """What one run cost, and what it said of itself."""
    peaks = WorkerPeaks()
    sample = run(command, folder)
    told = json.loads(sample.output.splitlines()[-1]) if sample.exit_code == 0 else {}  # xgboost.dask prints ranks
    workers = told["runner"]["workers"] if isinstance(told.get("runner"), dict) else []
    return {
        "exit_code": sample.exit_code,
        "wall_s": sample.wall_s,
        "cpu_s": sample.cpu_s,
        "start_s": told["timings_s"].get("start", 0.0) if told else None,
        "timings_s": told.get("timings_s"),
        "main_rss_mb": sample.peak_rss_mb if name == "one process" else None,
        "worker_rss_mb": peaks.stop(),
        "workers": workers if isinstance(workers, list) else [],
        "model": digest(told),
        "matrix": matrix_of(told),
    }


def digest(told: dict[str, Any]) -> str | None:
    """Of the model that a run of tabgpu made."""
    model = Path(told.get("run", "")) / "model" / "model.ubj"
    return hashlib.sha256(model.read_bytes()).hexdigest()[:16] if model.exists() else None


def matrix_of(told: dict[str, Any]) -> str | None:
    plan = Path(told.get("run", "")) / "plan.json"
    return str(json.loads(plan.read_text())["matrix"]) if plan.exists() else None


def gate(found: dict[str, list[dict[str, Any]]]) -> dict[str, bool]:
    """Whether models are equal to the bit; raises SystemExit where workers do not agree among themselves."""
    models = {name: {r["model"] for r in runs if r["model"]} for name, runs in found.items()}
    of_workers = models["workers in core"] | models["workers external"]
    if len(of_workers) != 1:
        raise SystemExit(f"The models of workers do not agree: {models}")
    return {"workers": True, "one process": models["one process"] == of_workers}


def show(found: dict[str, list[dict[str, Any]]], facts: dict[str, Any]) -> None:
    """Print a line for each contender; the ratio is that of wall without start, run by run."""
    print(f"\ncluster, {facts['rows']:,} rows, {facts['rounds']} rounds; equal models: {facts['equal_models']}")
    base = found["one process"]
    for name, runs in found.items():
        ratios = [working_s(r) / working_s(b) for r, b in zip(runs, base, strict=True)]
        starts = [r["start_s"] for r in runs if r["start_s"] is not None]
        peak = max([*(m for r in runs for m in r["worker_rss_mb"]), *(r["main_rss_mb"] or 0 for r in runs)])
        wall, cpu = (statistics.median(r[cost] for r in runs) for cost in ("wall_s", "cpu_s"))
        print(
            f"  {name:18} {runs[0]['matrix'] or '':9} wall {wall:6.1f} s, start {max(starts or [0]):4.1f} s, "
            f"CPU {cpu:6.1f} s, x{statistics.median(ratios):.2f}, peak RSS of one {peak:.0f} MB"
        )


def working_s(run: dict[str, Any]) -> float:
    """Wall without what it took to start workers."""
    return float(run["wall_s"] - (run["start_s"] or 0))


class WorkerPeaks:
    """Thread that keeps the peak RSS of every worker process below this one, as the kernel counts it (Linux)."""

    def __init__(self) -> None:
        self._peaks: dict[int, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def _loop(self) -> None:
        while not self._over.wait(0.2):
            for pid in process_tree(os.getpid())[1:]:
                try:
                    if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                        peak = next(line for line in lines if line.startswith("VmHWM"))
                        self._peaks[pid] = int(peak.split()[1]) * 1024 / 1e6
                except (OSError, StopIteration):
                    continue  # it ended while we looked

    def stop(self) -> list[float]:
        """MB of the two largest."""
        self._over.set()
        self._thread.join()
        return sorted((round(peak, 1) for peak in self._peaks.values()), reverse=True)[:2]


if __name__ == "__main__":
    sys.exit(main())
