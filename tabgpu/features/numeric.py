"""Steps for numeric columns: `Clip`, `Log`, `Standardize`, `QuantileBins`; see `fill` for `Fill`.

Each keeps missing values missing. Integers are never led through a float where the result can be exact: bounds and bins
compare integers with integers, and `Standardize` subtracts the mean of 64-bit integers in two exact halves.

What the steps learn (means, deviations, quantiles) comes from `statistics`; how it is saved is the business of `wire`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .. import wire
from ..columns import Array, ArrayModule, Chunk, Column
from ..errors import ConfigError
from .contract import Field, Fields, Fitted, Result, Statistic, Step
from .fields import add, limits_of, require, to_float32
from .statistics import Moments, Quantiles

_HALF = 4_294_967_296  # 2^32


@dataclass(frozen=True)
class Clip(Step):
    """Hold numeric columns between two bounds, in place: ``min(max(x, lower), upper)``.

    Missing values stay missing, infinite ones become the bound. The dtype is kept; integers become float64 where a
    bound is not whole or none of their type reaches it (then values beyond 2^53 are rounded).

    Parameters
    ----------
    name : str
        Name of the step.
    columns : tuple of str
        Numeric columns.
    lower, upper : float, optional
        The bounds; None for none.

    Examples
    --------
    >>> chunk = Chunk({"x": Column(np.array([-3.0, 0.5, np.nan]))}, np.arange(3, dtype="u8"), np)
    >>> Clip("clip", ("x",), lower=0.0, upper=None).transform(chunk, None, False)["x"].values
    array([0. , 0.5, nan])
    """

    name: str
    columns: tuple[str, ...]
    lower: float | None = None
    upper: float | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the columns that `transform` reads."""
        return self.columns

    def outputs(self, fields: Fields) -> dict[str, Field]:
        """Fields of the clipped columns.

        Raises
        ------
        ConfigError
            If a column is not numeric, or the lower bound is above the upper.
        """
        require(self.name, fields, self.columns, ("numeric",))
        if self.lower is not None and self.upper is not None and self.lower > self.upper:
            raise ConfigError(
                f"Step {self.name!r} has lower {self.lower!r} above upper {self.upper!r}",
                "Expected lower to be at most upper",
                f"Change one of them under features (--set features.{self.name}.lower={self.upper!r})",
            )
        return {c: Field("numeric", self._result_dtype(fields[c].dtype).name) for c in self.columns}

    def transform(self, chunk: Chunk, fitted: Fitted, training: bool) -> dict[str, Column]:
        """The clipped columns, shape (n_rows,)."""
        return {name: self._clip(chunk.xp, chunk[name]) for name in self.columns}

    def _clip(self, xp: ArrayModule, column: Column) -> Column:
        dtype = self._result_dtype(column.values.dtype)
        lowest, highest = limits_of(dtype)
        values = column.values.astype(dtype, copy=False)
        if self.lower is not None and self.lower > lowest:
            values = xp.maximum(values, dtype.type(min(self.lower, highest)))
        if self.upper is not None and self.upper < highest:
            values = xp.minimum(values, dtype.type(max(self.upper, lowest)))
        return Column(values, "numeric", valid=column.valid)

    def _result_dtype(self, dtype: str | np.dtype) -> np.dtype:
        dtype = np.dtype(dtype)
        if dtype.kind not in "iu":
            return dtype
        lowest, highest = limits_of(dtype)
        whole = all(bound is None or math.isinf(bound) or bound == int(bound) for bound in (self.lower, self.upper))
        within = (self.lower is None or self.lower <= highest) and (self.upper is None or self.upper >= lowest)
        return dtype if whole and within else np.dtype(np.float64)


@dataclass(frozen=True)
class Log(Step):
    """Natural logarithm of numeric columns, in place: ``log(x + offset)``.

    Where ``x <= -offset`` the result is missing. The result is float32 for float16 and float32, else float64; missing
    values are NaN. With the usual offset of 1 it is ``log1p``, which keeps small values exact.

    Parameters
    ----------
    name : str
        Name of the step.
    columns : tuple of str
        Numeric columns.
    offset : float
        What is added first.

    Examples
    --------
    >>> chunk = Chunk({"x": Column(np.array([0, 1, -1]))}, np.arange(3, dtype="u8"), np)
    >>> Log("log", ("x",)).transform(chunk, None, False)["x"].values.round(4)
    array([0.    , 0.6931,    nan])
    """

    name: str
    columns: tuple[str, ...]
    offset: float = 1.0

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the columns that `transform` reads."""
        return self.columns

    def outputs(self, fields: Fields) -> dict[str, Field]:
        """Fields of the logarithms.

        Raises
        ------
        ConfigError
            If a column is not numeric.
        """
        require(self.name, fields, self.columns, ("numeric",))
        return {c: Field("numeric", _log_dtype(fields[c].dtype)) for c in self.columns}

    def transform(self, chunk: Chunk, fitted: Fitted, training: bool) -> dict[str, Column]:
        """The logarithms, shape (n_rows,)."""
        return {name: self._log(chunk.xp, chunk[name]) for name in self.columns}

    def _log(self, xp: ArrayModule, column: Column) -> Column:
        values = column.floats(_log_dtype(column.values.dtype))
        shift = values.dtype.type(self.offset)
        defined = values > -shift
        inside = xp.where(defined, values, 1 - shift)  # no logarithm of a negative number is ever taken
        logs = xp.log1p(inside) if self.offset == 1 else xp.log(inside + shift)
        return Column(xp.where(defined, logs, values.dtype.type(math.nan)))


def _log_dtype(dtype: str | np.dtype) -> str:
    return "float32" if np.dtype(dtype).name in ("float16", "float32") else "float64"


@wire.record
@dataclass(frozen=True)
class StandardizeFitted:
    """Mean (with what its float64 rounds away) and population standard deviation of each column; NaN of no values."""

    means: tuple[float, ...]
    remainders: tuple[float, ...]
    deviations: tuple[float, ...]


@dataclass(frozen=True)
class Standardize(Step):
    """Mean 0 and standard deviation 1 over the training rows, in place: ``(x - mean) / std``.

    Computed in float64 and returned as float32, the type of the matrix; missing values are NaN. Differences of 64-bit
    integers and datetimes are exact before they are rounded, so that nanosecond timestamps keep their distances. A
    constant column becomes 0. A column without any value in the training rows stays missing throughout. What lies
    beyond the range of float32, infinities too, becomes its largest number.

    Parameters
    ----------
    name : str
        Name of the step.
    columns : tuple of str
        Numeric or datetime columns.

    Examples
    --------
    >>> chunk = Chunk({"x": Column(np.array([1.0, 3.0, np.nan]))}, np.arange(3, dtype="u8"), np)
    >>> step = Standardize("standardize", ("x",))
    >>> step.transform(chunk, StandardizeFitted((2.0,), (0.0,), (1.0,)), False)["x"].values
    array([-1.,  1., nan], dtype=float32)
    """

    name: str
    columns: tuple[str, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the columns that `transform` reads."""
        return self.columns

    def outputs(self, fields: Fields) -> dict[str, Field]:
        """Fields of the standardized columns: float32.

        Raises
        ------
        ConfigError
            If a column is neither numeric nor a datetime.
        """
        require(self.name, fields, self.columns, ("numeric", "datetime"))
        return {c: Field("numeric", "float32") for c in self.columns}

    def statistics(self) -> tuple[Statistic, ...]:
        """Moments of each column."""
        return tuple(Moments(c) for c in self.columns)

    def fit(self, results: tuple[Result, ...]) -> StandardizeFitted:
        """Mean and deviation of each column."""
        return StandardizeFitted(
            means=tuple(r.mean if r.count else math.nan for r in results),
            remainders=tuple(r.remainder for r in results),
            deviations=tuple(r.std if r.count else math.nan for r in results),
        )

    def transform(self, chunk: Chunk, fitted: StandardizeFitted, training: bool) -> dict[str, Column]:
        """The standardized columns: float32, shape (n_rows,)."""
        xp = chunk.xp
        made = {}
        moments = zip(self.columns, fitted.means, fitted.remainders, fitted.deviations, strict=True)
        for name, mean, remainder, deviation in moments:
            with np.errstate(over="ignore", invalid="ignore"):  # of what lies beyond float64; `to_float32` bounds it
                distance = _distance(xp, chunk[name], mean, remainder)
                if deviation > 0:
                    distance /= deviation
            if deviation == 0:
                distance[distance == distance] = 0
            made[name] = Column(to_float32(xp, distance))
        return made


def _distance(xp: ArrayModule, column: Column, mean: float, remainder: float) -> Array:
    """``x - (mean + remainder)`` as float64, NaN where missing.

    For 64-bit integers it is the true distance up to one rounding, however large they are. Elsewhere the remainder is
    below what a float64 of the mean's size can tell.
    """
    values = column.values
    if values.dtype.itemsize < 8 or values.dtype.kind == "f" or math.isnan(mean):
        return column.floats("float64") - mean
    center = round(mean)
    bits, mask = values.dtype.type(32), values.dtype.type(_HALF - 1)
    high = (values >> bits).astype(xp.float64) - (center >> 32)  # both below 2^33: exact
    low = (values & mask).astype(xp.float64) - (center & (_HALF - 1))
    distance = high * _HALF + low - ((mean - center) + remainder)
    if column.valid is not None:
        distance[~column.valid] = math.nan
    return distance


@wire.record
@dataclass(frozen=True)
class QuantileBinsFitted:
    """For each column the ascending, distinct cuts between its bins: values of the column itself."""

    cuts: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class QuantileBins(Step):
    """Add the number of the quantile bin of each value, as ``<column>_bin``.

    The cuts are the exact quantiles ``1/bins .. (bins-1)/bins`` of the training rows (values of the column, as
    ``numpy.quantile(..., method="inverted_cdf")``), equal ones merged. Bin ``i`` holds the values above cut ``i-1`` and
    up to cut ``i``: bins of equal population, fewer of them where values repeat. int16; missing values stay missing.

    Parameters
    ----------
    name : str
        Name of the step.
    columns : tuple of str
        Numeric or datetime columns.
    bins : int
        Number of bins, 2 to 32767.

    Examples
    --------
    >>> chunk = Chunk({"x": Column(np.array([1.0, 2.0, 9.0, np.nan]))}, np.arange(4, dtype="u8"), np)
    >>> step = QuantileBins("quantile_bins", ("x",), bins=3)
    >>> made = step.transform(chunk, QuantileBinsFitted(cuts=((1.0, 5.0),)), False)["x_bin"]
    >>> made.values[:3], made.missing()
    (array([0, 1, 2], dtype=int16), array([False, False, False,  True]))
    """

    name: str
    columns: tuple[str, ...]
    bins: int = 10

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the columns that `transform` reads."""
        return self.columns

    def outputs(self, fields: Fields) -> dict[str, Field]:
        """Fields of the bin numbers.

        Raises
        ------
        ConfigError
            If a column is neither numeric nor a datetime.
        """
        require(self.name, fields, self.columns, ("numeric", "datetime"))
        return add(self.name, fields, ((f"{c}_bin", Field("numeric", "int16")) for c in self.columns))

    def statistics(self) -> tuple[Statistic, ...]:
        """Quantiles of each column."""
        probabilities = tuple(i / self.bins for i in range(1, self.bins))
        return tuple(Quantiles(c, probabilities) for c in self.columns)

    def fit(self, results: tuple[Result, ...]) -> QuantileBinsFitted:
        """The cuts; none for a column without any value."""
        return QuantileBinsFitted(cuts=tuple(tuple(sorted({q for q in r if q is not None})) for r in results))

    def transform(self, chunk: Chunk, fitted: QuantileBinsFitted, training: bool) -> dict[str, Column]:
        """The bin numbers: int16, shape (n_rows,)."""
        xp = chunk.xp
        made = {}
        for name, cuts in zip(self.columns, fitted.cuts, strict=True):
            column = chunk[name]
            bins = xp.searchsorted(xp.asarray(cuts, dtype=column.values.dtype), column.values, side="left")
            valid = ~column.missing() if column.values.dtype.kind == "f" else column.valid
            made[f"{name}_bin"] = Column(bins.astype(xp.int16), "numeric", valid=valid)
        return made
