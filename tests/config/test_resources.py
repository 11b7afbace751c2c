"""``memory:`` and ``cluster:``: what loads, what contradicts itself, and names that are gone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabgpu.config import Cluster, Memory, load
from tabgpu.config.resources import _REMOVED
from tabgpu.config.yaml12 import parse
from tabgpu.errors import ConfigError

BASE: dict[str, Any] = {"version": 1, "data": {"source": "x.parquet"}}


def refusal(**sections: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load({**BASE, **sections})
    error = caught.value
    assert error.happened
    assert error.expected
    assert error.remedy
    return str(error)


_SIZES = st.none() | st.sampled_from([0.2, 0.9, "1GB", "20GB", 3 * 10**9])
_OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(["device_memory_limit", "rmm_pool_size", "rmm_maximum_pool_size", "memory_limit"], _SIZES),
        **dict.fromkeys(["rmm_async", "rmm_managed_memory", "enable_cudf_spill"], st.none() | st.booleans()),
        "rmm_release_threshold": _SIZES,
        "CUDA_VISIBLE_DEVICES": st.sampled_from([None, "0", "0,1", [1, 0], "0,0", ""]),
    },
)


@given(
    _OPTIONS,
    st.sampled_from([{"workers": 1}, {"workers": 2}, {"address": "tcp://h:1"}, {"scheduler_file": "s"}]),
    st.sampled_from(["cpu", "gpu", "auto"]),
    st.sampled_from([{}, {"device_limit": "10GB", "pool": "fixed"}, {"spill": False, "limit": 0.5}, {"spill": True}]),
)
@settings(max_examples=50, deadline=None)
def test_what_is_accepted_has_no_contradiction(
    options: dict[str, Any], where: dict[str, Any], engine: str, memory: dict[str, Any]
) -> None:
    try:
        pipeline = load({**BASE, "cluster": {**where, **options}, "engine": engine, "memory": memory})
    except ConfigError:
        return
    made = pipeline.cluster
    assert made is not None
    assert made.workers is not None or not made.given()
    assert not (made.rmm_async and (made.rmm_managed_memory or made.rmm_pool_size is not None))
    assert made.rmm_release_threshold is None or made.rmm_async
    assert made.rmm_maximum_pool_size is None or made.rmm_async or made.rmm_pool_size is not None
    assert engine != "cpu" or not made.device_options()
    assert made.enable_cudf_spill is None or pipeline.memory.spill in ("auto", made.enable_cudf_spill)
    assert pipeline.memory.pool.kind != "fixed" or not (made.rmm_async or made.rmm_managed_memory)
    if made.CUDA_VISIBLE_DEVICES is not None:
        assert len(set(made.CUDA_VISIBLE_DEVICES)) == len(made.CUDA_VISIBLE_DEVICES) >= (made.workers or 1)
    assert load(parse(pipeline.to_yaml(), "x").tree) == pipeline


def test_every_option_loads_under_its_known_name(tmp_path: Any) -> None:
    options = {
        "workers": 2,
        "timeout": 300,
        "threads_per_worker": 1,
        "memory_limit": "16GB",
        "device_memory_limit": 0.8,
        "rmm_async": True,
        "rmm_maximum_pool_size": "30GB",
        "rmm_release_threshold": "25GiB",
        "enable_cudf_spill": True,
        "protocol": "ucx",
        "interface": "ib0",
        "local_directory": "scratch",
        "CUDA_VISIBLE_DEVICES": "0,1",
    }
    path = tmp_path / "f.yaml"
    path.write_text(f"version: 1\ndata: {{source: x}}\ncluster: {options!r}\n".replace("True", "true"))
    made = load(path).cluster
    assert made is not None
    assert made.CUDA_VISIBLE_DEVICES == ("0", "1")
    assert made.local_directory == str(tmp_path / "scratch")
    assert load(path).to_tree()["cluster"]["local_directory"] == "scratch"
    managed = Cluster(workers=1, rmm_managed_memory=True, rmm_pool_size=0.5, rmm_maximum_pool_size=0.9)
    assert managed.given(["rmm_pool_size"]) == ["rmm_pool_size"]


@pytest.mark.parametrize("devices", [0, "0", ["0"], [0], (0,)])
def test_devices_are_numbers_or_names(devices: Any) -> None:
    assert Cluster(workers=1, CUDA_VISIBLE_DEVICES=devices).CUDA_VISIBLE_DEVICES == ("0",)
    assert load({**BASE, "cluster": {"workers": 1}}, ["cluster.CUDA_VISIBLE_DEVICES=GPU-1a"]).cluster


def test_readers_stand_beside_the_rows_of_a_chunk() -> None:
    assert Memory().readers == "auto"
    assert load(BASE, ["memory.readers=3"]).memory.readers == 3
    assert "Did you mean memory.readers?" in refusal(readers=2)
    for wrong in (0, 1.5, "many", True):
        assert "memory.readers is" in refusal(memory={"readers": wrong})


@pytest.mark.parametrize("name", sorted(_REMOVED))
def test_names_that_are_gone_say_what_took_their_place(name: str) -> None:
    message = refusal(cluster={"workers": 2, name: True})
    assert repr(name) in message
    assert _REMOVED[name].split(":")[0] in message
    assert name not in Cluster.model_fields


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        ({"workers": 2, "rmm_pool_sise": "1GB"}, ["'rmm_pool_sise'", "Did you mean 'rmm_pool_size'?"]),
        ({"workers": 2, "cuda_visible_devices": "0"}, ["Did you mean 'CUDA_VISIBLE_DEVICES'?"]),
        ({"workers": 2, "protocol": "ucxx"}, ["cluster.protocol is 'ucxx'", "Did you mean 'ucx'?"]),
        ({"workers": 2, "protocol": "tpc"}, ["Did you mean 'tcp'?"]),
        ({"workers": 0}, ["cluster.workers is 0"]),
        ({"workers": 2, "timeout": 0}, ["cluster.timeout is 0", "above 0"]),
        ({"workers": 2, "timeout": "1m"}, ["cluster.timeout is '1m'"]),
        ({"workers": 2, "threads_per_worker": 1.5}, ["threads_per_worker is 1.5", "whole number"]),
        ({"workers": 2, "rmm_async": "yes"}, ["rmm_async is 'yes'", "true or false"]),
        ({"workers": 2, "memory_limit": "auto"}, ["memory_limit is 'auto'", "'8GB'"]),
        ({"workers": 2, "memory_limit": 1.5}, ["memory_limit is 1.5", "fraction"]),
        ({"workers": 2, "rmm_async": True, "rmm_managed_memory": True}, ["rmm_managed_memory", "rmm_async", "one of"]),
        ({"workers": 2, "rmm_async": True, "rmm_pool_size": "1GB"}, ["rmm_pool_size is '1GB'", "grows by itself"]),
        ({"workers": 2, "rmm_release_threshold": "1GB"}, ["without rmm_async"]),
        ({"workers": 2, "rmm_release_threshold": "1GB", "rmm_pool_size": "1GB"}, ["without rmm_async"]),
        ({"workers": 2, "rmm_maximum_pool_size": "1GB"}, ["dask-cuda would ignore it"]),
        ({"workers": 2, "rmm_pool_size": "2GB", "rmm_maximum_pool_size": "1GB"}, ["not larger than its maximum"]),
        ({"address": "tcp://h:1", "rmm_pool_size": "1GB"}, ["cluster.address", "somebody else's"]),
        ({"scheduler_file": "s", "threads_per_worker": 2}, ["cluster.scheduler_file"]),
        ({"address": "tcp://h:1", "protocol": "ucx"}, ["cluster.protocol is 'ucx'"]),
        ({"workers": 3, "CUDA_VISIBLE_DEVICES": "0,1"}, ["cluster.workers is 3", "names 2"]),
        ({"workers": 1, "CUDA_VISIBLE_DEVICES": "0,0"}, ["'0,0'", "different GPUs"]),
        ({"workers": 1, "CUDA_VISIBLE_DEVICES": ""}, ["CUDA_VISIBLE_DEVICES is ''"]),
        ({"workers": 1, "CUDA_VISIBLE_DEVICES": [0.5]}, ["CUDA_VISIBLE_DEVICES"]),
    ],
)
def test_refusals_inside_cluster(cluster: dict[str, Any], words: list[str]) -> None:
    message = refusal(cluster=cluster)
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"memory": {"pool": "fixed"}, "cluster": {"rmm_async": True}}, ["memory.pool is 'fixed'", "rmm_async"]),
        ({"memory": {"pool": "fixed"}, "cluster": {"rmm_managed_memory": True}}, ["rmm_managed_memory"]),
        ({"memory": {"pool": {"kind": "fixed", "size": "2GB"}}, "cluster": {"rmm_pool_size": "1GB"}},
         ["memory.pool.size is '2GB'", "cluster.rmm_pool_size is '1GB'"]),
        ({"memory": {"pool": {"size": "2GB"}}, "cluster": {}}, ["memory.pool.size is '2GB'", "kind: fixed"]),
        ({"memory": {"spill": False}, "cluster": {"enable_cudf_spill": True}}, ["memory.spill is False"]),
        ({"memory": {"spill": True}, "cluster": {"enable_cudf_spill": False}}, ["memory.spill is True"]),
        ({"memory": {"device_limit": "8GB"}, "cluster": {"device_memory_limit": "9GB"}}, ["memory.device_limit"]),
        ({"memory": {"device_limit": 0.5}, "cluster": {"rmm_pool_size": 0.6}}, ["memory.device_limit is 0.5"]),
        ({"memory": {"limit": "8GB"}, "cluster": {"memory_limit": "9GB"}}, ["memory.limit is '8GB'"]),
        ({"engine": "cpu", "cluster": {"rmm_async": True}}, ["engine 'cpu'", "--set engine=gpu"]),
        ({"engine": "cpu", "cluster": {"protocol": "ucx"}}, ["cluster.protocol"]),
    ],
)  # fmt: skip
def test_refusals_between_sections(sections: dict[str, Any], words: list[str]) -> None:
    sections["cluster"] = {"workers": 1, **sections["cluster"]}
    message = refusal(**sections)
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    "sections",
    [
        {"memory": {"pool": "fixed"}, "cluster": {"rmm_pool_size": "1GB"}},
        {"cluster": {"rmm_pool_size": "1GB"}},
        {"memory": {"spill": True}, "cluster": {"enable_cudf_spill": True}},
        {"memory": {"device_limit": "8GB"}, "cluster": {"device_memory_limit": "8GB"}},
        {"memory": {"device_limit": 0.5}, "cluster": {"rmm_pool_size": "100GB"}},  # only the machine can tell
        {"engine": "cpu", "cluster": {"rmm_async": False, "memory_limit": "1GB"}},
    ],
)
def test_what_agrees_is_accepted(sections: dict[str, Any]) -> None:
    sections["cluster"] = {"workers": 1, **sections["cluster"]}
    assert load({**BASE, **sections}).cluster
