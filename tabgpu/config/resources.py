"""Models of ``memory:`` and ``cluster:``: what may be used, and which workers there are.

Checked here is all that the file alone can tell: types, sizes, options of dask-cuda that exclude one another, and
options of workers that somebody else has started. Options keep the names that people know from `LocalCUDACluster`,
which itself refuses little: an unknown keyword, or a pool that cannot be set up, leaves a cluster without workers that
waits for ever. Names that dask-cuda has given up are refused with what took their place. Fractions become bytes, and
sizes are compared with the machine, in `tabgpu.planning.cluster_options`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from ..errors import ConfigError
from ..units import parse_bytes
from .base import Options
from .data import Text


def _check_size(value: Any) -> Any:
    try:
        if value != "auto" and not (isinstance(value, float) and 0 < value <= 1):
            parse_bytes("" if isinstance(value, float) else value, "size")
    except ConfigError:
        raise PydanticCustomError("size", "auto, bytes such as 8000000000, '8GB', '8GiB', or a fraction of 1") from None
    return value


def _check_given_size(value: Any) -> Any:
    if value == "auto":
        raise PydanticCustomError("size", "bytes such as 8000000000, '8GB', '8GiB', or a fraction of 1")
    return _check_size(value)


Size = Annotated[int | str, AfterValidator(_check_size)]
SizeOrFraction = Annotated[int | float | str, AfterValidator(_check_size)]
GivenSize = Annotated[int | float | str, AfterValidator(_check_given_size)]


class Pool(Options):
    """The memory pool on a GPU."""

    kind: Literal["async", "fixed"] = Field(
        default="async", description="async: CUDA's own pool; fixed: one of a fixed size"
    )
    size: SizeOrFraction = Field(
        default="auto", description="size of a fixed pool: auto, bytes, or a fraction of the device"
    )

    @model_validator(mode="after")
    def _check(self) -> Pool:
        if self.kind == "async" and self.size != "auto":
            raise ConfigError(
                f"memory.pool.size is {self.size!r} with kind 'async', which grows by itself",
                "Expected a size with kind: fixed alone",
                "Write memory.pool.kind: fixed, or limit the GPU's memory by memory.device_limit",
            )
        return self


class Memory(Options):
    """How much memory may be used."""

    limit: SizeOrFraction = Field(
        default="auto", description="host memory: auto, '8GB', bytes, or a fraction of what is there"
    )
    device_limit: SizeOrFraction = Field(
        default="auto", description="memory of each GPU: auto, '8GB', bytes, or a fraction of what is free there"
    )
    chunk_rows: Annotated[int, Field(ge=1, lt=2**31)] | Literal["auto"] = Field(
        default="auto", description="rows in a chunk"
    )
    readers: Annotated[int, Field(ge=1, le=64)] | Literal["auto"] = Field(
        default="auto",
        description="threads that read the next chunks while one is worked on; each takes the memory of two chunks",
    )
    pool: Annotated[Pool, BeforeValidator(lambda v: {"kind": v} if isinstance(v, str) else v)] = Field(
        default_factory=Pool, description="memory pool on a GPU: async, fixed, or {kind, size}"
    )
    spill: bool | Literal["auto"] = Field(default="auto", description="whether the GPU may move data to the host")


_REMOVED = {
    "n_workers": "workers",
    "jit_unspill": "enable_cudf_spill: true, which took its place (dask-cuda 26.06 has no jit_unspill)",
    "explicit_comms": "nothing in its place: dask-cuda 26.06 has no explicit communication, and no rows move here",
    "enable_tcp_over_ucx": "protocol: ucx, which finds its transports itself",
    "enable_infiniband": "protocol: ucx, which finds its transports itself",
    "enable_nvlink": "protocol: ucx, which finds its transports itself",
    "enable_rdmacm": "protocol: ucx, which finds its transports itself",
    "ucx_net_devices": "interface, the name of a network interface (UCX-Py is gone since 25.10)",
    "net_devices": "interface, the name of a network interface (UCX-Py is gone since 25.10)",
    "log_spilling": "nothing in its place: it does nothing in dask-cuda 26.10",
    "rmm_log_directory": "nothing in its place: the run folder has the peak of every stage",
    "rmm_track_allocations": "nothing in its place: the run folder has the peak of every stage",
}
_DEVICE_OPTIONS = (
    "device_memory_limit",
    "rmm_pool_size",
    "rmm_maximum_pool_size",
    "rmm_async",
    "rmm_release_threshold",
    "rmm_managed_memory",
    "enable_cudf_spill",
    "CUDA_VISIBLE_DEVICES",
)
_WORKER_OPTIONS = (
    *_DEVICE_OPTIONS,
    "memory_limit",
    "protocol",
    "interface",
    "local_directory",
    "threads_per_worker",
)


def _as_devices(value: Any) -> Any:
    """``0``, ``"0,1"`` and ``[0, "GPU-..."]`` as a tuple of texts."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, str):
        value = value.split(",")
    items = [value] if isinstance(value, int) else value
    if isinstance(items, Sequence) and all(isinstance(i, str) or type(i) is int for i in items):
        return tuple(str(i).strip() for i in items)
    return value


class Cluster(Options):
    """Where workers are: one of workers, address and scheduler_file; and how those started here are set up."""

    workers: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        default=None, description="start this many on this machine"
    )
    address: Text | None = Field(default=None, description="address of a running scheduler, such as tcp://host:8786")
    scheduler_file: Text | None = Field(default=None, description="file that the scheduler wrote")
    timeout: Annotated[int | float, Field(gt=0, le=86_400)] = Field(
        default=120, description="seconds to wait for the scheduler and all workers"
    )
    threads_per_worker: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        default=None, description="threads of each worker; 1 by default"
    )
    memory_limit: GivenSize | None = Field(
        default=None, description="host memory of each worker: '8GB', bytes, or a fraction of what is there"
    )
    device_memory_limit: GivenSize | None = Field(
        default=None, description="GPU memory from which a worker moves results to the host: '8GB', or a fraction"
    )
    rmm_pool_size: GivenSize | None = Field(
        default=None, description="pool of each worker, reserved at its start: '8GB', or a fraction of the GPU"
    )
    rmm_maximum_pool_size: GivenSize | None = Field(
        default=None, description="most that the pool may grow to; rmm_pool_size by default"
    )
    rmm_async: bool | None = Field(default=None, description="use CUDA's own pool on each worker")
    rmm_release_threshold: GivenSize | None = Field(
        default=None, description="with rmm_async: unused memory above this goes back to the driver"
    )
    rmm_managed_memory: bool | None = Field(default=None, description="memory that moves between GPU and host by page")
    enable_cudf_spill: bool | None = Field(
        default=None, description="whether cuDF moves data to the host; memory.spill by default"
    )
    protocol: Literal["auto", "tcp", "ucx"] = Field(
        default="auto", description="how workers talk: auto, tcp, or ucx (needs distributed-ucxx)"
    )
    interface: Text | None = Field(default=None, description="network interface, such as eth0 or ib0")
    local_directory: Text | None = Field(default=None, description="folder for temporary files of workers")
    CUDA_VISIBLE_DEVICES: (
        Annotated[tuple[Text, ...], BeforeValidator(_as_devices, json_schema_input_type=int | str | list[int | str])]
        | None
    ) = Field(default=None, description="GPUs to use, such as [0, 1]: numbers or UUIDs; all by default")

    @model_validator(mode="before")
    @classmethod
    def _refuse_removed(cls, value: Any) -> Any:
        for name in value if isinstance(value, Mapping) else ():
            if name in _REMOVED:
                raise ConfigError(
                    f"cluster has the key {name!r}", f"Expected {_REMOVED[name]}", f"Correct or remove cluster.{name}"
                )
        return value

    @model_validator(mode="after")
    def _check(self) -> Cluster:
        given = [k for k in ("workers", "address", "scheduler_file") if getattr(self, k) is not None]
        if len(given) != 1:
            raise ConfigError(
                f"cluster has {', '.join(given) or 'no key of these'}",
                "Expected one of workers, address and scheduler_file",
                "Write cluster: {workers: 2}, or cluster: null for this process alone",
            )
        if self.workers is None:
            self._check_attached(given[0])
        self._check_pools()
        self._check_devices()
        return self

    def given(self, names: Sequence[str] = _WORKER_OPTIONS) -> list[str]:
        """Those of the options of workers that say something other than their default."""
        return [name for name in names if getattr(self, name) not in (None, "auto")]

    def device_options(self) -> list[str]:
        """The options given that only workers with a GPU can have."""
        own = [name for name in self.given(_DEVICE_OPTIONS) if getattr(self, name) is not False]
        return [*own, *(["protocol"] if self.protocol == "ucx" else [])]

    def _check_attached(self, by: str) -> None:
        if own := self.given():
            raise ConfigError(
                f"cluster.{own[0]} is {getattr(self, own[0])!r}, and the workers of cluster.{by} are somebody else's",
                "Expected timeout alone beside it, since such workers have been set up already",
                f"Remove cluster.{own[0]} and give it to whoever starts the workers, or write cluster.workers",
            )

    def _check_pools(self) -> None:
        uses_async, managed = bool(self.rmm_async), bool(self.rmm_managed_memory)
        pool, most = self.rmm_pool_size, self.rmm_maximum_pool_size
        if uses_async and managed:
            raise _clash("rmm_managed_memory", True, "rmm_async", True, "CUDA's own pool has no managed memory")
        if uses_async and pool is not None:
            raise _clash("rmm_pool_size", pool, "rmm_async", True, "CUDA's own pool grows by itself")
        if self.rmm_release_threshold is not None and not uses_async:
            raise ConfigError(
                f"cluster.rmm_release_threshold is {self.rmm_release_threshold!r} without rmm_async",
                "Expected rmm_async: true beside it, the only pool that gives memory back",
                "Write cluster.rmm_async: true (--set cluster.rmm_async=true), or remove cluster.rmm_release_threshold",
            )
        if most is None:
            return
        if pool is None and not uses_async:
            raise ConfigError(
                f"cluster.rmm_maximum_pool_size is {most!r} without a pool, and dask-cuda would ignore it",
                "Expected rmm_pool_size or rmm_async: true beside it",
                "Write cluster.rmm_pool_size (--set cluster.rmm_pool_size=8GB), or remove rmm_maximum_pool_size",
            )
        if pool is not None and _exceeds(pool, most):
            raise ConfigError(
                f"cluster.rmm_pool_size is {pool!r}, and cluster.rmm_maximum_pool_size {most!r}",
                "Expected a pool that is not larger than its maximum",
                "Lower cluster.rmm_pool_size, or remove cluster.rmm_maximum_pool_size",
            )

    def _check_devices(self) -> None:
        devices = self.CUDA_VISIBLE_DEVICES
        if devices is None:
            return
        if not all(devices) or not devices or len(set(devices)) < len(devices):
            raise ConfigError(
                f"cluster.CUDA_VISIBLE_DEVICES is {','.join(devices)!r}",
                "Expected different GPUs, by number or UUID",
                "Write cluster.CUDA_VISIBLE_DEVICES: [0, 1], or remove it to use all GPUs",
            )
        if self.workers is not None and self.workers > len(devices):
            raise ConfigError(
                f"cluster.workers is {self.workers}, and cluster.CUDA_VISIBLE_DEVICES names {len(devices)}",
                "Expected a GPU for each worker",
                f"Name more GPUs, or pass --set cluster.workers={len(devices)}",
            )


def check_together(memory: Memory, cluster: Cluster, engine: str) -> None:
    """Compare ``memory``, ``cluster`` and ``engine``.

    Pools of a cluster's own options (``rmm_...``) take the place of the default ``memory.pool: async``.

    Raises
    ------
    ConfigError
        If they contradict each other.
    """
    if engine == "cpu" and (own := cluster.device_options()):
        raise ConfigError(
            f"cluster.{own[0]} is {getattr(cluster, own[0])!r} with engine 'cpu'",
            "Expected options of GPUs with engine auto or gpu alone",
            f"Remove cluster.{own[0]}, or pass --set engine=gpu",
        )
    _check_pool(memory.pool, cluster)
    if memory.spill != "auto" and cluster.enable_cudf_spill not in (None, memory.spill):
        raise _disagree("spill", memory.spill, "enable_cudf_spill", cluster.enable_cudf_spill)
    for name, ours in (("device_memory_limit", "device_limit"), ("memory_limit", "limit")):
        limit, own_limit = getattr(memory, ours), getattr(cluster, name)
        if own_limit is not None and limit != "auto" and _exceeds(own_limit, limit):
            raise _disagree(ours, limit, name, own_limit)
    for name in ("rmm_pool_size", "rmm_maximum_pool_size"):
        size = getattr(cluster, name)
        if size is not None and memory.device_limit != "auto" and _exceeds(size, memory.device_limit):
            raise _disagree("device_limit", memory.device_limit, name, size)


def _check_pool(pool: Pool, cluster: Cluster) -> None:
    if pool.kind == "fixed":
        for name in ("rmm_async", "rmm_managed_memory"):
            if getattr(cluster, name):
                raise _disagree("pool", "fixed", name, True)
    if cluster.rmm_pool_size is not None and pool.size not in ("auto", cluster.rmm_pool_size):
        raise _disagree("pool.size", pool.size, "rmm_pool_size", cluster.rmm_pool_size)


def _exceeds(size: Any, limit: Any) -> bool:
    """Whether one size is above another, where that can be said without the machine: two fractions, or two sizes."""
    if isinstance(size, float) != isinstance(limit, float):
        return False
    if isinstance(size, float):
        return size > float(limit)
    return parse_bytes(size, "size") > parse_bytes(limit, "limit")


def _clash(one: str, value: Any, other: str, its: Any, why: str) -> ConfigError:
    return ConfigError(
        f"cluster.{one} is {value!r} and cluster.{other} is {its!r}",
        f"Expected one of them, since {why}",
        f"Remove cluster.{one} or cluster.{other}",
    )


def _disagree(ours: str, value: Any, theirs: str, its: Any) -> ConfigError:
    return ConfigError(
        f"memory.{ours} is {value!r}, and cluster.{theirs} is {its!r}",
        "Expected the two to agree, or one of them alone",
        f"Remove cluster.{theirs}, or correct memory.{ours} (--set memory.{ours}=...)",
    )
