"""`Column` and `Chunk`: what all feature engineering works on.

A chunk is a set of named columns of equal length; a column is one 1-D array of the engine's array module ``xp`` (NumPy
or CuPy). How each kind is held, and how a missing value is marked:

=============  =====================================================  ==========================
kind           values                                                 missing
=============  =====================================================  ==========================
numeric        any int or float dtype of the file (bool as uint8)     ints: `valid`; floats: NaN
categorical    int32 codes into `levels`                              code -1
datetime       int64, UTC, in `unit` since 1970 ('s','ms','us','ns')  `valid`
=============  =====================================================  ==========================

`Levels` are the distinct values that the codes of one column point to: an Arrow array on the host, made at the door for
each chunk, with a 64-bit key for each level (xxhash64, seed 0; see `tabgpu.hashing`). Keys, not codes, mean the same in
every chunk, on every worker and engine; vocabularies, counts and encodings are tables over keys.

This module knows no engine: it uses array methods alone. It is used by everything above it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa

Array = Any  # a 1-D (or, where said, 2-D) numpy.ndarray or cupy.ndarray
ArrayModule = Any  # numpy or cupy
_T = TypeVar("_T")
Kind = Literal["numeric", "categorical", "datetime"]


class Levels:
    """The distinct values of one categorical column in one chunk, with their keys.

    Parameters
    ----------
    values : pyarrow.Array
        Distinct, non-null levels, shape (n_levels,). Some may occur in no row of the chunk.
    hash_levels : callable
        Takes `values`, returns their keys: a uint64 array of `xp`, shape (n_levels,).
    """

    def __init__(self, values: pa.Array, hash_levels: Callable[[pa.Array], Array]) -> None:
        self.values = values
        self._hash = hash_levels

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def keys(self) -> Array:
        """uint64 array, shape (n_levels,): the key of each level, computed once a chunk."""
        return self._hash(self.values)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a chunk; see the module docstring for how each kind is held.

    Parameters
    ----------
    values : Array
        Shape (n_rows,).
    kind : {'numeric', 'categorical', 'datetime'}
        How the values are to be read.
    valid : Array, optional
        bool, shape (n_rows,), False where missing. None where all are there, or missing values are marked in `values`.
    levels : Levels, optional
        For categorical columns that still carry levels. Codes made by `categorify` are numeric and carry none.
    unit : str, optional
        For datetime columns.
    zone : str, optional
        For datetime columns: the time zone in which calendar parts are meant; None means UTC or naive.
    """

    values: Array
    kind: Kind = "numeric"
    valid: Array | None = None
    levels: Levels | None = None
    unit: str | None = None
    zone: str | None = None

    def __len__(self) -> int:
        return len(self.values)

    def missing(self) -> Array:
        """bool, shape (n_rows,): True where the value is missing."""
        if self.kind == "categorical":
            return self.values < 0
        if self.valid is not None:
            return ~self.valid
        return self.values != self.values  # NaN for floats, all False for ints

    def take(self, rows: Array) -> Column:
        """Pick rows by a bool mask, an index array or a slice."""
        valid = None if self.valid is None else self.valid[rows]
        return replace(self, values=self.values[rows], valid=valid)

    def floats(self, dtype: str = "float64") -> Array:
        """Values as a float array with NaN where missing, shape (n_rows,); codes as numbers, -1 as NaN.

        int64 beyond 2^53 is rounded: statistics that must be exact read `values` instead.
        """
        values = self.values
        if values.dtype.kind == "f" and self.kind != "categorical":
            return values if values.dtype == dtype else values.astype(dtype)
        out = values.astype(dtype)
        if self.kind == "categorical" or self.valid is not None:
            out[self.missing()] = float("nan")
        return out


@dataclass(frozen=True)
class Chunk:
    """Rows of one part: named columns of equal length, and the identity of each row.

    Parameters
    ----------
    columns : mapping of str to Column
        In the order of the schema.
    identity : Array
        uint64, shape (n_rows,): hash of the row's identity (see `tabgpu.data.rows`). Folds, random splits and samples
        are functions of it, so that no result depends on where a chunk begins.
    xp : module
        The array module of the engine that made the chunk.
    """

    columns: Mapping[str, Column]
    identity: Array
    xp: ArrayModule = field(repr=False, compare=False)
    _memory: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def remember(self, what: Hashable, columns: tuple[Column, ...], make: Callable[[], _T]) -> _T:
        """Return what `make` makes of these columns, made once for this chunk and those with the same rows.

        Parameters
        ----------
        what : hashable
            Which answer it is.
        columns : tuple of Column
            What it is made of, besides the rows' identity.
        make : callable
            Makes it.
        """
        key = (what, *map(id, columns))
        if key not in self._memory:
            self._memory[key] = (columns, make())  # the columns stay, so that no other can take over their ids
        answer: _T = self._memory[key][1]
        return answer

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.identity)

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def take(self, rows: Array) -> Chunk:
        """Pick rows of every column by a bool mask, an index array or a slice."""
        if not isinstance(rows, slice) and rows.dtype == bool:  # once, and not once a column; a device is waited for
            rows = self.xp.flatnonzero(rows)
        columns = {n: c.take(rows) for n, c in self.columns.items()}
        return replace(self, columns=columns, identity=self.identity[rows], _memory={})

    def select(self, names: Iterable[str]) -> Chunk:
        """Keep the named columns alone, in the order given."""
        return replace(self, columns={n: self.columns[n] for n in names})

    def with_columns(self, new: Mapping[str, Column]) -> Chunk:
        """Add or replace columns."""
        return replace(self, columns={**self.columns, **new})

    def without(self, names: Iterable[str]) -> Chunk:
        """Drop the named columns where they exist."""
        drop = set(names)
        return replace(self, columns={n: c for n, c in self.columns.items() if n not in drop})
