"""A real `LocalCUDACluster` of two workers, on processors: started with every option that is offered."""

from __future__ import annotations

import inspect
import time
from pathlib import Path
from typing import Any

import pytest
from dask_processes import HERE

pytest.importorskip("dask_cuda", reason="dask-cuda is not installed")

from dask_cuda import LocalCUDACluster, local_cuda_cluster
from dask_cuda.plugins import RMMSetup
from dask_jobs import CountJob
from distributed import LocalCluster

from tabgpu.config import Cluster
from tabgpu.errors import ClusterError
from tabgpu.runners import SerialRunner
from tabgpu.runners.dask import DaskRunner, cluster

pytestmark = pytest.mark.filterwarnings("default")  # of libraries that close sockets late

GB = 10**9
OPTIONS: dict[str, Any] = {
    "n_workers": 2,
    "threads_per_worker": 1,
    "memory_limit": 2 * GB,
    "protocol": "tcp",
    "interface": "lo",
    "processes": True,
    "CUDA_VISIBLE_DEVICES": [0, 1],
    "device_memory_limit": 0,
    "enable_cudf_spill": False,
}


def pool_alone(**options: Any) -> set[RMMSetup]:
    """The plugin that sets up RMM, which dask-cuda leaves out together with those that need a driver."""
    return {
        RMMSetup(
            initial_pool_size=options["rmm_initial_pool_size"],
            maximum_pool_size=options["rmm_maximum_pool_size"],
            managed_memory=options["rmm_managed_memory"],
            async_alloc=options["rmm_async_alloc"],
            release_threshold=options["rmm_release_threshold"],
            log_directory=options["rmm_log_directory"],
            track_allocations=options["rmm_track_allocations"],
            external_lib_list=options["rmm_allocator_external_lib_list"],
        )
    }


@pytest.fixture(autouse=True)
def _without_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_cuda_cluster, "worker_plugins", pool_alone)
    monkeypatch.setenv("DASK_CUDA_TEST_SINGLE_GPU", "1")
    monkeypatch.setenv("DASK_CUDA_TEST_DISABLE_DEVICE_SPECIFIC", "1")
    monkeypatch.setenv("PYTHONPATH", str(HERE / "host_memory"))


def opened(options: dict[str, Any], timeout_s: float = 60) -> DaskRunner:
    return DaskRunner(Cluster(workers=2, timeout=timeout_s), "gpu", options)


def test_every_option_is_one_of_the_clusters() -> None:
    ours = set(cluster._OPTIONS) | set(cluster._DEVICE_OPTIONS)
    theirs = {n for c in (LocalCluster, LocalCUDACluster) for n in inspect.signature(c.__init__).parameters}
    assert ours - {"memory_limit"} <= theirs
    assert "memory_limit" in inspect.signature(LocalCUDACluster.__init__).parameters


@pytest.mark.parametrize(
    "pool",
    [
        {"rmm_async": True, "rmm_maximum_pool_size": GB, "rmm_release_threshold": GB // 2, "rmm_managed_memory": False},
        {},
    ],
)
def test_two_workers_start_and_work(small: Any, tmp_path: Path, pool: dict[str, Any]) -> None:
    expected = SerialRunner().reduce(small.a.rows, CountJob(), small.a.tasks)
    with opened({**OPTIONS, "local_directory": str(tmp_path), **pool}) as runner:
        assert runner.workers == 2
        assert {one.memory_limit for one in runner.facts.values()} == {2 * GB}
        wanted = ("LimitingResourceAdaptor", "CudaAsyncMemoryResource") if pool else ()
        assert {one.pools for one in runner.facts.values()} == {wanted}
        runner.on._engine = "cpu"  # as there is no device, the work itself is done on processors
        assert runner.reduce(small.a.rows, CountJob(), small.a.tasks) == expected


def test_a_pool_that_cannot_be_made_is_no_wait(tmp_path: Path) -> None:
    began = time.monotonic()
    options = {**OPTIONS, "rmm_pool_size": GB, "local_directory": str(tmp_path)}
    with pytest.raises(ClusterError, match=r"could not be started|of 2 workers came within 5 s"), opened(options, 5):
        pass
    assert time.monotonic() - began < 40
