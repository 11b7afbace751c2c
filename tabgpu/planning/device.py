"""What features, matrix and training take on a GPU, stage by stage, and whether the matrix is kept there.

Four stages, each a sum of terms:

    features       context + reading ahead + chunk at work + vocabularies and statistics
    matrix         context + reading ahead + chunk at work + fitted features + cache (if on the device) + sample
    construction   context + fitted features + cache + block in flight + bins of a block + sketch + matrix
    training       context + fitted features + cache + matrix (and its pages) + row state + histograms

to each of which an allowance is added. XGBoost takes its own from the driver's default pool: with an `async` pool all
share that one, with a `fixed` pool XGBoost lives outside it, and two limits hold: the pool, and what is left beside it.
The formulas of XGBoost's terms are in `tabgpu.device_terms`; the factors here are estimates until a GPU has measured
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..device_terms import (
    DeviceMatrix,
    Missing,
    cell_bits,
    construction_terms,
    divide,
    histogram_bytes,
    row_state_bytes,
    split_terms,
)
from ..errors import ConfigError, ResourceError
from ..hardware import GpuFacts
from ..units import format_bytes, parse_bytes
from .facts import Device, Kind, Settings, Sizes, Term, total

CONTEXT_BYTES = 500_000_000  # of CUDA and of loaded kernels; 200 to 500 MB (documentation of dask-cuda), not measured
AUTO_FRACTION = 0.9  # of what is free: the driver and other processes move
_ALLOWANCE_PERCENT = 15  # XGBoost rounds allocations up to 512 MB to powers of two and keeps them (device_vector.cuh)
_DECODE = 3  # compressed pages, pages, columns: of each chunk read ahead; estimated
_WORK = 3  # the chunk's columns, what factorizing and steps make of them, the matrix of the chunk; estimated
_STATES_FACTOR = 3  # as on the host
_SAMPLE_FACTOR = 4  # as on the host
_CACHE_SHARE = 8  # the cache stays on the device up to 1/8 of its limit
_BLOCK_SHARE, _MOST_BLOCK_BYTES = 64, 256_000_000  # many small blocks cost time and memory (XGBoost issue 11751)
_ALIGNMENT = 256  # of RMM's pools


@dataclass(frozen=True)
class _Stage:
    """Terms that our pool holds, and those that XGBoost takes."""

    name: str
    ours: list[Term]
    others: list[Term] = field(default_factory=list)


@dataclass(frozen=True)
class DevicePlan:
    """What happens on the GPU.

    Parameters
    ----------
    matrix : {'in_core', 'external'}
        Which matrix.
    cached : bool
        Whether the blocks stay on the device.
    terms : tuple of Term
        Of the stage that takes the most.
    device : Device
        With the size of a fixed pool.
    host_bytes : int
        Pinned host memory of an external matrix.
    options : dict
        What XGBoost is told about an external matrix.
    error : ResourceError, optional
        Why it does not fit.
    reasons : list of str
        Why it is so.
    """

    matrix: Kind | None
    cached: bool
    terms: tuple[Term, ...]
    device: Device
    host_bytes: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    error: ResourceError | None = None
    reasons: tuple[str, ...] = ()


def device_limit(setting: str | int | float, gpus: Sequence[GpuFacts]) -> tuple[int, str]:
    """Turn ``memory.device_limit`` into bytes that a process may take of its GPU.

    Bytes are absolute, which holds for a slice of a GPU (MIG) too. The GPU with the least free memory decides for all.

    Parameters
    ----------
    setting : str, int or float
        ``"auto"`` (0.9 of what is free), a fraction of what is free, or a size such as ``"40GB"``, of which no more
        than the device has counts.
    gpus : sequence of GpuFacts
        Those that are used.

    Raises
    ------
    ResourceError
        If there is none.

    Examples
    --------
    >>> gpu = GpuFacts(0, "H200", 140_000_000_000, 120_000_000_000)
    >>> device_limit("auto", [gpu])
    (108000000000, '0.9 of 120 GB (free on GPU 0, H200)')
    >>> device_limit("130GB", [gpu])[1]
    'memory.device_limit, although only 120 GB are free on GPU 0, H200'
    """
    gpu = _smallest(gpus)
    where = f"free on GPU {gpu.index}, {gpu.name}"
    if setting == "auto" or isinstance(setting, float):
        fraction = AUTO_FRACTION if isinstance(setting, str) else setting
        return int(fraction * gpu.memory_free), f"{fraction:g} of {format_bytes(gpu.memory_free)} ({where})"
    size = parse_bytes(setting, "memory.device_limit")
    if size > gpu.memory_total:
        return gpu.memory_total, f"all of GPU {gpu.index}, {gpu.name}: memory.device_limit is above it"
    but = f", although only {format_bytes(gpu.memory_free)} are {where}" if size > gpu.memory_free else ""
    return size, f"memory.device_limit{but}"


def device_of(limit: str | int | float, pool: tuple[str, str | int | float], gpus: Sequence[GpuFacts]) -> Device:
    """The GPU that a plan reckons with.

    Parameters
    ----------
    limit : str, int or float
        ``memory.device_limit``.
    pool : tuple
        Kind and size of ``memory.pool``: a fraction is one of the device's whole memory.
    gpus : sequence of GpuFacts
        Those that are used.

    Raises
    ------
    ResourceError
        If there is no GPU.
    ConfigError
        If the pool is larger than the limit.
    """
    bytes_there, reason = device_limit(limit, gpus)
    whole = _smallest(gpus).memory_total
    kind, size = pool
    if kind != "fixed":
        return Device((bytes_there, reason), whole)
    if size == "auto":
        return Device((bytes_there, reason), whole, "fixed")
    wanted = int(size * whole) if isinstance(size, float) else parse_bytes(size, "memory.pool.size")
    if wanted > bytes_there - CONTEXT_BYTES:
        raise ConfigError(
            f"memory.pool.size is {size!r} ({format_bytes(wanted)}), and {format_bytes(bytes_there)} of the GPU may be "
            f"taken: {reason}",
            f"Expected a pool that leaves room for the CUDA context ({format_bytes(CONTEXT_BYTES)}) and for XGBoost, "
            "which lives outside it",
            "Lower memory.pool.size (--set memory.pool.size=auto), or write memory.pool: async",
        )
    return Device((bytes_there, reason), whole, "fixed", wanted - wanted % _ALIGNMENT)


def _smallest(gpus: Sequence[GpuFacts]) -> GpuFacts:
    if not gpus:
        raise ResourceError(
            "The engine is 'gpu', and no GPU is to be seen",
            "Expected at least one that CUDA_VISIBLE_DEVICES does not hide",
            "Run 'tabgpu doctor', or pass --set engine=cpu",
        )
    return min(gpus, key=lambda gpu: (gpu.memory_free, gpu.memory_total))


def device_block_rows(n_features: int, limit: int) -> int:
    """Rows of a block: 1/64 of the limit, at most 256 MB."""
    return max(1_000, min(_MOST_BLOCK_BYTES, limit // _BLOCK_SHARE) // (4 * (n_features + 2)))


def plan_device(sizes: Sizes, settings: Settings, block_rows: int) -> DevicePlan:
    """Choose what is kept on the GPU: blocks and matrix where both fit, the matrix alone, or a part of it.

    Parameters
    ----------
    sizes, settings
        What is to be done; `settings.device` is there.
    block_rows : int
        Rows of a block.
    """
    device = settings.device
    assert device is not None, "called for the GPU engine alone"
    if settings.params is None:
        return _finished([_features(sizes)], DevicePlan(None, False, (), device))
    matrix = _matrix_of(sizes, settings, block_rows)
    cached = sizes.cache_bytes <= device.limit[0] // _CACHE_SHARE
    choices: list[tuple[Kind, bool]] = [("in_core", True)] if cached else []
    made = None
    for kind, keep in [*choices, ("in_core", False), ("external", False)]:
        made = _try(kind, keep, sizes, matrix, device)
        if made.error is None:
            break
    assert made is not None, "there are two choices at least"
    return made


def _matrix_of(sizes: Sizes, settings: Settings, block_rows: int) -> DeviceMatrix:
    missing: Missing = "none" if not sizes.has_missing else "some" if sizes.has_complete_row else "every row"
    return DeviceMatrix(
        sizes.train_rows,
        sizes.used_rows - sizes.train_rows,
        sizes.n_features,
        settings.max_bin,
        block_rows,
        missing,
        settings.has_weight,
        settings.cuts,
        settings.params or {},
    )


def _features(sizes: Sizes) -> _Stage:
    states = Term(
        "vocabularies and statistics", _STATES_FACTOR * sizes.fitted_bytes, _STATES_FACTOR * sizes.fitted_high
    )
    return _Stage("features", [*_chunks(sizes), states])


def _chunks(sizes: Sizes) -> list[Term]:
    columns = sizes.chunk_rows * (sizes.row_bytes + sizes.text_row_bytes)
    work = columns + 4 * sizes.n_features * sizes.chunk_rows
    return [Term.of("reading ahead", sizes.readers * _DECODE * columns), Term.of("chunk at work", _WORK * work)]


def _try(kind: Kind, keep: bool, sizes: Sizes, matrix: DeviceMatrix, device: Device) -> DevicePlan:
    kept = [Term("fitted features", sizes.fitted_bytes, sizes.fitted_high)]
    kept += [Term.of("cache", sizes.cache_bytes)] if keep else []
    sample = Term.of("sample for cuts", _SAMPLE_FACTOR * sizes.sample_bytes)
    before = [_features(sizes), _Stage("matrix", [*_chunks(sizes), *kept, sample])]
    block = Term.of("block in flight", matrix.input_bytes)
    building = [Term.of(name, size) for name, size in construction_terms(matrix).items() if size]
    training = [
        Term.of("row state", row_state_bytes(matrix)),
        Term("histograms", histogram_bytes(matrix), histogram_bytes(matrix, growth=3)),
    ]
    if kind == "in_core":
        held, on_host, options = _in_core(matrix), 0, {}
    else:
        room = min(
            _room(device, [s.ours for s in before], [*kept, block], building),
            _room(device, [s.ours for s in before], kept, training),
        )
        split = divide(matrix, room, device.total_bytes)
        terms, on_host = split_terms(matrix, split)
        held = [Term.of(name, size) for name, size in terms.items()]
        options = {
            "cache_host_ratio": split.cache_host_ratio,
            "min_cache_page_bytes": split.min_cache_page_bytes,
        }
    stages = [
        *before,
        _Stage("construction", [*kept, block], [*held, *building]),
        _Stage("training", kept, [*held, *training]),
    ]
    return _finished(stages, DevicePlan(kind, keep, (), device, on_host, options, None, _reasons(kind, matrix)))


def _in_core(matrix: DeviceMatrix) -> list[Term]:
    rows = matrix.n_rows + matrix.n_watched
    most = DeviceMatrix(
        matrix.n_rows, matrix.n_watched, matrix.n_features, matrix.max_bin, matrix.block_rows, "every row"
    )
    high = matrix.quantised(rows) if matrix.missing == "none" else most.quantised(rows)
    return [Term("matrix", matrix.quantised(rows), high)]


def _room(device: Device, pooled: Sequence[list[Term]], ours: list[Term], others: list[Term]) -> int:
    """Bytes left for an external matrix beside `ours` and `others`, the allowance taken off."""
    limit = device.limit[0] - CONTEXT_BYTES
    if device.pool == "fixed":
        pool = device.pool_bytes or _with_allowance(max(total(terms) for terms in [*pooled, ours]))
        return (limit - pool) * 100 // (100 + _ALLOWANCE_PERCENT) - total(others)
    return limit * 100 // (100 + _ALLOWANCE_PERCENT) - total(ours) - total(others)


def _with_allowance(size: int) -> int:
    return size + _allowance(size)


def _allowance(size: int) -> int:
    return -(-size * _ALLOWANCE_PERCENT // 100)


def _finished(stages: list[_Stage], plan: DevicePlan) -> DevicePlan:
    """The plan with the terms of its largest stage, or with the error of what does not fit."""
    device = plan.device
    limit, reason = device.limit
    pool = None
    if device.pool == "fixed":
        outside = max(_with_allowance(total(s.others)) for s in stages)
        spare = limit - CONTEXT_BYTES - outside
        pool = device.pool_bytes or max(0, spare - spare % _ALIGNMENT)
    summed = [_terms(stage, pool) for stage in stages]
    worst = max(summed, key=total)
    reasons = [f"GPU memory limit {format_bytes(limit)}: {reason}", *plan.reasons]
    if pool is not None:
        reasons.append(f"fixed pool of {format_bytes(pool)}; XGBoost has the {format_bytes(limit - pool)} beside it")
    error = None
    if pool is not None and (pooled := max(_with_allowance(total(s.ours)) for s in stages)) > pool:
        tight = max(stages, key=lambda s: total(s.ours)).ours
        error = _does_not_fit(tight, pooled, pool, "the fixed pool", "memory.pool.size")
    elif total(worst) > limit:
        error = _does_not_fit(worst, total(worst), limit, "the GPU", "memory.device_limit")
    device = replace(device, pool_bytes=pool)
    return replace(plan, terms=tuple(worst), device=device, error=error, reasons=tuple(reasons))


def _terms(stage: _Stage, pool: int | None) -> list[Term]:
    if pool is None:
        summed = [*stage.ours, *stage.others]
        allowance = _allowance(total(summed))
    else:
        summed = [*stage.ours, *stage.others, Term.of("rest of the pool", max(0, pool - total(stage.ours)))]
        allowance = _allowance(total(stage.others))
    return [
        Term.of("CUDA context", CONTEXT_BYTES),
        *[t for t in summed if t.high],
        Term.of("allowance", allowance),
    ]


def _reasons(kind: Kind, matrix: DeviceMatrix) -> tuple[str, ...]:
    bits = cell_bits(matrix.n_features, matrix.max_bin, matrix.missing)
    lower = cell_bits(matrix.n_features, matrix.max_bin - 1, matrix.missing)
    reasons = [f"matrix {kind} on the GPU: {bits} bits a cell, values missing in {matrix.missing} of the rows"]
    if matrix.missing == "some" and lower < bits and matrix.max_bin > 2:
        reasons.append(
            f"with max_bin {matrix.max_bin - 1} a cell would take {lower} bits "
            f"(--set model.params.max_bin={matrix.max_bin - 1})"
        )
    return tuple(reasons)


def _does_not_fit(terms: Sequence[Term], needed: int, limit: int, where: str, key: str) -> ResourceError:
    largest = max(terms, key=lambda t: t.bytes)
    shown = " + ".join(f"{t.name} {format_bytes(t.bytes)}" for t in terms)
    return ResourceError(
        f"The run needs {format_bytes(needed)} of {where} and may take {format_bytes(limit)}: {shown}",
        f"Expected the sum to stay under {key}; the largest term is {largest.name}",
        _REMEDIES.get(largest.name, f"Raise {key} (--set {key}=...), or use a GPU with more memory"),
    )


_MORE = "use more workers (--set cluster.workers=2) or a GPU with more memory"
_REMEDIES = {
    "reading ahead": "Lower memory.chunk_rows (--set memory.chunk_rows=100000) or memory.readers",
    "chunk at work": "Lower memory.chunk_rows (--set memory.chunk_rows=100000)",
    "vocabularies and statistics": f"Set min_count or max_levels in categorify, or {_MORE}",
    "fitted features": f"Set min_count or max_levels in categorify, or {_MORE}",
    "histograms": "Lower max_depth (--set model.params.max_depth=6), or max_bin, or last max_cached_hist_node",
    "row state": f"Use fewer rows (--sample), or {_MORE}",
    "matrix pages": f"Lower max_bin (--set model.params.max_bin=127), or {_MORE}",
    "matrix": f"Lower max_bin (--set model.params.max_bin=127), or {_MORE}",
    "sketch": "Leave model.cuts: own (--set model.cuts=own), which takes no sketch",
    "rest of the pool": "Lower memory.pool.size (--set memory.pool.size=auto), or write memory.pool: async",
}
