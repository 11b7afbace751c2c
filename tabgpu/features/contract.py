"""The contract of feature engineering: statistics that merge, and steps that use them.

A `Statistic` is something to be known about the training rows: three pure functions

    observe(chunk, request) -> State      what one chunk says
    merge(State, State) -> State          associative and commutative, equal to the bit in any order
    finish(State, request) -> result      the answer, or `Again(request)`: one more pass, asked more precisely

A `Step` names the statistics it needs, turns their results into its fitted value, and transforms chunks:

    statistics() -> (Statistic, ...)
    fit(results) -> Fitted
    transform(chunk, Fitted, training) -> columns to add or replace

Statistics are frozen and hashable: equal ones, asked for by several steps, are observed once. All statistics that are
ready for the same pass are observed in it (`tabgpu.features.passes`). Nothing here is ever half fitted: states and
fitted values are frozen dataclasses registered with `tabgpu.wire.record`, in which form they travel and are saved.

Steps and statistics compute on ``chunk.xp`` alone; they never ask which engine or runner they are on, and use only
functions that NumPy and CuPy share (no masked out-of-bounds `take`, no object arrays, no `np.add.at`).
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..columns import Chunk, Column, Kind
from ..wire import record

State = Any  # frozen dataclass registered with `wire.record`
Result = Any
Fitted = Any


@dataclass(frozen=True)
class Again:
    """A statistic's wish for one more pass over the same columns.

    Parameters
    ----------
    request : object
        What the next `observe` and `finish` are given. Registered with `wire.record` or plain JSON.
    """

    request: Any


@record
@dataclass(frozen=True)
class Field:
    """What is known of a chunk's column before any row is read.

    Parameters
    ----------
    kind : {'numeric', 'categorical', 'datetime'}
        How the values are held (see `tabgpu.columns`).
    dtype : str
        NumPy name of the values' dtype as they come from the file ('int32' for codes, 'int64' for datetimes).
    unit, zone : str, optional
        Of datetimes.
    encoded : bool
        True for categorical columns whose codes mean the same in every chunk (made by `categorify`): they can go to
        the model as numbers. Codes straight from a file cannot.
    """

    kind: Kind
    dtype: str
    unit: str | None = None
    zone: str | None = None
    encoded: bool = False

    @property
    def to_model(self) -> bool:
        """Whether a column like this can be a column of the matrix."""
        return self.kind == "numeric" or self.encoded


Fields = Mapping[str, Field]


class Statistic(ABC):
    """Something to be known about the training rows. Subclasses are frozen dataclasses (hashable, equal by value)."""

    max_passes: int = 1  # upper bound, for the plan

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that `observe` reads."""

    @abstractmethod
    def observe(self, chunk: Chunk, request: Any) -> State:
        """State of one chunk of training rows. `request` is None in the first pass. A chunk of no rows is legal."""

    @abstractmethod
    def merge(self, left: State, right: State) -> State:
        """State of both together; associative, commutative."""

    def merge_all(self, states: Sequence[State], memory: dict[Any, Any]) -> State:
        """State of one or more together, equal to that of `merge` one after the other.

        Worth its own code where it is cheaper. `memory` is for what the next statistic of the same columns can use.
        """
        return functools.reduce(self.merge, states)

    @abstractmethod
    def finish(self, state: State, request: Any) -> Result | Again:
        """The result, or `Again`. Called once a pass with the state of all chunks."""


class Step(ABC):
    """One feature engineering step with its columns resolved. Subclasses are frozen dataclasses with a `name`."""

    name: str

    @property
    @abstractmethod
    def inputs(self) -> tuple[str, ...]:
        """Names of the columns that `transform` reads, target excluded."""

    @abstractmethod
    def outputs(self, fields: Fields) -> dict[str, Field]:
        """Fields of the columns that `transform` adds or replaces, given the fields before this step.

        Raises
        ------
        ConfigError
            If an input has a kind that this step cannot use: names the column, its kind and the way out.
        """

    def statistics(self) -> tuple[Statistic, ...]:
        """What this step needs to know; none by default. The order is that of `fit`'s `results`."""
        return ()

    def fit(self, results: tuple[Result, ...]) -> Fitted:
        """Fitted value from the results of `statistics`, in their order. None for steps that learn nothing."""
        return None

    @abstractmethod
    def transform(self, chunk: Chunk, fitted: Fitted, training: bool) -> dict[str, Column]:
        """Columns to add or replace. `training` is True for training rows alone (cross-fitting looks at it)."""
