"""What a plan is made of, and the plan itself: records, without a decision in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..wire import record

Kind = Literal["in_core", "external"]


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
    text_row_bytes : int
        Bytes of text in a row, at most; 0 if no column is text. It counts on a GPU, where text is read as it is.
    task_rows : tuple of int
        Rows of every task, for workers to share; may be empty where there is one process.
    """

    n_rows: int
    n_files: int
    row_bytes: int
    group_rows: int
    part_rows: int
    text_bytes: int
    text_row_bytes: int = 0
    task_rows: tuple[int, ...] = ()


@record
@dataclass(frozen=True)
class Term:
    """A term of the peak: bytes expected, and the most that they can be."""

    name: str
    bytes: int
    high: int

    @classmethod
    def of(cls, name: str, size: int) -> Term:
        """A term whose size is known."""
        return cls(name, size, size)


def total(terms: Iterable[Term]) -> int:
    """Sum of the bytes expected."""
    return sum(t.bytes for t in terms)


@record
@dataclass(frozen=True)
class Device:
    """The GPU that a worker has: the smallest of all.

    Parameters
    ----------
    limit : tuple of (int, str)
        Bytes of it that may be taken, and whose limit it is.
    total_bytes : int
        Its memory.
    pool : {'async', 'fixed'}
        Kind of the memory pool.
    pool_bytes : int, optional
        Size of a fixed pool: as given, and in a plan as planned.
    """

    limit: tuple[int, str]
    total_bytes: int
    pool: Literal["async", "fixed"] = "async"
    pool_bytes: int | None = None


@record
@dataclass(frozen=True)
class Plan:
    """What will run where, and why. See the fields of ``plan --json`` in the README.

    Sizes and limits are those of one process: of the worker with the most rows where there are several. The fields from
    `device` to `matrix_options` are None or empty on the CPU engine; `assignment` and those after it where one process
    does everything. `device` has the size of a fixed pool. `matrix_options` is what XGBoost is told when it makes an
    external matrix on a GPU.
    """

    engine: str
    runner: str
    workers: int
    chunk_rows: int
    block_rows: int
    passes: tuple[dict[str, Any], ...]
    matrix: Kind | None
    cache: str | None
    cache_bytes: int
    terms: tuple[Term, ...]
    limit_bytes: int
    n_rows: int
    features: tuple[str, ...]
    unused: Mapping[str, str] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    readers: int = 1
    device: Device | None = None
    device_terms: tuple[Term, ...] = ()
    matrix_options: Mapping[str, Any] = field(default_factory=dict)
    assignment: tuple[tuple[int, ...], ...] = ()
    worker_rows: tuple[int, ...] = ()
    round_bytes: int | None = None

    @property
    def peak_bytes(self) -> int:
        """Sum of the terms on the host."""
        return total(self.terms)

    @property
    def device_limit_bytes(self) -> int | None:
        """Bytes of a GPU that may be taken; None on the CPU engine."""
        return self.device.limit[0] if self.device else None

    @property
    def pool_bytes(self) -> int | None:
        """Size of a fixed pool; None for any other."""
        return self.device.pool_bytes if self.device else None

    @property
    def device_peak_bytes(self) -> int | None:
        """Sum of the terms on a GPU; None on the CPU engine."""
        return total(self.device_terms) if self.device_terms else None

    @property
    def balance(self) -> float:
        """Rows of the fullest worker over the mean: 1 is perfect."""
        rows = self.worker_rows
        return max(rows) * len(rows) / sum(rows) if sum(rows) else 1.0

    def to_json(self) -> dict[str, Any]:
        """The plan as ``plan --json`` prints it."""
        on_device = self.device_terms
        return {
            "engine": self.engine,
            "runner": self.runner,
            "workers": self.workers,
            "rows": self.n_rows,
            "chunk_rows": self.chunk_rows,
            "block_rows": self.block_rows,
            "readers": self.readers,
            "passes": list(self.passes),
            "matrix": self.matrix,
            "matrix_options": dict(self.matrix_options),
            "cache": self.cache,
            "features": list(self.features),
            "unused": dict(self.unused),
            "memory_limit_bytes": self.limit_bytes,
            "device_memory_limit_bytes": self.device_limit_bytes,
            "pool_bytes": self.pool_bytes,
            "worker_rows": list(self.worker_rows),
            "balance": round(self.balance, 4),
            "round_bytes": self.round_bytes,
            "predicted": {
                "host_peak_bytes": self.peak_bytes,
                "host_peak_high_bytes": sum(t.high for t in self.terms),
                "device_peak_bytes": self.device_peak_bytes,
                "device_peak_high_bytes": sum(t.high for t in on_device) if on_device else None,
                "cache_bytes": self.cache_bytes,
                "terms": [_printed(t) for t in self.terms],
                "device_terms": [_printed(t) for t in on_device],
            },
            "reasons": list(self.reasons),
        }


def _printed(term: Term) -> dict[str, Any]:
    return {"name": term.name, "bytes": term.bytes, "high_bytes": term.high}


@dataclass(frozen=True)
class Settings:
    """What the pipeline file says that the plan needs; `planning.settings_of` makes it.

    Parameters
    ----------
    engine, runner : tuple of (str, str)
        Name and reason.
    limit : tuple of (int, str)
        Bytes that each process may take, and whose limit it is.
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
    readers : int, optional
        Given number of reading threads.
    device : Device, optional
        The GPU; None on the CPU engine.
    workers : int
        Processes that share the rows.
    threads : int
        Threads of each, for what a round costs.
    link : str
        Between them: one of `cluster.LINKS`.
    has_weight : bool
        Whether rows have weights.
    """

    engine: tuple[str, str]
    runner: tuple[str, str]
    limit: tuple[int, str]
    chunk_rows: int | None
    params: Mapping[str, Any] | None
    max_bin: int = 256
    cuts: Literal["own", "exact"] = "own"
    sample_rows: int = 0
    readers: int | None = None
    device: Device | None = None
    workers: int = 1
    threads: int = 1
    link: str = "loopback"
    has_weight: bool = False


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
    has_complete_row : bool
        Whether any row misses nothing, which counts on a GPU; taken for granted until the features were made.
    device : Device, optional
        That of the plan before: by now the run itself holds what was free then.
    """

    fitted_bytes: int
    train_rows: int
    used_rows: int
    has_missing: bool = True
    has_complete_row: bool = True
    device: Device | None = None


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


@dataclass(frozen=True)
class Sizes:
    """What the terms of one process depend on, its share of the rows taken.

    Parameters
    ----------
    n_features : int
        Columns of the matrix.
    train_rows, used_rows : int
        Rows of the training side, and of all.
    chunk_rows, row_bytes, text_row_bytes : int
        Rows of a chunk, and bytes of a row of it.
    readers : int
        Threads that read ahead.
    fitted_bytes, fitted_high : int
        Size of what the steps learned, as expected and at most.
    has_missing, has_complete_row : bool
        See `Learned`.
    sample_bytes : int
        Size of the sample for own cuts.
    """

    n_features: int
    train_rows: int
    used_rows: int
    chunk_rows: int
    row_bytes: int
    text_row_bytes: int
    readers: int
    fitted_bytes: int
    fitted_high: int
    has_missing: bool
    has_complete_row: bool
    sample_bytes: int

    @property
    def cache_bytes(self) -> int:
        """The features of all used rows, with label and weight."""
        return self.used_rows * 4 * (self.n_features + 2)
