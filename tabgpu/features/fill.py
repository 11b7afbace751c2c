"""The step that fills missing values: `Fill`.

Numbers and datetimes are filled with a number, levels with a level; the result has neither mask nor NaN nor code -1.
What a column is filled with (mean, median, most frequent value) comes from `statistics`. Whether a value was missing
can be kept as a column of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .. import wire
from ..columns import ArrayModule, Chunk, Column, Levels
from ..errors import ConfigError, DataError, nearest
from ..hashing import MISSING_KEY, hash_levels
from .contract import Field, Fields, Result, Statistic, Step
from .counts import Counts, to_host
from .fields import add, limits_of, refuse_encoded, require
from .statistics import LevelCounts, Moments, Quantiles

_LEARNED = ("mean", "median", "most_frequent")


@wire.record
@dataclass(frozen=True)
class FillFitted:
    """What each column is filled with: a number, or an Arrow array that holds the one value."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class Fill(Step):
    """Fill the missing values of columns, in place.

    ============================  ==================================  ================================================
    value                         columns                             filled with
    ============================  ==================================  ================================================
    ``'mean'``                    numeric                             mean of the finite training values
    ``'median'``                  numeric, datetime                   median, the lower of the two middle values
    ``'most_frequent'``           all                                 most frequent value; of equals, the smallest
    a number                      numeric                             that number
    a text                        categorical; datetime as ISO 8601   that level (made if new); that instant in UTC
    ============================  ==================================  ================================================

    The dtype is kept, but integers become float64 with ``'mean'`` and with a number that is not whole.

    Parameters
    ----------
    name : str
        Name of the step.
    columns : tuple of str
        Columns that have not been encoded yet.
    value : float, int or str
        See above.
    indicator : bool
        Also add ``<column>_missing``: uint8, 1 where the value was missing.

    Examples
    --------
    >>> chunk = Chunk({"x": Column(np.array([1.0, np.nan]))}, np.arange(2, dtype="u8"), np)
    >>> step = Fill("fill", ("x",), value=0.5, indicator=True)
    >>> {name: column.values.tolist() for name, column in step.transform(chunk, step.fit(()), False).items()}
    {'x': [1.0, 0.5], 'x_missing': [0, 1]}
    """

    name: str
    columns: tuple[str, ...]
    value: float | int | str
    indicator: bool = False

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the columns that `transform` reads."""
        return self.columns

    def outputs(self, fields: Fields) -> dict[str, Field]:
        """Fields of the filled columns and of the indicators.

        Raises
        ------
        ConfigError
            If the value does not suit the kind or the type of a column.
        """
        require(self.name, fields, self.columns, ("numeric", "categorical", "datetime"))
        refuse_encoded(self.name, fields, self.columns)
        filled = {c: self._filled_field(c, fields[c]) for c in self.columns}
        if not self.indicator:
            return filled
        return filled | add(self.name, fields, ((f"{c}_missing", Field("numeric", "uint8")) for c in self.columns))

    def statistics(self) -> tuple[Statistic, ...]:
        """Moments, median or counts of each column; none for a constant."""
        if self.value == "mean":
            return tuple(Moments(c) for c in self.columns)
        if self.value == "median":
            return tuple(Quantiles(c, (0.5,)) for c in self.columns)
        if self.value == "most_frequent":
            return tuple(LevelCounts((c,), keep_levels=True) for c in self.columns)
        return ()

    def fit(self, results: tuple[Result, ...]) -> FillFitted:
        """The value for each column.

        Raises
        ------
        DataError
            If a column has no value in the training rows.
        """
        if self.value not in _LEARNED:
            return FillFitted(values=(self.value,) * len(self.columns))
        return FillFitted(values=tuple(self._learned(c, r) for c, r in zip(self.columns, results, strict=True)))

    def transform(self, chunk: Chunk, fitted: FillFitted, training: bool) -> dict[str, Column]:
        """The filled columns, and the indicators; shape (n_rows,).

        Raises
        ------
        ConfigError
            If a constant cannot be a level of a column.
        """
        xp = chunk.xp
        made = {}
        for name, value in zip(self.columns, fitted.values, strict=True):
            column = chunk[name]
            if column.kind == "categorical":
                made[name] = self._fill_levels(xp, name, column, value)
            else:
                made[name] = self._fill_numbers(xp, column, value)
            if self.indicator:
                made[f"{name}_missing"] = Column(column.missing().astype(xp.uint8))
        return made

    def _learned(self, column: str, result: Result) -> Any:
        if self.value == "mean":
            value = result.mean if result.count else None
        elif self.value == "median":
            value = result[0]
        else:
            value = _most_frequent(result)
        if value is None:
            raise DataError(
                f"Step {self.name!r} cannot learn the {self.value} of column {column!r}: all values are missing in the "
                "training rows",
                "Expected at least one value",
                f"Ignore the column (--set data.columns.{column}.kind=ignore), or give step {self.name!r} under "
                f"features a constant (--set features.{self.name}.value=0)",
            )
        return value

    def _fill_numbers(self, xp: ArrayModule, column: Column, value: Any) -> Column:
        if isinstance(value, pa.Array):
            value = value.cast(pa.int64()).to_pylist()[0] if column.kind == "datetime" else value.to_pylist()[0]
        if column.kind == "datetime":
            value = _ticks(value, column.unit or "s")
        dtype = self._filled_dtype(column.values.dtype)
        values = column.values.astype(dtype, copy=False)
        return replace(column, values=xp.where(column.missing(), dtype.type(value), values), valid=None)

    def _fill_levels(self, xp: ArrayModule, name: str, column: Column, value: Any) -> Column:
        levels = column.levels
        if levels is None:
            raise ValueError(f"column {name!r} is encoded; outputs() refuses it")
        level = self._as_level(name, value, levels.values.type)
        position = pc.index(levels.values, level[0]).as_py()
        if position < 0:
            position = len(levels)
            levels = _with_level(xp, levels, level)
        codes = xp.where(column.values < 0, column.values.dtype.type(position), column.values)
        return replace(column, values=codes, levels=levels)

    def _as_level(self, name: str, value: Any, type_: pa.DataType) -> pa.Array:
        level = value if isinstance(value, pa.Array) else pa.array([value])
        try:
            return level.cast(type_)
        except pa.ArrowException as error:
            raise ConfigError(
                f"Step {self.name!r} fills column {name!r} with {self.value!r}, but its levels are of type {type_}",
                f"Expected a value that can be read as {type_}",
                f"Change value of step {self.name!r} under features (--set features.{self.name}.value=most_frequent)",
            ) from error

    def _filled_field(self, column: str, field: Field) -> Field:
        if field.kind == "categorical":
            if self.value in ("mean", "median"):
                raise self._unfit(column, field, "'most_frequent' or a level")
            return field
        if field.kind == "datetime":
            try:
                suits = self.value in ("median", "most_frequent") or _ticks(self.value, field.unit or "s") is not None
            except (ValueError, OverflowError):
                suits = False
            if not suits:
                raise self._unfit(column, field, "'median', 'most_frequent' or an instant such as '2013-10-01'")
            return field
        return replace(field, dtype=self._numeric_dtype(column, field).name)

    def _numeric_dtype(self, column: str, field: Field) -> np.dtype:
        if self.value in _LEARNED:
            return self._filled_dtype(field.dtype)
        if isinstance(self.value, str) or not math.isfinite(self.value):
            hint = f" {nearest(self.value, _LEARNED)}" if isinstance(self.value, str) else ""
            raise self._unfit(column, field, f"a finite number, 'mean', 'median' or 'most_frequent'.{hint}")
        dtype = self._filled_dtype(field.dtype)
        lowest, highest = limits_of(dtype)
        if not lowest <= self.value <= highest:
            raise self._unfit(column, field, f"a value between {lowest} and {highest}")
        return dtype

    def _filled_dtype(self, dtype: str | np.dtype) -> np.dtype:
        dtype = np.dtype(dtype)
        if dtype.kind == "f" or self.value in ("median", "most_frequent"):
            return dtype
        whole = not isinstance(self.value, str) and self.value == int(self.value)
        datetime_constant = isinstance(self.value, str) and self.value != "mean"
        return dtype if whole or datetime_constant else np.dtype(np.float64)

    def _unfit(self, column: str, field: Field, expected: str) -> ConfigError:
        return ConfigError(
            f"Step {self.name!r} cannot fill column {column!r}, which is {field.kind} ({field.dtype}), with "
            f"{self.value!r}",
            f"Expected {expected}",
            f"Change value of step {self.name!r} under features (--set features.{self.name}.value=most_frequent), or "
            f"take {column!r} out of its columns",
        )


def _ticks(value: Any, unit: str) -> int | None:
    """An instant as a count of its unit; None for a number that is not whole."""
    if isinstance(value, str):
        instant = np.array([value], dtype=f"datetime64[{unit}]")
        if np.isnat(instant[0]):
            raise ValueError(value)
        return int(instant.astype(np.int64)[0])
    return int(value) if value == int(value) else None


def _most_frequent(counts: Counts) -> pa.Array | None:
    """The smallest of the levels that occur most often, as an array of one; None if all rows are missing."""
    levels: Any = counts.levels  # there, since the statistic was asked to keep them
    rows = to_host(counts.rows) * (to_host(counts.keys) != np.uint64(MISSING_KEY))
    if not rows.any():
        return None
    best = levels.filter(pa.array(rows == rows.max()))
    return best.take(pc.sort_indices(best)[:1])


def _with_level(xp: ArrayModule, levels: Levels, level: pa.Array) -> Levels:
    """Append one level."""
    return Levels(
        pa.concat_arrays([levels.values, level]),
        lambda _: xp.concatenate([levels.keys, xp.asarray(hash_levels(level))]),
    )
