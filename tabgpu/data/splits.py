"""Which rows train, validate and test: pure functions of a row's identity or of its own values.

A splitter gives each row of a chunk its side as int8: 0 train, 1 valid, 2 test, and -1 for no side (in the gap before a
boundary, or where the value that would decide is missing; the caller counts them). As nothing but the row decides, no
result depends on chunk size, row groups or workers. Splitters are frozen records: they travel, and are saved as such.

How the pipeline file writes times and gaps is read in `tabgpu.data.times`; fractions of time become boundaries by exact
quantiles, which is the matter of whoever builds the splitter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from ..columns import Array, ArrayModule, Chunk, Column
from ..errors import ConfigError, DataError, listing
from ..features.keys import local_keys
from ..hashing import splitmix64
from ..wire import record
from .expressions.values import by_code

SIDES = ("train", "valid", "test")  # the number of a side is its place here
OUTSIDE = -1


class Splitter(Protocol):
    """What every splitter offers."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that `assign` reads."""

    def assign(self, chunk: Chunk) -> Array:
        """Return the side of each row: int8, shape (n_rows,)."""


@record
@dataclass(frozen=True)
class RandomSplit:
    """Rows by the hash of their identity: ``splitmix64(identity ^ splitmix64(seed))`` against two thresholds.

    Parameters
    ----------
    valid, test : float
        Fractions of the rows, in expectation; 0 for none. Test rows stay the same when `valid` changes.
    seed : int
        Another seed, another split.

    Raises
    ------
    ConfigError
        If the fractions leave nothing to train on.

    Examples
    --------
    >>> import numpy as np
    >>> chunk = Chunk({}, np.arange(1000, dtype="uint64"), np)
    >>> np.bincount(RandomSplit(valid=0.1, test=0.2).assign(chunk)).tolist()
    [693, 100, 207]
    """

    valid: float
    test: float
    seed: int = 0

    def __post_init__(self) -> None:
        _check_fractions(self.valid, self.test)

    @property
    def columns(self) -> tuple[str, ...]:
        """None: the identity decides."""
        return ()

    def assign(self, chunk: Chunk) -> Array:
        """Return the side of each row: int8, shape (n_rows,)."""
        return _by_hash(chunk.xp, chunk.identity, self.valid, self.test, self.seed)


@record
@dataclass(frozen=True)
class GroupSplit:
    """Groups by the hash of their key, so that all rows of a group are in one side.

    Rows whose group is missing form a group of their own. Fractions are of groups: large groups make the sides uneven.

    Parameters
    ----------
    columns : tuple of str
        The columns that name a group together.
    valid, test : float
        Fractions of the groups, in expectation.
    seed : int
        Another seed, another split.

    Raises
    ------
    ConfigError
        If the fractions leave nothing to train on.
    """

    columns: tuple[str, ...]
    valid: float
    test: float
    seed: int = 0

    def __post_init__(self) -> None:
        _check_fractions(self.valid, self.test)

    def assign(self, chunk: Chunk) -> Array:
        """Return the side of each row: int8, shape (n_rows,)."""
        codes, keys = local_keys(chunk, self.columns)
        if not len(codes):
            return chunk.xp.zeros(0, dtype="int8")
        return _by_hash(chunk.xp, keys, self.valid, self.test, self.seed)[codes]


@record
@dataclass(frozen=True)
class TimeSplit:
    """Rows by their time: what comes first trains, what comes last tests.

    Parameters
    ----------
    column : str
        A datetime column, or a numeric one (a year, a step). Rows where it is missing are in no side.
    valid_from : int or None
        First time of the validation side, in the column's unit, UTC; None for no such side.
    test_from : int, optional
        First time of the test side; by default there is none.
    gap : int
        Rows in ``[boundary - gap, boundary)`` before each boundary are in no side.

    Raises
    ------
    ConfigError
        If test begins before validation, or the gap is negative.

    Examples
    --------
    >>> import numpy as np
    >>> times = Column(np.arange(8), kind="datetime", unit="s")
    >>> chunk = Chunk({"t": times}, np.zeros(8, "uint64"), np)
    >>> TimeSplit("t", valid_from=3, test_from=6, gap=1).assign(chunk).tolist()
    [0, 0, -1, 1, 1, -1, 2, 2]
    """

    column: str
    valid_from: int | None
    test_from: int | None = None
    gap: int = 0

    def __post_init__(self) -> None:
        first, last = self.valid_from, self.test_from
        if self.gap < 0 or (first is not None and last is not None and last < first):
            raise ConfigError(
                f"split has valid from {self.valid_from}, test from {self.test_from} and a gap of {self.gap}",
                "Expected valid before test, and a gap that is not negative",
                "Correct valid, test and gap under split",
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """The time column."""
        return (self.column,)

    def assign(self, chunk: Chunk) -> Array:
        """Return the side of each row: int8, shape (n_rows,).

        Raises
        ------
        DataError
            If the column holds text.
        """
        xp, column = chunk.xp, chunk[self.column]
        if column.kind == "categorical":
            raise DataError(
                f"The time column {self.column!r} holds text",
                "Expected dates, timestamps or numbers",
                f"Declare it under data.columns (--set data.columns.{self.column}.kind=datetime), or choose another",
            )
        side = xp.zeros(chunk.n_rows, dtype="int8")
        for number, start in ((1, self.valid_from), (2, self.test_from)):
            if start is not None:
                side[_from(xp, column, start - self.gap)] = OUTSIDE
                side[_from(xp, column, start)] = number
        side[column.missing()] = OUTSIDE
        return side


@record
@dataclass(frozen=True)
class ColumnSplit:
    """Rows by what a column says: ``train``, ``valid`` or ``test``, or 0, 1, 2; in no side where it is missing.

    Parameters
    ----------
    column : str
        A column of text or of integers.
    """

    column: str

    @property
    def columns(self) -> tuple[str, ...]:
        """The column that says it."""
        return (self.column,)

    def assign(self, chunk: Chunk) -> Array:
        """Return the side of each row: int8, shape (n_rows,).

        Raises
        ------
        DataError
            If the column holds another value, in any row: names the values.
        """
        xp, column = chunk.xp, chunk[self.column]
        there = ~column.missing()
        if column.levels is not None:
            codes, n_wrong = _level_sides(column.levels.values)
            side = by_code(xp, column, codes)
            wrong = there & (side < OUTSIDE)
            if n_wrong and bool(wrong.any()):
                used = xp.unique(column.values[wrong])[:20]
                raise self._unknown([column.levels.values[int(code)].as_py() for code in used])
            return xp.where(there, side, OUTSIDE).astype("int8")
        wrong = there & (column.values != 0) & (column.values != 1) & (column.values != 2)
        if bool(wrong.any()):
            raise self._unknown([value.item() for value in xp.unique(column.values[wrong])[:20]])
        side = xp.full(chunk.n_rows, OUTSIDE, dtype="int8")
        side[there] = column.values[there].astype("int8")
        return side

    def _unknown(self, values: list[Any]) -> DataError:
        return DataError(
            f"The split column {self.column!r} holds {listing(values)}",
            f"Expected {listing(SIDES)}, or 0, 1, 2",
            "Name another column under split.column, or derive one under data.derive",
        )


def _check_fractions(valid: float, test: float) -> None:
    if not (valid >= 0 and test >= 0 and valid + test < 1):
        raise ConfigError(
            f"split has valid {valid} and test {test}",
            "Expected fractions from 0 that leave something to train on: their sum below 1",
            "Correct valid and test under split (--set split.valid=0.1)",
        )


def _by_hash(xp: ArrayModule, keys: Array, valid: float, test: float, seed: int) -> Array:
    """Part of each key; the thresholds are exact, as a float times 2^64 is."""
    position = splitmix64(keys ^ xp.uint64(splitmix64(seed)))
    test_end = int(test * 2**64)
    valid_end = min(test_end + int(valid * 2**64), 2**64 - 1)
    side = xp.where(position < xp.uint64(valid_end), xp.int8(1), xp.int8(0))
    return xp.where(position < xp.uint64(test_end), xp.int8(2), side)


def _from(xp: ArrayModule, column: Column, start: int) -> Array:
    """bool: at or after the start, which may lie beyond what the dtype can hold."""
    values = column.values
    if values.dtype.kind == "f":
        return values >= float(start)
    width = 8 * values.dtype.itemsize
    low, high = (0, 2**width - 1) if values.dtype.kind == "u" else (-(2 ** (width - 1)), 2 ** (width - 1) - 1)
    if start > high:
        return xp.zeros(len(values), dtype=bool)
    return values >= max(start, low)


def _level_sides(levels: pa.Array) -> tuple[Any, int]:
    """int8 side of each level, -2 for what names none, and how many those are."""
    names: dict[Any, int] = {name: number for number, name in enumerate(SIDES)} | {0: 0, 1: 1, 2: 2}
    names |= {str(number): number for number in range(len(SIDES))}
    sides = np.array([names.get(level, -2) for level in levels.to_pylist()], dtype=np.int8)
    return sides, int((sides == -2).sum())
