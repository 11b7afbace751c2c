"""Where the work of a run is done: what the plan is told of the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tabgpu import engine as engines
from tabgpu import place
from tabgpu.engine.cpu import CpuEngine
from tabgpu.hardware import FakeHardware, GpuFacts, HostFacts

GB = 10**9
GPUS = (GpuFacts(0, "H200", 140 * GB, 139 * GB), GpuFacts(1, "H200", 140 * GB, 2 * GB))


class Used(CpuEngine):
    """A device on which an earlier run has left something; free memory is asked for behind `begin` alone."""

    name = "gpu"
    begun = False

    def begin(self) -> None:
        self.begun = True


class Machine(FakeHardware):
    """Two devices, of which the second is somebody else's."""

    def gpus(self) -> list[GpuFacts]:
        assert ENGINE.begun
        return super().gpus()


ENGINE = Used()


def wish(**given: Any) -> place.Wish:
    return place.wish_of("gpu", given or None)


@pytest.fixture(autouse=True)
def on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ENGINE, "begun", False)
    monkeypatch.setattr(engines, "resolve", lambda *args, **keywords: (ENGINE, "a test"))


def test_one_process_plans_with_the_gpu_that_it_works_on(tmp_path: Path) -> None:
    hardware = Machine(HostFacts(4, 64 * GB, 64 * GB), GPUS)
    found = place.find_place(wish(), hardware)
    assert [gpu.index for gpu in found.gpus] == [0]
    assert found.device == "cuda"


def test_the_cpu_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ENGINE, "name", "cpu")
    found = place.find_place(wish(), Machine(HostFacts(4, 64 * GB, 64 * GB), GPUS))
    assert found.gpus == ()
