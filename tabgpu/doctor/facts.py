"""What the doctor looks at, gathered once: the machine, its GPUs, what is installed, and some of the environment."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..hardware import GpuStatus, Hardware, HostFacts
from ..packages import Family, family, installed, missing_for_gpu

# What decides which GPUs there are. Nothing else of the environment is kept: it may hold secrets.
VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "SLURM_JOB_ID",
    "SLURM_JOB_GPUS",
    "SLURM_STEP_GPUS",
    "SLURM_GPUS_ON_NODE",
)


@dataclass(frozen=True)
class Facts:
    """All that is judged.

    Parameters
    ----------
    host : HostFacts
        The machine, with the free disk of the working folder.
    gpu : GpuStatus
        Its GPUs, or why there are none.
    packages : mapping of str to str
        Versions of the distributions that matter, as `tabgpu.packages.installed` finds them.
    python : tuple of int
        Version of Python, as (3, 12).
    environ : mapping of str to str
        Those of `VARIABLES` that are set.
    system : str
        Operating system and Python, in words.
    """

    host: HostFacts
    gpu: GpuStatus
    packages: Mapping[str, str]
    python: tuple[int, int] = (3, 12)
    environ: Mapping[str, str] = field(default_factory=dict)
    system: str = ""

    @property
    def build(self) -> Family | None:
        """CUDA generation of the packages for the GPU; None where there are none, or their names do not tell."""
        return family(self.packages)

    @property
    def wants_gpu(self) -> bool:
        """Whether packages for the GPU are installed."""
        return "cudf" not in missing_for_gpu(self.packages)


def gather(hardware: Hardware) -> Facts:
    """Ask the machine. Nothing is imported that could crash."""
    return Facts(
        host=hardware.host(Path.cwd()),
        gpu=hardware.gpu_status(),
        packages=installed(),
        python=sys.version_info[:2],
        environ={name: os.environ[name] for name in VARIABLES if name in os.environ},
        system=f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
    )
