"""Where the work of a run is done, and why: on which engine, in this process or on workers, within which limits.

It is decided before anything is planned. On a cluster the work is done by the workers' engine; this process, which may
have no GPU, plans, merges what comes back and writes, on the CPU engine.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from . import engine as engines
from . import runners
from .config import Cluster, Memory, Pipeline, load
from .engine import Engine
from .engine.memory import MemorySettings, PoolKind
from .hardware import GpuFacts, Hardware, HostFacts
from .planning import CONTEXT_BYTES, Plan, cluster_options
from .runners import Runner


@dataclass(frozen=True)
class Place:
    """Where the work of a run is done.

    Parameters
    ----------
    engine : Engine
        Of this process.
    working : tuple of (str, str)
        Name of the engine that does the work, and the reason for it.
    runner : Runner
        This process or workers; not opened yet.
    runner_reason : str
        Why.
    host : HostFacts
        The machine that does the work: this one, or that of the worker with the least memory.
    gpus : tuple of GpuFacts
        Those that do the work; empty with the CPU engine.
    """

    engine: Engine
    working: tuple[str, str]
    runner: Runner
    runner_reason: str
    host: HostFacts
    gpus: tuple[GpuFacts, ...]

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """What XGBoost calls the engine that does the work."""
        return "cuda" if self.working[0] == "gpu" else "cpu"


@dataclass(frozen=True)
class Wish:
    """What a pipeline file, or the options of ``score``, say of the place.

    Parameters
    ----------
    engine : {'auto', 'cpu', 'gpu'}
        The engine.
    memory : Memory
        Its limits.
    cluster : Cluster, optional
        The workers.
    folder : Path
        Where large files may lie for a while.
    """

    engine: str
    memory: Memory
    cluster: Cluster | None
    folder: Path


def wish_of_pipeline(pipeline: Pipeline) -> Wish:
    """What a pipeline file says."""
    return Wish(pipeline.engine, pipeline.memory, pipeline.cluster, cache_dir(pipeline))


def wish_of(engine: str, cluster: Mapping[str, Any] | None) -> Wish:
    """What is said outside of a pipeline file; parameters as there."""
    data = {"source": "DATA", "target": "TARGET"}
    named = {"version": 1, "data": data, "engine": engine, **({"cluster": dict(cluster)} if cluster else {})}
    return wish_of_pipeline(load(named))


def find_place(wish: Wish, hardware: Hardware, client: Any = None) -> Place:
    """Decide where to work; nothing is started.

    Parameters
    ----------
    wish : Wish
        What was asked for.
    hardware : Hardware
        Facts of this machine.
    client : distributed.Client, optional
        Used in place of ``cluster``.

    Raises
    ------
    ResourceError
        If a GPU is asked for and cannot be had, or workers do not fit.
    ConfigError
        If options of the cluster contradict one another, or Dask is not installed.
    ClusterError
        If workers that stand elsewhere cannot be reached.
    """
    host, cluster = hardware.host(wish.folder), wish.cluster
    started_here = client is None and (cluster is None or cluster.workers is not None)
    if started_here:
        engine, reason = engines.resolve(wish.engine, hardware)
        engine.begin()  # before free memory is looked at: an earlier run of this process may hold some
        working, gpus = (engine.name, reason), tuple(hardware.gpus()) if engine.name == "gpu" else ()
        gpus = gpus if cluster else gpus[:1]  # one process works on the first that it sees
    else:
        standing = runners.look(cluster, client)
        working, host = standing.engine(wish.engine), standing.host
        gpus = standing.gpus if working[0] == "gpu" else ()
    options = cluster_options(cluster, wish.memory, host, gpus) if started_here and cluster else None
    name: Literal["cpu", "gpu"] = "gpu" if working[0] == "gpu" else "cpu"
    runner, runner_reason = runners.resolve(cluster, name, options, client)
    if cluster is not None or client is not None:
        engine, _ = engines.resolve("cpu", hardware)
    return Place(engine, working, runner, runner_reason, host, gpus)


def this_process(host: HostFacts) -> Place:
    """Here, on the CPU, whatever the pipeline file says: for looks at a few rows."""
    engine, reason = engines.resolve("cpu")
    runner, why = runners.resolve(None)
    return Place(engine, (engine.name, reason), runner, why, host, ())


def set_up(place: Place, pipeline: Pipeline, plan: Plan) -> Engine:
    """The engine of this process; its memory, and that of workers, is set up as the plan has it."""
    settings = memory_settings(pipeline, plan)
    place.engine.setup(settings)
    place.runner.set_up(settings)
    return place.engine


def memory_settings(pipeline: Pipeline, plan: Plan) -> MemorySettings:
    """How the memory of each device is to be set up."""
    cluster, memory = pipeline.cluster, pipeline.memory
    if cluster is not None and (cluster.rmm_pool_size or cluster.rmm_async or cluster.rmm_managed_memory):
        return MemorySettings("given", spill=bool(cluster.enable_cudf_spill))
    kind: PoolKind = "fixed" if plan.pool_bytes else "async"
    limit = None if plan.device_limit_bytes is None else plan.device_limit_bytes - CONTEXT_BYTES
    return MemorySettings(kind, limit, plan.pool_bytes, memory.spill in (True, "auto"))


def cache_dir(pipeline: Pipeline) -> Path:
    """Folder for cached features and the pages of external matrices."""
    if pipeline.cache.dir == "auto":
        return Path(tempfile.gettempdir())
    return pipeline.base_dir / Path(pipeline.cache.dir).expanduser()
