"""Benchmark cluster with `xgboost.dask`, as its documentation shows it: a Dask data frame into a `DaskQuantileDMatrix`.

python scripts/bench/cluster_peer.py DATA_FOLDER ROUNDS
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import json
import logging
import sys
import time

import dask.dataframe as dd  # noqa: TID251  what is compared is Dask itself
import xgboost.dask as dxgb
from distributed import Client, LocalCluster, wait  # noqa: TID251


def main(data: str, rounds: str) -> None:
    began = time.monotonic()
    settings = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "silence_logs": logging.ERROR}
    with LocalCluster(**settings) as cluster, Client(cluster) as client:
        start = time.monotonic() - began
        frame = dd.read_parquet(data, split_row_groups=True).persist()
        wait(frame)
        target = frame["y"].persist()
        matrix = dxgb.DaskQuantileDMatrix(client, frame.drop(columns="y").persist(), target)
        parameters = {"objective": "binary:logistic", "max_depth": 6, "eta": 0.3, "tree_method": "hist"}
        dxgb.train(client, parameters, matrix, num_boost_round=int(rounds))
    print(json.dumps({"timings_s": {"start": start}}))


if __name__ == "__main__":
    main(*sys.argv[1:])
