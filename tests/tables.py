"""Small tables that the tests of whole pipelines share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

N_ROWS = 900


def visits(n_rows: int = N_ROWS, seed: int = 0) -> pa.Table:
    """Numbers, text, times and missing values; the target depends on all of them."""
    rng = np.random.default_rng(seed)
    town = rng.integers(0, 12, n_rows)
    shop = rng.integers(0, 200, n_rows)
    age = rng.normal(40, 12, n_rows)
    visits_before = rng.integers(0, 9, n_rows)
    when = np.sort(rng.integers(0, 365 * 86_400, n_rows)) + 1_356_998_400
    logit = (town % 4 - 1.5) + (age - 40) / 20 + 0.2 * visits_before - 0.8 + 0.3 * (when // 3600 % 24 > 12)
    bought = rng.random(n_rows) < 1 / (1 + np.exp(-logit))
    return pa.table(
        {
            "id": pa.array(np.arange(n_rows) + 1_000),
            "town": pa.array([f"town {t}" for t in town], mask=rng.random(n_rows) < 0.04),
            "shop": pa.array([f"s{s:03d}" for s in shop]),
            "age": pa.array(age.astype(np.float32), mask=rng.random(n_rows) < 0.1),
            "visits": pa.array(visits_before.astype(np.int16), mask=rng.random(n_rows) < 0.05),
            "when": pa.array(when, pa.timestamp("s", tz="UTC")),
            "spent": pa.array(np.where(bought, rng.gamma(2, 20, n_rows), 0.0)),
            "bought": pa.array(bought.astype(np.int8)),
        }
    )


def write_parts(table: pa.Table, folder: Path, sizes: list[int], row_group_size: int) -> Path:
    """Write a table as files of `sizes` rows, called 00.parquet, 01.parquet and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    start = 0
    for number, size in enumerate(sizes):
        pq.write_table(table.slice(start, size), folder / f"{number:02d}.parquet", row_group_size=row_group_size)
        start += size
    return folder


STEPS: list[dict[str, Any]] = [
    {"dates": {"columns": ["when"], "parts": ["month", "weekday", "hour"]}},
    {"fill": {"columns": ["age"], "value": "median", "indicator": True}},
    {"fill": {"name": "counts", "columns": ["visits"], "value": "most_frequent"}},
    {"log": {"columns": ["visits"]}},
    {"standardize": {"columns": ["age"]}},
    {"quantile_bins": {"columns": ["age"], "bins": 4}},
    {"cross": {"columns": [["town", "shop"]]}},
    {"count_encode": {"columns": ["shop", ["town", "shop"]]}},
    {"target_encode": {"name": "rate", "columns": ["shop", ["town", "when_hour"]], "folds": 3, "smooth": 5}},
    {"categorify": {"columns": ["town", "town_x_shop"], "min_count": 2}},
]


def pipeline(source: Path, output: Path, **changes: Any) -> dict[str, Any]:
    """A pipeline over `visits` with every kind of step."""
    return {
        "version": 1,
        "name": "visits",
        "data": {
            "source": str(source),
            "target": "bought",
            "columns": {"spent": {"kind": "ignore"}, "id": {"kind": "ignore"}},
        },
        "features": STEPS,
        "model": {"objective": "binary:logistic", "rounds": 12, "params": {"max_depth": 3, "eta": 0.3}},
        "output": str(output),
        **changes,
    }


def with_all_that_there_is(source: Path, folder: Path, **changes: Any) -> dict[str, Any]:
    """Joined, derived and filtered columns, a key, weights, a split by time, and a number to predict."""
    towns = pa.table({"town": [f"town {t}" for t in range(10)], "size": np.arange(10.0), "coast": ["yes", "no"] * 5})
    pq.write_table(towns, folder / "towns.parquet")
    data = {
        "source": str(source),
        "target": "spent",
        "key": "id",
        "weight": "w",
        "time": "when",
        "derive": {"w": "1 + visits % 3", "old": "age > 60", "where": "coalesce(t_coast, 'nowhere')"},
        "filter": "not missing(visits)",
        "join": [{"name": "towns", "source": str(folder / "towns.parquet"), "by": ["town"], "prefix": "t_"}],
    }
    model = {"objective": "reg:squarederror", "rounds": 12, "early_stopping": 4, "params": {"max_depth": 4}}
    return {
        "version": 1,
        "name": "all",
        "data": data,
        "split": {"by": "time", "valid": 0.2, "test": 0.2},
        "features": [
            {"fill": {"columns": ["t_size"], "value": "mean"}},
            {"clip": {"columns": ["age"], "lower": 10.0, "upper": 70.0}},
            {"target_encode": {"name": "r", "columns": ["shop", ["town", "where"]], "folds": 3, "smooth": 5}},
            {"categorify": {"columns": ["where", "town"], "max_levels": 5}},
        ],
        "model": model,
        "output": str(folder / "runs"),
        **changes,
    }
