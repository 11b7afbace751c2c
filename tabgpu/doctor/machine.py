"""What is wrong with the machine around the GPUs, or with its limits: each question a pure function over the facts."""

from __future__ import annotations

from collections.abc import Iterator

from ..packages import Finding
from ..units import format_bytes
from .facts import Facts

_SMALL_MEMORY = 2 * 10**9
_SMALL_DISK = 10**9
_SMALL_SHARED = 2**30  # NCCL's segments: some 10 MB for each pair of GPUs and channel
_FEW_FILES = 512
_HOST_PER_DEVICE = 2  # memory of the host for each byte on its GPUs: room for what is spilled, and for reading


def judge(facts: Facts) -> Iterator[Finding]:
    """All findings about the machine, in no order."""
    for question in (_memory, _memory_beside_gpus, _disk, _open_files, _shared_memory, _memory_lock, _slurm):
        yield from question(facts)


def _memory(facts: Facts) -> Iterator[Finding]:
    smallest = facts.host.smallest
    if smallest.n_bytes < _SMALL_MEMORY:
        yield Finding(
            "memory",
            "warning",
            f"{format_bytes(smallest.n_bytes)} of memory are there ({smallest.source})",
            f"Expected {format_bytes(_SMALL_MEMORY)} or more",
            "Raise the limit of the container or job, or end what takes the memory",
        )


def _memory_beside_gpus(facts: Facts) -> Iterator[Finding]:
    device = sum(gpu.memory_total for gpu in facts.gpu.gpus if not gpu.unified_memory)
    smallest = facts.host.smallest
    if smallest.n_bytes < _HOST_PER_DEVICE * device:
        yield Finding(
            "host memory",
            "warning",
            f"The host has {format_bytes(smallest.n_bytes)} ({smallest.source}) for {format_bytes(device)} on its GPUs",
            f"Expected {_HOST_PER_DEVICE} times as much: spilling and external memory need it",
            "Data that does not fit on the GPUs may not fit on the host either: raise the limit, or use fewer GPUs",
        )


def _disk(facts: Facts) -> Iterator[Finding]:
    host = facts.host
    if host.disk_free < _SMALL_DISK:
        yield Finding(
            "disk",
            "warning",
            f"{format_bytes(host.disk_free)} are free in {host.disk_folder}",
            f"Expected {format_bytes(_SMALL_DISK)} or more for outputs and caches",
            "Make room, or choose other folders: --set cache.dir=DIR --set output=DIR",
        )


def _open_files(facts: Facts) -> Iterator[Finding]:
    if facts.host.open_files < _FEW_FILES:
        yield Finding(
            "open files",
            "warning",
            f"A process may open {facts.host.open_files} files",
            f"Expected {_FEW_FILES} or more",
            "Run: ulimit -n 4096",
        )


def _shared_memory(facts: Facts) -> Iterator[Finding]:
    size = facts.host.shared_memory
    if len(facts.gpu.gpus) > 1 and size is not None and size < _SMALL_SHARED:
        yield Finding(
            "/dev/shm",
            "warning",
            f"/dev/shm holds {format_bytes(size)}",
            f"Expected {format_bytes(_SMALL_SHARED)} or more: NCCL fails where several GPUs meet in it",
            "Start the container with --shm-size=1g or --ipc=host",
        )


def _memory_lock(facts: Facts) -> Iterator[Finding]:
    limit = facts.host.memory_lock
    if facts.host.infiniband and limit is not None:
        yield Finding(
            "memory lock",
            "warning",
            f"A process may lock {format_bytes(limit)} of memory (ulimit -l)",
            f"Expected no limit beside {', '.join(facts.host.infiniband)}: InfiniBand needs locked memory",
            "Run: ulimit -l unlimited (containers: --ulimit memlock=-1; SLURM: PropagateResourceLimitsExcept=MEMLOCK)",
        )


def _slurm(facts: Facts) -> Iterator[Finding]:
    asked = any(name in facts.environ for name in ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE"))
    if "SLURM_JOB_ID" in facts.environ and facts.gpu.gpus and not asked:
        yield Finding(
            "SLURM",
            "warning",
            f"The SLURM job asked for no GPU, yet {len(facts.gpu.gpus)} can be seen",
            "Expected to see what was asked for alone: another job may use them",
            "Ask for what you use: --gres=gpu:1",
        )
