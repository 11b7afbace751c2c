"""What is known of the GPUs: facts of each, of the ways between them, and why there are none where there are none.

Plain records; `tabgpu.hardware.nvml` fills them in, tests write them down. What a device or its driver does not tell is
None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

# there: at least one; none: no driver, no device, or nobody to ask; hidden: CUDA_VISIBLE_DEVICES names none of them;
# broken: a driver is there, and does not work
GpuState = Literal["there", "none", "hidden", "broken"]


class Neighbour(NamedTuple):
    """A process that holds memory of a GPU; `n_bytes` is None where the driver does not tell."""

    pid: int
    n_bytes: int | None


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU, or one MIG instance of a GPU.

    Parameters
    ----------
    index : int
        Position among the visible devices.
    name : str
        The driver's name for it.
    memory_total, memory_free : int
        Bytes; of the instance for a MIG instance, of the host where host and device share their memory.
    uuid : str
        What CUDA_VISIBLE_DEVICES calls it.
    capability : tuple of int, optional
        Compute capability, as (9, 0).
    driver : str
        Version of the driver.
    cuda_driver : tuple of int, optional
        Newest CUDA that the driver knows, as (12, 9).
    mig : bool
        Whether it is a MIG instance: sizes given as a fraction would mean the whole GPU to some libraries.
    neighbours : tuple of Neighbour
        Other processes that compute on it. Inside a container the driver may tell ids of the host, so that a process
        that uses the device itself cannot know itself among them.
    compute_mode : str, optional
        'default', 'exclusive' (to one process) or 'prohibited'.
    ecc_errors : int, optional
        Memory errors since the driver was loaded that could not be corrected.
    temperature_c, slowdown_c : int, optional
        Temperature, and that at which the device slows itself down.
    power_w, power_limit_w : float, optional
        Power drawn and allowed.
    utilisation : int, optional
        Percent of the last moment in which something ran on it.
    clock_mhz, clock_max_mhz : int, optional
        Clock of its processors now, and at most.
    throttling : tuple of str
        Why its clock is held down; see `THROTTLE_REASONS`. Being idle is none.
    pcie_generation, pcie_generation_max, pcie_width, pcie_width_max : int, optional
        Link to the host now, and at most. An idle device lowers the generation, never the width.
    nvlinks_active, nvlinks_inactive : int, optional
        NVLinks that are up and down; None where it has none.
    persistence : bool, optional
        Whether the driver stays loaded while nobody uses it.
    unified_memory : bool
        Whether host and device share their memory.
    """

    index: int
    name: str
    memory_total: int
    memory_free: int
    uuid: str = ""
    capability: tuple[int, int] | None = None
    driver: str = ""
    cuda_driver: tuple[int, int] | None = None
    mig: bool = False
    neighbours: tuple[Neighbour, ...] = ()
    compute_mode: str | None = None
    ecc_errors: int | None = None
    temperature_c: int | None = None
    slowdown_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    utilisation: int | None = None
    clock_mhz: int | None = None
    clock_max_mhz: int | None = None
    throttling: tuple[str, ...] = ()
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    nvlinks_active: int | None = None
    nvlinks_inactive: int | None = None
    persistence: bool | None = None
    unified_memory: bool = False


@dataclass(frozen=True, slots=True)
class GpuLink:
    """The way between two GPUs.

    Parameters
    ----------
    first, second : int
        Positions among the visible devices.
    peer_access : bool, optional
        Whether one may read the other's memory without the host.
    nvlink : bool, optional
        Whether by NVLink.
    ancestor : str, optional
        What joins them on the PCI bus, from near to far: 'board', 'switch', 'switches', 'host bridge', 'processor',
        'machine' (another processor: the slowest).
    """

    first: int
    second: int
    peer_access: bool | None = None
    nvlink: bool | None = None
    ancestor: str | None = None


@dataclass(frozen=True, slots=True)
class GpuStatus:
    """The visible GPUs, and a reason in words where they cannot be used.

    Parameters
    ----------
    gpus : tuple of GpuFacts
        In the order in which CUDA counts them, given ``CUDA_DEVICE_ORDER=PCI_BUS_ID``. A process that sees MIG
        instances uses the first alone.
    state : {'there', 'none', 'hidden', 'broken'}
        Whether there are any, and if not, whether that is how it should be.
    reason : str
        Half a sentence, as "no NVIDIA driver is installed"; empty where there are some.
    error : str
        NVML's name for what is broken, as 'LibRmVersionMismatch'.
    links : tuple of GpuLink
        Of each pair, where there are several.
    """

    gpus: tuple[GpuFacts, ...] = ()
    state: GpuState = "none"
    reason: str = ""
    error: str = ""
    links: tuple[GpuLink, ...] = ()


class Device(NamedTuple):
    """A GPU that the driver knows: its UUID, and those of its MIG instances. None: it is not divided."""

    uuid: str
    instances: tuple[str, ...] | None = None


def visible(setting: str | None, devices: Sequence[Device]) -> list[str]:
    """UUIDs that CUDA_VISIBLE_DEVICES selects, in its order.

    Parameters
    ----------
    setting : str, optional
        Indices, UUIDs of GPUs (or a beginning that fits one alone) and UUIDs of MIG instances, with commas between. As
        for CUDA, what is none of them, or comes twice, ends the list. None: everything.
    devices : sequence of Device
        In the order of the driver.

    Returns
    -------
    list of str
        A divided GPU counts as its instances. Where there are instances, CUDA sees no whole GPU.

    References
    ----------
    CUDA C++ programming guide, "CUDA environment variables"; MIG user guide, "CUDA device enumeration".

    Examples
    --------
    >>> devices = [Device("GPU-a1"), Device("GPU-b2")]
    >>> visible("1,0", devices), visible("GPU-a", devices), visible("", devices), visible("1,7,0", devices)
    (['GPU-b2', 'GPU-a1'], ['GPU-a1'], [], ['GPU-b2'])
    """
    instances = {uuid for device in devices for uuid in device.instances or ()}
    chosen: list[str] = []
    for word in [str(i) for i in range(len(devices))] if setting is None else setting.split(","):
        found = [word.strip()] if word.strip() in instances else _device(word.strip(), devices)
        if found is None or set(found) & set(chosen):
            break
        chosen += found
    return [uuid for uuid in chosen if uuid in instances] or chosen


def _device(word: str, devices: Sequence[Device]) -> list[str] | None:
    """UUIDs of the GPU that a word names, or of its instances; None where it names none, or several."""
    if word.isdecimal():
        named = list(devices[int(word) :][:1])
    else:
        named = [device for device in devices if word.startswith("GPU-") and device.uuid.startswith(word)]
    if len(named) != 1:
        return None
    return [named[0].uuid] if named[0].instances is None else list(named[0].instances)
