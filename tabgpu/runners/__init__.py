"""Resolve ``cluster:``: the local/cluster split, decided here and nowhere else."""

from __future__ import annotations

from ..errors import ConfigError
from .protocol import Runner
from .serial import SerialRunner

__all__ = ["Runner", "SerialRunner", "resolve"]


def resolve(cluster: object) -> tuple[Runner, str]:
    """Return the runner that the pipeline asks for and the reason.

    Raises
    ------
    ConfigError
        If a cluster is asked for: this version has the serial runner alone.
    """
    if cluster is not None:
        raise ConfigError(
            "cluster is set, and this version of tabgpu has no cluster runner",
            "Expected cluster: null",
            "Leave cluster out of the pipeline file, or pass --set cluster=null",
        )
    return SerialRunner(), "no cluster is asked for"
