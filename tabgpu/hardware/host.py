"""Facts of the host: processors, memory and its limits, disk, open files, and what several processes need to share.

Limits are those of cgroups in both versions up their whole hierarchy, of SLURM, of `ulimit`, and what the operating
system calls available. `memory_limit` turns the setting of the pipeline file and these facts into one number with its
reason. How large a chunk or a cache may be is left to the plan.
"""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from ..errors import ConfigError
from ..units import format_bytes, parse_bytes
from .kernel import read_text, whole_number
from .memory import memory_use

AUTO_FRACTION = 0.8  # of the smallest limit: the rest is for libraries' own buffers and for what footers cannot tell
_UNLIMITED = 1 << 60  # cgroup v1 writes "no limit" as the largest multiple of a page


@dataclass(frozen=True, slots=True)
class Limit:
    """One bound on memory: where it comes from, and how many bytes it leaves to this process."""

    source: str
    n_bytes: int


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What a plan needs to know about the machine; memory and disk in bytes.

    `cpus` is how many processors this process may keep busy, at least 1, and `cpus_from` what decided it;
    `memory_available` is what the operating system can give without swapping; `limits` are all other bounds that were
    found, in no order; `disk_free` is what an unprivileged process can write in `disk_folder`; `open_files` is how many
    files this process may hold open. `shared_memory` is the size of ``/dev/shm``, where processes of one machine meet,
    None where there is none; `memory_lock` is how much memory may be locked, None for as much as there is;
    `infiniband` are the names of its adapters, and `nvidia_devices` is how many PCI devices of NVIDIA there are,
    whether or not a driver knows them.
    """

    cpus: int
    memory_total: int
    memory_available: int
    limits: tuple[Limit, ...] = ()
    disk_free: int = 1 << 40
    disk_folder: str = "."
    open_files: int = 1024
    cpus_from: str = "affinity"
    shared_memory: int | None = None
    memory_lock: int | None = None
    infiniband: tuple[str, ...] = ()
    nvidia_devices: int = 0

    @property
    def smallest(self) -> Limit:
        """The limit that binds: the smallest of `limits`, `memory_available` and `memory_total`."""
        there = (Limit("available memory", self.memory_available), Limit("memory of the machine", self.memory_total))
        return min((*self.limits, *there), key=lambda limit: limit.n_bytes)


def host_facts(root: Path, environ: Mapping[str, str], folder: Path) -> HostFacts:
    """Facts of this machine now, from ``proc`` and ``sys`` below `root`, with the free disk of `folder`."""
    cpus, cpus_from = min(_cpu_bounds(root, environ))
    total, available = system_memory(root)
    existing = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.is_dir())
    shared = root / "dev/shm"
    lock = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return HostFacts(
        cpus=cpus,
        cpus_from=cpus_from,
        memory_total=total,
        memory_available=available,
        limits=(*_cgroup_limits(root), *_slurm_limits(environ, cpus), *_process_limits()),
        disk_free=shutil.disk_usage(existing).free,
        disk_folder=str(folder),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        shared_memory=shutil.disk_usage(shared).total if shared.is_dir() else None,
        memory_lock=None if lock == resource.RLIM_INFINITY else lock,
        infiniband=tuple(sorted(path.name for path in (root / "sys/class/infiniband").glob("*"))),
        nvidia_devices=nvidia_devices(root),
    )


def nvidia_devices(root: Path = Path("/")) -> int:
    """How many GPUs of NVIDIA are on the PCI bus; a container may see those of its host."""
    devices = (root / "sys/bus/pci/devices").glob("*")
    return sum(
        read_text(device / "vendor").strip() == "0x10de" and read_text(device / "class").startswith(("0x03", "0x12"))
        for device in devices
    )


def memory_limit(setting: str | int | float, facts: HostFacts) -> tuple[int, str]:
    """Turn ``memory.limit`` into bytes of anonymous and shared memory that the process tree may take.

    Parameters
    ----------
    setting : str, int or float
        ``"auto"`` (0.8 of the smallest limit there is), a fraction of it in (0, 1) or 1.0, or a size such as ``"8GB"``,
        which is kept even where it exceeds what is there: the reason then says so.

    Returns
    -------
    tuple of int and str
        Bytes, and in one line where the number comes from.

    Raises
    ------
    ConfigError
        If `setting` is none of these.

    Examples
    --------
    >>> facts = HostFacts(cpus=2, memory_total=16 * 10**9, memory_available=10 * 10**9)
    >>> memory_limit("auto", facts)
    (8000000000, '0.8 of 10 GB (available memory)')
    >>> memory_limit("20GB", facts)[1]
    'memory.limit, although only 10 GB are there (available memory)'
    """
    bytes_there, source = facts.smallest.n_bytes, facts.smallest.source
    fraction = _fraction(setting)
    if fraction is not None:
        return int(fraction * bytes_there), f"{fraction:g} of {format_bytes(bytes_there)} ({source})"
    size = parse_bytes(setting, "memory.limit")
    but = f", although only {format_bytes(bytes_there)} are there ({source})" if size > bytes_there else ""
    return size, f"memory.limit{but}"


def _fraction(setting: str | int | float) -> float | None:
    if setting == "auto":
        return AUTO_FRACTION
    try:
        number = float(setting)
    except ValueError:
        return None  # a size with a unit, or an error that parse_bytes words
    fraction = 0 < number < 1 or (isinstance(setting, float) and number == 1)
    if isinstance(setting, bool) or not (fraction or (number.is_integer() and number > 0)):
        raise ConfigError(
            f"memory.limit is {setting!r}",
            "Expected 'auto', a fraction such as 0.8, or a size such as '8GB'",
            "Write one of these under memory.limit, or pass --set memory.limit=auto",
        )
    return number if fraction else None


def _cpu_bounds(root: Path, environ: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield affinity, "affinity"
    for folder in _cgroup_folders(root, "cpu"):
        words = read_text(folder / "cpu.max") or " ".join(
            read_text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")
        )
        quota, period = map(whole_number, (*words.split(), "", "")[:2])
        if quota and period:  # rounded down: a thread too many is throttled for a whole period while the others spin
            yield max(1, quota // period), "cgroup quota"
    if slurm := whole_number(environ.get("SLURM_CPUS_PER_TASK", "")):
        yield slurm, "SLURM_CPUS_PER_TASK"


def system_memory(root: Path = Path("/")) -> tuple[int, int]:
    """Bytes of memory that the machine has, and that it can give without swapping."""
    lines = map(str.split, read_text(root / "proc/meminfo").splitlines())
    sizes = {words[0]: 1024 * whole_number(words[1]) for words in lines}
    if "MemAvailable:" in sizes:
        return sizes["MemTotal:"], sizes["MemAvailable:"]
    memory = psutil.virtual_memory()
    return memory.total, memory.available


def _cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's cgroups for one controller, from its own up to the top, in both versions.

    Inside a container the paths of the host may not exist: then the top folder is the container's own.
    """
    mounts = root / "sys/fs/cgroup"
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        tops = (mounts / controllers, mounts / controller) if controllers else (mounts, mounts / "unified")
        if controllers and controller not in controllers.split(","):
            continue
        for top in dict.fromkeys(tops):
            own = top / path.strip("/")
            yield from (f for f in (own, *own.parents) if f.is_relative_to(top) and f.is_dir())


def _cgroup_limits(root: Path) -> Iterator[Limit]:
    for folder in _cgroup_folders(root, "memory"):
        for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
            limit = whole_number(read_text(folder / name))
            if 0 < limit < _UNLIMITED:
                used = _used_by_others(folder, root)
                less = f" less {format_bytes(used)} that other processes hold" if used else ""
                yield Limit(f"cgroup {name}{less}", max(0, limit - used))


def _used_by_others(folder: Path, root: Path) -> int:
    """Bytes in a cgroup that cannot be reclaimed and are not this process's own."""
    stat = dict(line.split() for line in read_text(folder / "memory.stat").splitlines())
    names = ("total_rss", "total_shmem") if "total_rss" in stat else ("anon", "shmem")
    held = sum(whole_number(stat.get(name, "")) for name in names)
    return max(0, held - memory_use(root).counted)


def _slurm_limits(environ: Mapping[str, str], cpus: int) -> Iterator[Limit]:
    if per_node := whole_number(environ.get("SLURM_MEM_PER_NODE", "").removesuffix("M")):  # 0 means all there is
        yield Limit("SLURM_MEM_PER_NODE", per_node * 2**20)
    count = whole_number(environ.get("SLURM_CPUS_PER_TASK") or environ.get("SLURM_CPUS_ON_NODE") or "") or cpus
    if per_cpu := whole_number(environ.get("SLURM_MEM_PER_CPU", "").removesuffix("M")):
        yield Limit("SLURM_MEM_PER_CPU", per_cpu * 2**20 * count)


def _process_limits() -> Iterator[Limit]:
    for kind, source in ((resource.RLIMIT_AS, "ulimit -v"), (resource.RLIMIT_DATA, "ulimit -d")):
        if (soft := resource.getrlimit(kind)[0]) != resource.RLIM_INFINITY:
            yield Limit(source, soft)
