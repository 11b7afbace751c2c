"""Whole pipelines on a device that refuses every array of the host give what the CPU gives."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from device import XP, Device, DeviceEngine
from tables import pipeline, visits, with_all_that_there_is, write_parts

import tabgpu
from tabgpu import engine as engines
from tabgpu.hardware import FakeHardware, GpuFacts, SystemHardware
from tabgpu.train import booster
from tabgpu.train.iterator import BlockIterator


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put all work on the device; XGBoost, which has none here, is handed what lies under its arrays."""
    feed, predict = BlockIterator.next, booster.predict

    def next_block(self: BlockIterator, input_data: Any) -> bool:
        def hand_over(**arrays: Any) -> None:
            for name in ("data", "label"):
                assert isinstance(arrays[name], Device), name
            input_data(**{k: v.get() if isinstance(v, Device) else v for k, v in arrays.items()})

        return feed(self, hand_over)

    def predict_rows(model: Any, features: Any, *args: Any, **keywords: Any) -> Any:
        assert isinstance(features, Device)
        return Device(predict(model, features.get(), *args, **keywords))

    monkeypatch.setitem(sys.modules, "cupy", XP)
    monkeypatch.setattr(BlockIterator, "next", next_block)
    monkeypatch.setattr(booster, "predict", predict_rows)
    monkeypatch.setattr(engines, "resolve", lambda *args, **keywords: (DeviceEngine(), "a test"))


def one_gpu(folder: Path) -> FakeHardware:
    return FakeHardware(SystemHardware().host(folder), (GpuFacts(0, "none", 16_000_000_000, 16_000_000_000),))


def by_default(source: Path, folder: Path) -> dict[str, Any]:
    return pipeline(source, folder / "runs")


@pytest.mark.parametrize("configured", [by_default, with_all_that_there_is])
def test_a_run_on_the_device_is_that_on_the_cpu(
    tmp_path: Path, request: pytest.FixtureRequest, configured: Callable[..., dict[str, Any]]
) -> None:
    source = write_parts(visits(400), tmp_path / "in", [250, 150], 60)
    config = {**configured(source, tmp_path), "memory": {"chunk_rows": 70}}
    here = tabgpu.run(config)
    tabgpu.score(here.folder, str(source), tmp_path / "here")
    request.getfixturevalue("device")
    there = tabgpu.run(config, hardware=one_gpu(tmp_path))
    assert there.metrics == here.metrics
    assert there.summary["model_digest"] == here.summary["model_digest"]
    tabgpu.score(there.folder, str(source), tmp_path / "there")
    for path in (tmp_path / "here").rglob("*.parquet"):
        assert pq.read_table(path).equals(pq.read_table(tmp_path / "there" / path.name))


def test_features_of_the_device_are_those_of_the_cpu(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    source = write_parts(visits(400), tmp_path / "in", [250, 150], 60)
    config = {**pipeline(source, tmp_path / "runs"), "model": None}
    here = tabgpu.run(config)
    request.getfixturevalue("device")
    there = tabgpu.run(config, hardware=one_gpu(tmp_path))
    for path in (here.folder / "features").rglob("*.parquet"):
        assert pq.read_table(path).equals(pq.read_table(there.folder / "features" / path.name))
