"""Resolve ``cluster:``: the local/cluster split, decided here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from ..config import Cluster
from ..errors import ConfigError
from .protocol import Runner
from .serial import SerialRunner

if TYPE_CHECKING:
    from .dask import DaskRunner, Standing

__all__ = ["Runner", "SerialRunner", "look", "resolve", "write_frame"]


def resolve(
    cluster: Cluster | None,
    engine: Literal["cpu", "gpu"] = "cpu",
    options: Mapping[str, object] | None = None,
    client: Any = None,
) -> tuple[Runner, str]:
    """Return the runner that the pipeline asks for and the reason; nothing is started before it is entered.

    Parameters
    ----------
    cluster : Cluster, optional
        As in the pipeline file.
    engine : {'cpu', 'gpu'}
        Which kind of worker to start.
    options : mapping of str to object, optional
        Keywords of Dask's cluster, for workers that are started (`tabgpu.planning.cluster_options`).
    client : distributed.Client, optional
        The caller's, used in place of `cluster` and left open.

    Raises
    ------
    ConfigError
        If Dask is not installed.
    """
    if cluster is None and client is None:
        return SerialRunner(), "no cluster is asked for"
    runner: DaskRunner = _dask().DaskRunner(cluster, engine, options, client)
    return runner, _reason(cluster, client)


def look(cluster: Cluster | None, client: Any = None) -> Standing:
    """What workers that stand can do: those of the scheduler that `cluster` names, or of the caller's `client`.

    Raises
    ------
    ConfigError
        If Dask is not installed, or workers cannot answer.
    ClusterError
        If there is no scheduler, or no worker in time.
    """
    standing: Standing = _dask().look(cluster, client)
    return standing


def write_frame(client: Any, frame: Any, folder: Path) -> None:
    """Have the workers of `client` write the partitions of a Dask data frame as Parquet below `folder`.

    Raises
    ------
    ConfigError
        If Dask is not installed, or the folder has files.
    DataError
        If the frame has no row, or two columns of one name.
    """
    _dask().write_frame(client, frame, folder)


def _dask() -> ModuleType:
    try:
        from . import dask
    except ImportError as error:
        raise ConfigError(
            f"cluster is set, and Dask cannot be imported: {error}",
            "Expected the package distributed",
            "Run: pip install 'tabgpu[cluster]', or leave cluster out (--set cluster=null)",
        ) from error
    return dask


def _reason(cluster: Cluster | None, client: Any) -> str:
    if client is not None or cluster is None:
        return "a client was given"
    if cluster.workers:
        return f"cluster.workers is {cluster.workers}"
    return "cluster.address is set" if cluster.address else "cluster.scheduler_file is set"
