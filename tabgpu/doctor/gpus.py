"""What is wrong with the GPUs, and what to do: each question a pure function over the facts."""

from __future__ import annotations

from collections.abc import Iterator

from ..hardware import GpuFacts
from ..packages import REQUIREMENTS, Family, Finding, device_problems, install_command, numbers
from ..units import format_bytes
from .facts import Facts

_USED_SHARE = 0.1  # of a device's memory: less than this is the driver's own, or a display
_NEAR_SLOWDOWN_C = 5
_BUSY_PERCENT = 50  # an idle device lowers its link and its clocks

# What to do when NVML gives an error, by its name
_REMEDIES = {
    "LibRmVersionMismatch": "Restart the machine: the driver's libraries were updated, its kernel module was not",
    "DriverNotLoaded": "Load the driver (modprobe nvidia) or install one that fits the kernel, and restart the machine",
    "GpuIsLost": "Restart the machine; if it comes back, have the GPU checked",
    "ResetRequired": "Reset the GPU when nobody uses it (nvidia-smi --gpu-reset), or restart the machine",
    "NoPermission": "Give this user access to /dev/nvidia*, or start the container with --gpus all",
}


def judge(facts: Facts) -> Iterator[Finding]:
    """All findings about the GPUs, in no order."""
    if facts.gpu.state != "there":
        yield _absence(facts)
        return
    yield from _packages(facts)
    for gpu in facts.gpu.gpus:
        for question in (_neighbours, _compute_mode, _memory_errors, _heat, _throttling, _bus):
            yield from question(gpu)
    yield from _instances(facts)
    if len(facts.gpu.gpus) > 1:
        for compare in (_kinds, _peers, _nvlinks):
            yield from compare(facts)


def wheels_for(gpu: GpuFacts) -> Family | None:
    """Which packages suit a GPU and its driver: the newest that they allow; None where none do."""
    for build in ("cu13", "cu12"):
        needed = REQUIREMENTS[build]
        if numbers(gpu.driver)[:1] >= (needed.driver,) and (gpu.capability or needed.capability) >= needed.capability:
            return build
    return None


def _absence(facts: Facts) -> Finding:
    status = facts.gpu
    reason = status.reason[:1].upper() + status.reason[1:]
    if status.state == "broken":
        remedy = _REMEDIES.get(status.error, "Look at what nvidia-smi and dmesg say, or restart the machine")
        return Finding("GPU", "broken", reason, "Expected a driver that answers, or none", remedy)
    if status.state == "hidden" and facts.environ.get("CUDA_VISIBLE_DEVICES") != "":
        remedy = "Unset CUDA_VISIBLE_DEVICES, or name a device or MIG instance that nvidia-smi -L lists"
        return Finding("GPU", "warning", f"{reason}; the CPU engine will be used", "Expected a device", remedy)
    if status.error == "NoModule":
        remedy = "To use the GPU: " + install_command("cu12")
        return Finding("GPU", "warning", reason, "Expected it to be asked before it is used", remedy)
    if status.state == "none" and facts.wants_gpu:
        happened = f"{reason}, but packages for the GPU are installed; the CPU engine will be used"
        return Finding("GPU", "warning", happened, "Expected a GPU and its driver", _get_one(facts))
    return Finding("GPU", "ok", f"{reason}; the CPU engine will be used")


def _get_one(facts: Facts) -> str:
    if "SLURM_JOB_ID" in facts.environ:
        return "Ask SLURM for one: --gres=gpu:1"
    if "library is not here" in facts.gpu.reason:
        return "Start the container with --gpus all"
    return f"Install the NVIDIA driver; where there is no GPU, an environment with {install_command('cpu')} is smaller"


def _packages(facts: Facts) -> Iterator[Finding]:
    """Whether the packages suit driver and device; devices of one kind are named once."""
    if facts.build is not None:
        found = (f for gpu in facts.gpu.gpus for f in device_problems(facts.build, gpu.driver, gpu.capability))
        yield from dict.fromkeys(found)
        return
    if facts.wants_gpu:
        return  # from conda: the names do not tell for which CUDA
    build = wheels_for(facts.gpu.gpus[0])
    python = "" if facts.python >= (3, 12) else ", with Python 3.12 or newer"
    remedy = f"To use it: {install_command(build)}{python}" if build else "To use it, update the driver first"
    happened = "There is a GPU, but the packages for it are not installed; the CPU engine will be used"
    yield Finding("packages", "warning", happened, "Expected cuDF, RMM, CuPy and XGBoost with CUDA", remedy)


def _neighbours(gpu: GpuFacts) -> Iterator[Finding]:
    used = gpu.memory_total - gpu.memory_free
    if gpu.unified_memory or not (gpu.neighbours or used > _USED_SHARE * gpu.memory_total):
        return
    who = ", ".join(f"{n.pid}" + (f" ({format_bytes(n.n_bytes)})" if n.n_bytes else "") for n in gpu.neighbours)
    whose = (
        f"processes {who}" if len(gpu.neighbours) > 1 else f"process {who}" if who else "somebody not seen from here"
    )
    yield Finding(
        f"GPU {gpu.index} memory",
        "warning",
        f"{format_bytes(used)} of {format_bytes(gpu.memory_total)} are in use on GPU {gpu.index}, by {whose}",
        "Expected the GPU to be free: what others take may be missing when a run needs it",
        "Wait for them, take another GPU (CUDA_VISIBLE_DEVICES), "
        f"or keep below what is free: --set memory.device_limit={_round_down(gpu.memory_free)}",
    )


def _round_down(n_bytes: int) -> str:
    """Nine tenths of some bytes, as the pipeline file has it."""
    return f"{int(0.9 * n_bytes / 10**9)}GB" if n_bytes >= 2 * 10**9 else f"{int(0.9 * n_bytes / 10**6)}MB"


def _compute_mode(gpu: GpuFacts) -> Iterator[Finding]:
    remedy = f"As administrator: nvidia-smi -i {gpu.index} -c DEFAULT"
    if gpu.compute_mode == "prohibited":
        happened = f"GPU {gpu.index} is in compute mode 'prohibited'"
        yield Finding(f"GPU {gpu.index} mode", "broken", happened, "Expected 'default'", remedy)
    elif gpu.compute_mode == "exclusive":
        taken = f", and process {gpu.neighbours[0].pid} has it" if gpu.neighbours else ""
        yield Finding(
            f"GPU {gpu.index} mode",
            "broken" if taken else "warning",
            f"GPU {gpu.index} is in compute mode 'exclusive'{taken}",
            "Expected 'default': one process alone gets in, so that a cluster's client keeps its worker out",
            remedy,
        )


def _memory_errors(gpu: GpuFacts) -> Iterator[Finding]:
    if gpu.ecc_errors:
        yield Finding(
            f"GPU {gpu.index} ECC",
            "broken",
            f"GPU {gpu.index} had {gpu.ecc_errors} memory errors that could not be corrected, since its driver started",
            "Expected none: results may be wrong",
            f"Reset it when nobody uses it (nvidia-smi --gpu-reset -i {gpu.index}); if they return, have it replaced",
        )


def _heat(gpu: GpuFacts) -> Iterator[Finding]:
    limit = gpu.slowdown_c
    if gpu.temperature_c is not None and limit is not None and gpu.temperature_c >= limit - _NEAR_SLOWDOWN_C:
        yield Finding(
            f"GPU {gpu.index} heat",
            "warning",
            f"GPU {gpu.index} has {gpu.temperature_c} °C",
            f"Expected less: at {limit} °C it slows down",
            "Look at its fans and at what else runs on it",
        )


def _throttling(gpu: GpuFacts) -> Iterator[Finding]:
    reasons = [reason for reason in gpu.throttling if reason != "power cap"]  # which busy devices run into as a rule
    if reasons:
        yield Finding(
            f"GPU {gpu.index} clock",
            "warning",
            f"GPU {gpu.index} is slowed down: {', '.join(reasons)}",
            "Expected its full clock",
            "Look at cooling and power supply; nvidia-smi -q -d PERFORMANCE says more",
        )


def _bus(gpu: GpuFacts) -> Iterator[Finding]:
    name, remedy = f"GPU {gpu.index} PCIe", "Seat the card anew or use another slot; in a virtual machine, ask its host"
    if gpu.pcie_width is not None and gpu.pcie_width < (gpu.pcie_width_max or 0):
        happened = f"GPU {gpu.index} is connected by {gpu.pcie_width} of {gpu.pcie_width_max} lanes"
        yield Finding(name, "warning", happened, "Expected all: reading waits for the link", remedy)
    if (gpu.utilisation or 0) >= _BUSY_PERCENT and (gpu.pcie_generation or 9) < (gpu.pcie_generation_max or 0):
        happened = f"The link of GPU {gpu.index} is of generation {gpu.pcie_generation} while it works"
        expected = f"Expected {gpu.pcie_generation_max}: reading waits for the link"
        yield Finding(name, "warning", happened, expected, remedy)


def _instances(facts: Facts) -> Iterator[Finding]:
    parts = [gpu for gpu in facts.gpu.gpus if gpu.mig]
    if len(parts) > 1:
        yield Finding(
            "MIG",
            "warning",
            f"{len(parts)} MIG instances are visible",
            "One process uses the first alone; NCCL does not connect instances, so they cannot train together",
            f"Name the one to use: CUDA_VISIBLE_DEVICES={parts[0].uuid}",
        )
    elif parts:
        yield Finding("MIG", "ok", "The GPU is a MIG instance; its own memory is what counts")


def _kinds(facts: Facts) -> Iterator[Finding]:
    names = dict.fromkeys(gpu.name for gpu in facts.gpu.gpus)
    if len(names) == 1:
        return
    kinds = f"The GPUs are of {len(names)} kinds: {', '.join(names)}"
    expected = "Expected one: all get as many rows and wait for the slowest"
    yield Finding("GPUs", "warning", kinds, expected, "Choose those of one kind: CUDA_VISIBLE_DEVICES")
    chosen = facts.environ.get("CUDA_VISIBLE_DEVICES", "")
    by_number = any(word.strip().isdecimal() for word in chosen.split(","))
    if by_number and facts.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        yield Finding(
            "GPU order",
            "warning",
            f"CUDA_VISIBLE_DEVICES is {chosen!r}, and CUDA counts the fastest first",
            "Expected the order of nvidia-smi, which is what this page shows",
            "Set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name UUIDs",
        )


def _peers(facts: Facts) -> Iterator[Finding]:
    apart = [(link.first, link.second) for link in facts.gpu.links if link.peer_access is False]
    if apart:
        yield Finding(
            "peer access",
            "warning",
            f"{_pairs(apart)} cannot read each other's memory",
            "Expected NVLink or PCIe peer access: every round of training goes through the host's memory",
            "Choose GPUs that are connected (nvidia-smi topo -m); in a virtual machine, ask its host",
        )


def _nvlinks(facts: Facts) -> Iterator[Finding]:
    down = [gpu for gpu in facts.gpu.gpus if gpu.nvlinks_inactive]
    if down:
        counts = ", ".join(
            f"{gpu.nvlinks_inactive} of {(gpu.nvlinks_active or 0) + (gpu.nvlinks_inactive or 0)} on GPU {gpu.index}"
            for gpu in down
        )
        yield Finding(
            "NVLink",
            "warning",
            f"NVLinks are down: {counts}",
            "Expected all to be up where the GPUs have partners",
            "Look at the fabric manager (systemctl status nvidia-fabricmanager) and nvidia-smi nvlink --status",
        )


def _pairs(pairs: list[tuple[int, int]], limit: int = 4) -> str:
    shown = ", ".join(f"{first} and {second}" for first, second in pairs[:limit])
    return f"GPUs {shown}" + (f" and {len(pairs) - limit} more pairs" if len(pairs) > limit else "")
