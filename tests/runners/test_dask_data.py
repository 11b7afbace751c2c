"""A Dask data frame as the data of a run, on the client's own workers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tables import pipeline, visits

import tabgpu


def test_a_dask_frame_is_data(tmp_path: Path) -> None:
    dd = pytest.importorskip("dask.dataframe", reason="dask is not installed")
    distributed = pytest.importorskip("distributed", reason="distributed is not installed")
    table = visits(300)
    pieces = dd.from_pandas(table.to_pandas(), npartitions=3)
    config = pipeline(tmp_path, tmp_path / "runs")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as client,
    ):
        done = tabgpu.run(config, data=pieces, client=client)
        assert client.status == "running"
        answers = done.model.predict(dd.from_pandas(table.to_pandas(), npartitions=2))
        assert len(answers.compute()) == 300
    assert done.summary["runner"]["name"] == "dask"
    assert sum(done.summary["rows"].values()) == 300
    assert not list((tmp_path / "runs").glob(".data-*"))
