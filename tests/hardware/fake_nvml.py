"""A stand-in for pynvml: devices are written down as dicts; what a device lacks is not supported by it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tabgpu import hardware

CONSTANTS = {
    "NVML_DEVICE_MIG_ENABLE": 1,
    "NVML_PCIE_UTIL_RX_BYTES": 1,
    "NVML_PCIE_UTIL_TX_BYTES": 0,
    "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1,
    "NVML_VOLATILE_ECC": 0,
    "NVML_TEMPERATURE_THRESHOLD_SLOWDOWN": 1,
    "NVML_TEMPERATURE_GPU": 0,
    "NVML_CLOCK_SM": 1,
    "NVML_NVLINK_MAX_LINKS": 18,
    "NVML_FEATURE_ENABLED": 1,
    "NVML_P2P_STATUS_OK": 0,
    "NVML_P2P_CAPS_INDEX_NVLINK": 2,
}
# of a device, by the name of the function that asks for it, without nvmlDeviceGet
H200: dict[str, Any] = {
    "Name": "NVIDIA H200",
    "MemoryInfo": SimpleNamespace(total=150_754_820_096, free=150_000_000_000, used=754_820_096),
    "CudaComputeCapability": (9, 0),
    "MigMode": [0, 0],
    "ComputeRunningProcesses": [],
    "ComputeMode": 0,
    "TotalEccErrors": 0,
    "Temperature": 34,
    "TemperatureThreshold": 87,
    "PowerUsage": 76_543,
    "EnforcedPowerLimit": 700_000,
    "UtilizationRates": SimpleNamespace(gpu=17, memory=3),
    "ClockInfo": 345,
    "MaxClockInfo": 1980,
    "CurrentClocksThrottleReasons": 0x1,  # idle
    "CurrPcieLinkGeneration": 4,
    "MaxPcieLinkGeneration": 5,
    "CurrPcieLinkWidth": 16,
    "MaxPcieLinkWidth": 16,
    "NvLinks": [1, 1, 0],
    "PersistenceMode": 1,
    "PcieThroughput": 7,
}


class Nvml(ModuleType):
    """What `tabgpu.hardware.nvml` takes of pynvml. `init_error` is what nvmlInit raises, by name."""

    def __init__(self, devices: list[dict[str, Any]], init_error: str | None = None) -> None:
        super().__init__("pynvml")
        self.devices, self.init_error, self.sessions = devices, init_error, 0
        self.peers: dict[tuple[str, str], tuple[dict[int, int], int]] = {}  # status by kind, common ancestor
        self.NVMLError = type("NVMLError", (Exception,), {})
        self.__dict__.update(CONSTANTS)

    def error(self, name: str) -> Exception:
        return type(f"NVMLError_{name}", (self.NVMLError,), {})(name)  # type: ignore[no-any-return]  # made above

    def nvmlInit(self) -> None:
        if self.init_error:
            raise self.error(self.init_error)
        self.sessions += 1

    def nvmlShutdown(self) -> None:
        self.sessions -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.65.06"

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return 13010

    def nvmlDeviceGetCount(self) -> int:
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        return self.devices[index]

    def nvmlDeviceGetMaxMigDeviceCount(self, device: dict[str, Any]) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: dict[str, Any], index: int) -> dict[str, Any]:
        if index not in device["instances"]:
            raise self.error("NotFound")
        return device["instances"][index]

    def nvmlDeviceGetNvLinkState(self, device: dict[str, Any], link: int) -> int:
        states = device.get("NvLinks", [])
        if link >= len(states):
            raise self.error("InvalidArgument" if states else "NotSupported")
        return states[link]

    def nvmlDeviceGetP2PStatus(self, one: dict[str, Any], other: dict[str, Any], kind: int) -> int:
        return self._pair(one, other)[0][kind]

    def nvmlDeviceGetTopologyCommonAncestor(self, one: dict[str, Any], other: dict[str, Any]) -> int:
        return self._pair(one, other)[1]

    def _pair(self, one: dict[str, Any], other: dict[str, Any]) -> tuple[dict[int, int], int]:
        if (one["UUID"], other["UUID"]) not in self.peers:
            raise self.error("NotSupported")
        return self.peers[one["UUID"], other["UUID"]]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvmlDeviceGet"):
            raise AttributeError(name)

        def get(device: dict[str, Any], *arguments: int) -> Any:
            value = device.get(name.removeprefix("nvmlDeviceGet"), "NotSupported")
            if isinstance(value, str) and name not in ("nvmlDeviceGetName", "nvmlDeviceGetUUID"):
                raise self.error(value)
            return value

        return get


def gpu(uuid: str, *lacking: str, **other: Any) -> dict[str, Any]:
    """An H200 that answers otherwise, or does not answer."""
    return {name: value for name, value in (H200 | other).items() if name not in lacking} | {"UUID": uuid}


@contextmanager
def pretend(nvml: ModuleType | None) -> Iterator[None]:
    """Have `tabgpu.hardware` import this pynvml, or find none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pynvml", nvml)
        patch.delitem(sys.modules, "tabgpu.hardware.nvml", raising=False)
        patch.delattr(hardware, "nvml", raising=False)
        yield
        sys.modules.pop("tabgpu.hardware.nvml", None)
        vars(hardware).pop("nvml", None)
