"""Frames of other libraries come in and go out in their own kind; a fitted pipeline travels as bytes."""

from __future__ import annotations

import pickle
import pickletools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tables import pipeline, visits, write_parts

import tabgpu
from tabgpu.frames import library_of

TABLE = visits(300)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tabgpu.Model:
    folder = tmp_path_factory.mktemp("frames")
    return tabgpu.run(pipeline(write_parts(TABLE, folder / "in", [300], 100), folder / "runs")).model


def test_a_model_travels(model: tabgpu.Model) -> None:
    blob = pickle.dumps(model)
    assert np.array_equal(pickle.loads(blob).predict_proba(TABLE), model.predict_proba(TABLE))
    assert sum("GLOBAL" in code.name for code, _, _ in pickletools.genops(blob)) == 1, "one function, and bytes"


def test_a_dask_frame_is_answered_by_a_dask_frame(model: tabgpu.Model) -> None:
    dd = pytest.importorskip("dask.dataframe", reason="dask is not installed")
    frame = TABLE.to_pandas().set_index(pd.Index(range(1000, 1300), name="row"))
    pieces = dd.from_pandas(frame, npartitions=4)
    assert library_of(pieces) == "dask"
    whole = model.predict_proba(frame)
    answered = model.predict_proba(pieces)
    assert answered.npartitions == 4
    assert list(answered.columns) == [str(label) for label in model.labels or ()]
    found = answered.compute(scheduler="synchronous")
    assert np.array_equal(found.to_numpy(), whole)
    assert found.index.equals(frame.index)
    predicted = model.predict(pieces).compute(scheduler="synchronous")
    assert predicted[str(model.target)].tolist() == model.predict(frame).tolist()
    features = model.transform(pieces).compute(scheduler="synchronous")
    pd.testing.assert_frame_equal(features, model.transform(frame))


def test_frames_are_data(tmp_path: Path) -> None:
    config = pipeline(tmp_path, tmp_path / "runs")
    del config["data"]["source"]
    done = tabgpu.run(config, data=TABLE, set={"model.rounds": 12})
    assert done.summary["rows"]["train"] > 100
    assert not list((tmp_path / "runs").glob(".data-*"))
    again = tabgpu.run(config, data=TABLE.to_pandas(), set=["model.rounds=12"])
    assert again.metrics.keys() == done.metrics.keys()


def test_a_dask_frame_needs_a_client(tmp_path: Path) -> None:
    dd = pytest.importorskip("dask.dataframe", reason="dask is not installed")
    pieces = dd.from_pandas(TABLE.to_pandas(), npartitions=2)
    with pytest.raises(tabgpu.ConfigError, match="no client"):
        tabgpu.run(pipeline(tmp_path, tmp_path / "runs"), data=pieces)


def test_another_dask_collection_is_refused(tmp_path: Path, model: tabgpu.Model) -> None:
    dd = pytest.importorskip("dask.dataframe", reason="dask is not installed")
    series = dd.from_pandas(TABLE.to_pandas(), npartitions=2)[TABLE.column_names[0]]
    for use in (
        lambda: tabgpu.run(pipeline(tmp_path, tmp_path / "runs"), data=series),
        lambda: model.predict(series),
    ):
        with pytest.raises(tabgpu.DataError, match="The data is a Dask Series"):
            use()
