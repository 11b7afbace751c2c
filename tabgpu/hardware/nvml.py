"""Facts of NVIDIA GPUs and samples of what they are doing, from NVML. It makes no CUDA context on any of them.

Importing this module imports pynvml, so it is imported where that is known to be there, and nowhere else. A question
that a device or driver does not answer gives None; only what means that a device is lost is raised, as NVMLError.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, TypeVar

import pynvml

from .gpu import Device, GpuFacts, GpuLink, GpuStatus, Neighbour, visible
from .host import system_memory

T = TypeVar("T")

# Bits of nvmlDeviceGetCurrentClocksEventReasons that mean held down; the others are idleness and somebody's wish
THROTTLE_REASONS = {
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x020: "heat (software)",
    0x040: "heat (hardware)",
    0x080: "power brake",
    0x200: "board limit",
    0x400: "reliability",
}
_ANCESTORS = {0: "board", 10: "switch", 20: "switches", 30: "host bridge", 40: "processor", 50: "machine"}
_COMPUTE_MODES = {0: "default", 1: "exclusive", 2: "prohibited", 3: "exclusive"}
_P2P_READ = 0  # pynvml.NVML_P2P_CAPS_INDEX_READ is the tuple (0,) by a slip, which NVML does not take
_LOST = ("GpuIsLost", "ResetRequired", "Uninitialized", "DriverNotLoaded", "LibRmVersionMismatch")


class Handle(NamedTuple):
    """What NVML knows a visible device by; `whole` is the GPU that a MIG instance is part of, or the device itself."""

    own: Any
    whole: Any
    mig: bool


@contextmanager
def sampler(environ: Mapping[str, str]) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """A function that takes `samples` of the visible devices; of none where the driver does not work."""
    with ExitStack() as stack:
        try:
            handles = stack.enter_context(session(environ))
        except pynvml.NVMLError:
            handles = []
        yield lambda: samples(handles)


@contextmanager
def session(environ: Mapping[str, str]) -> Iterator[list[Handle]]:
    """Handles of the visible devices, valid inside the block.

    Raises
    ------
    pynvml.NVMLError
        If there is no driver (`NVMLError_LibraryNotFound`), or it does not work.
    """
    pynvml.nvmlInit()
    try:
        everything = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        known: dict[str, Handle] = {}
        devices = []
        for whole in everything:
            uuid, divided = pynvml.nvmlDeviceGetUUID(whole), _is_divided(whole)
            parts = {pynvml.nvmlDeviceGetUUID(part): part for part in _instances(whole)} if divided else {}
            devices.append(Device(uuid, tuple(parts) if divided else None))
            known |= {uuid: Handle(whole, whole, False)}
            known |= {part_uuid: Handle(part, whole, True) for part_uuid, part in parts.items()}
        yield [known[uuid] for uuid in visible(environ.get("CUDA_VISIBLE_DEVICES"), devices)]
    finally:
        pynvml.nvmlShutdown()


def status(environ: Mapping[str, str]) -> GpuStatus:
    """Facts of all visible devices, and of the ways between them."""
    try:
        with session(environ) as handles:
            gpus = tuple(_facts(index, handle) for index, handle in enumerate(handles))
            if gpus:
                return GpuStatus(gpus, "there", links=_links(handles))
            if pynvml.nvmlDeviceGetCount() == 0:
                return GpuStatus(reason="the NVIDIA driver knows no GPU")
            setting = environ.get("CUDA_VISIBLE_DEVICES")
            if setting is None:
                return GpuStatus(state="hidden", reason="every GPU is divided (MIG), and none has an instance")
            return GpuStatus(state="hidden", reason=f"CUDA_VISIBLE_DEVICES is {setting!r}, which names none")
    except pynvml.NVMLError as error:
        name = type(error).__name__.removeprefix("NVMLError_")
        if name == "LibraryNotFound":
            return GpuStatus(reason="no NVIDIA driver is installed", error=name)
        return GpuStatus(state="broken", reason=f"the NVIDIA driver does not work: {error}", error=name)


def samples(handles: Sequence[Handle]) -> list[dict[str, Any]]:
    """What each device is doing now: a flat record with its ``index``, or with ``lost``, NVML's word for why."""
    found = []
    for index, handle in enumerate(handles):
        try:
            found.append({"index": index, **sample(handle)})
        except pynvml.NVMLError as error:
            found.append({"index": index, "lost": str(error)})
    return found


def sample(handle: Handle) -> dict[str, Any]:
    """What a device is doing now, None for what it does not tell.

    Returns
    -------
    dict
        ``utilisation`` and ``memory_busy`` (percent of the last moment), ``memory_used_bytes``, ``temperature_c``,
        ``power_w``, ``clock_mhz``, ``pcie_to_gpu_bytes_s`` and ``pcie_from_gpu_bytes_s`` (over 20 ms, which it takes to
        measure each), ``throttling`` (list of str).
    """
    rates = ask(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle.own))
    memory = ask(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle.own))
    received = ask(lambda: 1024 * int(pynvml.nvmlDeviceGetPcieThroughput(handle.whole, pynvml.NVML_PCIE_UTIL_RX_BYTES)))
    sent = ask(lambda: 1024 * int(pynvml.nvmlDeviceGetPcieThroughput(handle.whole, pynvml.NVML_PCIE_UTIL_TX_BYTES)))
    return {
        "utilisation": None if rates is None else rates.gpu,
        "memory_busy": None if rates is None else rates.memory,
        "memory_used_bytes": None if memory is None else memory.used,
        "temperature_c": _temperature(handle),
        "power_w": _power(handle),
        "clock_mhz": _clock(handle),
        "pcie_to_gpu_bytes_s": received,
        "pcie_from_gpu_bytes_s": sent,
        "throttling": list(_throttling(handle)),
    }


def ask(question: Callable[[], T]) -> T | None:
    """The answer, or None where the device or driver has none."""
    try:
        return question()
    except pynvml.NVMLError as error:
        if type(error).__name__.removeprefix("NVMLError_") in _LOST:
            raise
        return None


def _is_divided(whole: Any) -> bool:
    return ask(lambda: bool(pynvml.nvmlDeviceGetMigMode(whole)[0] == pynvml.NVML_DEVICE_MIG_ENABLE)) or False


def _instances(whole: Any) -> list[Any]:
    """Handles of the MIG instances of a GPU: their places need not be filled in order."""

    def at(place: int) -> Any:
        return ask(lambda: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(whole, place))

    places = ask(lambda: int(pynvml.nvmlDeviceGetMaxMigDeviceCount(whole))) or 0
    return [part for part in map(at, range(places)) if part is not None]


def _facts(index: int, handle: Handle) -> GpuFacts:
    whole = handle.whole
    memory = ask(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle.own))
    total, free = system_memory() if memory is None else (memory.total, memory.free)
    cuda = ask(lambda: int(pynvml.nvmlSystemGetCudaDriverVersion())) or 0
    links = _nvlinks(whole)
    return GpuFacts(
        index=index,
        name=pynvml.nvmlDeviceGetName(handle.own),
        memory_total=total,
        memory_free=free,
        uuid=pynvml.nvmlDeviceGetUUID(handle.own),
        capability=ask(lambda: pynvml.nvmlDeviceGetCudaComputeCapability(whole)),
        driver=pynvml.nvmlSystemGetDriverVersion(),
        cuda_driver=(cuda // 1000, cuda % 1000 // 10) if cuda else None,
        mig=handle.mig,
        neighbours=_neighbours(handle),
        compute_mode=ask(lambda: _COMPUTE_MODES.get(pynvml.nvmlDeviceGetComputeMode(whole))),
        ecc_errors=ask(
            lambda: pynvml.nvmlDeviceGetTotalEccErrors(
                whole, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
            )
        ),
        temperature_c=_temperature(handle),
        slowdown_c=ask(
            lambda: pynvml.nvmlDeviceGetTemperatureThreshold(whole, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
        ),
        power_w=_power(handle),
        power_limit_w=_watts(ask(lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(whole))),
        utilisation=ask(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle.own).gpu),
        clock_mhz=_clock(handle),
        clock_max_mhz=ask(lambda: pynvml.nvmlDeviceGetMaxClockInfo(whole, pynvml.NVML_CLOCK_SM)),
        throttling=_throttling(handle),
        pcie_generation=ask(lambda: pynvml.nvmlDeviceGetCurrPcieLinkGeneration(whole)),
        pcie_generation_max=ask(lambda: pynvml.nvmlDeviceGetMaxPcieLinkGeneration(whole)),
        pcie_width=ask(lambda: pynvml.nvmlDeviceGetCurrPcieLinkWidth(whole)),
        pcie_width_max=ask(lambda: pynvml.nvmlDeviceGetMaxPcieLinkWidth(whole)),
        nvlinks_active=links.count(True) if links else None,
        nvlinks_inactive=links.count(False) if links else None,
        persistence=_flag(ask(lambda: pynvml.nvmlDeviceGetPersistenceMode(whole))),
        unified_memory=memory is None,
    )


def _neighbours(handle: Handle) -> tuple[Neighbour, ...]:
    processes = ask(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle.own)) or []
    return tuple(Neighbour(p.pid, p.usedGpuMemory) for p in processes if p.pid != os.getpid())


def _nvlinks(whole: Any) -> list[bool]:
    """Whether each NVLink is up; the device answers for those alone that it has."""

    def state(link: int) -> int | None:
        return ask(lambda: int(pynvml.nvmlDeviceGetNvLinkState(whole, link)))

    states = itertools.takewhile(lambda it: it is not None, map(state, range(pynvml.NVML_NVLINK_MAX_LINKS)))
    return [it == pynvml.NVML_FEATURE_ENABLED for it in states]


def _links(handles: Sequence[Handle]) -> tuple[GpuLink, ...]:
    """The ways between all pairs of different GPUs; instances have none."""
    pairs = itertools.combinations(enumerate(handles), 2)
    return tuple(_link(i, j, one.own, other.own) for (i, one), (j, other) in pairs if not (one.mig or other.mig))


def _link(first: int, second: int, one: Any, other: Any) -> GpuLink:
    ok = pynvml.NVML_P2P_STATUS_OK
    read = ask(lambda: bool(pynvml.nvmlDeviceGetP2PStatus(one, other, _P2P_READ) == ok))
    nvlink = ask(lambda: bool(pynvml.nvmlDeviceGetP2PStatus(one, other, pynvml.NVML_P2P_CAPS_INDEX_NVLINK) == ok))
    level = ask(lambda: int(pynvml.nvmlDeviceGetTopologyCommonAncestor(one, other)))
    return GpuLink(first, second, read, nvlink, None if level is None else _ANCESTORS.get(level))


def _temperature(handle: Handle) -> int | None:
    return ask(lambda: int(pynvml.nvmlDeviceGetTemperature(handle.whole, pynvml.NVML_TEMPERATURE_GPU)))


def _power(handle: Handle) -> float | None:
    return _watts(ask(lambda: pynvml.nvmlDeviceGetPowerUsage(handle.whole)))


def _clock(handle: Handle) -> int | None:
    return ask(lambda: int(pynvml.nvmlDeviceGetClockInfo(handle.whole, pynvml.NVML_CLOCK_SM)))


def _throttling(handle: Handle) -> tuple[str, ...]:
    bits = ask(lambda: int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle.whole))) or 0
    return tuple(word for bit, word in THROTTLE_REASONS.items() if bits & bit)


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)
