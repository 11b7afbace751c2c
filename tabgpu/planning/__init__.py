"""The plan: what will run where, how large each term of the peak is, and why. Pure arithmetic; it reads nothing.

What goes in: sizes from footers (`DataShape`), what has to be done (`Work`), and the settings of the pipeline file with
the limits of host and GPU (`settings_of`). What comes out is a `Plan` that the run follows. It is made again once the
features are fitted, with the size of what they learned in place of a guess.

The peak of the host is the largest of three stages, each a sum of terms:

    features   libraries + chunks in flight + vocabularies and statistics
    matrix     libraries + chunks in flight + fitted features + cache (if in memory) + sample for own cuts
    training   libraries + fitted features + cache (if in memory) + sample + what XGBoost takes + predictions

Vocabularies cannot be known from footers: their low bound is nothing, their high bound all the text there is. The
prediction takes the low bound until the features are fitted; both are shown. `device` does the same for a GPU,
`cluster` shares the rows between workers, and `options` words the options of a cluster that is started here.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..device_terms import outputs
from ..errors import ResourceError
from ..terms import matrix_terms
from ..units import format_bytes, format_rows
from .chunks import MIN_ROWS, cap_reason, choose_chunk_rows, device_cap
from .cluster import assign, round_bytes, round_reason, workers_reason
from .device import CONTEXT_BYTES, DevicePlan, device_block_rows, device_limit, plan_device
from .facts import DataShape, Device, Kind, Learned, Plan, Settings, Sizes, Term, Work, total
from .options import cluster_options
from .settings import SAMPLE_ROWS, settings_of

__all__ = [
    "CONTEXT_BYTES",
    "SAMPLE_ROWS",
    "DataShape",
    "Device",
    "Learned",
    "Plan",
    "Settings",
    "Term",
    "Work",
    "assign",
    "choose_chunk_rows",
    "cluster_options",
    "device_limit",
    "does_not_fit",
    "make",
    "round_bytes",
    "settings_of",
]

# Measured on CPython 3.11 with pyarrow 26 and XGBoost 3.2: anonymous memory after importing and starting all
LIBRARY_BYTES = 150_000_000
# Measured: 285 MB after importing cuDF 26.10, CuPy and XGBoost; the CUDA context takes some 300 more, not measured
DEVICE_LIBRARY_BYTES = 600_000_000
# The chunk at work, one or two read ahead, what is being decoded, and what steps make of it; measured on four pipelines
CHUNKS_IN_FLIGHT = 5
_CHUNKS_A_READER = 2  # one that it decodes and one that waits, for each reader beyond the first
_AUTO_READERS, _AUTO_DEVICE_READERS = 1, 2
# While states are merged they stand beside what they are merged into, and what was found beside what is made of it
_STATES_FACTOR = 3
_SAMPLE_MERGING, _SAMPLE_KEPT = 4, 1.5  # copies of the sample while it is merged, and beside the cuts made of it
_PREDICTION_BYTES = 12  # of a row, while it is evaluated: prediction, label, key
_BLOCK_BYTES = 4_000_000  # small enough for the processor's cache; 0.09 against 0.28 CPU-s for 10 MB, 30M cells
_MEMORY_CACHE_SHARE = 8  # the cache stays in memory up to 1/8 of the limit


def make(shape: DataShape, settings: Settings, work: Work, learned: Learned | None = None) -> Plan:
    """Make the plan.

    Parameters
    ----------
    shape, settings, work
        Sizes, what the pipeline file says, and what is to be done.
    learned : Learned, optional
        What the features turned out to be, once they are fitted.

    Returns
    -------
    Plan
        Of the worker with the most rows, where there are several.

    Raises
    ------
    ResourceError
        If even the smallest way does not fit under the limits: shows the sum.
    """
    limit, device = settings.limit[0], settings.device
    assignment, worker_rows = _shared(shape, settings)
    chunk_rows, chunk_reasons = _chunk_rows(shape, settings)
    readers = settings.readers or (_AUTO_DEVICE_READERS if device else _AUTO_READERS)
    sizes = _sizes(shape, settings, work, learned, (min(chunk_rows, shape.part_rows), readers), worker_rows)
    block_rows = max(MIN_ROWS, _BLOCK_BYTES // (4 * (sizes.n_features + 2)))
    on_device = None
    if device is not None:
        block_rows = device_block_rows(sizes.n_features, device.limit[0])
        on_device = plan_device(sizes, settings, block_rows)
    host = _host(sizes, settings, block_rows, on_device)
    moved = _moved(sizes, settings, len(worker_rows))
    plan = Plan(
        engine=settings.engine[0],
        runner=settings.runner[0],
        workers=max(1, len(worker_rows)),
        chunk_rows=chunk_rows,
        block_rows=block_rows,
        passes=work.passes,
        matrix=host.matrix,
        cache=host.cache,
        cache_bytes=0 if settings.params is None else sizes.cache_bytes,
        terms=host.terms,
        limit_bytes=limit,
        n_rows=shape.n_rows,
        features=work.features,
        unused=work.unused,
        reasons=(
            f"engine {settings.engine[0]}: {settings.engine[1]}",
            f"runner {settings.runner[0]}: {settings.runner[1]}",
            *((workers_reason(settings.workers, worker_rows),) if worker_rows else ()),
            f"memory limit {format_bytes(limit)}: {settings.limit[1]}",
            *chunk_reasons,
            *(on_device.reasons if on_device else ()),
            *host.reasons,
            *(() if moved is None else (moved[1],)),
            *_averaged(settings, len(worker_rows)),
        ),
        readers=readers,
        device=on_device.device if on_device else None,
        device_terms=on_device.terms if on_device else (),
        matrix_options=on_device.options if on_device else {},
        assignment=assignment,
        worker_rows=worker_rows,
        round_bytes=None if moved is None else moved[0],
    )
    if on_device is not None and on_device.error is not None:
        raise on_device.error
    if plan.peak_bytes > limit:
        raise does_not_fit(plan)
    return plan


def _shared(shape: DataShape, settings: Settings) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Tasks of each worker and their rows; nothing where one process does everything."""
    if settings.workers == 1 or not shape.task_rows:
        return (), ()
    assignment = assign(shape.task_rows, settings.workers)
    return assignment, tuple(sum(shape.task_rows[i] for i in tasks) for tasks in assignment)


def _chunk_rows(shape: DataShape, settings: Settings) -> tuple[int, list[str]]:
    device_bytes = settings.device.limit[0] if settings.device else None
    caps = [] if device_bytes is None else [cap_reason(shape)]
    if not settings.chunk_rows:
        rows, reason = choose_chunk_rows(shape, settings.limit[0], device_bytes)
        return rows, [reason, *caps]
    rows = settings.chunk_rows if device_bytes is None else min(settings.chunk_rows, device_cap(shape))
    given = "given" if rows == settings.chunk_rows else f"{format_rows(settings.chunk_rows)} are given"
    return rows, [f"chunks of {format_rows(rows)} rows: {given}", *caps]


def _sizes(
    shape: DataShape,
    settings: Settings,
    work: Work,
    learned: Learned | None,
    reading: tuple[int, int],
    worker_rows: tuple[int, ...],
) -> Sizes:
    used = learned.used_rows if learned else shape.n_rows
    train = learned.train_rows if learned else used
    n_features = len(work.features)
    if worker_rows and shape.n_rows:  # of the fullest worker, rounded up; sides are taken to be spread evenly
        used, train = (-(-n * max(worker_rows) // shape.n_rows) for n in (used, train))
    fitted = learned.fitted_bytes if learned else 0
    return Sizes(
        n_features=n_features,
        train_rows=train,
        used_rows=used,
        chunk_rows=reading[0],
        row_bytes=shape.row_bytes,
        text_row_bytes=shape.text_row_bytes,
        readers=reading[1],
        fitted_bytes=fitted,
        fitted_high=fitted if learned else shape.text_bytes,
        has_missing=learned.has_missing if learned else True,
        has_complete_row=learned.has_complete_row if learned else True,
        # workers merge their samples: each may come to hold all of it
        sample_bytes=4 * n_features * min(learned.train_rows if learned else shape.n_rows, settings.sample_rows),
    )


@dataclass(frozen=True)
class _Host:
    matrix: Kind | None
    cache: str | None
    terms: tuple[Term, ...]
    reasons: tuple[str, ...]


def _host(sizes: Sizes, settings: Settings, block_rows: int, on_device: DevicePlan | None) -> _Host:
    """Terms of the largest stage on the host, and where matrix and cache lie."""
    limit = settings.limit[0]
    libraries = Term.of("libraries", LIBRARY_BYTES if on_device is None else DEVICE_LIBRARY_BYTES)
    chunk = sizes.chunk_rows * (sizes.row_bytes + 4 * sizes.n_features)
    flying = CHUNKS_IN_FLIGHT + _CHUNKS_A_READER * (sizes.readers - 1)
    if on_device is not None:  # pages as they lie in the file, on their way to the device
        chunk, flying = sizes.chunk_rows * (sizes.row_bytes + sizes.text_row_bytes), 1 + sizes.readers
    chunks = Term.of("chunks in flight", flying * chunk)
    size, high = sizes.fitted_bytes, sizes.fitted_high
    stages = [[libraries, chunks, Term("vocabularies and statistics", _STATES_FACTOR * size, _STATES_FACTOR * high)]]
    if settings.params is None:
        return _Host(None, None, tuple(stages[0]), ())
    cache = "memory" if sizes.cache_bytes <= limit // _MEMORY_CACHE_SHARE else "disk"
    if on_device is not None and on_device.cached:
        cache = "device"
    kept = [Term("fitted features", size, high)]
    kept += [Term.of("cache", sizes.cache_bytes)] if cache == "memory" else []
    stages.append([libraries, chunks, *kept, Term.of("sample for cuts", _SAMPLE_MERGING * sizes.sample_bytes)])
    before = [libraries, *kept, Term.of("sample for cuts", int(_SAMPLE_KEPT * sizes.sample_bytes))]
    before.append(Term.of("predictions", _PREDICTION_BYTES * sizes.used_rows))
    rows = (sizes.train_rows, sizes.used_rows - sizes.train_rows)
    if on_device is None:
        matrix, training = _choose_matrix(
            before, rows, settings, Matrix(sizes.n_features, block_rows, sizes.has_missing)
        )
    else:
        assert on_device.matrix is not None, "there is a model"
        block = 2 * 4 * min(block_rows, sizes.used_rows) * (sizes.n_features + 2)
        pinned = [Term.of("pinned matrix", on_device.host_bytes)] if on_device.host_bytes else []
        training = [*before, Term.of("block in flight", block), *pinned]
        matrix = on_device.matrix
    stages.append(training)
    memory = f"memory is used up to 1/{_MEMORY_CACHE_SHARE} of the limit"
    why = "they stay on the GPU" if cache == "device" else memory
    reasons = (
        f"cache in {cache}: the features take {format_bytes(sizes.cache_bytes)}, {why}",
        f"matrix {matrix}: with it training takes {format_bytes(total(training))} of {format_bytes(limit)}",
    )
    return _Host(matrix, cache, tuple(max(stages, key=lambda stage: total(stage))), reasons)


def _moved(sizes: Sizes, settings: Settings, workers: int) -> tuple[int, str] | None:
    """Bytes that a round moves through each worker, and what that means."""
    if settings.params is None or workers < 2:
        return None
    params = settings.params
    trees = outputs(params)
    moved = round_bytes(sizes.n_features, params, settings.max_bin, workers, trees)
    cells = sizes.train_rows * sizes.n_features * trees
    return moved, round_reason(moved, settings.link, cells, params, None if settings.device else settings.threads)


def _averaged(settings: Settings, workers: int) -> list[str]:
    """Where early stopping may see other numbers than on one process."""
    given = (settings.params or {}).get("eval_metric", ())
    names = [given] if isinstance(given, str) else list(given)
    return [
        f"{name} of each round is the mean of the workers' own: with early_stopping, the best round may be another "
        "than in one process (docs/cluster.md); logloss and rmse are exact"
        for name in names
        if workers > 1 and str(name).split("@")[0] in ("auc", "aucpr", "pre")
    ]


@dataclass(frozen=True)
class Matrix:
    """What of a matrix its size depends on, besides its rows. Where values are missing, bins cost four bytes."""

    n_features: int
    block_rows: int
    has_missing: bool


def _choose_matrix(
    before: list[Term], rows: tuple[int, int], settings: Settings, wanted: Matrix
) -> tuple[Kind, list[Term]]:
    """In core where it fits, else external."""
    kinds: tuple[Kind, ...] = ("in_core", "external")
    for kind in kinds:
        terms = matrix_terms(
            *rows,
            wanted.n_features,
            max_bin=settings.max_bin,
            has_missing=wanted.has_missing,
            kind=kind,
            block_rows=wanted.block_rows,
            cuts=settings.cuts,
            params=settings.params,
        )
        stage = before + [Term.of(name, size) for name, size in terms.items()]
        if total(stage) <= settings.limit[0]:
            break
    return kind, stage


def does_not_fit(plan: Plan) -> ResourceError:
    """The error for a plan whose sum exceeds the limit."""
    largest = max(plan.terms, key=lambda t: t.bytes)
    shown = " + ".join(f"{t.name} {format_bytes(t.bytes)}" for t in plan.terms)
    needed, limit = format_bytes(plan.peak_bytes), format_bytes(plan.limit_bytes)
    whose = "A worker" if plan.workers > 1 else "The run"
    return ResourceError(
        f"{whose} needs {needed} of memory and may take {limit}: {shown}",
        f"Expected the sum to stay under memory.limit; the largest term is {largest.name}",
        _REMEDIES.get(largest.name, _RAISE),
    )


_RAISE = "Raise memory.limit (--set memory.limit=8GB), or give the process more memory"
_REMEDIES = {
    "chunks in flight": "Lower memory.chunk_rows (--set memory.chunk_rows=20000), or raise memory.limit",
    "vocabularies and statistics": f"Set min_count or max_levels in categorify. {_RAISE}",
    "fitted features": f"Set min_count or max_levels in categorify. {_RAISE}",
    "histograms": f"Lower max_depth (--set model.params.max_depth=6). {_RAISE}",
    "pinned matrix": f"Lower max_bin (--set model.params.max_bin=127), or use more GPUs. {_RAISE}",
}
