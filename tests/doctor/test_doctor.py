from __future__ import annotations

import json
import tomllib
import warnings
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabgpu import cli, doctor
from tabgpu.doctor import Examination, Facts, Finding, Trial, conclude, examine, judge, rapids_check
from tabgpu.doctor.gpus import wheels_for
from tabgpu.doctor.words import page
from tabgpu.errors import ResourceError
from tabgpu.hardware import FakeHardware, GpuFacts, GpuLink, GpuStatus, HostFacts, Limit, Neighbour

GB = 10**9
HOST = HostFacts(
    cpus=16,
    memory_total=2000 * GB,
    memory_available=1900 * GB,
    open_files=4096,
    shared_memory=256 * GB,
    memory_lock=2**23,
)
H200 = GpuFacts(
    index=0,
    name="NVIDIA H200",
    memory_total=150 * GB,
    memory_free=149 * GB,
    uuid="GPU-0",
    capability=(9, 0),
    driver="580.65.06",
    cuda_driver=(13, 0),
    compute_mode="default",
    ecc_errors=0,
    temperature_c=34,
    slowdown_c=87,
    power_w=76.5,
    power_limit_w=700.0,
    utilisation=0,
    clock_mhz=345,
    clock_max_mhz=1980,
    pcie_generation=1,  # it is idle
    pcie_generation_max=5,
    pcie_width=16,
    pcie_width_max=16,
    nvlinks_active=18,
    nvlinks_inactive=0,
    persistence=True,
)
CU12 = {
    "tabgpu": "0.1.0",
    "xgboost-cu12": "3.4.1",
    "cudf-cu12": "26.10.2",
    "rmm-cu12": "26.10.0",
    "cupy-cuda12x": "14.2.0",
    "nvidia-nccl-cu12": "2.32.3",
    "nvidia-ml-py": "13.615.71",
}
CPU = {"tabgpu": "0.1.0", "xgboost-cpu": "3.4.1"}
NO_DRIVER = GpuStatus(reason="no NVIDIA driver is installed", error="LibraryNotFound")
LAPTOP = Facts(HostFacts(cpus=4, memory_total=16 * GB, memory_available=9 * GB), NO_DRIVER, CPU)


def station(*gpus: GpuFacts, links: tuple[GpuLink, ...] = (), **other: Any) -> Facts:
    """A machine with these GPUs and the packages for them."""
    return replace(Facts(HOST, GpuStatus(gpus, "there", links=links), CU12), **other)


def one(**other: Any) -> Facts:
    return station(replace(H200, **other))


def two(**other: Any) -> Facts:
    return station(H200, replace(H200, index=1, uuid="GPU-1"), **other)


def wrong(facts: Facts) -> list[Finding]:
    return [finding for finding in judge(facts) if finding.severity != "ok"]


def only(facts: Facts) -> Finding:
    found = wrong(facts)
    assert len(found) == 1, found
    return found[0]


def passing(name: Any, imports_only: bool = False) -> Trial:
    return Trial(name, True, 1.25, "train two rounds", imports_only=imports_only)


# healthy


def test_a_healthy_gpu() -> None:
    found = conclude(one(), passing)
    assert (wrong(one()), found.healthy, found.engine) == ([], True, "gpu")
    assert [(t.engine, t.imports_only) for t in found.trials] == [("cpu", False), ("gpu", False)]
    text = str(found)
    assert "NVIDIA H200, 149 GB of 150 GB free, compute capability 9.0, 0% busy, 34 °C, 76 W of 700" in text
    assert "580.65.06, for CUDA up to 13.0" in text
    assert text.endswith("\nhealthy")


def test_no_gpu_is_healthy() -> None:
    found = conclude(LAPTOP, passing)
    assert (wrong(LAPTOP), found.healthy, found.engine) == ([], True, "cpu")
    assert [t.engine for t in found.trials] == ["cpu"]
    assert "No NVIDIA driver is installed; the CPU engine will be used" in str(found)
    assert found.to_json()["exit_code"] == 0


def test_hidden_on_purpose_is_healthy() -> None:
    hidden = GpuStatus(state="hidden", reason="CUDA_VISIBLE_DEVICES is '', which names none")
    facts = replace(one(), gpu=hidden, environ={"CUDA_VISIBLE_DEVICES": ""})
    assert wrong(facts) == []
    assert wrong(replace(facts, environ={"CUDA_VISIBLE_DEVICES": "7"}))[0].severity == "warning"


# no GPU, told apart from a broken one


@pytest.mark.parametrize(
    ("environ", "reason", "remedy"),
    [
        ({}, "no NVIDIA driver is installed", "Install the NVIDIA driver"),
        ({"SLURM_JOB_ID": "7"}, "no NVIDIA driver is installed", "--gres=gpu:1"),
        ({}, "the kernel has an NVIDIA driver, but its library is not here", "--gpus all"),
    ],
)
def test_packages_for_a_gpu_that_is_not_there(environ: dict[str, str], reason: str, remedy: str) -> None:
    facts = replace(LAPTOP, packages=CU12, environ=environ, gpu=GpuStatus(reason=reason))
    finding = only(facts)
    assert (finding.name, finding.severity) == ("GPU", "warning")
    assert remedy in finding.remedy
    found = conclude(facts, passing)
    assert found.healthy
    assert [(t.engine, t.imports_only) for t in found.trials] == [("cpu", False), ("gpu", True)]
    assert found.engine == "cpu"


def test_broken_packages_without_a_gpu() -> None:
    found = conclude(replace(LAPTOP, packages=CU12 | {"rmm-cu12": "26.08.0"}), passing)
    assert not found.healthy
    assert found.to_json()["exit_code"] == 4
    assert [t.engine for t in found.trials] == ["cpu"]


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        ("LibRmVersionMismatch", "Restart the machine"),
        ("DriverNotLoaded", "modprobe nvidia"),
        ("GpuIsLost", "Restart"),
        ("NoPermission", "--gpus all"),
        ("Unknown", "nvidia-smi"),
    ],
)
def test_a_broken_driver(error: str, remedy: str) -> None:
    status = GpuStatus(state="broken", reason=f"the NVIDIA driver does not work: {error}", error=error)
    found = conclude(replace(one(), gpu=status), passing)
    (finding,) = [f for f in found.findings if f.severity == "broken"]
    assert finding.happened == f"The NVIDIA driver does not work: {error}"
    assert remedy in finding.remedy
    assert [t.engine for t in found.trials] == ["cpu"]
    assert not conclude(replace(LAPTOP, gpu=status), passing).healthy


def test_nobody_to_ask_the_driver() -> None:
    status = GpuStatus(reason="an NVIDIA driver is there, but not nvidia-ml-py to ask it", error="NoModule")
    assert "pip install 'tabgpu[cu12]'" in only(replace(LAPTOP, gpu=status)).remedy


# one GPU


@pytest.mark.parametrize(
    ("changes", "name", "severity", "words"),
    [
        (
            {"memory_free": 90 * GB},
            "GPU 0 memory",
            "warning",
            ["60 GB of 150 GB", "somebody not seen from here", "81GB"],
        ),
        (
            {"memory_free": 148 * GB, "neighbours": (Neighbour(7, GB),)},
            "GPU 0 memory",
            "warning",
            ["by process 7 (1 GB)", "memory.device_limit"],
        ),
        (
            {"memory_free": GB, "neighbours": (Neighbour(7, GB), Neighbour(8, None))},
            "GPU 0 memory",
            "warning",
            ["by processes 7 (1 GB), 8", "device_limit=900MB"],
        ),
        ({"compute_mode": "prohibited"}, "GPU 0 mode", "broken", ["nvidia-smi -i 0 -c DEFAULT"]),
        ({"compute_mode": "exclusive"}, "GPU 0 mode", "warning", ["nvidia-smi -i 0 -c DEFAULT"]),
        ({"ecc_errors": 3}, "GPU 0 ECC", "broken", ["3 memory errors", "--gpu-reset -i 0"]),
        ({"temperature_c": 85}, "GPU 0 heat", "warning", ["85 °C", "at 87 °C"]),
        ({"throttling": ("power cap", "heat (hardware)")}, "GPU 0 clock", "warning", ["heat (hardware)"]),
        ({"pcie_width": 8}, "GPU 0 PCIe", "warning", ["8 of 16 lanes"]),
        ({"utilisation": 90, "pcie_generation": 3}, "GPU 0 PCIe", "warning", ["generation 3", "Expected 5"]),
        ({"driver": "525.60"}, "driver", "broken", ["525.60", "535"]),
        ({"capability": (6, 1)}, "compute capability", "broken", ["6.1", "engine=cpu"]),
    ],
)
def test_one_gpu(changes: dict[str, Any], name: str, severity: str, words: list[str]) -> None:
    finding = only(one(**changes))
    assert (finding.name, finding.severity) == (name, severity)
    assert all(word in doctor.sentences(finding) for word in words), finding
    assert conclude(one(**changes), passing).healthy == (severity == "warning")


def test_exclusive_and_taken_is_broken() -> None:
    found = wrong(one(compute_mode="exclusive", neighbours=(Neighbour(7, GB),)))
    assert {f.name: f.severity for f in found} == {"GPU 0 mode": "broken", "GPU 0 memory": "warning"}


@pytest.mark.parametrize(
    "changes",
    [
        {"throttling": ("power cap",)},  # busy devices run into it as a rule
        {"utilisation": 0, "pcie_generation": 1},
        {"memory_free": 140 * GB},  # the driver's own, or a display
        {"persistence": False},
        {"nvlinks_active": None, "nvlinks_inactive": None},
        {"nvlinks_active": 0, "nvlinks_inactive": 18},  # a single one has no partner
    ],
)
def test_what_is_nothing_to_speak_of(changes: dict[str, Any]) -> None:
    assert wrong(one(**changes)) == []


def test_what_the_driver_does_not_tell_is_no_finding() -> None:
    bare = GpuFacts(0, "GeForce", 8 * GB, 8 * GB)
    assert wrong(station(bare)) == []
    assert "GeForce, 8 GB of 8 GB free\n" in page(station(bare), [])


def test_memory_shared_with_the_host_is_nobodys() -> None:
    gpu = replace(H200, memory_total=1500 * GB, memory_free=900 * GB, unified_memory=True)
    assert wrong(station(gpu)) == []


def test_mig() -> None:
    part = replace(
        H200, name="NVIDIA H200 MIG 1g.18gb", uuid="MIG-x", mig=True, memory_total=18 * GB, memory_free=18 * GB
    )
    assert wrong(station(part)) == []
    assert "MIG-x" in str(conclude(station(part), passing))
    finding = only(station(part, replace(part, index=1, uuid="MIG-y")))
    assert (finding.name, finding.severity) == ("MIG", "warning")
    assert "CUDA_VISIBLE_DEVICES=MIG-x" in finding.remedy


@pytest.mark.parametrize(
    ("driver", "capability", "python", "remedy"),
    [
        ("580.65", (9, 0), (3, 12), "To use it: pip install 'tabgpu[cu13]'"),
        ("550.54", (9, 0), (3, 12), "To use it: pip install 'tabgpu[cu12]'"),
        ("580.65", (7, 0), (3, 12), "To use it: pip install 'tabgpu[cu12]'"),
        ("580.65", (9, 0), (3, 11), "To use it: pip install 'tabgpu[cu13]', with Python 3.12 or newer"),
        ("470.1", (9, 0), (3, 12), "To use it, update the driver first"),
    ],
)
def test_a_gpu_without_packages(driver: str, capability: tuple[int, int], python: tuple[int, int], remedy: str) -> None:
    facts = replace(one(driver=driver, capability=capability), packages=CPU, python=python)
    finding = only(facts)
    assert (finding.severity, finding.remedy) == ("warning", remedy)
    assert conclude(facts, passing).engine == "cpu"


def test_packages_that_suit_a_device() -> None:
    assert wheels_for(H200) == "cu13"
    assert wheels_for(replace(H200, capability=None)) == "cu13"
    assert wheels_for(replace(H200, driver="")) is None


# several GPUs


def test_two_that_are_connected() -> None:
    facts = two(links=(GpuLink(0, 1, True, True, "switch"),))
    assert wrong(facts) == []
    assert "all pairs by NVLink" in str(conclude(facts, passing))


def test_two_that_are_not() -> None:
    finding = only(two(links=(GpuLink(0, 1, False, False, "machine"),)))
    assert finding.happened == "GPUs 0 and 1 cannot read each other's memory"


def test_nvlinks_that_are_down() -> None:
    facts = station(replace(H200, nvlinks_active=16, nvlinks_inactive=2), replace(H200, index=1))
    assert only(facts).happened == "NVLinks are down: 2 of 18 on GPU 0"


def test_two_kinds() -> None:
    mixed = station(H200, replace(H200, index=1, name="NVIDIA T4"))
    assert only(mixed).name == "GPUs"
    facts = replace(mixed, environ={"CUDA_VISIBLE_DEVICES": "1,0"})
    assert [f.name for f in wrong(facts)] == ["GPUs", "GPU order"]
    assert only(replace(facts, environ=facts.environ | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})).name == "GPUs"


def test_two_nccls_matter_to_several_gpus() -> None:
    both = CU12 | {"nvidia-nccl-cu13": "2.30.0"}
    assert only(replace(one(), packages=both)).severity == "warning"
    assert only(two(packages=both)).severity == "broken"
    found = conclude(two(packages=both), passing)
    assert [t.engine for t in found.trials] == ["cpu", "gpu"]  # which one GPU does not need


def test_shared_memory_matters_to_several_gpus() -> None:
    small = replace(HOST, shared_memory=64 * 2**20)
    assert wrong(replace(one(), host=small)) == []
    assert "--shm-size" in only(two(host=small)).remedy


def test_a_finding_that_all_gpus_share_is_named_once() -> None:
    old = replace(H200, driver="525.60")
    assert only(station(old, replace(old, index=1))).name == "driver"


# the machine


@pytest.mark.parametrize(
    ("changes", "name", "word"),
    [
        ({"limits": (Limit("cgroup memory.max", GB),)}, "memory", "1 GB of memory are there (cgroup memory.max)"),
        ({"limits": (Limit("SLURM_MEM_PER_NODE", GB),)}, "memory", "SLURM_MEM_PER_NODE"),
        ({"disk_free": 10**8}, "disk", "100 MB are free in ."),
        ({"open_files": 256}, "open files", "ulimit -n 4096"),
        ({"infiniband": ("mlx5_0",), "memory_lock": 8 * 2**20}, "memory lock", "ulimit -l unlimited"),
    ],
)
def test_the_machine(changes: dict[str, Any], name: str, word: str) -> None:
    finding = only(replace(LAPTOP, host=replace(LAPTOP.host, **changes)))
    assert (finding.name, finding.severity) == (name, "warning")
    assert word in doctor.sentences(finding)


def test_all_bounds_are_shown() -> None:
    limits = (Limit("SLURM_MEM_PER_NODE", 8 * GB), Limit("cgroup memory.max", 4 * GB))
    text = page(replace(LAPTOP, host=replace(LAPTOP.host, limits=limits)), [])
    assert "4 GB to use (cgroup memory.max), 16 GB in the machine" in text
    assert "4 GB (cgroup memory.max), 8 GB (SLURM_MEM_PER_NODE)" in text


def test_memory_lock_without_a_limit_or_without_infiniband() -> None:
    assert wrong(replace(LAPTOP, host=replace(LAPTOP.host, infiniband=("mlx5_0",)))) == []
    assert wrong(replace(LAPTOP, host=replace(LAPTOP.host, memory_lock=1))) == []


def test_a_host_with_less_memory_than_its_gpu() -> None:
    small = replace(HOST, limits=(Limit("cgroup memory.max", 100 * GB),))
    assert only(replace(one(), host=small)).name == "host memory"


def test_a_slurm_job_that_sees_more_than_it_asked_for() -> None:
    assert only(replace(one(), environ={"SLURM_JOB_ID": "7"})).name == "SLURM"
    assert wrong(replace(one(), environ={"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "1"})) == []


# the whole


def test_two_builds_of_xgboost_are_not_tried() -> None:
    found = conclude(replace(LAPTOP, packages=CPU | {"xgboost": "3.4.1"}), passing)
    assert (found.healthy, found.trials) == (False, ())


def test_a_failed_trial_is_broken() -> None:
    def failing(name: Any, imports_only: bool) -> Trial:
        return Trial(name, name == "cpu", 3.0, "train two rounds", "" if name == "cpu" else "it was ended by SIGSEGV")

    found = conclude(one(), failing)
    assert (found.healthy, found.engine) == (False, "cpu")
    assert found.findings[0].happened == (
        "A trial of the GPU engine failed at 'train two rounds' after 3.00 s: it was ended by SIGSEGV"
    )


@settings(deadline=None, max_examples=50)
@given(
    gpus=st.lists(
        st.builds(
            GpuFacts,
            index=st.integers(0, 3),
            name=st.sampled_from(["A", "B"]),
            memory_total=st.integers(1, 10**12),
            memory_free=st.integers(0, 10**12),
            driver=st.sampled_from(["", "450.1", "580.1"]),
            capability=st.sampled_from([None, (6, 0), (9, 0)]),
            compute_mode=st.sampled_from([None, "default", "exclusive", "prohibited"]),
            temperature_c=st.none() | st.integers(0, 100),
            slowdown_c=st.none() | st.integers(0, 100),
            ecc_errors=st.none() | st.integers(0, 2),
            nvlinks_inactive=st.none() | st.integers(0, 2),
            pcie_width=st.none() | st.integers(1, 16),
            pcie_width_max=st.none() | st.integers(1, 16),
            neighbours=st.sampled_from([(), (Neighbour(1, None),)]),
            mig=st.booleans(),
        ),
        max_size=3,
    ),
    chosen=st.sampled_from([CPU, CU12, {}]),
)
def test_every_finding_says_what_to_do_and_every_page_can_be_printed(
    gpus: list[GpuFacts], chosen: dict[str, str]
) -> None:
    status = GpuStatus(tuple(gpus), "there") if gpus else NO_DRIVER
    found = conclude(Facts(HOST, status, chosen), passing)
    assert all(f.happened and f.expected and f.remedy for f in found.findings if f.severity != "ok")
    order = [("broken", "warning", "ok").index(f.severity) for f in found.findings]
    assert order == sorted(order)
    text = str(found)
    assert all(f.remedy in text for f in found.findings)  # whole: it is copied
    assert ("\nhealthy" in text) == found.healthy
    json.dumps(found.to_json())


# the command, and the check of rapids doctor


@pytest.mark.parametrize(("packages", "code"), [(CPU, 0), ({}, 4)])
def test_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], packages: dict[str, str], code: int
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: conclude(replace(LAPTOP, packages=packages), passing))
    assert cli._guarded(["doctor", "--json"]) == code
    answer = json.loads(capsys.readouterr().out)
    assert (answer["exit_code"], answer["status"]) == (code, "broken" if code else "healthy")
    assert answer["facts"]["host"]["cpus"] == 4
    assert cli._guarded(["doctor"]) == code
    assert ("\nhealthy" in capsys.readouterr().out) == (code == 0)


def test_rapids_doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def found(facts: Facts) -> None:
        monkeypatch.setattr(doctor, "examine", lambda: conclude(facts, passing))

    found(one())
    rapids_check(verbose=True, anything=1)
    assert "NVIDIA H200" in capsys.readouterr().out
    found(one(pcie_width=8))
    with pytest.warns(UserWarning, match="8 of 16 lanes"):
        rapids_check()
    found(replace(one(ecc_errors=1), packages=CU12 | {"rmm-cu12": "26.08.0"}))
    with warnings.catch_warnings(), pytest.raises(ResourceError, match="releases") as caught:
        rapids_check()
    assert "memory errors" in caught.value.__notes__[0]
    assert capsys.readouterr().out == ""


def test_facts_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    found = examine(FakeHardware(HOST, (H200,)), passing)
    assert isinstance(found, Examination)
    assert found.facts.gpu.gpus == (H200,)
    assert found.facts.packages["numpy"]
    assert found.facts.environ["SLURM_JOB_ID"] == "7"
    assert "hush" not in json.dumps(found.to_json())
    assert Path(HOST.disk_folder) == Path(".")


def test_rapids_doctor_finds_the_check() -> None:
    project = tomllib.loads((Path(doctor.__file__).parents[2] / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["rapids_doctor_check"]["tabgpu"].partition(":")
    assert getattr(import_module(module), name) is rapids_check
