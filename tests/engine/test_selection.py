"""Which engine is taken, and what is said when it is not the one asked for."""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import tabgpu.engine as engines
from tabgpu.errors import ConfigError, ResourceError
from tabgpu.hardware import FakeHardware, GpuFacts, GpuStatus, HostFacts

GPU = GpuFacts(0, "NVIDIA H200", 140 * 10**9, 139 * 10**9, capability=(9, 0), driver="570.10")
HOST = HostFacts(4, 10**10, 10**10)
NONE = FakeHardware(HOST, status=GpuStatus(reason="no NVIDIA driver is installed"))
ONE = FakeHardware(HOST, (GPU,))
RAPIDS = {
    "cudf-cu12": "26.10.2",
    "rmm-cu12": "26.10.0",
    "cupy-cuda12x": "14.2.0",
    "xgboost-cu12": "3.4.1",
    "nvidia-ml-py": "13",
}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretend which packages are installed, what Python it is and what XGBoost can do."""

    def pretend(installed: dict[str, str], python: tuple[int, int] = (3, 12), cuda: bool = True) -> None:
        monkeypatch.setattr(engines, "_installed", lambda: installed)
        monkeypatch.setattr(sys, "version_info", (*python, 0))
        package = ModuleType("tabgpu.engine.gpu")
        package.GpuEngine = lambda: SimpleNamespace(name="gpu")  # type: ignore[attr-defined]  # made up here
        package.count_devices = lambda: 1  # type: ignore[attr-defined]  # made up here
        monkeypatch.setitem(sys.modules, "tabgpu.engine.gpu", package)
        monkeypatch.setitem(sys.modules, "xgboost", SimpleNamespace(build_info=lambda: {"USE_CUDA": cuda}))
        engines._gpu.cache_clear()

    yield pretend
    engines._gpu.cache_clear()


def test_the_gpu_is_taken_where_all_is_there(machine: Any) -> None:
    machine(RAPIDS)
    for name in ("auto", "gpu"):
        engine, reason = engines.resolve(name, ONE)
        assert engine.name == "gpu"
        assert "NVIDIA H200" in reason
    assert engines.resolve("gpu", ONE)[0] is engines.resolve("auto", ONE)[0]  # its memory is the process's
    assert engines.resolve("cpu", ONE)[0].name == "cpu"


@pytest.mark.parametrize(
    ("installed", "python", "cuda", "hardware", "said", "remedy"),
    [
        ({"xgboost-cpu": "3.4.1"}, (3, 12), False, NONE, "no NVIDIA driver", "pip install 'tabgpu\\[cu12\\]'"),
        (RAPIDS, (3, 12), True, NONE, "no NVIDIA driver", "tabgpu doctor"),
        ({"xgboost-cpu": "3.4.1"}, (3, 12), False, ONE, "XGBoost with CUDA are not", "tabgpu\\[cu12"),
        ({**RAPIDS, "cudf-cu12": "26.8.0"}, (3, 12), True, ONE, "2 releases", "pip install --upgrade"),
        (RAPIDS, (3, 11), True, ONE, "Python is 3.11", "Python 3.12"),
        (RAPIDS, (3, 12), False, ONE, "without CUDA", "pip install"),
        (RAPIDS, (3, 12), True, FakeHardware(HOST, (GpuFacts(0, "K80", 1, 1, capability=(3, 7)),)), "3.7", "cpu"),
    ],
)
def test_what_is_in_the_way_is_said(
    machine: Any,
    installed: dict[str, str],
    python: tuple[int, int],
    cuda: bool,
    hardware: FakeHardware,
    said: str,
    remedy: str,
) -> None:
    machine(installed, python, cuda)
    engine, reason = engines.resolve("auto", hardware)
    assert engine.name == "cpu"
    assert said in reason
    assert "\n" not in reason
    with pytest.raises(ResourceError, match=f"engine is 'gpu'.*{said}.*{remedy}") as caught:
        engines.resolve("gpu", hardware)
    assert caught.value.exit_code == 4


def test_packages_that_cannot_be_imported_are_said(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(RAPIDS)
    monkeypatch.setitem(sys.modules, "tabgpu.engine.gpu", None)
    monkeypatch.delattr(engines, "gpu", raising=False)
    with pytest.raises(ResourceError, match="on importing the packages for the GPU"):
        engines.resolve("gpu", ONE)


def test_cuda_that_does_not_start_is_no_engine(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that was forked from one that uses the device."""
    machine(RAPIDS)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)

    def count_devices() -> int:
        assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"  # as the facts are ordered
        raise RuntimeError("cudaErrorInitializationError: initialization error")

    monkeypatch.setattr(sys.modules["tabgpu.engine.gpu"], "count_devices", count_devices)
    engine, reason = engines.resolve("auto", ONE)
    assert engine.name == "cpu"
    assert "CUDA does not start in this process: cudaErrorInitializationError" in reason
    with pytest.raises(ResourceError, match=r"engine is 'gpu'.*does not start.*forked.*Spawn"):
        engines.resolve("gpu", ONE)


@pytest.mark.parametrize("name", ["auto", "cpu", "gpu"])
def test_two_builds_of_xgboost_are_refused(machine: Any, name: str) -> None:
    machine({"xgboost-cpu": "3.4.1", "xgboost": "3.4.1"})
    with pytest.raises(ResourceError, match=r"2 builds of XGBoost.*pip uninstall -y xgboost xgboost-cpu"):
        engines.resolve(name, NONE)


def test_this_machine_has_an_engine() -> None:
    engine, reason = engines.resolve("auto")
    assert engine.name in ("cpu", "gpu")
    assert reason
    with pytest.raises(ConfigError, match="engine is 'cuda'"):
        engines.resolve("cuda")
