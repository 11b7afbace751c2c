"""What the tests for a GPU share: the device, or a reason to skip; engines on it, and pipelines put on them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tabgpu.errors import ResourceError

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "scripts")]  # what scripts/gpu-check uses, tests use too

from gpu_device import STANDIN, needs, no_device  # noqa: E402 - found on the path that was just set


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests below this folder at once where there is no device, before any fixture is made."""
    ours = [item for item in items if HERE in item.path.parents]
    if ours and no_device():
        for item in ours:
            item.add_marker(pytest.mark.skip(reason=no_device()))


@pytest.fixture
def device() -> Any:
    """The device of scripts/gpu-check: CuPy as its array module, in the pool that XGBoost shares."""
    return import_module("gpu_check.device").Device(dry=STANDIN)


@pytest.fixture
def moved(device: Any) -> Any:
    """An engine that reads on the host and computes on the device: needs CuPy and XGBoost alone."""
    engine = device.engine()
    if STANDIN:
        engine.name = "cpu"  # the plan reckons with no device then
    return engine


@pytest.fixture
def arrays(moved: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The same for work on arrays alone; its stand-in refuses arrays of the host, as the device does."""
    if not STANDIN:
        return moved
    fake = import_module("contract.device")
    monkeypatch.setitem(sys.modules, "cupy", fake.XP)
    return fake.DeviceEngine()


@pytest.fixture
def gpu(moved: Any) -> Any:
    """The GPU engine itself; the stand-in reads with the CPU engine."""
    if STANDIN:
        return moved
    needs("pylibcudf", "rmm", "nvtx")
    try:
        return import_module("tabgpu.engine").resolve("gpu")[0]
    except ResourceError as error:
        pytest.skip(str(error))


@pytest.fixture(params=["moved", "gpu"])
def engine(request: pytest.FixtureRequest) -> Any:
    """Each engine that computes on the device."""
    if STANDIN and request.param == "gpu":
        pytest.skip("a stand-in for the device is one engine")
    return request.getfixturevalue(request.param)


@pytest.fixture
def hardware(device: Any) -> Any:
    """Facts of this machine; those of the device from CuPy where nvidia-ml-py is not installed."""
    facts = import_module("tabgpu.hardware")
    here = facts.SystemHardware()
    if STANDIN or here.gpus():
        return here
    free, total = device.xp.cuda.runtime.memGetInfo()
    return facts.FakeHardware(here.host(HERE), (facts.GpuFacts(0, "the device", total, free),))


@pytest.fixture
def put_on(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Let everything that asks for an engine get this one."""

    def put(engine: Any) -> None:
        monkeypatch.setattr(import_module("tabgpu.engine"), "resolve", lambda *args, **keywords: (engine, "a test"))

    return put
