"""Options of clusters: fractions become bytes, and no accepted set contradicts itself, the file or the machine."""

from __future__ import annotations

import importlib.util
import inspect
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabgpu.config import Cluster, Memory, load
from tabgpu.errors import ConfigError, ResourceError, TabgpuError
from tabgpu.hardware import GpuFacts, HostFacts
from tabgpu.planning import cluster_options, settings_of
from tabgpu.planning.settings import CLIENT_BYTES

GB = 10**9
HOST = HostFacts(cpus=16, memory_total=120 * GB, memory_available=100 * GB)
GPUS = [GpuFacts(i, "A100", 80 * GB, 70 * GB, uuid=f"GPU-{i}", nvlinks_active=12) for i in range(4)]

_SIZE = st.none() | st.sampled_from([0.1, 0.5, 0.9, 1.0, "1GB", "30GB", "75GB", 2 * GB + 1])
_FLAG = st.none() | st.booleans()
_CLUSTERS = st.fixed_dictionaries(
    {"workers": st.integers(1, 5)},
    optional={
        **dict.fromkeys(
            ["memory_limit", "device_memory_limit", "rmm_pool_size", "rmm_maximum_pool_size", "rmm_release_threshold"],
            _SIZE,
        ),
        **dict.fromkeys(["rmm_async", "rmm_managed_memory", "enable_cudf_spill"], _FLAG),
        "protocol": st.sampled_from(["auto", "tcp", "ucx"]),
        "CUDA_VISIBLE_DEVICES": st.none() | st.sampled_from(["0,1", [2, 3], 0, "GPU-1", ["0", "1", "2", "3"]]),
        "threads_per_worker": st.none() | st.integers(1, 4),
        "interface": st.none() | st.just("eth0"),
    },
)
_MEMORIES = st.fixed_dictionaries(
    {},
    optional={
        "limit": st.sampled_from(["auto", 0.5, "50GB"]),
        "device_limit": st.sampled_from(["auto", 0.5, "20GB", "80GB"]),
        "pool": st.sampled_from(["async", "fixed", {"kind": "fixed", "size": "10GB"}]),
        "spill": st.sampled_from(["auto", True, False]),
    },
)


@given(_CLUSTERS, _MEMORIES, st.booleans(), st.booleans())
@settings(max_examples=50, deadline=None)
def test_what_is_accepted_has_no_contradiction(
    cluster: dict[str, Any], memory: dict[str, Any], gpu: bool, ucx: bool
) -> None:
    tree = {"version": 1, "data": {"source": "x"}, "cluster": cluster, "memory": memory}
    try:
        pipeline = load(tree)
        assert pipeline.cluster is not None
        made = cluster_options(pipeline.cluster, pipeline.memory, HOST, GPUS if gpu else [], ucx)
    except TabgpuError:
        return  # its words are tested below
    assert not any(isinstance(value, float) for value in made.values())
    assert made["memory_limit"] * made["n_workers"] <= 100 * GB  # type: ignore[operator]  # both are int
    assert not (made.get("rmm_async") and (made.get("rmm_managed_memory") or "rmm_pool_size" in made))
    if "rmm_release_threshold" in made:
        assert made["rmm_async"]
    if "rmm_maximum_pool_size" in made:
        assert made.get("rmm_async") or "rmm_pool_size" in made
        assert made.get("rmm_pool_size", 0) <= made["rmm_maximum_pool_size"] <= 80 * GB  # type: ignore[operator]
    for name in ("rmm_pool_size", "rmm_maximum_pool_size", "rmm_release_threshold"):
        assert made.get(name, 0) % 256 == 0  # type: ignore[operator]
    if pipeline.memory.spill != "auto" and gpu:
        assert made.get("enable_cudf_spill") == pipeline.memory.spill
    if "CUDA_VISIBLE_DEVICES" in made:
        assert len(made["CUDA_VISIBLE_DEVICES"]) == made["n_workers"]  # type: ignore[arg-type]
    if not gpu:
        assert not {name for name in made if name.startswith(("rmm", "device", "enable", "CUDA"))}


def test_fractions_become_bytes() -> None:
    cluster = Cluster(
        workers=2,
        memory_limit=0.3,
        device_memory_limit=0.5,
        rmm_pool_size=0.75,
        threads_per_worker=2,
        local_directory="/scratch",
        interface="eth0",
        CUDA_VISIBLE_DEVICES="0,2",
        enable_cudf_spill=True,
    )
    memory = Memory(device_limit="75GB")
    assert cluster_options(cluster, memory, HOST, GPUS) == {
        "n_workers": 2,
        "threads_per_worker": 2,
        "memory_limit": 30 * GB,
        "local_directory": "/scratch",
        "interface": "eth0",
        "device_memory_limit": 40 * GB,
        "CUDA_VISIBLE_DEVICES": ["0", "2"],
        "rmm_pool_size": 60 * GB,
        "rmm_maximum_pool_size": 60 * GB,
        "enable_cudf_spill": True,
    }


def test_sizes_of_pools_are_multiples_of_256() -> None:
    made = cluster_options(Cluster(workers=1, rmm_pool_size=2 * GB + 255), Memory(), HOST, GPUS)
    assert made["rmm_pool_size"] == made["rmm_maximum_pool_size"] == 2 * GB
    options = {"rmm_async": True, "rmm_release_threshold": 2 * GB + 1, "rmm_maximum_pool_size": 4 * GB + 1}
    made = cluster_options(Cluster(workers=1, **options), Memory(), HOST, GPUS)
    assert (made["rmm_release_threshold"], made["rmm_maximum_pool_size"]) == (2 * GB, 4 * GB)


def test_what_is_left_out_is_left_to_the_engine() -> None:
    made = cluster_options(Cluster(workers=4), Memory(), HOST, GPUS)
    assert made == {
        "n_workers": 4,
        "threads_per_worker": 1,
        "memory_limit": (80 * GB - CLIENT_BYTES) // 4,
        "device_memory_limit": 63 * GB,
    }
    on_cpu = cluster_options(Cluster(workers=4), Memory(), HOST, [])
    assert on_cpu == {"n_workers": 4, "threads_per_worker": 1, "memory_limit": made["memory_limit"], "processes": True}


def test_ucx_is_chosen_by_topology() -> None:
    assert cluster_options(Cluster(workers=2), Memory(), HOST, GPUS, ucx=True)["protocol"] == "ucx"
    assert "protocol" not in cluster_options(Cluster(workers=2), Memory(), HOST, GPUS[:1] * 2, ucx=False)
    plain = [GpuFacts(i, "L4", 24 * GB, 20 * GB) for i in range(2)]
    assert "protocol" not in cluster_options(Cluster(workers=2), Memory(), HOST, plain, ucx=True)
    assert cluster_options(Cluster(workers=2, protocol="tcp"), Memory(), HOST, GPUS, ucx=True)["protocol"] == "tcp"


def test_slices_of_a_gpu_are_named() -> None:
    slices = [GpuFacts(i, "H200 MIG", 18 * GB, 17 * GB, uuid=f"MIG-{i}", mig=True) for i in range(2)]
    made = cluster_options(Cluster(workers=2, rmm_pool_size=0.5), Memory(), HOST, slices)
    assert made["CUDA_VISIBLE_DEVICES"] == ["MIG-0", "MIG-1"]
    assert made["rmm_pool_size"] == 9 * GB - 9 * GB % 256


def test_shared_memory_of_gpu_and_host_does_not_spill() -> None:
    unified = [GpuFacts(0, "GB10", 120 * GB, 100 * GB, unified_memory=True)]
    assert cluster_options(Cluster(workers=1), Memory(), HOST, unified)["device_memory_limit"] == 0
    with pytest.raises(ConfigError, match="enable_cudf_spill"):
        cluster_options(Cluster(workers=1, enable_cudf_spill=True), Memory(), HOST, unified)


@pytest.mark.parametrize(
    ("cluster", "memory", "gpus", "error", "words"),
    [
        ({"workers": 5}, {}, GPUS, ResourceError, ["cluster.workers is 5", "4 GPUs"]),
        ({"workers": 2, "rmm_pool_size": 0.95}, {}, GPUS, ResourceError, ["rmm_pool_size", "76 GB", "63 GB"]),
        ({"workers": 2, "rmm_pool_size": "30GB"}, {"device_limit": 0.25}, GPUS, ConfigError, ["rmm_pool_size"]),
        ({"workers": 2, "rmm_pool_size": 0.5, "rmm_maximum_pool_size": "9GB"}, {}, GPUS, ConfigError, ["maximum"]),
        ({"workers": 4, "memory_limit": "20GB"}, {"limit": 0.5}, [], ConfigError, ["80 GB in all", "50 GB"]),
        ({"workers": 4, "memory_limit": "40GB"}, {}, [], ResourceError, ["160 GB in all", "100 GB"]),
        ({"workers": 1, "rmm_async": True}, {}, [], ConfigError, ["rmm_async", "no GPU"]),
    ],
)
def test_sizes_that_do_not_go_together_on_this_machine(
    cluster: dict[str, Any], memory: dict[str, Any], gpus: Any, error: type[TabgpuError], words: list[str]
) -> None:
    with pytest.raises(error) as caught:
        cluster_options(Cluster(**cluster), Memory(**memory), HOST, gpus)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="distributed is not installed")
def test_keywords_are_those_of_local_cluster() -> None:
    from distributed import LocalCluster, Nanny  # noqa: TID251  # their signatures are what is tested

    made = cluster_options(
        Cluster(workers=1, interface="lo", local_directory="/tmp", threads_per_worker=2), Memory(), HOST, []
    )
    known = {*inspect.signature(LocalCluster).parameters, *inspect.signature(Nanny).parameters}
    assert made.keys() <= known
    if importlib.util.find_spec("dask_cuda") is None:
        return
    from dask_cuda import LocalCUDACluster  # noqa: TID251  # likewise

    every = {"rmm_pool_size": "1GB", "CUDA_VISIBLE_DEVICES": "0", "enable_cudf_spill": True, "protocol": "ucx"}
    other = {"rmm_async": True, "rmm_release_threshold": "1GB", "rmm_maximum_pool_size": "2GB"}
    for options in (every, other):
        made = cluster_options(Cluster(workers=1, **options), Memory(), HOST, GPUS)
        assert made.keys() <= {*inspect.signature(LocalCUDACluster).parameters, *known}


# --- what a plan reads from the file ---------------------------------------------------------------------------------


def settings_for(engine: str, cluster: dict[str, Any] | None = None, workers: int = 1, **memory: Any) -> Any:
    tree = {"version": 1, "data": {"source": "x", "target": "y", "weight": "w"}, "cluster": cluster, "memory": memory}
    pipeline = load({**tree, "model": {"objective": "binary:logistic", "params": {"max_bin": 128}}})
    return settings_of(pipeline, (engine, ""), ("dask", ""), HOST, GPUS, workers)


def test_settings_of_one_process() -> None:
    made = settings_for("cpu", limit="8GB", readers=3, chunk_rows=1000)
    assert (made.limit[0], made.device, made.readers, made.chunk_rows) == (8 * GB, None, 3, 1000)
    assert (made.max_bin, made.has_weight, made.threads, made.workers) == (128, True, 16, 1)
    made = settings_for("gpu", device_limit="8GB", pool="fixed")
    assert (made.device.limit[0], made.device.pool, made.device.pool_bytes) == (8 * GB, "fixed", None)


def test_settings_of_workers() -> None:
    made = settings_for("cpu", {"workers": 4, "threads_per_worker": 2}, 4)
    assert (made.limit[0], made.threads, made.link) == ((80 * GB - CLIENT_BYTES) // 4, 2, "loopback")
    made = settings_for("gpu", {"workers": 4, "rmm_pool_size": "20GB"}, 4)
    assert (made.device.pool, made.device.pool_bytes, made.link) == ("fixed", 20 * GB, "NVLink")
    made = settings_for("cpu", {"address": "tcp://h:8786"}, 8)
    assert (made.limit[0], made.link) == (80 * GB, "10 GbE")
    assert "each worker" in made.limit[1]
