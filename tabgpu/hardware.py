"""Host facts behind a protocol: processors, memory and its limits, disk, open files; and the memory that a run takes.

`SystemHardware` asks the machine: the affinity mask, cgroups of both versions up their whole hierarchy, SLURM's
variables, `ulimit`, and what the operating system calls available. `FakeHardware` answers with given facts, so that
planning is tested for machines that are not there. `memory_limit` turns the setting of the pipeline file and these
facts into one number with its reason; `MemoryMonitor` measures what was really taken. How large a chunk or a cache may
be is left to the plan. The only importer of psutil.
"""

from __future__ import annotations

import itertools
import os
import resource
import shutil
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import psutil

from .errors import ConfigError
from .units import format_bytes, parse_bytes

AUTO_FRACTION = 0.8  # of the smallest limit: the rest is for libraries' own buffers and for what footers cannot tell
_UNLIMITED = 1 << 60  # cgroup v1 writes "no limit" as the largest multiple of a page
_CHILDREN_EVERY = 20  # samples: finding the children costs more than reading them


@dataclass(frozen=True, slots=True)
class Limit:
    """One bound on memory: where it comes from, and how many bytes it leaves to this process."""

    source: str
    n_bytes: int


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU: position among the visible devices, the driver's name for it, and its memory in bytes."""

    index: int
    name: str
    memory_total: int
    memory_free: int


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What a plan needs to know about the machine; memory and disk in bytes.

    `cpus` is how many processors this process may keep busy, at least 1, and `cpus_from` what decided it;
    `memory_available` is what the operating system can give without swapping; `limits` are all other bounds that were
    found, in no order; `disk_free` is what an unprivileged process can write in `disk_folder`; `open_files` is how many
    files this process may hold open.
    """

    cpus: int
    memory_total: int
    memory_available: int
    limits: tuple[Limit, ...] = ()
    disk_free: int = 1 << 40
    disk_folder: str = "."
    open_files: int = 1024
    cpus_from: str = "affinity"

    @property
    def smallest(self) -> Limit:
        """The limit that binds: the smallest of `limits`, `memory_available` and `memory_total`."""
        there = (Limit("available memory", self.memory_available), Limit("memory of the machine", self.memory_total))
        return min((*self.limits, *there), key=lambda limit: limit.n_bytes)


class Hardware(Protocol):
    """Where facts come from: the machine, or a test."""

    def host(self, folder: Path) -> HostFacts:
        """Facts of this machine now, with the free disk of `folder` (or of its nearest existing parent)."""

    def gpus(self) -> list[GpuFacts]:
        """The visible GPUs, in the order of their indices; empty where there is none."""


@dataclass(frozen=True, slots=True)
class FakeHardware:
    """Given facts, for tests and for planning on behalf of another machine."""

    facts: HostFacts
    gpu_facts: tuple[GpuFacts, ...] = ()

    def host(self, folder: Path) -> HostFacts:
        """The given facts, whatever the folder."""
        return self.facts

    def gpus(self) -> list[GpuFacts]:
        """The given GPUs."""
        return list(self.gpu_facts)


@dataclass(frozen=True, slots=True)
class SystemHardware:
    """The machine this process runs on.

    Tests give another `root`, below which ``proc`` and ``sys`` are found, and an `environ` with SLURM's variables.
    """

    root: Path = Path("/")
    environ: Mapping[str, str] | None = None

    def host(self, folder: Path) -> HostFacts:
        """Facts of this machine now, with the free disk of `folder` (or of its nearest existing parent)."""
        environ = os.environ if self.environ is None else self.environ
        cpus, cpus_from = min(_cpu_bounds(self.root, environ))
        total, available = _system_memory(self.root)
        existing = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.is_dir())
        return HostFacts(
            cpus=cpus,
            cpus_from=cpus_from,
            memory_total=total,
            memory_available=available,
            limits=(*_cgroup_limits(self.root), *_slurm_limits(environ, cpus), *_process_limits()),
            disk_free=shutil.disk_usage(existing).free,
            disk_folder=str(folder),
            open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        )

    def gpus(self) -> list[GpuFacts]:
        """No GPU: the CPU engine needs none, and the engine that does is the one to ask the driver."""
        return []


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
        words = _read_text(folder / "cpu.max") or " ".join(
            _read_text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")
        )
        quota, period = map(_number, (*words.split(), "", "")[:2])
        if quota and period:  # rounded down: a thread too many is throttled for a whole period while the others spin
            yield max(1, quota // period), "cgroup quota"
    if slurm := _number(environ.get("SLURM_CPUS_PER_TASK", "")):
        yield slurm, "SLURM_CPUS_PER_TASK"


def _system_memory(root: Path) -> tuple[int, int]:
    lines = map(str.split, _read_text(root / "proc/meminfo").splitlines())
    sizes = {words[0]: 1024 * _number(words[1]) for words in lines}
    if "MemAvailable:" in sizes:
        return sizes["MemTotal:"], sizes["MemAvailable:"]
    memory = psutil.virtual_memory()
    return memory.total, memory.available


def _cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's cgroups for one controller, from its own up to the top, in both versions.

    Inside a container the paths of the host may not exist: then the top folder is the container's own.
    """
    mounts = root / "sys/fs/cgroup"
    for line in _read_text(root / "proc/self/cgroup").splitlines():
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
            limit = _number(_read_text(folder / name))
            if 0 < limit < _UNLIMITED:
                used = _used_by_others(folder, root)
                less = f" less {format_bytes(used)} that other processes hold" if used else ""
                yield Limit(f"cgroup {name}{less}", max(0, limit - used))


def _used_by_others(folder: Path, root: Path) -> int:
    """Bytes in a cgroup that cannot be reclaimed and are not this process's own."""
    stat = dict(line.split() for line in _read_text(folder / "memory.stat").splitlines())
    names = ("total_rss", "total_shmem") if "total_rss" in stat else ("anon", "shmem")
    held = sum(_number(stat.get(name, "")) for name in names)
    return max(0, held - memory_use(root).counted)


def _slurm_limits(environ: Mapping[str, str], cpus: int) -> Iterator[Limit]:
    if per_node := _number(environ.get("SLURM_MEM_PER_NODE", "").removesuffix("M")):  # 0 means all there is
        yield Limit("SLURM_MEM_PER_NODE", per_node * 2**20)
    count = _number(environ.get("SLURM_CPUS_PER_TASK") or environ.get("SLURM_CPUS_ON_NODE") or "") or cpus
    if per_cpu := _number(environ.get("SLURM_MEM_PER_CPU", "").removesuffix("M")):
        yield Limit("SLURM_MEM_PER_CPU", per_cpu * 2**20 * count)


def _process_limits() -> Iterator[Limit]:
    for kind, source in ((resource.RLIMIT_AS, "ulimit -v"), (resource.RLIMIT_DATA, "ulimit -d")):
        if (soft := resource.getrlimit(kind)[0]) != resource.RLIM_INFINITY:
            yield Limit(source, soft)


class MemoryUse(NamedTuple):
    """Memory of some processes in bytes.

    `anonymous` and `shared` count against the limit; `file_backed` pages can be dropped by the kernel at any time.
    Pages that processes share are counted once for each of them: an upper bound.
    """

    anonymous: int = 0
    shared: int = 0
    file_backed: int = 0

    @property
    def counted(self) -> int:
        """What counts against the limit: `anonymous` + `shared`."""
        return self.anonymous + self.shared


def memory_use(root: Path = Path("/"), pid: int | str = "self") -> MemoryUse:
    """Memory of one process now; zeros when it has ended.

    Where the system does not tell anonymous from file-backed pages (macOS), all resident memory counts as anonymous.
    """
    status = _read_text(f"{root}/proc/{pid}/status")
    if status:  # read at every sample, so only the three lines are looked at; a process that ends has none of them
        _, found, rest = status.partition("RssAnon:")
        words = rest.split(None, 7)
        return MemoryUse(*(1024 * int(words[i]) for i in (0, 6, 3))) if found else MemoryUse()
    try:
        return MemoryUse(psutil.Process(None if pid == "self" else int(pid)).memory_info().rss)
    except psutil.Error:
        return MemoryUse()


def high_water_bytes() -> int:
    """Largest resident memory of this process since its start, file-backed pages included (VmHWM); 0 if unknown."""
    _, _, rest = _read_text("/proc/self/status").partition("VmHWM:")
    return 1024 * int(rest.split(None, 1)[0]) if rest else 0


class MemoryMonitor:
    """Context manager that samples the memory of this process and its children in a thread of its own.

    What rises and falls between two samples, `interval_s` seconds apart, is not seen.

    Attributes
    ----------
    peak : MemoryUse
        The sample with the largest `counted`.
    file_backed_peak_bytes : int
        Largest file-backed memory, which no limit counts.
    stage_peaks : dict of str to int
        Largest `counted` in bytes while each stage ran, in the order in which the stages began.

    Examples
    --------
    >>> with MemoryMonitor() as monitor:
    ...     monitor.stage("fill")
    ...     block = bytearray(b"x") * 20_000_000
    >>> monitor.peak_bytes >= 20_000_000, list(monitor.stage_peaks)
    (True, ['start', 'fill'])
    """

    def __init__(self, interval_s: float = 0.05) -> None:
        self.interval_s = interval_s
        self.peak = MemoryUse()
        self.file_backed_peak_bytes = 0
        self.stage_peaks: dict[str, int] = {}
        self._stage = "start"
        self._children: list[int] = []
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._sample_until_stopped, name="memory-monitor", daemon=True)

    @property
    def peak_bytes(self) -> int:
        """Largest anonymous + shared memory of the process tree so far."""
        return self.peak.counted

    def current(self) -> MemoryUse:
        """Take a sample now: memory of this process and its children."""
        with self._lock:
            self._children = _descendants()
            return self._sample()

    def stage(self, name: str) -> None:
        """End the running stage and begin another; a name that returns goes on where it was."""
        self.current()
        self._stage = name
        self.current()

    def __enter__(self) -> MemoryMonitor:
        self.current()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self.current()

    def _sample_until_stopped(self) -> None:
        for count in itertools.count(1):
            if self._stop.wait(self.interval_s):
                return
            with self._lock:
                if count % _CHILDREN_EVERY == 0:
                    self._children = _descendants()
                self._sample()

    def _sample(self) -> MemoryUse:
        use = MemoryUse(*map(sum, zip(memory_use(), *(memory_use(pid=pid) for pid in self._children), strict=True)))
        if use.counted >= self.peak.counted:
            self.peak = use
        self.file_backed_peak_bytes = max(self.file_backed_peak_bytes, use.file_backed)
        self.stage_peaks[self._stage] = max(self.stage_peaks.get(self._stage, 0), use.counted)
        return use


def _descendants() -> list[int]:
    """Process ids of the children of this process and of their children."""
    found, todo = [], [os.getpid()]
    if not Path(f"/proc/self/task/{threading.get_native_id()}/children").exists():
        return [child.pid for child in psutil.Process().children(recursive=True)]
    while todo:
        for task in Path(f"/proc/{todo.pop()}/task").glob("*/children"):
            children = [int(word) for word in _read_text(task).split()]
            found += children
            todo += children
    return found


def _read_text(path: Path | str) -> str:
    """Read a small file of the kernel; empty where there is none: another kind of system, or a process has ended."""
    try:
        with open(path, "rb", buffering=0) as file:
            return (file.read(1 << 16) or b"").decode(errors="replace")
    except OSError:
        return ""


def _number(text: str) -> int:
    """A whole number as the kernel and SLURM write it; 0 for "max", -1 and all else."""
    return int(text) if text.strip().isdecimal() else 0
