"""Resolve ``engine: auto | cpu | gpu``: the CPU/GPU split, decided here and nowhere else.

The GPU engine is taken where a device, its driver and packages that go together are there. What stands in its way is
judged from facts (`obstacle`, a pure function) before any of its packages is imported, and said: as the reason for the
CPU engine where the choice was ours, as an error where the GPU was asked for. XGBoost is asked too, because it trains
on the CPU with only a warning where it has no CUDA (`Engine.check_trained` asks again afterwards).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import cache

from ..errors import ConfigError, ResourceError, nearest
from ..hardware import GpuStatus, Hardware, SystemHardware
from ..packages import (
    Finding,
    device_problems,
    family,
    install_command,
    installed,
    missing_for_gpu,
    problems,
    xgboost_conflict,
)
from .protocol import Engine

__all__ = ["Engine", "obstacle", "resolve"]

_OLDEST_PYTHON = (3, 12)  # XGBoost goes with cuDF 26 from 3.3 on, which needs it


def resolve(name: str, hardware: Hardware | None = None) -> tuple[Engine, str]:
    """Return the engine of that name and the reason for it in one line.

    Parameters
    ----------
    name : {'auto', 'cpu', 'gpu'}
        As in the pipeline file.
    hardware : Hardware, optional
        Facts of this machine by default.

    Raises
    ------
    ResourceError
        If ``gpu`` is asked for and cannot be had, or two builds of XGBoost overwrite each other: names the command that
        mends it.
    ConfigError
        If there is no such engine.
    """
    from .cpu import CpuEngine

    if name not in ("auto", "cpu", "gpu"):
        raise ConfigError(f"engine is {name!r}", nearest(name, ["auto", "cpu", "gpu"]), "Correct engine")
    there = _installed()
    if conflict := xgboost_conflict(there):
        raise ResourceError(conflict.happened, conflict.expected, conflict.remedy)
    if name == "cpu":
        return CpuEngine(), "asked for"
    status = (hardware or SystemHardware()).gpu_status()
    python = (sys.version_info[0], sys.version_info[1])
    found = obstacle(there, status, python) or _import_obstacle()
    if found is None:
        return _gpu(), f"asked for ({status.gpus[0].name})" if name == "gpu" else f"there is a {status.gpus[0].name}"
    if name == "gpu":
        raise ResourceError(
            f"engine is 'gpu', and it cannot be had: {found.happened}",
            found.expected,
            found.remedy + ", or set engine: auto in the pipeline file (--set engine=auto)",
        )
    return CpuEngine(), found.happened if status.state == "none" else f"{found.happened} ({found.remedy})"


def obstacle(installed: Mapping[str, str], status: GpuStatus, python: tuple[int, int]) -> Finding | None:
    """The first thing that stands in the way of the GPU engine; None where nothing does.

    Parameters
    ----------
    installed : mapping of str to str
        Versions of distributions, as `tabgpu.packages.installed` gives them.
    status : GpuStatus
        The devices, or why there are none.
    python : tuple of int
        Version of Python.

    Examples
    --------
    >>> obstacle({}, GpuStatus(reason="no NVIDIA driver is installed"), (3, 12)).happened
    'no NVIDIA driver is installed'
    """
    if not status.gpus:
        command = install_command(family(installed) or "cu12")
        remedy = "Run tabgpu doctor" if not missing_for_gpu(installed) else f"Install the driver, then run: {command}"
        return Finding("GPU", "broken", status.reason, "Expected an NVIDIA GPU and its driver", remedy)
    if python < _OLDEST_PYTHON:
        return Finding(
            "Python",
            "broken",
            f"Python is {python[0]}.{python[1]}",
            "Expected Python 3.12 or newer: XGBoost goes with this cuDF from there on",
            "Make an environment with Python 3.12",
        )
    missing = missing_for_gpu(installed)
    build = family(installed) or "cu12"
    if missing:
        words = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
        remedy = f"Run: {install_command(build)}"
        return Finding("packages", "broken", words, "Expected RAPIDS, and XGBoost with CUDA", remedy)
    device = status.gpus[0]
    found = [*problems(installed, python), *device_problems(build, device.driver, device.capability)]
    return next((f for f in found if f.severity == "broken"), None)


def _import_obstacle() -> Finding | None:
    """What only a try can tell: broken packages, XGBoost without CUDA under any name, CUDA that does not start."""
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # CUDA then counts as NVML does, whose facts we plan with
    try:
        import xgboost

        from . import gpu
    except (ImportError, OSError, RuntimeError) as error:
        words = f"{type(error).__name__} on importing the packages for the GPU: {error}"
        return Finding("packages", "broken", words, "Expected packages that can be imported", "Run tabgpu doctor")
    if not xgboost.build_info().get("USE_CUDA"):
        build = family(_installed()) or "cu12"
        words = "XGBoost was built without CUDA and would train on the CPU"
        return Finding("XGBoost", "broken", words, "Expected a build with CUDA", f"Run: {install_command(build)}")
    try:
        gpu.count_devices()
    except RuntimeError as error:
        words = f"CUDA does not start in this process: {error}"
        expected = "Expected a driver that serves it; a process forked from one that has used CUDA is not served"
        return Finding("CUDA", "broken", words, expected, "Spawn processes where they are forked, or run tabgpu doctor")
    return None


@cache
def _installed() -> dict[str, str]:
    return installed()


@cache
def _gpu() -> Engine:
    """The one GPU engine of a process: its memory is the process's."""
    from .gpu import GpuEngine

    return GpuEngine()
