"""From a pipeline file and footers to a plan: what `design.plan_of` hands over, on a GPU and on workers too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tables import STEPS, visits, write_parts

from tabgpu import wire
from tabgpu.assemble import Assembled, assemble
from tabgpu.config import load
from tabgpu.design import design, plan_of
from tabgpu.errors import ConfigError, ResourceError
from tabgpu.hardware import FakeHardware, GpuFacts, HostFacts
from tabgpu.place import this_process
from tabgpu.planning import Learned

GB = 10**9
HARDWARE = FakeHardware(
    HostFacts(cpus=8, memory_total=64 * GB, memory_available=50 * GB), (GpuFacts(0, "L4", 24 * GB, 20 * GB),)
)


@pytest.fixture
def assembled(tmp_path: Path) -> Any:
    write_parts(visits(), tmp_path / "data", [400, 300, 200], 100)

    def make(engine: str = "cpu", workers: int = 1, hardware: FakeHardware = HARDWARE, **sections: Any) -> Assembled:
        tree = {
            "version": 1,
            "data": {"source": str(tmp_path / "data"), "target": "bought"},
            "features": STEPS,
            "model": {"objective": "binary:logistic"},
            **sections,
        }
        pipeline = load(tree)
        runner: Any = SimpleNamespace(name="dask" if workers > 1 else "serial", workers=workers)
        gpus = tuple(hardware.gpus()) if engine == "gpu" else ()
        here = this_process(hardware.facts)
        place = replace(here, working=(engine, "a test"), runner=runner, gpus=gpus)
        return assemble(pipeline, place, read_tables=False)

    return make


def test_a_plan_on_the_cpu_asks_no_gpu(assembled: Any) -> None:
    a = assembled(memory={"readers": 2})
    made = plan_of(a, design(a))
    assert (made.engine, made.device, made.readers, made.workers) == ("cpu", None, 2, 1)
    assert made.limit_bytes == 40 * GB


def test_a_plan_on_a_gpu(assembled: Any) -> None:
    a = assembled("gpu", memory={"pool": "fixed"})
    made = plan_of(a, design(a))
    assert (made.matrix, made.cache, made.readers, made.device_limit_bytes) == ("in_core", "device", 2, 18 * GB)
    assert made.pool_bytes is not None
    assert any("of text" in reason for reason in made.reasons)
    assert wire.unpack(wire.pack(made)) == made
    none = assembled("gpu", hardware=FakeHardware(HARDWARE.facts), memory={"pool": "fixed"})
    with pytest.raises(ResourceError, match="no GPU"):
        plan_of(none, design(none))


def test_a_plan_made_again_keeps_the_device_and_its_pool(assembled: Any) -> None:
    a = assembled("gpu", memory={"pool": "fixed"})
    first = plan_of(a, design(a))
    busy = FakeHardware(HARDWARE.facts, (GpuFacts(0, "L4", 24 * GB, GB),))
    later = assembled("gpu", hardware=busy, memory={"pool": "fixed"})
    again = plan_of(later, design(later), Learned(10_000, 700, 900, device=first.device))
    assert again.device == first.device


def test_a_plan_on_workers(assembled: Any) -> None:
    a = assembled("cpu", 2)
    made = plan_of(a, design(a))
    assert made.workers == len(made.worker_rows) == len(made.assignment) == 2
    assert sum(made.worker_rows) == 900
    assert made.balance >= 1
    assert made.round_bytes


def test_a_metric_that_workers_average_is_told(assembled: Any) -> None:
    model = {"objective": "binary:logistic", "params": {"eval_metric": "auc"}}
    alone, shared = (assembled("cpu", n, model=model) for n in (1, 2))
    assert not any("mean of the workers" in reason for reason in plan_of(alone, design(alone)).reasons)
    assert any("mean of the workers" in reason for reason in plan_of(shared, design(shared)).reasons)


def test_more_workers_than_parts_use_fewer(assembled: Any) -> None:
    a = assembled("cpu", 50)
    made = plan_of(a, design(a))
    assert made.workers == len(a.tasks)


def test_options_that_do_not_go_together_are_refused_before_anything_starts(assembled: Any) -> None:
    with pytest.raises(ConfigError, match=r"memory\.pool is 'fixed'"):
        assembled(memory={"pool": "fixed"}, cluster={"workers": 2, "rmm_async": True})


@pytest.mark.parametrize("subsample", [0.5, "0.5", "half"])
def test_drawing_rows_takes_memory_and_its_share_is_left_to_xgboost_to_judge(assembled: Any, subsample: Any) -> None:
    made = []
    for params in ({}, {"subsample": subsample}):
        a = assembled(model={"objective": "binary:logistic", "params": params})
        made.append({term.name: term.bytes for term in plan_of(a, design(a)).terms})
    assert made[1]["row state"] > made[0]["row state"]
