"""Benchmark train5m with XGBoost alone, in both ways that its documentation shows; writes the model.

    python scripts/bench/train5m_xgboost.py iterator|pandas DATA_FOLDER MODEL ROUNDS

`iterator`: a `DataIter` that hands over one Parquet row group at a time as a NumPy array, into a `QuantileDMatrix`.
`pandas`: the whole table as one DataFrame, into a `QuantileDMatrix`.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import xgboost as xgb

PARAMETERS = {"objective": "binary:logistic", "max_depth": 6, "eta": 0.3, "nthread": 2}


def main(way: str, data: str, model: str, rounds: str) -> None:
    files = sorted(Path(data).glob("*.parquet"))
    matrix = {"iterator": from_iterator, "pandas": from_pandas}[way](files)
    booster = xgb.train(PARAMETERS, matrix, int(rounds))
    booster.save_model(model)


def from_pandas(files: list[Path]) -> xgb.QuantileDMatrix:
    """All rows in one frame."""
    frame = pd.concat([pd.read_parquet(file) for file in files], ignore_index=True)
    return xgb.QuantileDMatrix(frame.drop(columns="y"), frame["y"])


def from_iterator(files: list[Path]) -> xgb.QuantileDMatrix:
    """One row group at a time."""
    return xgb.QuantileDMatrix(RowGroups(files))


class RowGroups(xgb.DataIter):
    """The row groups of Parquet files, in order."""

    def __init__(self, files: list[Path]) -> None:
        self._groups = [(file, i) for file in files for i in range(pq.ParquetFile(file).num_row_groups)]
        self._next = 0
        super().__init__()

    def next(self, input_data: Callable[..., Any]) -> bool:
        if self._next == len(self._groups):
            return False
        file, group = self._groups[self._next]
        x, y = arrays(pq.ParquetFile(file).read_row_group(group))
        input_data(data=x, label=y)
        self._next += 1
        return True

    def reset(self) -> None:
        self._next = 0


def arrays(table: Any) -> tuple[np.ndarray, np.ndarray]:
    """Features, shape (rows, features), and target."""
    names = [name for name in table.column_names if name != "y"]
    return np.column_stack([table[name].to_numpy() for name in names]), table["y"].to_numpy()


if __name__ == "__main__":
    main(*sys.argv[1:])
