from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabgpu import hardware
from tabgpu.errors import ConfigError
from tabgpu.hardware import (
    FakeHardware,
    GpuFacts,
    HostFacts,
    Limit,
    MemoryMonitor,
    MemoryUse,
    SystemHardware,
    high_water_bytes,
    memory_limit,
    memory_use,
)

GIB = 2**30
FACTS = HostFacts(cpus=4, memory_total=16 * 10**9, memory_available=10 * 10**9)


@pytest.fixture(autouse=True)
def no_process_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_process_limits", lambda: iter(()))


@pytest.fixture(autouse=True)
def many_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)


def machine(root: Path, files: dict[str, str]) -> Path:
    """A tree with /proc and /sys in it: 64 GiB, 60 free, this process holding 100 MiB."""
    usual = {
        "proc/meminfo": f"MemTotal: {64 * 2**20} kB\nMemAvailable: {60 * 2**20} kB\nHugePages_Total: 0\n",
        "proc/self/status": "Name:\tx\nRssAnon:\t  92160 kB\nRssFile:\t 7 kB\nRssShmem:\t 10240 kB\nVmData:\t 1 kB\n",
    }
    for name, text in (usual | files).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


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
    assert SystemHardware().gpus() == []


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
    root = Path(hardware.__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([("ulimit -v", 6 * GIB)])


def test_given_facts() -> None:
    gpu = GpuFacts(0, "H200", 141 * 10**9, 140 * 10**9)
    fake: hardware.Hardware = FakeHardware(FACTS, (gpu,))
    assert fake.host(Path("x")) == FACTS
    assert fake.gpus() == [gpu]


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


def test_the_monitor_sees_what_came_and_went() -> None:
    with MemoryMonitor(interval_s=0.005) as monitor:
        before = monitor.current().counted
        block = bytearray(b"x") * 50_000_000
        time.sleep(0.05)
        del block
        time.sleep(0.05)
        after = monitor.current().counted
    assert monitor.peak_bytes - before >= 49_000_000
    assert after - before < 25_000_000
    assert monitor.peak.counted <= high_water_bytes()


def test_stages_have_peaks_of_their_own() -> None:
    with MemoryMonitor(interval_s=10) as monitor:
        monitor.stage("big")
        block = bytearray(b"x") * 50_000_000
        monitor.stage("small")  # samples both before and after: the block belongs to the stage that made it
        del block
        monitor.stage("big")
        monitor.stage("end")
    peaks = monitor.stage_peaks
    assert list(peaks) == ["start", "big", "small", "end"]
    assert peaks["big"] - peaks["start"] >= 49_000_000
    assert peaks["big"] - peaks["end"] >= 25_000_000
    assert monitor.peak_bytes == max(peaks.values())


def test_file_backed_pages_are_told_apart_and_shared_ones_count(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(30_000_000))
    with MemoryMonitor(interval_s=10) as monitor, path.open("rb") as file:
        before = monitor.current()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            assert sum(mapped[:: mmap.PAGESIZE]) == 0
            read = monitor.current()
        with mmap.mmap(-1, 30_000_000) as shared:
            shared.write(bytes(30_000_000))
            written = monitor.current()
    assert read.file_backed - before.file_backed >= 29_000_000
    assert read.counted - before.counted < 10_000_000
    assert written.shared - before.shared >= 29_000_000
    assert monitor.file_backed_peak_bytes >= read.file_backed


def test_children_and_their_children_count() -> None:
    hold = "b = bytearray(b'x') * 30_000_000; print('ready', flush=True); input()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {hold!r}])"
    with MemoryMonitor(interval_s=10) as monitor:
        before = monitor.current().counted
        with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            during = monitor.current().counted
            child.communicate(b"\n")
        after = monitor.current().counted
    assert during - before >= 30_000_000
    assert after - before < 10_000_000


def test_a_process_that_has_ended_takes_nothing(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        time.sleep(0.3)
        assert memory_use(pid=child.pid) == MemoryUse()  # a zombie
    assert memory_use(pid=child.pid) == MemoryUse()
    assert memory_use(machine(tmp_path, {})) == MemoryUse(90 * 2**20, 10 * 2**20, 7 * 2**10)


def test_the_monitor_costs_little() -> None:
    with MemoryMonitor() as monitor:
        began = time.thread_time()
        for _ in range(100):
            monitor._sample()
        cost_s = (time.thread_time() - began) / 100
    assert cost_s / monitor.interval_s < 0.005
