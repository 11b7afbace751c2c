"""Benchmark train5m: XGBoost models on 5,000,000 x 30 float32, 50 rounds of depth 6.

    python scripts/bench/train5m.py --rows 5000000 --repeats 3 [--json FILE] [--scale 0.1]

Four contenders: tabgpu with ``cuts: own`` and with ``cuts: exact``, and XGBoost alone with its documented iterator and
with pandas (`train5m_xgboost.py`). The gate, on 200,000 rows that none of them saw: ``cuts: exact`` predicts what the
model of pandas predicts, to the bit, and the AUC of ``cuts: own`` is at most 0.0005 lower (for fewer rows more, as the
square root of their share: other cuts make other trees). Without it nothing is reported.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import pyarrow as pa
import xgboost as xgb
from make_train5m import FEATURES, ROWS_A_GROUP, make, row_group
from measure import TABGPU, Sample, interleave, report, run, save
from sklearn.metrics import roc_auc_score

HERE = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(description="tabgpu and XGBoost alone on 5M x 30.")
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the rows")
    parser.add_argument("--limit", default="900MB", help="memory.limit of tabgpu")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=3, help="0: the run that the gate reads alone")
    parser.add_argument("--folder", type=Path, default=HERE.parent.parent / "build" / "bench")
    parser.add_argument("--json", type=Path, help="write all that was measured to this file")
    args = parser.parse_args()
    rows, folder = int(args.rows * args.scale), args.folder.resolve()
    data = folder / f"train5m_{rows}"
    make(data, rows)
    pipeline = write_pipeline(data, folder, args.rounds, args.limit)
    peer = [sys.executable, str(HERE / "train5m_xgboost.py")]
    contenders = {
        "xgboost iterator": [*peer, "iterator", str(data), str(folder / "iterator.ubj"), str(args.rounds)],
        "xgboost pandas": [*peer, "pandas", str(data), str(folder / "pandas.ubj"), str(args.rounds)],
        "tabgpu own": [*TABGPU, "run", str(pipeline), "--json"],
        "tabgpu exact": [*TABGPU, "run", str(pipeline), "--set", "model.cuts=exact", "--json"],
    }
    shutil.rmtree(folder / "runs", ignore_errors=True)
    warm = {name: run(command, folder) for name, command in contenders.items()}
    if any(s.exit_code for s in warm.values()):
        return 1
    facts = {"rows": rows, "rounds": args.rounds, "limit": args.limit, **gate(warm, folder, rows)}
    samples = interleave(contenders, args.repeats, folder) if args.repeats else {n: [s] for n, s in warm.items()}
    save(report(f"train5m, {rows:,} rows", samples, "xgboost iterator", facts), args.json)
    return max(s.exit_code != 0 for runs in samples.values() for s in runs)


def write_pipeline(data: Path, folder: Path, rounds: int, limit: str) -> Path:
    """The pipeline file, and its path: every row trains, none is held out."""
    file = folder / "train5m.yaml"
    parameters = {"max_depth": 6, "eta": 0.3, "nthread": 2}
    pipeline = {
        "version": 1,
        "name": "train5m",
        "data": {"source": str(data), "target": "y"},
        "split": {"by": "random", "valid": 0, "test": 0},
        "features": [],
        "model": {"kind": "xgboost", "objective": "binary:logistic", "rounds": rounds, "params": parameters},
        "memory": {"limit": limit},
        "output": str(folder / "runs"),
    }
    file.write_text(json.dumps(pipeline, indent=1))  # JSON is YAML
    return file


def gate(warm: dict[str, Sample], folder: Path, rows: int) -> dict[str, object]:
    """AUC of all four on unseen rows; raises SystemExit where they do not agree."""
    models = {name: folder / f"{name.split()[1]}.ubj" for name in warm if name.startswith("xgboost")}
    for name in ("tabgpu own", "tabgpu exact"):
        models[name] = Path(json.loads(warm[name].output)["run"]) / "model" / "model.ubj"
    schema = pa.schema([(name, pa.float32()) for name in FEATURES] + [("y", pa.int8())])
    unseen = row_group(1_000_000, ROWS_A_GROUP, schema)
    x = np.column_stack([unseen[name].to_numpy() for name in FEATURES])
    predicted = {name: xgb.Booster(model_file=str(file)).inplace_predict(x) for name, file in models.items()}
    aucs = {name: float(roc_auc_score(unseen["y"].to_numpy(), p)) for name, p in predicted.items()}
    different = int((predicted["tabgpu exact"] != predicted["xgboost pandas"]).sum())
    tolerance = 0.0005 * max(1.0, 5_000_000 / rows) ** 0.5
    if different or aucs["tabgpu own"] < aucs["xgboost pandas"] - tolerance:
        raise SystemExit(f"The models do not agree: {different} predictions of cuts: exact differ; AUC {aucs}")
    return {"auc": aucs, "predictions_that_differ": different}


if __name__ == "__main__":
    sys.exit(main())
