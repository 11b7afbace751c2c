"""The plan: what will run where, how large each term of the peak is, and why. Pure arithmetic; it reads nothing.

What goes in: sizes from footers (`DataShape`), host facts, the passes that the features need, and the settings of the
pipeline file. What comes out is a `Plan` that the run follows. It is made again once the features are fitted, with the
size of what they learned in place of a guess.

The peak is the largest of three stages, each a sum of terms:

    features   libraries + chunks in flight + vocabularies and statistics
    matrix     libraries + chunks in flight + fitted features + cache (if in memory) + sample for own cuts
    training   libraries + fitted features + cache (if in memory) + sample + what XGBoost takes + predictions

Vocabularies cannot be known from footers: their low bound is nothing, their high bound all the text there is. The
prediction takes the low bound until the features are fitted; both are shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .errors import ResourceError
from .terms import matrix_terms
from .units import format_bytes, format_rows
from .wire import record

# Measured on CPython 3.11 with pyarrow 26 and XGBoost 3.2: anonymous memory after importing and starting all
LIBRARY_BYTES = 150_000_000
# The chunk at work, one or two read ahead, what is being decoded, and what steps make of it; measured on four pipelines
CHUNKS_IN_FLIGHT = 5
# While states are merged they stand beside what they are merged into, and what was found beside what is made of it
_STATES_FACTOR = 3
_SAMPLE_MERGING, _SAMPLE_KEPT = 4, 1.5  # copies of the sample while it is merged, and beside the cuts made of it
_PREDICTION_BYTES = 12  # of a row, while it is evaluated: prediction, label, key
SAMPLE_ROWS = 200_000  # enough for own cuts: 5M x 30, AUC 0.86401 from all rows, 0.86399 from these
_MIN_CHUNK_ROWS, _MAX_CHUNK_ROWS = 1_000, 500_000
_SMALL_GROUP_ROWS = 50_000  # smaller row groups are read several at a time: a chunk has a price of its own
_CHUNK_SHARE = 16  # a chunk takes at most 1/16 of the limit
_BLOCK_BYTES = 4_000_000  # small enough for the processor's cache; 0.09 against 0.28 CPU-s for 10 MB, 30M cells
_MEMORY_CACHE_SHARE = 8  # the cache stays in memory up to 1/8 of the limit


@record
@dataclass(frozen=True)
class DataShape:
    """Sizes from footers.

    Parameters
    ----------
    n_rows : int
        Rows of all files.
    n_files : int
        Files.
    row_bytes : int
        Bytes of one row once read: the columns that are used, and what steps add.
    group_rows : int
        Rows of the largest row group.
    part_rows : int
        Rows of the largest part: no chunk has more.
    text_bytes : int
        Uncompressed bytes of all row groups, if any column is text: the most that vocabularies can take.
    """

    n_rows: int
    n_files: int
    row_bytes: int
    group_rows: int
    part_rows: int
    text_bytes: int


@record
@dataclass(frozen=True)
class Term:
    """A term of the peak: bytes expected, and the most that they can be."""

    name: str
    bytes: int
    high: int


@record
@dataclass(frozen=True)
class Plan:
    """What will run where, and why. See the fields of ``plan --json`` in the README."""

    engine: str
    runner: str
    workers: int
    chunk_rows: int
    block_rows: int
    passes: tuple[dict[str, Any], ...]
    matrix: Literal["in_core", "external"] | None
    cache: str | None
    cache_bytes: int
    terms: tuple[Term, ...]
    limit_bytes: int
    n_rows: int
    features: tuple[str, ...]
    unused: Mapping[str, str] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()

    @property
    def peak_bytes(self) -> int:
        """Sum of the terms."""
        return sum(t.bytes for t in self.terms)

    def to_json(self) -> dict[str, Any]:
        """The plan as ``plan --json`` prints it."""
        return {
            "engine": self.engine,
            "runner": self.runner,
            "workers": self.workers,
            "rows": self.n_rows,
            "chunk_rows": self.chunk_rows,
            "block_rows": self.block_rows,
            "passes": list(self.passes),
            "matrix": self.matrix,
            "cache": self.cache,
            "features": list(self.features),
            "unused": dict(self.unused),
            "memory_limit_bytes": self.limit_bytes,
            "predicted": {
                "host_peak_bytes": self.peak_bytes,
                "host_peak_high_bytes": sum(t.high for t in self.terms),
                "device_peak_bytes": None,
                "cache_bytes": self.cache_bytes,
                "terms": [{"name": t.name, "bytes": t.bytes, "high_bytes": t.high} for t in self.terms],
            },
            "reasons": list(self.reasons),
        }


@dataclass(frozen=True)
class Settings:
    """What the pipeline file says that the plan needs.

    Parameters
    ----------
    engine, runner : tuple of (str, str)
        Name and reason.
    limit : tuple of (int, str)
        Bytes that the run may take, and whose limit it is.
    chunk_rows : int, optional
        Given rows a chunk.
    params : mapping, optional
        XGBoost's parameters; None for ``model: null``.
    max_bin : int
        Bins a feature.
    cuts : {'own', 'exact'}
        Whose cuts: XGBoost's own take a sketch of all rows.
    sample_rows : int
        Rows that own cuts are made of; 0 for 'exact'.
    """

    engine: tuple[str, str]
    runner: tuple[str, str]
    limit: tuple[int, str]
    chunk_rows: int | None
    params: Mapping[str, Any] | None
    max_bin: int = 256
    cuts: Literal["own", "exact"] = "own"
    sample_rows: int = 0


def choose_chunk_rows(shape: DataShape, limit: int) -> tuple[int, str]:
    """Rows a chunk: as many as 1/16 of the limit holds, but whole row groups where these are not larger.

    Examples
    --------
    >>> choose_chunk_rows(DataShape(10_000_000, 10, 120, 1_000_000, 1_000_000, 0), 2_000_000_000)[0]
    500000
    >>> choose_chunk_rows(DataShape(10_000_000, 10, 1_000, 100_000, 500_000, 0), 2_000_000_000)[0]
    100000
    """
    fits = max(_MIN_CHUNK_ROWS, min(_MAX_CHUNK_ROWS, limit // _CHUNK_SHARE // max(1, shape.row_bytes)))
    if _SMALL_GROUP_ROWS <= shape.group_rows <= fits:
        rows, why = shape.group_rows, "a row group"
    elif shape.part_rows <= fits:
        rows, why = max(1, shape.part_rows), "a whole part"
    else:
        rows, why = fits, f"at most 1/{_CHUNK_SHARE} of the limit"
    return rows, f"chunks of {format_rows(rows)} rows: {why}, {format_bytes(rows * shape.row_bytes)} once read"


@dataclass(frozen=True)
class Learned:
    """What a pass has taught, for the plan that is made after it.

    Parameters
    ----------
    fitted_bytes : int
        Size of what the steps learned.
    train_rows : int
        Rows of the training side.
    used_rows : int
        Rows of all sides.
    has_missing : bool
        Whether a feature is missing anywhere; taken for granted until the features were made.
    """

    fitted_bytes: int
    train_rows: int
    used_rows: int
    has_missing: bool = True


@dataclass(frozen=True)
class Work:
    """What is to be done with the rows.

    Parameters
    ----------
    features : tuple of str
        Columns of the matrix.
    passes : tuple of dict
        Name, learning steps and columns of each pass.
    unused : mapping of str to str
        Columns that do not go to the model, with the reason.
    """

    features: tuple[str, ...]
    passes: tuple[dict[str, Any], ...]
    unused: Mapping[str, str]


def make(shape: DataShape, settings: Settings, work: Work, learned: Learned | None = None) -> Plan:
    """Make the plan.

    Parameters
    ----------
    shape, settings, work
        Sizes, what the pipeline file says, and what is to be done.
    learned : Learned, optional
        What the features turned out to be, once they are fitted.

    Raises
    ------
    ResourceError
        If even the smallest way does not fit under the limit: shows the sum.
    """
    limit, limit_reason = settings.limit
    n_features = len(work.features)
    chunk_rows, chunk_reason = choose_chunk_rows(shape, limit)
    if settings.chunk_rows:
        chunk_rows, chunk_reason = settings.chunk_rows, f"chunks of {format_rows(settings.chunk_rows)} rows: given"
    chunk = min(chunk_rows, shape.part_rows) * (shape.row_bytes + 4 * n_features)
    libraries, chunks = _term("libraries", LIBRARY_BYTES), _term("chunks in flight", CHUNKS_IN_FLIGHT * chunk)
    reasons = [
        f"engine {settings.engine[0]}: {settings.engine[1]}",
        f"runner {settings.runner[0]}: {settings.runner[1]}",
        f"memory limit {format_bytes(limit)}: {limit_reason}",
        chunk_reason,
    ]
    size = learned.fitted_bytes if learned else 0
    high = size if learned else shape.text_bytes
    states = Term("vocabularies and statistics", _STATES_FACTOR * size, _STATES_FACTOR * high)
    stages = [[libraries, chunks, states]]
    matrix: Literal["in_core", "external"] | None = None
    cache = None
    cache_bytes = 0
    block_rows = max(_MIN_CHUNK_ROWS, _BLOCK_BYTES // (4 * (n_features + 2)))
    if settings.params is not None:
        used = learned.used_rows if learned else shape.n_rows
        rows = (learned.train_rows, used - learned.train_rows) if learned else (used, 0)
        cache_bytes = used * 4 * (n_features + 2)
        cache = "memory" if cache_bytes <= limit // _MEMORY_CACHE_SHARE else "disk"
        kept = [Term("fitted features", size, high)] + ([_term("cache", cache_bytes)] if cache == "memory" else [])
        sample = 4 * n_features * min(rows[0], settings.sample_rows)
        stages.append([libraries, chunks, *kept, _term("sample for cuts", _SAMPLE_MERGING * sample)])
        before = [libraries, *kept, _term("sample for cuts", int(_SAMPLE_KEPT * sample))]
        before.append(_term("predictions", _PREDICTION_BYTES * used))
        missing = learned.has_missing if learned else True
        matrix, training = _choose_matrix(before, rows, settings, Matrix(n_features, block_rows, missing))
        stages.append(training)
        reasons += [
            f"cache in {cache}: the features take {format_bytes(cache_bytes)}, "
            f"memory is used up to 1/{_MEMORY_CACHE_SHARE} of the limit",
            f"matrix {matrix}: with it training takes {format_bytes(sum(t.bytes for t in training))} "
            f"of {format_bytes(limit)}",
        ]
    plan = Plan(
        engine=settings.engine[0],
        runner=settings.runner[0],
        workers=1,
        chunk_rows=chunk_rows,
        block_rows=block_rows,
        passes=work.passes,
        matrix=matrix,
        cache=cache,
        cache_bytes=cache_bytes,
        terms=tuple(max(stages, key=lambda stage: sum(t.bytes for t in stage))),
        limit_bytes=limit,
        n_rows=shape.n_rows,
        features=work.features,
        unused=work.unused,
        reasons=tuple(reasons),
    )
    if plan.peak_bytes > limit:
        raise does_not_fit(plan)
    return plan


@dataclass(frozen=True)
class Matrix:
    """What of a matrix its size depends on, besides its rows. Where values are missing, bins cost four bytes."""

    n_features: int
    block_rows: int
    has_missing: bool


def _term(name: str, size: int) -> Term:
    return Term(name, size, size)


def _choose_matrix(
    before: list[Term], rows: tuple[int, int], settings: Settings, wanted: Matrix
) -> tuple[Literal["in_core", "external"], list[Term]]:
    """In core where it fits, else external."""
    kinds: tuple[Literal["in_core", "external"], ...] = ("in_core", "external")
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
        stage = before + [_term(name, size) for name, size in terms.items()]
        if sum(t.bytes for t in stage) <= settings.limit[0]:
            break
    return kind, stage


def does_not_fit(plan: Plan) -> ResourceError:
    """The error for a plan whose sum exceeds the limit."""
    largest = max(plan.terms, key=lambda t: t.bytes)
    total = " + ".join(f"{t.name} {format_bytes(t.bytes)}" for t in plan.terms)
    needed, limit = format_bytes(plan.peak_bytes), format_bytes(plan.limit_bytes)
    return ResourceError(
        f"The run needs {needed} of memory and may take {limit}: {total}",
        f"Expected the sum to stay under memory.limit; the largest term is {largest.name}",
        _REMEDIES.get(largest.name, _RAISE),
    )


_RAISE = "Raise memory.limit (--set memory.limit=8GB), or give the process more memory"
_REMEDIES = {
    "chunks in flight": "Lower memory.chunk_rows (--set memory.chunk_rows=20000), or raise memory.limit",
    "vocabularies and statistics": f"Set min_count or max_levels in categorify. {_RAISE}",
    "fitted features": f"Set min_count or max_levels in categorify. {_RAISE}",
    "histograms": f"Lower max_depth (--set model.params.max_depth=6). {_RAISE}",
}
