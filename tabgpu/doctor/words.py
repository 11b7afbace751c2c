"""What the doctor says to people: what is wrong first, then the machine in a few aligned lines, then the verdict."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from ..hardware import GpuFacts, GpuLink
from ..packages import Finding
from ..units import format_bytes
from .facts import Facts

_WIDTH = 110
_SHOWN = ("xgboost", "xgboost-cpu", "xgboost-cu12", "cudf", "rmm", "cupy", "dask-cuda", "dask", "numpy", "pyarrow")


def page(facts: Facts, findings: Sequence[Finding]) -> str:
    """The whole page; `findings` come in the order in which they are shown."""
    wrong = [f for f in findings if f.severity != "ok"]
    rows = [*_machine(facts), *_gpu_rows(facts), *((f.name, f.happened) for f in findings if f.severity == "ok")]
    width = max(len(name) for name, _ in rows)
    lines = [line for finding in wrong for line in (*_paragraph(finding), "")]
    lines += [line for name, text in rows for line in _wrapped(f"{name:<{width}}  ", text)]
    return "\n".join([*lines, "", verdict(findings)])


def verdict(findings: Sequence[Finding]) -> str:
    """The last line.

    Examples
    --------
    >>> verdict([Finding("GPU", "ok", "There is no GPU")])
    'healthy'
    >>> verdict([Finding("disk", "warning", "Full"), Finding("GPU", "broken", "Lost")])
    'NOT healthy: 1 thing is broken, and 1 warning'
    """
    broken, warned = (sum(f.severity == kind for f in findings) for kind in ("broken", "warning"))
    warnings = f"{warned} warning{'s' if warned > 1 else ''}"
    if broken:
        things = "1 thing is" if broken == 1 else f"{broken} things are"
        return f"NOT healthy: {things} broken" + (f", and {warnings}" if warned else "")
    return f"healthy, with {warnings}" if warned else "healthy"


def sentences(finding: Finding) -> str:
    """A finding in one paragraph.

    Examples
    --------
    >>> sentences(Finding("disk", "warning", "10 MB are free in .", "Expected more", "Make room"))
    '10 MB are free in . Expected more. Make room.'
    """
    parts = (finding.happened, finding.expected, finding.remedy)
    return " ".join(part if part.endswith(".") else f"{part}." for part in parts if part)


def _paragraph(finding: Finding) -> Iterator[str]:
    head = "BROKEN   " if finding.severity == "broken" else "warning  "
    yield from _wrapped(head, f"{finding.happened}.")
    yield from _wrapped(" " * len(head), f"{finding.expected}.")
    yield " " * len(head) + f"{finding.remedy}."  # never wrapped: a command is copied


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_on_hyphens=False,
        break_long_words=False,
    )


def _machine(facts: Facts) -> Iterator[tuple[str, str]]:
    host = facts.host
    yield "System", f"{facts.system}, tabgpu {facts.packages.get('tabgpu', '(not installed)')}"
    yield "Processors", f"{host.cpus} ({host.cpus_from})"
    smallest = host.smallest
    there = f"{format_bytes(smallest.n_bytes)} to use ({smallest.source})"
    yield "Memory", f"{there}, {format_bytes(host.memory_total)} in the machine"
    if host.limits:
        bounds = sorted(host.limits, key=lambda limit: limit.n_bytes)
        yield "Bounds", ", ".join(f"{format_bytes(limit.n_bytes)} ({limit.source})" for limit in bounds)
    shared = "" if host.shared_memory is None else f", {format_bytes(host.shared_memory)} in /dev/shm"
    lock = "unlimited" if host.memory_lock is None else format_bytes(host.memory_lock)
    yield "Limits", f"{host.open_files} open files, memory lock {lock}{shared}"
    yield "Disk", f"{format_bytes(host.disk_free)} free in {host.disk_folder}"
    stems = {name: version for name, version in facts.packages.items() if name.startswith(_SHOWN)}
    yield "Packages", ", ".join(f"{name} {version}" for name, version in stems.items()) or "none"


def _gpu_rows(facts: Facts) -> Iterator[tuple[str, str]]:
    gpus = facts.gpu.gpus
    for gpu in gpus:
        yield f"GPU {gpu.index}", ", ".join(_gpu_words(gpu))
    if gpus:
        cuda = gpus[0].cuda_driver
        yield "Driver", gpus[0].driver + (f", for CUDA up to {cuda[0]}.{cuda[1]}" if cuda else "")
    if facts.gpu.links:
        yield "Links", links_in_words(facts.gpu.links)


def _gpu_words(gpu: GpuFacts) -> Iterator[str]:
    yield gpu.name + (f" ({gpu.uuid})" if gpu.mig else "")
    shared = ", shared with the host" if gpu.unified_memory else ""
    yield f"{format_bytes(gpu.memory_free)} of {format_bytes(gpu.memory_total)} free{shared}"
    told = {
        "compute capability {:.1f}": gpu.capability and gpu.capability[0] + gpu.capability[1] / 10,
        "{}% busy": gpu.utilisation,
        "{} °C": gpu.temperature_c,
        "{:.0f} W" + (f" of {gpu.power_limit_w:.0f}" if gpu.power_limit_w else ""): gpu.power_w,
        "{} MHz" + (f" of {gpu.clock_max_mhz}" if gpu.clock_max_mhz else ""): gpu.clock_mhz,
        f"PCIe {gpu.pcie_generation or '?'} x{{}}": gpu.pcie_width,
        "{} NVLinks": gpu.nvlinks_active or None,
        "{} memory errors": gpu.ecc_errors,
        "not persistent (the first use waits for the driver)": True if gpu.persistence is False else None,
    }
    yield from (words.format(value) for words, value in told.items() if value is not None)


def links_in_words(links: Sequence[GpuLink]) -> str:
    """How several GPUs reach one another, in one sentence.

    Examples
    --------
    >>> links_in_words([GpuLink(0, 1, True, True, "switch")])
    'all pairs by NVLink: gradients move beside the host'
    >>> links_in_words([GpuLink(0, 1, True, False, "machine"), GpuLink(0, 2, False, False, "machine")])
    '1 pair by PCIe peer access, 1 pair through the memory of the host (1 across processors: the slowest)'
    """
    kinds = {
        "by NVLink": [link for link in links if link.nvlink],
        "by PCIe peer access": [link for link in links if link.peer_access and not link.nvlink],
        "through the memory of the host": [link for link in links if link.peer_access is False and not link.nvlink],
    }
    if len(kinds["by NVLink"]) == len(links):
        return "all pairs by NVLink: gradients move beside the host"
    words = []
    for kind, found in kinds.items():
        far = sum(link.ancestor == "machine" for link in found) if kind.startswith("through") else 0
        if found:
            across = f" ({far} across processors: the slowest)" if far else ""
            words.append(f"{len(found)} pair{'s' if len(found) > 1 else ''} {kind}{across}")
    return ", ".join(words) or "the driver does not tell"
