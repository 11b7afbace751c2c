"""What can be known about one numeric column: its range and its moments.

`Range` says how many values are there, missing or infinite, and between which bounds the others lie. `Moments`
gives mean and deviation from exact sums (`tabgpu.features.exact`). Neither depends on how rows are cut into chunks or
in which order chunks are merged. `present` and `finite` pick the values that count, for all statistics of numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..columns import Array, ArrayModule, Chunk, Column
from ..wire import record
from .contract import Statistic
from .exact import deviation_of, mean_of, remainder_of, sum_exact, sum_squares_exact


def present(column: Column) -> Array:
    """Values that are not missing, in the order of the rows."""
    if column.valid is None and column.values.dtype.kind != "f" and column.kind != "categorical":
        return column.values
    return column.values[~column.missing()]


def finite(xp: ArrayModule, column: Column) -> tuple[Array, int]:
    """Values that are neither missing nor infinite, and the number of infinite ones."""
    values = present(column)
    if values.dtype.kind != "f":
        return values, 0
    bounded = xp.isfinite(values)
    n_infinite = len(values) - int(bounded.sum())
    return (values[bounded] if n_infinite else values), n_infinite


@record
@dataclass(frozen=True)
class RangeResult:
    """Bounds and numbers of the values of a column.

    Parameters
    ----------
    min, max : int, float or None
        Smallest and largest finite value: int for integers and datetimes, float for floats (0.0, never -0.0), None if
        there is none.
    n_present : int
        Number of values that are not missing, infinite ones included.
    n_missing : int
        Number of missing values.
    n_infinite : int
        Number of infinite values.
    """

    min: int | float | None
    max: int | float | None
    n_present: int
    n_missing: int
    n_infinite: int


@dataclass(frozen=True)
class Range(Statistic):
    """Bounds of a numeric or datetime column, and how many values are there, missing or infinite.

    Parameters
    ----------
    column : str
        Its name.
    """

    column: str

    @property
    def columns(self) -> tuple[str, ...]:
        """The one column."""
        return (self.column,)

    def observe(self, chunk: Chunk, request: Any) -> RangeResult:
        """Range of one chunk."""
        column = chunk[self.column]
        values, n_infinite = finite(chunk.xp, column)
        n_present = len(values) + n_infinite
        low = high = None
        if len(values):
            # -0.0 and 0.0 are equal: which of them comes first must not depend on the order of the rows
            low, high = values.min().item() + 0, values.max().item() + 0
        return RangeResult(low, high, n_present, len(column) - n_present, n_infinite)

    def merge(self, left: RangeResult, right: RangeResult) -> RangeResult:
        """Range of both."""
        lows = [r.min for r in (left, right) if r.min is not None]
        highs = [r.max for r in (left, right) if r.max is not None]
        return RangeResult(
            min(lows, default=None),
            max(highs, default=None),
            left.n_present + right.n_present,
            left.n_missing + right.n_missing,
            left.n_infinite + right.n_infinite,
        )

    def finish(self, state: RangeResult, request: Any) -> RangeResult:
        """The state itself."""
        return state


@record
@dataclass(frozen=True)
class MomentsState:
    """Exact moments so far: sums in units of 2^-1074 and 2^-2148."""

    count: int
    total: int
    squares: int
    n_infinite: int


@record
@dataclass(frozen=True)
class MomentsResult:
    """Mean and deviation of a column.

    Parameters
    ----------
    count : int
        Number of finite values.
    mean : float
        The float64 nearest to their mean; NaN of no values.
    std : float
        The float64 nearest to their population standard deviation; NaN of no values.
    n_infinite : int
        Number of infinite values, which are left out.
    remainder : float
        The true mean less `mean`: what large integers, such as timestamps, need to be centred on it.
    """

    count: int
    mean: float
    std: float
    n_infinite: int = 0
    remainder: float = 0.0


@dataclass(frozen=True)
class Moments(Statistic):
    """Mean and population standard deviation of a numeric or datetime column, exact and rounded once.

    Parameters
    ----------
    column : str
        Its name. Infinite values are counted and left out.
    """

    column: str

    @property
    def columns(self) -> tuple[str, ...]:
        """The one column."""
        return (self.column,)

    def observe(self, chunk: Chunk, request: Any) -> MomentsState:
        """Exact sums of one chunk."""
        xp = chunk.xp
        values, n_infinite = finite(xp, chunk[self.column])
        return MomentsState(len(values), sum_exact(xp, values), sum_squares_exact(xp, values), n_infinite)

    def merge(self, left: MomentsState, right: MomentsState) -> MomentsState:
        """Sums of integers."""
        return MomentsState(
            left.count + right.count,
            left.total + right.total,
            left.squares + right.squares,
            left.n_infinite + right.n_infinite,
        )

    def finish(self, state: MomentsState, request: Any) -> MomentsResult:
        """Mean and deviation."""
        return MomentsResult(
            state.count,
            mean_of(state.count, state.total),
            deviation_of(state.count, state.total, state.squares),
            state.n_infinite,
            remainder_of(state.count, state.total),
        )
