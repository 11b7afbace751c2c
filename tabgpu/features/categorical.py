"""Steps for categorical columns: `Categorify`, `CountEncode`, `Cross`.

A step never meets levels as such: it meets their keys, 64-bit hashes that mean the same in every chunk
(`tabgpu.hashing`). What it learnt is a table over keys. To transform a chunk, the keys of the chunk's own levels are
looked up, and the rows take from the small table that results. All steps therefore serve columns of strings, numbers
and datetimes, and groups of columns, in the same way (`statistics.find`).

Fitted tables end with one row more than they have keys: that of all other keys. A lookup gives -1 for these, and -1
takes the last row. (`take` is twice as fast as brackets in NumPy, and does the same.)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .. import wire
from ..columns import Array, Chunk, Column, Kind, Levels
from ..hashing import MISSING_KEY, UNSEEN_KEY, KeyTable, argsort_keys, array_module
from .contract import Field, Fields, Fitted, Result, Statistic, Step
from .counts import Counts, narrow, to_host
from .fields import Group, add, distinct_columns, group_columns, group_name, refuse_encoded, require
from .statistics import LevelCounts, find, local_keys

MISSING_CODE = 0
UNSEEN_CODE = 1
ANY_KIND: tuple[Kind, ...] = ("numeric", "categorical", "datetime")


@wire.record
@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The levels of one column and their codes: the one table behind transform, its inverse and the counts.

    Parameters
    ----------
    table : KeyTable
        Keys of the levels that have a code of their own, and `MISSING_KEY`; n keys.
    codes : array of int32
        Shape (n + 1,): the code of each key, 0 for `MISSING_KEY`, from 2 for levels; last, 1 for all other keys.
    levels : pyarrow.Array
        Shape (n + 1,), in the order of the codes; null for the codes 0 (missing) and 1 (unseen or too rare).
    counts : array of int64
        Shape (n + 1,), in the order of the codes: training rows of each.
    """

    table: KeyTable
    codes: Array
    levels: pa.Array
    counts: Array

    def __len__(self) -> int:
        return len(self.levels)

    @cached_property
    def global_levels(self) -> Levels:
        """The levels that codes point to, the same in every chunk."""
        return Levels(self.levels, lambda _: self._keys_by_code())

    def _keys_by_code(self) -> Array:
        xp = array_module(self.codes)
        by_code = xp.full(len(self.levels), UNSEEN_KEY, dtype=xp.uint64)
        by_code[self.codes[:-1]] = self.table.keys
        return by_code


@wire.record
@dataclass(frozen=True)
class CategorifyFitted:
    """The vocabulary of each column."""

    vocabularies: tuple[Vocabulary, ...]


@dataclass(frozen=True)
class Categorify(Step):
    """Number the levels of columns, in place.

    ====  ==============================================================================
    code  level
    ====  ==============================================================================
    0     missing
    1     not seen in the training rows, or in fewer than `min_count`, or beyond `max_levels`
    2..   the other levels: the most frequent first; of equals, the smaller first (texts by their UTF-8 bytes)
    ====  ==============================================================================

    The result is categorical with int32 codes that go to the model as numbers. The codes, their levels and their counts
    stand in one table, the `Vocabulary`.

    Parameters
    ----------
    name : str
        Name of the step.
    columns : tuple of str
        Columns of any kind that have not been encoded yet; each number is a level.
    min_count : int
        Training rows that a level needs for a code of its own.
    max_levels : int, optional
        How many levels get a code of their own at most, besides codes 0 and 1.

    Examples
    --------
    >>> from tabgpu.hashing import hash_levels
    >>> def chunk(codes, levels):
    ...     column = Column(np.array(codes, "int32"), "categorical", levels=Levels(pa.array(levels), hash_levels))
    ...     return Chunk({"c": column}, np.arange(len(codes), dtype="u8"), np)
    >>> step = Categorify("categorify", ("c",), min_count=2)
    >>> (counts,) = step.statistics()
    >>> training = chunk([0, 1, 1, 1, 0, 2, -1], ["a", "b", "rare"])
    >>> fitted = step.fit((counts.finish(counts.observe(training, None), None),))
    >>> step.transform(chunk([0, 1, 2, -1], ["b", "rare", "new"]), fitted, False)["c"].values
    array([2, 1, 1, 0], dtype=int32)
    >>> fitted.vocabularies[0].levels.to_pylist(), fitted.vocabularies[0].counts.tolist()
    ([None, None, 'b', 'a'], [1, 1, 3, 2])
    """

    name: str
    columns: tuple[str, ...]
    min_count: int = 1
    max_levels: int | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the columns that `transform` reads."""
        return self.columns

    def outputs(self, fields: Fields) -> dict[str, Field]:
        """Fields of the codes.

        Raises
        ------
        ConfigError
            If a column is not there, or has been encoded before.
        """
        require(self.name, fields, self.columns, ANY_KIND)
        refuse_encoded(self.name, fields, self.columns)
        return {c: Field("categorical", "int32", encoded=True) for c in self.columns}

    def statistics(self) -> tuple[Statistic, ...]:
        """Counts of the levels of each column."""
        return tuple(LevelCounts((c,), keep_levels=True) for c in self.columns)

    def fit(self, results: tuple[Result, ...]) -> CategorifyFitted:
        """The vocabulary of each column; an empty one where all values are missing."""
        return CategorifyFitted(tuple(_vocabulary(counts, self.min_count, self.max_levels) for counts in results))

    def transform(self, chunk: Chunk, fitted: CategorifyFitted, training: bool) -> dict[str, Column]:
        """The codes: int32, shape (n_rows,), with the levels of the vocabulary."""
        made = {}
        for name, vocabulary in zip(self.columns, fitted.vocabularies, strict=True):
            codes, found = find(chunk, (name,), vocabulary.table)
            codes = vocabulary.codes.take(found).take(codes)
            made[name] = Column(codes, "categorical", levels=vocabulary.global_levels)
        return made


def _vocabulary(counts: Counts, min_count: int, max_levels: int | None) -> Vocabulary:
    levels: Any = counts.levels  # there, since the statistic was asked to keep them
    keys, rows = to_host(counts.keys), to_host(counts.rows)
    is_level = keys != np.uint64(MISSING_KEY)
    frequent = np.flatnonzero(is_level & (rows >= min_count))
    by_level = frequent[ascending(levels.take(pa.array(frequent)))]
    fewer = narrow(rows.max(initial=0) - rows[by_level])  # of 16 bits NumPy sorts many times as fast
    ranked = by_level[np.argsort(fewer, kind="stable")][:max_levels]

    codes = np.full(len(keys), UNSEEN_CODE, np.int32)  # in the order of the keys
    codes[ranked] = np.arange(2, len(ranked) + 2, dtype=np.int32)
    kept = np.flatnonzero(codes != UNSEEN_CODE)
    n_missing = rows[~is_level].sum()
    n_unseen = rows.sum() - n_missing - rows[ranked].sum()
    return Vocabulary(
        table=KeyTable.shared(np.append(keys[kept], np.uint64(MISSING_KEY))),  # which sorts last
        codes=np.append(codes[kept], np.array([MISSING_CODE, UNSEEN_CODE], np.int32)),
        levels=pa.concat_arrays([pa.nulls(2, levels.type), levels.take(pa.array(ranked))]),
        counts=np.concatenate([[n_missing, n_unseen], rows[ranked]]),
    )


def ascending(levels: pa.Array) -> np.ndarray:
    """Order that sorts levels, as `pyarrow.compute.sort_indices`; of texts a third of its time.

    Texts are sorted by their first 8 bytes as one integer; only those that share them are compared as texts.

    Parameters
    ----------
    levels : pyarrow.Array
        Distinct, without nulls, shape (n,); texts as large_string.

    Returns
    -------
    numpy.ndarray
        int64, shape (n,).

    Examples
    --------
    >>> ascending(pa.array(["b", "a long one", "a long two", "a"], pa.large_string())).tolist()
    [3, 1, 2, 0]
    """
    if not pa.types.is_large_string(levels.type) or len(levels) == 0:
        return np.asarray(pc.sort_indices(levels), dtype=np.int64)
    prefixes = _first_bytes(levels)
    order: np.ndarray = argsort_keys(prefixes)
    same = np.diff(prefixes[order]) == 0
    tied = np.concatenate([same, [False]]) | np.concatenate([[False], same])
    if tied.any():
        members = order[tied]
        order[tied] = members[pc.sort_indices(levels.take(pa.array(members))).to_numpy()]
    return order


def _first_bytes(texts: pa.Array) -> np.ndarray:
    """First 8 bytes of texts as big-endian integers, zeros behind shorter ones: uint64 in the order of the texts."""
    _, offsets_buffer, data = texts.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    used = np.frombuffer(data or b"", np.uint8)[offsets[0] : offsets[-1]]
    padded = np.append(used, np.zeros(8, np.uint8))
    overlapping: np.ndarray = np.ndarray((len(used) + 1,), ">u8", padded, strides=(1,))
    words: np.ndarray = overlapping[offsets[:-1] - offsets[0]].astype(np.uint64)
    n_bytes = np.minimum(np.diff(offsets), 8)
    masks = np.array([(2**64 - 1) << (64 - 8 * k) & (2**64 - 1) for k in range(9)], np.uint64)
    return words & masks[n_bytes]


@wire.record
@dataclass(frozen=True, eq=False)
class CountTable:
    """Training rows of each key: `table` of n keys, and `counts` of shape (n + 1,), 0 for all other keys."""

    table: KeyTable
    counts: Array


@wire.record
@dataclass(frozen=True)
class CountEncodeFitted:
    """The table of each column or group."""

    tables: tuple[CountTable, ...]


@dataclass(frozen=True)
class CountEncode(Step):
    """Add how often a level occurs in the training rows, as ``<column>_count``; for groups ``<a>_<b>_count``.

    int64. A level that the training rows do not have counts 0; missing counts as a level of its own.

    Parameters
    ----------
    name : str
        Name of the step.
    columns : tuple of str or tuple of str
        Columns of any kind, or groups of them.

    Examples
    --------
    >>> chunk = Chunk({"x": Column(np.array([7, 7, 3]))}, np.arange(3, dtype="u8"), np)
    >>> step = CountEncode("count_encode", ("x",))
    >>> (counts,) = step.statistics()
    >>> fitted = step.fit((counts.finish(counts.observe(chunk, None), None),))
    >>> step.transform(chunk, fitted, False)["x_count"].values
    array([2, 2, 1])
    """

    name: str
    columns: tuple[Group, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the columns that `transform` reads."""
        return distinct_columns(self.columns)

    def outputs(self, fields: Fields) -> dict[str, Field]:
        """Fields of the counts.

        Raises
        ------
        ConfigError
            If a column is not there, or a column of the new name is.
        """
        require(self.name, fields, self.inputs, ANY_KIND)
        return add(self.name, fields, ((f"{group_name(g)}_count", Field("numeric", "int64")) for g in self.columns))

    def statistics(self) -> tuple[Statistic, ...]:
        """Counts of the levels of each column or group."""
        return tuple(LevelCounts(group_columns(g), keep_levels=False) for g in self.columns)

    def fit(self, results: tuple[Result, ...]) -> CountEncodeFitted:
        """The counts, with 0 for other keys."""
        return CountEncodeFitted(tuple(_count_table(counts) for counts in results))

    def transform(self, chunk: Chunk, fitted: CountEncodeFitted, training: bool) -> dict[str, Column]:
        """The counts: int64, shape (n_rows,)."""
        made = {}
        for group, known in zip(self.columns, fitted.tables, strict=True):
            codes, found = find(chunk, group_columns(group), known.table)
            made[f"{group_name(group)}_count"] = Column(known.counts.take(found).astype(chunk.xp.int64).take(codes))
        return made


def _count_table(counts: Counts) -> CountTable:
    xp = array_module(counts.keys)
    numbers = counts.counts[:, 0]  # in their narrow dtype
    return CountTable(KeyTable.shared(counts.keys), xp.append(numbers, xp.zeros(1, dtype=numbers.dtype)))


@dataclass(frozen=True)
class Cross(Step):
    """Add the combination of columns as one categorical column, ``<a>_x_<b>``.

    Its levels are the 64-bit keys of the combinations; it goes to the model through `Categorify` or another encoding.
    Missing values are levels like others: no row of the result is missing. Learns nothing from the data.

    Parameters
    ----------
    name : str
        Name of the step.
    columns : tuple of tuple of str
        Groups of two or more columns of any kind.

    Examples
    --------
    >>> columns = {"x": Column(np.array([7, 7, 3, 7])), "y": Column(np.array([0.5, 0.5, 0.5, np.nan]))}
    >>> chunk = Chunk(columns, np.arange(4, dtype="u8"), np)
    >>> crossed = Cross("cross", (("x", "y"),)).transform(chunk, None, False)["x_x_y"]
    >>> keys = crossed.levels.keys[crossed.values]
    >>> [(keys[0] == key).item() for key in keys]
    [True, True, False, False]
    """

    name: str
    columns: tuple[tuple[str, ...], ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the columns that `transform` reads."""
        return distinct_columns(self.columns)

    def outputs(self, fields: Fields) -> dict[str, Field]:
        """Fields of the combinations.

        Raises
        ------
        ConfigError
            If a column is not there, or a column of the new name is.
        """
        require(self.name, fields, self.inputs, ANY_KIND)
        crossed = Field("categorical", "int32")
        return add(self.name, fields, ((group_name(g, "_x_"), crossed) for g in self.columns))

    def transform(self, chunk: Chunk, fitted: Fitted, training: bool) -> dict[str, Column]:
        """The combinations: codes, int32, shape (n_rows,), and the keys of this chunk as levels."""
        made = {}
        for group in self.columns:
            rows, keys = local_keys(chunk, group)
            made[group_name(group, "_x_")] = Column(
                rows.astype(chunk.xp.int32), "categorical", levels=_key_levels(keys)
            )
        return made


def _key_levels(keys: Array) -> Levels:
    """Levels that are known by their keys alone: these are their values, too."""
    return Levels(pa.array(to_host(keys)), lambda _: keys)
