"""The pipeline of flights.yaml as a Python script that a scheduler can call.

    python pipelines/flights.py                  # prints the metrics; the exit code says how it went
    python pipelines/flights.py --json           # one JSON object on standard output, progress on standard error
    python pipelines/flights.py --set model.rounds=50 --min-auc 0.69

Exit codes are those of the command line: 0 done, 2 configuration, 3 data, 4 resources, 6 the gate of ``--min-auc``.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import tabgpu
from tabgpu import steps

ROOT = Path(__file__).resolve().parent.parent
IGNORED = ["dep_time", "dep_delay", "arr_time", "air_time", "year", "month", "day"]
WEATHER = ["temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib"]

PIPELINE = {
    "version": 1,
    "name": "flights",
    "data": {
        "source": str(ROOT / "data/flights/*.parquet"),
        "columns": {"time_hour": {"zone": "America/New_York"}, **{name: {"kind": "ignore"} for name in IGNORED}},
        "join": [
            {
                "name": "weather",
                "source": str(ROOT / "data/weather.parquet"),
                "by": ["origin", "time_hour"],
                "prefix": "w_",
                "columns": WEATHER,
            },
            {
                "name": "planes",
                "source": str(ROOT / "data/planes.parquet"),
                "by": ["tailnum"],
                "prefix": "p_",
                "columns": ["year", "seats"],
            },
        ],
        "derive": {
            "late": "arr_delay >= 15",
            "departs": "hour * 60 + minute",
            "arrives": "sched_arr_time // 100 * 60 + sched_arr_time % 100",
            "duration": "(arrives - departs) % 1440",
            "speed": "distance / duration",
            "age": "2013 - p_year",
        },
        "filter": "not missing(arr_delay)",
        "target": "late",
        "time": "time_hour",
    },
    "split": {"by": "time", "valid": "2013-10-01", "test": "2013-11-01"},
    "features": [
        steps.dates(columns=["time_hour"], parts=["weekday"]),
        steps.target_encode(
            name="rate",
            columns=[
                "carrier",
                "dest",
                "tailnum",
                ["origin", "hour"],
                ["hour", "time_hour_weekday"],
                ["carrier", "origin"],
            ],
            folds=5,
            smooth=50,
        ),
        steps.categorify(columns=["carrier", "origin", "dest"], min_count=10),
        steps.drop(columns=["minute", "flight", "sched_dep_time", "sched_arr_time", "p_year"]),
    ],
    "model": {
        "kind": "xgboost",
        "objective": "binary:logistic",
        "rounds": 500,
        "early_stopping": 60,
        "params": {
            "max_depth": 6,
            "eta": 0.04,
            "subsample": 0.7,
            "colsample_bytree": 0.6,
            "min_child_weight": 10,
            "lambda": 20,
            "eval_metric": "auc",
        },
    },
    "output": str(ROOT / "runs"),
}


def main() -> int:
    """Run the pipeline; return the exit code."""
    parser = argparse.ArgumentParser(description="Train the flights model.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key")
    parser.add_argument("--min-auc", type=float, metavar="AUC", help="fail with exit code 6 below this test AUC")
    args = parser.parse_args()
    try:
        run = tabgpu.run(PIPELINE, set=args.set, progress=lambda message: print(message, file=sys.stderr))
    except tabgpu.TabgpuError as error:
        print(f"{Path(__file__).name}: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(run.summary) if args.json else run)
    if args.min_auc is not None and run.metrics["test"]["auc"] < args.min_auc:
        print(f"The test AUC is below {args.min_auc}", file=sys.stderr)
        return tabgpu.GateError.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
