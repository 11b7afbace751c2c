"""Options of a cluster that is started here, as keywords of `LocalCluster` or dask-cuda's `LocalCUDACluster`.

Every size is in bytes: a fraction means the parent GPU to dask-cuda where a GPU is divided (MIG), and is read anew by
each worker. A pool that does not fit is refused here, since a worker that cannot set it up never answers. RMM is left
alone unless the cluster's own options say otherwise: the engine sets up its pool on each worker, which XGBoost shares.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..config import Cluster, Memory
from ..errors import ConfigError, ResourceError
from ..hardware import GpuFacts, HostFacts
from ..units import format_bytes, parse_bytes
from .device import device_limit
from .settings import worker_limit

_ALIGNMENT = 256  # of RMM's pools
_SPILL_FRACTION = 0.8  # of the whole GPU, at most: above it nothing is left to move data with (dask-cuda issue 483)
_SIZES = ("device_memory_limit", "rmm_pool_size", "rmm_maximum_pool_size", "rmm_release_threshold")


def cluster_options(
    cluster: Cluster, memory: Memory, host: HostFacts, gpus: Sequence[GpuFacts], ucx: bool = False
) -> dict[str, object]:
    """Keywords for the cluster that ``cluster.workers`` asks for.

    Parameters
    ----------
    cluster, memory
        As in the pipeline file.
    host : HostFacts
        This machine.
    gpus : sequence of GpuFacts
        Its GPUs; empty with the CPU engine. Then the keywords are those of `LocalCluster`, else of `LocalCUDACluster`.
    ucx : bool
        Whether distributed-ucxx is installed: ``protocol: auto`` takes it between GPUs that NVLink joins.

    Returns
    -------
    dict of str to object
        What is not in it is left to the default.

    Raises
    ------
    ConfigError
        If sizes contradict one another once they are bytes, or options of GPUs are given without any.
    ResourceError
        If there are fewer GPUs than workers, or less memory than asked for.

    Examples
    --------
    >>> host = HostFacts(cpus=8, memory_total=20 * 10**9, memory_available=10 * 10**9)
    >>> cluster_options(Cluster(workers=2), Memory(), host, [])
    {'n_workers': 2, 'threads_per_worker': 1, 'memory_limit': 3900000000, 'processes': True}
    """
    options: dict[str, object] = {
        "n_workers": cluster.workers,
        "threads_per_worker": cluster.threads_per_worker or 1,
        "memory_limit": worker_limit(memory, cluster, host)[0],
    }
    options |= {name: value for name in ("interface", "local_directory") if (value := getattr(cluster, name))}
    if cluster.protocol != "auto":
        options["protocol"] = cluster.protocol
    if not gpus:
        if own := cluster.device_options():
            raise ConfigError(
                f"cluster.{own[0]} is {getattr(cluster, own[0])!r}, and the workers have no GPU",
                "Expected options of GPUs with the GPU engine alone",
                f"Remove cluster.{own[0]}, or pass --set engine=gpu to learn what that lacks",
            )
        return {**options, "processes": True}
    if ucx and cluster.protocol == "auto" and len(gpus) > 1 and all(gpu.nvlinks_active for gpu in gpus):
        options["protocol"] = "ucx"
    return {**options, **_device_options(cluster, memory, gpus)}


def _device_options(cluster: Cluster, memory: Memory, gpus: Sequence[GpuFacts]) -> dict[str, object]:
    workers = cluster.workers or 1
    there = cluster.CUDA_VISIBLE_DEVICES or [gpu.uuid or str(gpu.index) for gpu in gpus]
    if workers > min(len(there), len(gpus)):
        raise ResourceError(
            f"cluster.workers is {workers}, and {len(gpus)} GPUs are to be seen",
            "Expected a GPU for each worker",
            f"Pass --set cluster.workers={len(gpus)}, or look at CUDA_VISIBLE_DEVICES and 'tabgpu doctor'",
        )
    sizes = _device_sizes(cluster, memory, gpus)
    spills = cluster.enable_cudf_spill if memory.spill == "auto" else memory.spill
    unified = any(gpu.unified_memory for gpu in gpus)
    if unified and spills:
        raise ConfigError(
            "GPU and host share their memory, and cuDF is asked to move data between them",
            "Expected no spilling on such a machine",
            "Remove cluster.enable_cudf_spill, and write memory.spill: auto (--set memory.spill=auto)",
        )
    options: dict[str, object] = {"device_memory_limit": 0 if unified else sizes["device_memory_limit"]}
    if cluster.CUDA_VISIBLE_DEVICES or any(gpu.mig for gpu in gpus):
        options["CUDA_VISIBLE_DEVICES"] = list(there[:workers])
    for name in ("rmm_async", "rmm_managed_memory"):
        if getattr(cluster, name):
            options[name] = True
    for name in ("rmm_pool_size", "rmm_maximum_pool_size", "rmm_release_threshold"):
        if name in sizes:
            options[name] = sizes[name] - sizes[name] % _ALIGNMENT
    if "rmm_pool_size" in options:  # a pool that grows late finds no memory (rmm issue 496)
        options.setdefault("rmm_maximum_pool_size", options["rmm_pool_size"])
    if spills is not None:
        options["enable_cudf_spill"] = bool(spills)
    return options


def _device_sizes(cluster: Cluster, memory: Memory, gpus: Sequence[GpuFacts]) -> dict[str, int]:
    """Sizes in bytes; fractions are of the whole memory of the smallest GPU, as for dask-cuda."""
    whole = min(gpu.memory_total for gpu in gpus)
    limit, reason = device_limit(memory.device_limit, gpus)
    sizes = {"device_memory_limit": min(limit, int(_SPILL_FRACTION * whole))}
    for name in _SIZES:
        value = getattr(cluster, name)
        if value is None:
            continue
        sizes[name] = int(value * whole) if isinstance(value, float) else parse_bytes(value, f"cluster.{name}")
        most, why = (limit, reason) if name.endswith("pool_size") else (whole, "all memory of the smallest GPU")
        if sizes[name] > most:
            raise (ResourceError if memory.device_limit == "auto" else ConfigError)(
                f"cluster.{name} is {value!r} ({format_bytes(sizes[name])}), and {format_bytes(most)} of a GPU may be "
                f"taken: {why}",
                "Expected a size that fits, since a worker without its pool never answers",
                f"Lower cluster.{name} (--set cluster.{name}=0.8), or raise memory.device_limit",
            )
    pool, largest = sizes.get("rmm_pool_size", 0), sizes.get("rmm_maximum_pool_size")
    if largest is not None and pool > largest:
        raise ConfigError(
            f"cluster.rmm_pool_size is {format_bytes(pool)}, and cluster.rmm_maximum_pool_size {format_bytes(largest)}",
            "Expected a pool that is not larger than its maximum",
            "Lower cluster.rmm_pool_size, or remove cluster.rmm_maximum_pool_size",
        )
    return sizes
