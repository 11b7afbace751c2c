from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_nvml import Nvml, gpu, pretend
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import machine

from tabgpu.hardware import FakeHardware, GpuFacts, GpuLink, GpuStatus, Hardware, HostFacts, Neighbour, SystemHardware
from tabgpu.hardware.gpu import Device, visible

GIB = 2**30


def status_of(nvml: Nvml | None, root: Path, **environ: str) -> GpuStatus:
    with pretend(nvml):
        return SystemHardware(root, environ).gpu_status()


def test_given_facts() -> None:
    host = HostFacts(cpus=4, memory_total=16 * GIB, memory_available=10 * GIB)
    one = GpuFacts(0, "H200", 141 * 10**9, 140 * 10**9)
    fake: Hardware = FakeHardware(host, (one,))
    assert fake.host(Path("x")) == host
    assert fake.gpus() == [one]
    assert fake.gpu_status() == GpuStatus((one,), "there")
    assert FakeHardware(host).gpu_status().state == "none"
    broken = GpuStatus(state="broken", reason="no")
    assert FakeHardware(host, (), broken).gpu_status() == broken


# which devices are visible

DEVICES = [Device("GPU-aa1"), Device("GPU-ab2"), Device("GPU-c3", ("MIG-x", "MIG-y")), Device("GPU-d4", ())]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, ["MIG-x", "MIG-y"]),  # where there are instances, CUDA sees no whole GPU
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0", ["GPU-aa1"]),
        (" 1 , 0 ", ["GPU-ab2", "GPU-aa1"]),
        ("1,9,0", ["GPU-ab2"]),
        ("1,x,0", ["GPU-ab2"]),
        ("1,1,0", ["GPU-ab2"]),
        ("GPU-ab2", ["GPU-ab2"]),
        ("GPU-ab,0", ["GPU-ab2", "GPU-aa1"]),
        ("GPU-a", []),  # fits two
        ("MIG-y", ["MIG-y"]),
        ("MIG-y,MIG-x", ["MIG-y", "MIG-x"]),
        ("MIG-", []),
        ("2", ["MIG-x", "MIG-y"]),
        ("3,0", ["GPU-aa1"]),  # divided into nothing
    ],
)
def test_visible_devices(setting: str | None, expected: list[str]) -> None:
    assert visible(setting, DEVICES) == expected


@settings(deadline=None, max_examples=50)
@given(order=st.permutations(range(5)), cut=st.integers(0, 5), rest=st.sampled_from(["", "x", "7", "-1"]))
def test_the_order_is_that_of_the_setting_up_to_what_is_none(order: list[int], cut: int, rest: str) -> None:
    devices = [Device(f"GPU-{i}") for i in range(5)]
    words = [str(i) if i % 2 else f"GPU-{i}" for i in order]
    words.insert(cut, rest)
    assert visible(",".join(words), devices) == [f"GPU-{i}" for i in order[:cut]]


# what NVML tells


def test_all_facts_of_a_device(tmp_path: Path) -> None:
    processes = [SimpleNamespace(pid=7, usedGpuMemory=GIB), SimpleNamespace(pid=8, usedGpuMemory=None)]
    own = SimpleNamespace(pid=os.getpid(), usedGpuMemory=5)
    nvml = Nvml([gpu("GPU-1", ComputeRunningProcesses=[*processes, own], CurrentClocksThrottleReasons=0x45)])
    status = status_of(nvml, tmp_path)
    assert (status.state, status.reason, status.links) == ("there", "", ())
    assert status.gpus == (
        GpuFacts(
            index=0,
            name="NVIDIA H200",
            memory_total=150_754_820_096,
            memory_free=150_000_000_000,
            uuid="GPU-1",
            capability=(9, 0),
            driver="580.65.06",
            cuda_driver=(13, 1),
            neighbours=(Neighbour(7, GIB), Neighbour(8, None)),
            compute_mode="default",
            ecc_errors=0,
            temperature_c=34,
            slowdown_c=87,
            power_w=76.543,
            power_limit_w=700.0,
            utilisation=17,
            clock_mhz=345,
            clock_max_mhz=1980,
            throttling=("power cap", "heat (hardware)"),
            pcie_generation=4,
            pcie_generation_max=5,
            pcie_width=16,
            pcie_width_max=16,
            nvlinks_active=2,
            nvlinks_inactive=1,
            persistence=True,
        ),
    )
    assert nvml.sessions == 0


def test_what_a_device_does_not_tell_is_none(tmp_path: Path) -> None:
    bare = {"UUID": "GPU-1", "Name": "GeForce", "MemoryInfo": SimpleNamespace(total=8 * GIB, free=GIB, used=7 * GIB)}
    (facts,) = status_of(Nvml([bare]), tmp_path).gpus
    assert facts == GpuFacts(0, "GeForce", 8 * GIB, GIB, "GPU-1", driver="580.65.06", cuda_driver=(13, 1))


@pytest.mark.parametrize("name", ["NotSupported", "NoPermission", "FunctionNotFound", "Unknown"])
def test_no_answer_is_no_error(tmp_path: Path, name: str) -> None:
    (facts,) = status_of(Nvml([gpu("GPU-1", Temperature=name)]), tmp_path).gpus
    assert facts.temperature_c is None
    assert facts.power_w == 76.543


def test_memory_shared_with_the_host(tmp_path: Path) -> None:
    (facts,) = status_of(Nvml([gpu("GPU-1", "MemoryInfo", Name="NVIDIA GB10")]), tmp_path).gpus
    assert facts.unified_memory
    assert 0 < facts.memory_free <= facts.memory_total


def test_instances_have_the_facts_of_their_gpu_and_a_memory_of_their_own(tmp_path: Path) -> None:
    part = {"UUID": "MIG-b", "Name": "NVIDIA H200 MIG 1g.18gb"}
    part["MemoryInfo"] = SimpleNamespace(total=18 * GIB, free=17 * GIB, used=GIB)  # type: ignore[assignment]  # mixed
    whole = gpu("GPU-1", MigMode=[1, 1], instances={3: part}, UtilizationRates="NotSupported")
    (facts,) = status_of(Nvml([whole, gpu("GPU-2")]), tmp_path).gpus
    assert (facts.uuid, facts.mig, facts.memory_total, facts.temperature_c) == ("MIG-b", True, 18 * GIB, 34)
    assert (facts.index, facts.utilisation, facts.capability) == (0, None, (9, 0))
    (other,) = status_of(Nvml([whole, gpu("GPU-2")]), tmp_path, CUDA_VISIBLE_DEVICES="1").gpus
    assert (other.uuid, other.mig) == ("GPU-2", False)


def test_the_ways_between_devices(tmp_path: Path) -> None:
    nvml = Nvml([gpu("GPU-0"), gpu("GPU-1"), gpu("GPU-2")])
    nvml.peers = {
        ("GPU-0", "GPU-1"): ({0: 0, 2: 0}, 20),
        ("GPU-0", "GPU-2"): ({0: 3, 2: 5}, 50),
    }
    assert status_of(nvml, tmp_path).links == (
        GpuLink(0, 1, True, True, "switches"),
        GpuLink(0, 2, False, False, "machine"),
        GpuLink(1, 2),
    )
    assert status_of(nvml, tmp_path, CUDA_VISIBLE_DEVICES="1").links == ()
    (link,) = status_of(nvml, tmp_path, CUDA_VISIBLE_DEVICES="0,2").links  # numbered as CUDA does
    assert link == GpuLink(0, 1, False, False, "machine")


# why there is none


def test_no_driver(tmp_path: Path) -> None:
    for nvml in (None, Nvml([], "LibraryNotFound")):
        status = status_of(nvml, tmp_path)
        assert (status.gpus, status.state, status.reason) == ((), "none", "no NVIDIA driver is installed")


def test_a_driver_whose_library_or_whose_asker_is_missing(tmp_path: Path) -> None:
    machine(tmp_path, {"proc/driver/nvidia/version": "580"})
    status = status_of(None, tmp_path)
    assert (status.state, status.reason) == ("none", "an NVIDIA driver is there, but not nvidia-ml-py to ask it")
    status = status_of(Nvml([], "LibraryNotFound"), tmp_path)
    assert (status.state, status.reason) == ("none", "the kernel has an NVIDIA driver, but its library is not here")


def test_a_driver_that_is_not_loaded_is_broken_where_there_is_a_device(tmp_path: Path) -> None:
    assert status_of(Nvml([], "DriverNotLoaded"), tmp_path).state == "none"
    pci = "sys/bus/pci/devices/0000:01:00.0"
    machine(tmp_path, {f"{pci}/vendor": "0x10de\n", f"{pci}/class": "0x030200\n"})
    status = status_of(Nvml([], "DriverNotLoaded"), tmp_path)
    assert (status.state, status.error) == ("broken", "DriverNotLoaded")


@pytest.mark.parametrize("name", ["LibRmVersionMismatch", "NoPermission", "Unknown"])
def test_a_driver_that_does_not_work(tmp_path: Path, name: str) -> None:
    status = status_of(Nvml([], name), tmp_path)
    assert (status.gpus, status.state, status.error) == ((), "broken", name)
    assert status.reason == f"the NVIDIA driver does not work: {name}"


def test_a_lost_device_is_broken(tmp_path: Path) -> None:
    nvml = Nvml([gpu("GPU-1"), gpu("GPU-2", Temperature="GpuIsLost")])
    status = status_of(nvml, tmp_path)
    assert (status.gpus, status.state, status.error, nvml.sessions) == ((), "broken", "GpuIsLost", 0)


@pytest.mark.parametrize(
    ("devices", "environ", "state", "reason"),
    [
        ([], {}, "none", "the NVIDIA driver knows no GPU"),
        ([gpu("GPU-1")], {"CUDA_VISIBLE_DEVICES": ""}, "hidden", "CUDA_VISIBLE_DEVICES is '', which names none"),
        ([gpu("GPU-1", MigMode=[1, 1], instances={})], {}, "hidden", "every GPU is divided (MIG), and none has an"),
    ],
)
def test_no_device(
    tmp_path: Path, devices: list[dict[str, Any]], environ: dict[str, str], state: str, reason: str
) -> None:
    status = status_of(Nvml(devices), tmp_path, **environ)
    assert (status.gpus, status.state) == ((), state)
    assert status.reason.startswith(reason)


def test_the_stand_in_has_the_names_and_values_of_the_real_one() -> None:
    real = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    from fake_nvml import CONSTANTS, H200

    different = {name for name, value in CONSTANTS.items() if getattr(real, name) != value} - {"NVML_NVLINK_MAX_LINKS"}
    assert different == set()
    assert [name for name in H200 if name != "NvLinks" and not hasattr(real, f"nvmlDeviceGet{name}")] == []
    assert [name for name in vars(Nvml) if name.startswith("nvml") and not hasattr(real, name)] == []
