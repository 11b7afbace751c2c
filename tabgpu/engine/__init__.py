"""Resolve ``engine: auto | cpu | gpu``: the CPU/GPU split, decided here and nowhere else."""

from __future__ import annotations

from ..errors import ResourceError
from .protocol import Engine

__all__ = ["Engine", "resolve"]


def resolve(name: str) -> tuple[Engine, str]:
    """Return the engine of that name and the reason for it.

    Parameters
    ----------
    name : {'auto', 'cpu', 'gpu'}
        As in the pipeline file.

    Raises
    ------
    ResourceError
        If ``gpu`` is asked for and cannot be had: XGBoost would train on the CPU with only a warning.
    """
    from .cpu import CpuEngine

    if name == "gpu":
        raise ResourceError(
            "engine is 'gpu', and this version of tabgpu has no GPU engine",
            "Expected 'auto' or 'cpu'",
            "Set engine: auto in the pipeline file, or pass --set engine=cpu",
        )
    return CpuEngine(), "the CPU engine is the only one in this version" if name == "auto" else "asked for"
