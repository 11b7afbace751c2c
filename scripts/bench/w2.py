"""Benchmark W2: vocabularies, codes, 5-fold target encoding, standardising, and the features written as Parquet.

    python scripts/bench/w2.py --rows 2000000 --repeats 5 [--json FILE] [--scale 0.1]

Two contenders on one Parquet file (`make_w2.py`): tabgpu with ``model: null``, and a Polars program as an expert would
write it (`w2_polars.py`). Both use the folds that tabgpu gives the rows; making the file of folds is not counted. The
gate: 26 columns of codes equal up to relabelling, target encodings to 1e-6, standardised numbers to 1e-5. Without it
nothing is reported.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from make_w2 import NUMBERS, STRINGS, make
from measure import TABGPU, interleave, report, run, save

HERE = Path(__file__).resolve().parent
FOLDS = 5


def main() -> int:
    parser = argparse.ArgumentParser(description="tabgpu and Polars on benchmark W2.")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the rows")
    parser.add_argument("--repeats", type=int, default=5, help="0: the run that the gate reads alone")
    parser.add_argument("--folder", type=Path, default=HERE.parent.parent / "build" / "bench")
    parser.add_argument("--json", type=Path, help="write all that was measured to this file")
    args = parser.parse_args()
    rows, folder = int(args.rows * args.scale), args.folder.resolve()
    data = folder / f"w2_{rows}.parquet"
    make(data, rows)
    folds = write_folds(data, rows)
    contenders = {
        "tabgpu": [*TABGPU, "run", str(write_pipeline(data, folder)), "--json"],
        "polars": [
            sys.executable,
            str(HERE / "w2_polars.py"),
            str(data),
            str(folds),
            str(folder / "w2_polars.parquet"),
        ],
    }
    shutil.rmtree(folder / "runs", ignore_errors=True)
    warm = {name: run(command, folder) for name, command in contenders.items()}
    if any(s.exit_code for s in warm.values()):
        return 1
    features = Path(json.loads(warm["tabgpu"].output)["run"]) / "features"
    worst = gate(features, folder / "w2_polars.parquet")
    samples = interleave(contenders, args.repeats, folder) if args.repeats else {n: [s] for n, s in warm.items()}
    save(report(f"W2, {rows:,} rows", samples, "polars", {"rows": rows, "largest_difference": worst}), args.json)
    return max(s.exit_code != 0 for runs in samples.values() for s in runs)


def write_pipeline(data: Path, folder: Path) -> Path:
    """The pipeline file, and its path."""
    file = folder / "w2.yaml"
    steps = [
        {"standardize": {"columns": NUMBERS}},
        {"target_encode": {"name": "te", "columns": STRINGS, "folds": FOLDS, "smooth": 20}},
        {"categorify": {"columns": STRINGS}},
    ]
    pipeline = {
        "version": 1,
        "name": "w2",
        "data": {"source": str(data), "target": "y"},
        "split": {"by": "random", "valid": 0, "test": 0},
        "features": steps,
        "model": None,
        "output": str(folder / "runs"),
    }
    file.write_text(json.dumps(pipeline, indent=1))  # JSON is YAML
    return file


def write_folds(data: Path, rows: int) -> Path:
    """The fold that tabgpu gives each row of `data`, as a file for the other contender."""
    from tabgpu.columns import Chunk
    from tabgpu.features.keys import fold_of
    from tabgpu.hashing import hash_levels, splitmix64

    identity = splitmix64(np.arange(rows, dtype=np.uint64) + hash_levels(pa.array([data.name]))[0])
    file = data.with_name(f"{data.stem}_folds.parquet")
    pq.write_table(pa.table({"fold": fold_of(Chunk({}, identity, np), FOLDS, 0).astype(np.uint8)}), file)
    return file


def gate(features: Path, peer: Path) -> dict[str, float]:
    """Compare all columns; raises SystemExit where the contenders do not agree."""
    ours, theirs = ds.dataset(features), pq.ParquetFile(peer)
    worst = {"standardize": 0.0, "target_encode": 0.0}
    for name in [*NUMBERS, *STRINGS]:
        a = ours.to_table([name])[name].to_numpy()
        b = theirs.read([name])[name].to_numpy()
        if name in STRINGS:
            _require(_same_groups(a, b), f"codes of {name}")
            rate = f"te_{name}"
            a, b = ours.to_table([rate])[rate].to_numpy(), theirs.read([rate])[rate].to_numpy()
            worst["target_encode"] = max(worst["target_encode"], float(np.abs(a - b).max()))
        else:
            _require(bool((np.isnan(a) == np.isnan(b)).all()), f"missing values of {name}")
            worst["standardize"] = max(worst["standardize"], float(np.nanmax(np.abs(a - b))))
    _require(worst["target_encode"] <= 1e-6, f"target encodings: they differ by {worst['target_encode']}")
    _require(worst["standardize"] <= 1e-5, f"standardised numbers: they differ by {worst['standardize']}")
    return worst


def _same_groups(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two columns of codes are equal up to relabelling."""
    pairs = len(np.unique(a.astype(np.int64) << 32 | b.astype(np.int64)))
    return len(a) == len(b) and pairs == len(np.unique(a)) == len(np.unique(b))


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise SystemExit(f"The contenders do not agree on {what}: nothing is reported")


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    sys.exit(main())
