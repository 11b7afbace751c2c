"""What a plan needs of the pipeline file and the machine: limits of one process, whether it is alone or a worker."""

from __future__ import annotations

from collections.abc import Sequence

from ..config import Cluster, Memory, Pipeline
from ..config.resources import SizeOrFraction
from ..errors import ConfigError, ResourceError
from ..hardware import GpuFacts, HostFacts, memory_limit
from ..units import format_bytes, parse_bytes
from .device import device_of
from .facts import Device, Settings

SAMPLE_ROWS = 200_000  # enough for own cuts: 5M x 30, AUC 0.86401 from all rows, 0.86399 from these
CLIENT_BYTES = 200_000_000  # of the process that starts workers, with the scheduler in it


def settings_of(
    pipeline: Pipeline,
    engine: tuple[str, str],
    runner: tuple[str, str],
    host: HostFacts,
    gpus: Sequence[GpuFacts] = (),
    workers: int = 1,
    device: Device | None = None,
) -> Settings:
    """Read the pipeline file.

    Parameters
    ----------
    pipeline : Pipeline
        The checked file.
    engine, runner : tuple of (str, str)
        Name and reason.
    host : HostFacts
        The machine; that of a worker where somebody else has started them.
    gpus : sequence of GpuFacts
        GPUs of that machine; looked at with the GPU engine alone.
    workers : int
        Processes that share the rows; 1 for none but this one.
    device : Device, optional
        The GPU as an earlier plan of the same run saw it, in place of `gpus`.

    Raises
    ------
    ResourceError
        If there is no GPU for the GPU engine.
    ConfigError
        If sizes contradict one another on this machine.
    """
    memory, model, cluster = pipeline.memory, pipeline.model, pipeline.cluster
    on_gpu = engine[0] == "gpu"
    if on_gpu and device is None:
        device = device_of(memory.device_limit, pool_of(memory, cluster), gpus)
    return Settings(
        engine,
        runner,
        _host_limit(memory, cluster, host),
        None if memory.chunk_rows == "auto" else memory.chunk_rows,
        model.params if model else None,
        int(model.params.get("max_bin", 256)) if model else 256,
        model.cuts if model else "own",
        SAMPLE_ROWS if model and model.cuts == "own" else 0,
        readers=None if memory.readers == "auto" else memory.readers,
        device=device if on_gpu else None,
        workers=workers,
        threads=(cluster.threads_per_worker or 1) if cluster else host.cpus,
        link=_link(cluster, gpus if on_gpu else ()),
        has_weight=pipeline.data.weight is not None,
    )


def pool_of(memory: Memory, cluster: Cluster | None) -> tuple[str, SizeOrFraction]:
    """Kind and size of the pool on a GPU: those of ``memory.pool``, unless the cluster has a pool of its own."""
    if cluster is not None and cluster.rmm_pool_size is not None:
        return "fixed", cluster.rmm_pool_size
    return memory.pool.kind, memory.pool.size


def worker_limit(memory: Memory, cluster: Cluster, host: HostFacts) -> tuple[int, str]:
    """Bytes of host memory for each worker that is started here, and whose limit it is.

    An equal share of ``memory.limit`` less what this process takes, or ``cluster.memory_limit``.

    Raises
    ------
    ConfigError
        If workers of that size exceed ``memory.limit`` together.
    ResourceError
        If they exceed what is there.

    Examples
    --------
    >>> host = HostFacts(cpus=8, memory_total=20 * 10**9, memory_available=10 * 10**9)
    >>> worker_limit(Memory(), Cluster(workers=2), host)
    (3900000000, 'a share of 2 of 0.8 of 10 GB (available memory)')
    >>> worker_limit(Memory(limit=0.9), Cluster(workers=2, memory_limit="4GB"), host)
    (4000000000, 'cluster.memory_limit')
    """
    workers = cluster.workers or 1
    all_bytes, reason = memory_limit(memory.limit, host)
    if cluster.memory_limit is None:
        return max(0, all_bytes - CLIENT_BYTES) // workers, f"a share of {workers} of {reason}"
    there = host.smallest.n_bytes
    size = cluster.memory_limit
    own = int(size * there) if isinstance(size, float) else parse_bytes(size, "cluster.memory_limit")
    given = memory.limit != "auto"
    limit = all_bytes if given else there
    if own * workers > limit:
        raised = ConfigError if given else ResourceError
        raise raised(
            f"cluster.memory_limit is {size!r} for each of {workers} workers, {format_bytes(own * workers)} in all, "
            f"and {format_bytes(limit)} may be taken: {reason if given else host.smallest.source}",
            "Expected all workers together to stay under memory.limit and what is there",
            "Lower cluster.memory_limit or cluster.workers, or leave cluster.memory_limit out for equal shares",
        )
    return own, "cluster.memory_limit"


def _host_limit(memory: Memory, cluster: Cluster | None, host: HostFacts) -> tuple[int, str]:
    if cluster is None:
        return memory_limit(memory.limit, host)
    if cluster.workers is not None:
        return worker_limit(memory, cluster, host)
    size, reason = memory_limit(memory.limit, host)
    return size, f"{reason}, on each worker"


def _link(cluster: Cluster | None, gpus: Sequence[GpuFacts]) -> str:
    """What joins workers: GPUs of this machine by NVLink or PCIe; others by a network that is not known."""
    if cluster is None or cluster.workers is not None:
        return ("NVLink" if all(gpu.nvlinks_active for gpu in gpus) else "PCIe") if gpus else "loopback"
    return "10 GbE"
