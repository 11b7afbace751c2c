"""Facts of the machine and what a run takes of it: processors, memory and its limits, disk, GPUs; and their monitors.

The only place where psutil and pynvml are imported.
"""

from .gpu import GpuFacts, GpuLink, GpuStatus, Neighbour
from .host import AUTO_FRACTION, HostFacts, Limit, memory_limit
from .memory import MemoryMonitor, MemoryUse, high_water_bytes, memory_use
from .monitor import DeviceMonitor, describe
from .system import FakeHardware, Hardware, SystemHardware

__all__ = [
    "AUTO_FRACTION",
    "DeviceMonitor",
    "FakeHardware",
    "GpuFacts",
    "GpuLink",
    "GpuStatus",
    "Hardware",
    "HostFacts",
    "Limit",
    "MemoryMonitor",
    "MemoryUse",
    "Neighbour",
    "SystemHardware",
    "describe",
    "high_water_bytes",
    "memory_limit",
    "memory_use",
]
