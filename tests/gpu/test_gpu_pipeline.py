"""Whole pipelines on the device: rows, sides and features of the host, metrics close to it; bundles; frames of cuDF."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gpu_device import STANDIN, needs, same_floats
from tables import pipeline, visits, with_all_that_there_is, write_parts

import tabgpu

pytestmark = pytest.mark.gpu
N_ROWS = 400 if STANDIN else 20_000
METRIC_TOLERANCE = 0.01  # absolute; trees of the device round gradients otherwise than those of the host
FEATURE_TOLERANCE = 1e-6  # relative, of float features


def by_default(source: Path, folder: Path) -> dict[str, Any]:
    return pipeline(source, folder / "runs")


PIPELINES = [by_default, with_all_that_there_is]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    half = N_ROWS // 2
    return write_parts(visits(N_ROWS), tmp_path / "in", [half, N_ROWS - half], max(60, N_ROWS // 8))


def features(run: Any) -> pa.Table:
    return pa.concat_tables([pq.read_table(p) for p in sorted((run.folder / "features").rglob("*.parquet"))])


def check_features(here: pa.Table, there: pa.Table) -> None:
    """Codes, sides and keys equal; floats to the tolerance."""
    assert here.schema == there.schema
    for name in here.column_names:
        if pa.types.is_floating(here[name].type):
            left, right = (t[name].to_numpy() for t in (here, there))
            assert same_floats(left, right, FEATURE_TOLERANCE), name
        else:
            assert here[name].equals(there[name]), name


def check_metrics(here: Mapping[str, Any], there: Mapping[str, Any]) -> None:
    assert here.keys() == there.keys()
    for side, values in here.items():
        for name, value in values.items():
            scale = max(1.0, abs(value))  # errors of a number have its unit
            assert there[side][name] == pytest.approx(value, abs=METRIC_TOLERANCE * scale), (side, name)


@pytest.mark.parametrize("configured", PIPELINES)
def test_features_sides_and_keys_are_those_of_the_host(
    tmp_path: Path, source: Path, engine: Any, hardware: Any, put_on: Any, configured: Callable[..., dict[str, Any]]
) -> None:
    config = {**configured(source, tmp_path), "model": None}
    here = tabgpu.run(config, set={"engine": "cpu"})
    put_on(engine)
    there = tabgpu.run(config, hardware=hardware)
    assert there.summary["rows"] == here.summary["rows"]
    check_features(features(here), features(there))
    smaller = tabgpu.run(config, set={"memory.chunk_rows": N_ROWS // 7}, hardware=hardware)
    assert features(smaller).equals(features(there))  # on one engine to the bit


@pytest.mark.parametrize("configured", PIPELINES)
def test_a_run_is_close_to_that_of_the_host_and_travels(
    tmp_path: Path, source: Path, engine: Any, hardware: Any, put_on: Any, configured: Callable[..., dict[str, Any]]
) -> None:
    config = configured(source, tmp_path)
    here = tabgpu.run(config, set={"engine": "cpu"})
    tabgpu.score(here.folder, str(source), tmp_path / "here")
    put_on(engine)
    there = tabgpu.run(config, hardware=hardware)
    assert there.plan.engine == engine.name
    assert there.summary["rows"] == here.summary["rows"]
    check_metrics(here.metrics, there.metrics)
    tabgpu.score(there.folder, str(source), tmp_path / "there")
    scored = [pq.read_table(p) for p in sorted((tmp_path / "there").rglob("*.parquet"))]
    assert sum(t.num_rows for t in scored) == N_ROWS
    model = there.model
    frame = pa.concat_tables([pq.read_table(p) for p in sorted(source.iterdir())])
    predicted = np.asarray(model.predict(frame))
    written = np.concatenate([t["prediction"].to_numpy() for t in scored])
    np.testing.assert_array_equal(predicted, written)  # rows in order, by file and by frame
    np.testing.assert_array_equal(np.asarray(pickle.loads(pickle.dumps(model)).predict(frame)), predicted)
    if here.model.labels:
        left, right = (np.asarray(m.predict_proba(frame))[:, 1] for m in (here.model, model))
        assert np.abs(left - right).mean() < METRIC_TOLERANCE


def test_a_bundle_of_the_device_scores_on_the_host(
    tmp_path: Path, source: Path, engine: Any, hardware: Any, put_on: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on(engine)
    run = tabgpu.run(by_default(source, tmp_path), hardware=hardware)
    frame = pq.read_table(source / "00.parquet")
    there = np.asarray(run.model.predict_proba(frame))
    monkeypatch.undo()
    here = np.asarray(tabgpu.load(run.folder, engine="cpu").predict_proba(frame))
    np.testing.assert_allclose(here, there, atol=1e-5)


def test_frames_of_cudf_come_in_and_go_out(tmp_path: Path, source: Path, gpu: Any, hardware: Any, put_on: Any) -> None:
    needs("cudf")
    import cudf  # noqa: TID251 - the frames under test

    put_on(gpu)
    model = tabgpu.run(by_default(source, tmp_path), hardware=hardware).model
    table = pq.read_table(source / "00.parquet")
    frame = cudf.DataFrame.from_arrow(table)
    frame.index = cudf.RangeIndex(7, 7 + len(frame))
    made = model.transform(frame)
    assert isinstance(made, cudf.DataFrame)
    assert made.index.to_pandas().tolist() == list(range(7, 7 + len(frame)))
    check_features(model.transform(table), made.to_arrow(preserve_index=False).cast(model.transform(table).schema))
    ours, theirs = (np.asarray(p.get() if hasattr(p, "get") else p) for p in map(model.predict_proba, (frame, table)))
    np.testing.assert_array_equal(ours, theirs)


def test_the_gpu_engine_is_what_auto_takes(gpu: Any) -> None:
    from tabgpu import engine as engines

    needs("pylibcudf")
    chosen, reason = engines.resolve("auto")
    assert chosen.name == gpu.name == "gpu"
    assert reason
