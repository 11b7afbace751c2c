"""Where facts come from, behind a protocol: the machine this process runs on, or what a test writes down.

`SystemHardware` asks the kernel and, where there is a driver of NVIDIA and nvidia-ml-py, NVML. `FakeHardware` answers
with given facts, so that planning and judgement are tested for machines that are not there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from .gpu import GpuFacts, GpuStatus
from .host import HostFacts, host_facts, nvidia_devices


class Hardware(Protocol):
    """Where facts come from: the machine, or a test."""

    def host(self, folder: Path) -> HostFacts:
        """Facts of this machine now, with the free disk of `folder` (or of its nearest existing parent)."""

    def gpus(self) -> list[GpuFacts]:
        """The visible GPUs, in the order of their indices; empty where there is none."""

    def gpu_status(self) -> GpuStatus:
        """The visible GPUs with the ways between them, or why there are none."""


@dataclass(frozen=True, slots=True)
class FakeHardware:
    """Given facts, for tests and for planning on behalf of another machine.

    Where `status` is None, it is that of the given GPUs.
    """

    facts: HostFacts
    gpu_facts: tuple[GpuFacts, ...] = ()
    status: GpuStatus | None = None

    def host(self, folder: Path) -> HostFacts:
        """The given facts, whatever the folder."""
        return self.facts

    def gpus(self) -> list[GpuFacts]:
        """The given GPUs."""
        return list(self.gpu_status().gpus)

    def gpu_status(self) -> GpuStatus:
        """The given status, or one of the given GPUs."""
        there = GpuStatus(self.gpu_facts, "there") if self.gpu_facts else GpuStatus(reason="no GPU was given")
        return self.status or there


@dataclass(frozen=True, slots=True)
class SystemHardware:
    """The machine this process runs on.

    Tests give another `root`, below which ``proc`` and ``sys`` are found, and an `environ` with the variables of SLURM
    and CUDA.
    """

    root: Path = Path("/")
    environ: Mapping[str, str] | None = None

    def host(self, folder: Path) -> HostFacts:
        """Facts of this machine now, with the free disk of `folder` (or of its nearest existing parent)."""
        return host_facts(self.root, self._environ, folder)

    def gpus(self) -> list[GpuFacts]:
        """The visible GPUs, in the order of their indices; empty where there is none."""
        return list(self.gpu_status().gpus)

    def gpu_status(self) -> GpuStatus:
        """The visible GPUs with the ways between them, or why there are none. Makes no CUDA context."""
        driver = (self.root / "proc/driver/nvidia/version").exists()
        try:
            from . import nvml
        except ImportError:
            if driver:
                return GpuStatus(reason="an NVIDIA driver is there, but not nvidia-ml-py to ask it", error="NoModule")
            return GpuStatus(reason="no NVIDIA driver is installed", error="LibraryNotFound")
        status = nvml.status(self._environ)
        if status.error == "LibraryNotFound" and driver:
            return replace(status, reason="the kernel has an NVIDIA driver, but its library is not here")
        if status.error == "DriverNotLoaded" and not driver and not nvidia_devices(self.root):
            return replace(
                status, state="none", reason="the machine has no GPU of NVIDIA, although a driver is installed"
            )
        return status

    @contextmanager
    def gpu_sampler(self) -> Iterator[Callable[[], list[dict[str, Any]]]]:
        """A function that says what each visible GPU is doing, an empty list where there is none.

        Its records are described at `tabgpu.hardware.nvml.samples`.
        """
        try:
            from . import nvml
        except ImportError:
            yield list
            return
        with nvml.sampler(self._environ) as take:
            yield take

    @property
    def _environ(self) -> Mapping[str, str]:
        return os.environ if self.environ is None else self.environ
