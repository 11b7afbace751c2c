"""Judging workers by what they say of themselves: no cluster is needed for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("distributed", reason="the extra 'cluster' is not installed")

from tabgpu.errors import ConfigError, ResourceError
from tabgpu.hardware import GpuFacts, HostFacts, Limit
from tabgpu.runners.dask import Standing, lock
from tabgpu.runners.dask.checks import Facts, check_memory, check_versions, expected_pool, fingerprint, versions

GB = 10**9
MACHINE = HostFacts(cpus=8, memory_total=16 * GB, memory_available=12 * GB)
NO_GPU = ("No NVIDIA driver is installed", "Expected one", "Install the driver")
PLAIN = Facts({"numpy": "2.4", "tabgpu": "1"}, "here", 1, 4 * GB, MACHINE, (), NO_GPU, ())


def gpu(index: int = 0) -> GpuFacts:
    return GpuFacts(index=index, name="H100", memory_total=80 * GB, memory_free=70 * GB)


def test_versions_tell_the_source_and_not_the_build() -> None:
    found = versions()
    assert "source " in found["tabgpu"]
    assert {"numpy", "pyarrow", "distributed", "xgboost"} <= found.keys()
    assert not any(name.endswith(("-cpu", "-cu12")) for name in found)


def test_versions_that_differ_are_listed_by_worker() -> None:
    other = replace(PLAIN, versions={"numpy": "2.3"})
    check_versions(PLAIN.versions, {"a": PLAIN, "b": PLAIN})
    with pytest.raises(ConfigError, match=r"1 of 2 workers .* b \(numpy 2.3 instead of 2.4, tabgpu missing"):
        check_versions(PLAIN.versions, {"a": PLAIN, "b": other})
    with pytest.raises(ConfigError, match="and 3 more"):
        check_versions(PLAIN.versions, {str(n): other for n in range(9)})


def test_what_the_client_lacks_has_to_agree_among_workers() -> None:
    new, old = (replace(PLAIN, versions={**PLAIN.versions, "cudf": v}) for v in ("26.10", "26.08"))
    check_versions(PLAIN.versions, {"a": new, "b": new})
    with pytest.raises(ConfigError, match=r"1 of 2 workers .*cudf 26.08 instead of 26.10"):
        check_versions(PLAIN.versions, {"a": new, "b": old})


def test_workers_of_a_machine_may_not_take_more_than_it_has() -> None:
    workers = {str(n): PLAIN for n in range(4)}
    check_memory(workers, {})
    with pytest.raises(ResourceError, match="5 workers on here may take 20 GB"):
        check_memory({**workers, "5": PLAIN}, {})
    check_memory({**workers, "5": replace(PLAIN, host="there")}, {})
    limited = replace(PLAIN, machine=replace(MACHINE, limits=(Limit("cgroup", 3 * GB),)))
    with pytest.raises(ResourceError, match="the 7 GB there"):
        check_memory({"a": limited, "b": limited}, {})
    check_memory({"a": replace(limited, memory_limit=None)}, {})


@pytest.mark.parametrize(
    ("options", "pools", "fits"),
    [
        ({"rmm_async": True}, ("LimitingResourceAdaptor", "CudaAsyncMemoryResource"), True),
        ({"rmm_pool_size": GB, "rmm_managed_memory": True}, ("PoolMemoryResource", "ManagedMemoryResource"), True),
        ({"rmm_managed_memory": True}, ("ManagedMemoryResource",), True),
        ({"rmm_pool_size": GB}, ("CudaMemoryResource",), False),
        ({"rmm_async": True}, (), False),
    ],
)
def test_pools_that_were_asked_for_are_there(options: dict[str, Any], pools: tuple[str, ...], fits: bool) -> None:
    found = {"a": replace(PLAIN, pools=pools)}
    if fits:
        return check_memory(found, options)
    with pytest.raises(ResourceError, match=f"1 of 1 workers .* a has .*Expected {expected_pool(options)}"):
        check_memory(found, options)
    return None


def test_the_engine_is_what_all_workers_can_have() -> None:
    able = replace(PLAIN, gpus=(gpu(),), without_gpu=())
    assert Standing({"a": able, "b": able}).engine("auto") == ("gpu", "there is a H100 on each worker")
    assert Standing({"a": able}).engine("cpu") == ("cpu", "asked for")
    mixed = Standing({"a": able, "b": PLAIN})
    assert mixed.engine("auto") == ("cpu", "on 1 of 2 workers: No NVIDIA driver is installed")
    with pytest.raises(ResourceError, match=r"1 of 2 workers cannot have it \('b'\): No NVIDIA driver"):
        mixed.engine("gpu")
    assert mixed.gpus == (gpu(),)


def test_a_plan_is_made_for_the_worker_that_has_the_least() -> None:
    roomy = replace(PLAIN, host="there", memory_limit=None, machine=replace(MACHINE, memory_available=16 * GB))
    assert Standing({"a": PLAIN, "b": roomy}).host.smallest.n_bytes == 4 * GB
    assert Standing({"b": roomy}).host.smallest.n_bytes == 16 * GB
    assert Standing({"b": roomy, "c": roomy}).host.smallest.n_bytes == 8 * GB


def test_files_are_told_apart_by_their_end_and_size(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(b"x" * 100_000 + b"a")
    other.write_bytes(b"x" * 100_000 + b"b")
    assert fingerprint(str(one), "one") != fingerprint(str(other), "other")
    other.write_bytes(one.read_bytes())
    assert fingerprint(str(one), "one") == fingerprint(str(other), "other")
    other.write_bytes(b"x" + one.read_bytes())
    assert fingerprint(str(one), "one") != fingerprint(str(other), "other")
    assert "no such file here" in fingerprint(str(tmp_path / "none"), "none")


class Scheduler:
    """As much of it as the lock looks at."""

    def __init__(self) -> None:
        self.clients = {"one": None, "two": None}


def test_the_lock_is_held_by_one_claim_while_its_client_lives() -> None:
    scheduler = Scheduler()
    assert lock.claim("a", "Ann", "one", dask_scheduler=scheduler) is None
    assert lock.claim("a", "Ann", "one", dask_scheduler=scheduler) is None
    assert lock.claim("b", "Bob", "two", dask_scheduler=scheduler) == "Ann"
    assert lock.claim("c", "Ann", "one", dask_scheduler=scheduler) == "Ann"
    lock.let_go("b", dask_scheduler=scheduler)
    assert lock.claim("b", "Bob", "two", dask_scheduler=scheduler) == "Ann"
    lock.let_go("a", dask_scheduler=scheduler)
    assert lock.claim("b", "Bob", "two", dask_scheduler=scheduler) is None
    del scheduler.clients["two"]
    assert lock.claim("a", "Ann", "one", dask_scheduler=scheduler) is None
