from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import machine

import tabgpu
from tabgpu.errors import ConfigError
from tabgpu.hardware import HostFacts, Limit, SystemHardware, host, memory_limit

GIB = 2**30
FACTS = HostFacts(cpus=4, memory_total=16 * 10**9, memory_available=10 * 10**9)


@pytest.fixture(autouse=True)
def no_process_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_process_limits", lambda: iter(()))


@pytest.fixture(autouse=True)
def many_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)


def facts_of(root: Path, files: dict[str, str], **environ: str) -> HostFacts:
    return SystemHardware(machine(root, files), environ).host(root)


def test_a_machine_without_limits(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, {})
    assert (facts.memory_total, facts.memory_available) == (64 * GIB, 60 * GIB)
    assert (facts.cpus, facts.cpus_from, facts.limits) == (16, "affinity", ())
    assert facts.smallest == Limit("available memory", 60 * GIB)
    assert facts.open_files > 0


@pytest.mark.parametrize(
    ("files", "expected", "source"),
    [
        # version 2: own group, a parent's, "max", and memory.high
        ({"memory.max": f"{8 * GIB}\n"}, 8 * GIB, "cgroup memory.max"),
        ({"memory.max": "max\n", "../memory.max": f"{4 * GIB}\n"}, 4 * GIB, "cgroup memory.max"),
        ({"memory.max": f"{8 * GIB}\n", "memory.high": f"{2 * GIB}\n"}, 2 * GIB, "cgroup memory.high"),
        ({"memory.max": f"{2 * GIB}\n", "../memory.max": f"{4 * GIB}\n"}, 2 * GIB, "cgroup memory.max"),
        ({"memory.max": "max\n"}, 60 * GIB, "available memory"),
        ({"memory.max": f"{80 * GIB}\n"}, 60 * GIB, "available memory"),
    ],
)
def test_limits_of_cgroup_2(tmp_path: Path, files: dict[str, str], expected: int, source: str) -> None:
    tree = {f"sys/fs/cgroup/slice/job/{name}": text for name, text in files.items()}
    (tmp_path / "sys/fs/cgroup/slice/job").mkdir(parents=True)
    facts = facts_of(tmp_path, tree | {"proc/self/cgroup": "0::/slice/job\n"})
    assert facts.smallest == Limit(source, expected)


def test_limits_of_cgroup_1_up_the_hierarchy(tmp_path: Path) -> None:
    top = "sys/fs/cgroup/memory"
    tree = {
        "proc/self/cgroup": "5:cpu,cpuacct:/a\n4:memory:/slurm/job/step\n0::/\n",
        f"{top}/slurm/job/step/memory.limit_in_bytes": "9223372036854771712\n",
        f"{top}/slurm/job/memory.limit_in_bytes": f"{3 * GIB}\n",
        f"{top}/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "250000\n",
        "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
    }
    facts = facts_of(tmp_path, tree)
    assert facts.limits == (Limit("cgroup memory.limit_in_bytes", 3 * GIB),)
    assert (facts.cpus, facts.cpus_from) == (2, "cgroup quota")


def test_a_container_sees_its_own_group_at_the_top(tmp_path: Path) -> None:
    tree = {"proc/self/cgroup": "4:memory:/docker/0123\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{GIB}\n"}
    assert facts_of(tmp_path, tree).smallest == Limit("cgroup memory.limit_in_bytes", GIB)


def test_both_versions_side_by_side(tmp_path: Path) -> None:
    tree = {
        "proc/self/cgroup": "4:memory:/\n0::/user\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{5 * GIB}\n",
        "sys/fs/cgroup/unified/user/memory.max": f"{4 * GIB}\n",
    }
    assert {limit.n_bytes for limit in facts_of(tmp_path, tree).limits} == {4 * GIB, 5 * GIB}


@pytest.mark.parametrize(
    ("stat", "others"),
    [
        (f"anon {3 * GIB}\nfile {5 * GIB}\nshmem {GIB}\n", 4 * GIB - 100 * 2**20),  # file pages can be reclaimed
        (f"cache 1\nrss 5\ntotal_rss {2 * GIB}\ntotal_shmem 0\n", 2 * GIB - 100 * 2**20),
        ("anon 5\nshmem 0\n", 0),
        ("", 0),
    ],
)
def test_what_others_hold_in_the_group_is_not_there(tmp_path: Path, stat: str, others: int) -> None:
    tree = {
        "proc/self/cgroup": "0::/job\n",
        "sys/fs/cgroup/job/memory.max": f"{8 * GIB}\n",
        "sys/fs/cgroup/job/memory.stat": stat,
    }
    smallest = facts_of(tmp_path, tree).smallest
    assert smallest.n_bytes == 8 * GIB - others
    assert ("that other processes hold" in smallest.source) == (others > 0)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("max 100000\n", 16),
        ("400000 100000\n", 4),
        ("150000 100000\n", 1),
        ("50000 100000\n", 1),
        ("", 16),
        ("x\n", 16),
    ],
)
def test_quota_of_cgroup_2(tmp_path: Path, text: str, cpus: int) -> None:
    tree = {"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": text}
    assert facts_of(tmp_path, tree).cpus == cpus


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"SLURM_MEM_PER_NODE": "8192"}, 8 * GIB),
        ({"SLURM_MEM_PER_NODE": "8192M"}, 8 * GIB),
        ({"SLURM_MEM_PER_NODE": "0"}, 60 * GIB),  # all there is
        ({"SLURM_MEM_PER_CPU": "1024", "SLURM_CPUS_PER_TASK": "3"}, 3 * GIB),
        ({"SLURM_MEM_PER_CPU": "1024", "SLURM_CPUS_ON_NODE": "5"}, 5 * GIB),
        ({"SLURM_MEM_PER_CPU": "1024"}, 16 * GIB),
        ({"SLURM_MEM_PER_NODE": "lots"}, 60 * GIB),
    ],
)
def test_limits_of_slurm(tmp_path: Path, environ: dict[str, str], expected: int) -> None:
    assert facts_of(tmp_path, {}, **environ).smallest.n_bytes == expected


def test_processors_of_slurm(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, {}, SLURM_CPUS_PER_TASK="3")
    assert (facts.cpus, facts.cpus_from) == (3, "SLURM_CPUS_PER_TASK")
    assert facts_of(tmp_path, {}, SLURM_CPUS_PER_TASK="64").cpus == 16


def test_the_environment_of_the_process_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "1024")
    assert SystemHardware(machine(tmp_path, {})).host(tmp_path).smallest == Limit("SLURM_MEM_PER_NODE", GIB)


def test_this_machine() -> None:
    facts = SystemHardware().host(Path("/nowhere/at/all"))
    assert facts.cpus >= 1
    assert 0 < facts.smallest.n_bytes <= facts.memory_total
    assert facts.disk_free > 0
    assert facts.disk_folder == "/nowhere/at/all"


def test_a_system_without_proc(tmp_path: Path) -> None:
    facts = SystemHardware(tmp_path, {}).host(tmp_path)
    assert facts.memory_total >= facts.memory_available > 0


def test_ulimit_counts() -> None:
    code = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))
from pathlib import Path
from tabgpu.hardware import SystemHardware
print([(l.source, l.n_bytes) for l in SystemHardware(environ={}).host(Path('.')).limits if 'ulimit' in l.source])
"""
    root = Path(tabgpu.__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([("ulimit -v", 6 * GIB)])


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("auto", 8_000_000_000),
        (0.5, 5_000_000_000),
        ("0.5", 5_000_000_000),
        (1.0, 10_000_000_000),
        ("3GB", 3_000_000_000),
        (3_000_000_000, 3_000_000_000),
        (3e9, 3_000_000_000),
        ("12GB", 12_000_000_000),  # kept, with a warning in the reason
    ],
)
def test_memory_limit(setting: str | float, expected: int) -> None:
    limit, reason = memory_limit(setting, FACTS)
    assert limit == expected
    assert ("although only 10 GB are there" in reason) == (expected > 10**10)


@pytest.mark.parametrize("setting", ["much", 0, -1, 0.0, -0.5, 1.5, float("nan"), float("inf"), True, "", "80%"])
def test_memory_limits_that_are_none(setting: str | float) -> None:
    with pytest.raises(ConfigError, match=r"memory\.limit is") as caught:
        memory_limit(setting, FACTS)
    assert "--set memory.limit=" in caught.value.remedy


@settings(deadline=None, max_examples=50)
@given(sizes=st.lists(st.integers(0, 2**50), max_size=5), fraction=st.floats(0.01, 0.99))
def test_the_smallest_limit_wins(sizes: list[int], fraction: float) -> None:
    limits = tuple(Limit(f"limit {i}", n) for i, n in enumerate(sizes))
    facts = HostFacts(cpus=1, memory_total=2**49, memory_available=2**48, limits=limits)
    smallest = min([*sizes, 2**48])
    assert facts.smallest.n_bytes == smallest
    assert memory_limit(fraction, facts)[0] == int(fraction * smallest)


def test_what_processes_share(tmp_path: Path) -> None:
    tree = {"dev/shm/x": "", "sys/class/infiniband/mlx5_0/x": ""}
    for name, vendor, kind in (("0", "0x10de", "0x030200"), ("1", "0x10de", "0x040300"), ("2", "0x8086", "0x030000")):
        tree |= {f"sys/bus/pci/devices/{name}/vendor": f"{vendor}\n", f"sys/bus/pci/devices/{name}/class": f"{kind}\n"}
    facts = facts_of(tmp_path, tree)
    assert facts.shared_memory is not None
    assert facts.shared_memory > 0
    assert facts.infiniband == ("mlx5_0",)
    assert facts.nvidia_devices == 1  # not its sound, and nobody else's graphics


def test_a_machine_that_shares_nothing(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, {})
    assert (facts.shared_memory, facts.infiniband, facts.nvidia_devices) == (None, (), 0)


@pytest.mark.parametrize(("limit", "expected"), [(8192, 8192), (resource.RLIM_INFINITY, None)])
def test_how_much_memory_may_be_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, expected: int | None
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))
    assert facts_of(tmp_path, {}).memory_lock == expected
