"""What the GPU engine asks of the real libraries that they can answer without a GPU."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pylibcudf", reason="needs the RAPIDS wheels: scripts/contract")
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pylibcudf  # noqa: TID251 - this is about pylibcudf itself
import xgboost

from tabgpu.engine.gpu import GpuEngine, conversion, trained_on
from tabgpu.engine.gpu.streams import StreamStore
from tabgpu.errors import ResourceError


def test_every_type_that_is_converted_is_one_of_libcudf() -> None:
    assert set(conversion._NUMBERS) <= set(pylibcudf.TypeId.__members__)
    assert {"STRING"} <= set(pylibcudf.TypeId.__members__)
    assert pylibcudf.copying.OutOfBoundsPolicy.DONT_CHECK is not None


def test_options_of_the_reader_are_taken(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "x.parquet")
    source = pylibcudf.io.SourceInfo([str(tmp_path / "x.parquet")])
    builder = pylibcudf.io.parquet.ParquetReaderOptions.builder(source)
    options = builder.use_arrow_schema(False).use_pandas_metadata(False).build()
    options.set_row_groups([[0]])
    options.set_column_names(["x"])
    with pytest.raises(FileNotFoundError):
        pylibcudf.io.SourceInfo([str(tmp_path / "none.parquet")])


def test_an_engine_is_made_without_touching_the_device() -> None:
    engine = GpuEngine()
    assert (engine.name, engine.device) == ("gpu", "cuda")
    assert engine.to_arrow  # it is a complete object
    array = np.arange(3)
    assert engine.to_host(array) is array


def test_xgboost_shares_the_pool_where_it_is_the_devices_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """XGBoost refuses the switch where there is no driver, so it is not turned here."""
    seen: list[Any] = []
    monkeypatch.setattr(xgboost, "config_context", lambda **keywords: seen.append(keywords) or nullcontext())
    engine = GpuEngine()
    for shared, expected in ((None, []), (object(), [{"use_cuda_async_pool": True}])):
        engine._memory = SimpleNamespace(shared=shared)
        with engine.training():
            assert seen == expected


def test_a_booster_that_was_trained_on_the_cpu_is_found_out() -> None:
    matrix = xgboost.DMatrix(np.arange(20.0).reshape(10, 2), np.arange(10) % 2)
    booster = xgboost.train({"tree_method": "hist", "nthread": 1}, matrix, 1)
    assert trained_on(booster) == "cpu"
    with pytest.raises(ResourceError, match="trained on 'cpu', not on the GPU"):
        GpuEngine().check_trained(booster)
    config = booster.save_config().replace('"device":"cpu"', '"device":"cuda:0"')
    GpuEngine().check_trained(SimpleNamespace(save_config=lambda: config))


def test_a_stage_is_an_nvtx_range_with_a_peak() -> None:
    engine, seen = GpuEngine(), list[str]()

    @contextmanager
    def stage(name: str) -> Any:
        seen.append(name)
        yield

    engine._memory = SimpleNamespace(peaks=SimpleNamespace(stage=stage))
    with engine.stage("features"):
        assert seen == ["features"]


def test_streams_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []

    def stream(non_blocking: bool) -> object:
        assert non_blocking  # one that waits for the default stream overlaps with nothing
        made.append(object())
        return made[-1]

    monkeypatch.setattr("tabgpu.engine.gpu.streams.cupy.cuda.Stream", stream)
    store = StreamStore()
    with store.borrow() as first, store.borrow() as second:
        assert first.reader is not second.reader
    with store.borrow(), store.borrow():
        pass
    assert len(made) == 2


def test_hashes_of_libcudf_are_computed_with_seed_zero_of_uint64() -> None:
    """The default seed is zero too: `tabgpu.hashing` uses no other."""
    assert pylibcudf.hashing.LIBCUDF_DEFAULT_HASH_SEED == 0
