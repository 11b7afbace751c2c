"""The pass scheduler: which statistics are observed together, over which columns, and in what order steps are fitted.

Steps act on a chunk in the order of the pipeline file. A step can be fitted once every earlier step that makes the
columns it looks at is fitted; all statistics that are ready are observed in one pass over only the columns they need.
Equal statistics of equal columns are observed once, whichever steps ask for them.

`Passes` is pure: the caller reads the chunks and merges the states.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..columns import Chunk
from ..wire import record
from .contract import Again, Field, Fields, Fitted, State, Statistic, Step

Key = tuple[Statistic, tuple[int, ...]]  # a statistic, and which step last made each of its columns


@record
@dataclass(frozen=True)
class Wish:
    """A statistic to observe in the next pass, as the chunk stands before step `position`."""

    key: Key
    position: int
    request: Any

    @property
    def statistic(self) -> Statistic:
        """What to observe."""
        return self.key[0]


@dataclass(frozen=True)
class PlannedPass:
    """A pass as the plan announces it: the steps that learn in it, and the columns it reads."""

    steps: tuple[str, ...]
    columns: tuple[str, ...]


@record
@dataclass(frozen=True, eq=False)
class Passes:
    """Steps in their order, with the columns that flow between them.

    Parameters
    ----------
    steps : tuple of Step
        In the order of the pipeline file.
    base : mapping of str to Field
        The columns before the first step.
    """

    steps: tuple[Step, ...]
    base: Fields

    def __post_init__(self) -> None:
        _ = self.outputs  # raises where a step cannot use a column

    @cached_property
    def outputs(self) -> list[dict[str, Field]]:
        """Fields that each step adds or replaces."""
        flowing, outputs = dict(self.base), []
        for step in self.steps:
            outputs.append(step.outputs(flowing))
            flowing.update(outputs[-1])
        return outputs

    @cached_property
    def fields(self) -> Fields:
        """The columns after the last step."""
        return {name: field for fields in (self.base, *self.outputs) for name, field in fields.items()}

    @cached_property
    def _statistics(self) -> list[tuple[Statistic, ...]]:
        return [step.statistics() for step in self.steps]

    def needed(self, columns: Iterable[str], position: int | None = None) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Steps before `position` that make `columns`, and the columns these need before the first step.

        Returns
        -------
        steps : tuple of int
            Positions of the steps to apply, ascending.
        base : tuple of str
            Columns to read, derive or join, sorted.
        """
        wanted = set(columns)
        steps = []
        for i in range(len(self.steps) if position is None else position, 0, -1):
            made = self.outputs[i - 1].keys()
            if made & wanted:
                steps.append(i - 1)
                wanted = (wanted - made) | set(self.steps[i - 1].inputs)
        return tuple(reversed(steps)), tuple(sorted(wanted))

    def transform(self, chunk: Chunk, fitted: Mapping[int, Fitted], columns: Iterable[str], training: bool) -> Chunk:
        """Apply the steps that `columns` need; the chunk returned has these columns alone, in their order."""
        columns = list(columns)
        for i in self.needed(columns)[0]:
            chunk = chunk.with_columns(self.steps[i].transform(chunk, fitted[i], training))
        return chunk.select(columns)

    def fit(self, observe: Callable[[list[Wish], Mapping[int, Fitted]], Mapping[Key, State]]) -> dict[int, Fitted]:
        """Fit all steps.

        Parameters
        ----------
        observe : callable
            Makes one pass: given wishes and the steps fitted so far, returns the state of all training rows for each.
        """
        fitted = {i: step.fit(()) for i, step in enumerate(self.steps) if not self._statistics[i]}
        results: dict[Key, Any] = {}
        requests: dict[Key, Any] = {}
        while len(fitted) < len(self.steps):
            wishes = self._wishes(fitted, results, requests)
            states = dict(observe(wishes, fitted))
            for wish in wishes:
                result = wish.statistic.finish(states.pop(wish.key), wish.request)
                if isinstance(result, Again):
                    requests[wish.key] = result.request
                else:
                    results[wish.key] = result
            self._fit_ready(fitted, results)
        return fitted

    def plan(self) -> list[PlannedPass]:
        """The passes that `fit` will make, if every statistic needs all the passes it may need."""
        fitted: dict[int, Fitted] = {i: None for i in range(len(self.steps)) if not self._statistics[i]}
        left = {self._key(i, s): s.max_passes for i, ss in enumerate(self._statistics) for s in ss}
        passes = []
        while len(fitted) < len(self.steps):
            done = {key: None for key, n in left.items() if n == 0}
            wishes = self._wishes(fitted, done, {})
            columns: set[str] = set()
            for wish in wishes:
                left[wish.key] -= 1
                columns |= set(self.needed(wish.statistic.columns, wish.position)[1])
            keys = {w.key for w in wishes}
            learning = [s.name for i, s in enumerate(self.steps) if i not in fitted and keys & set(self._keys(i))]
            passes.append(PlannedPass(tuple(learning), tuple(sorted(columns))))
            for i in range(len(self.steps)):
                if all(left[k] == 0 for k in self._keys(i)):
                    fitted.setdefault(i, None)
        return passes

    def observe_chunk(self, chunk: Chunk, wishes: Sequence[Wish], fitted: Mapping[int, Fitted]) -> dict[Key, State]:
        """States of one chunk of training rows for all wishes, walking the steps once."""
        apply = {i for w in wishes for i in self.needed(w.statistic.columns, w.position)[0]}
        states = {}
        for position in range(len(self.steps) + 1):
            for wish in wishes:
                if wish.position == position:
                    states[wish.key] = wish.statistic.observe(chunk, wish.request)
            if position in apply:
                chunk = chunk.with_columns(self.steps[position].transform(chunk, fitted[position], training=True))
        return states

    def merge_all(self, states: Sequence[dict[Key, State]]) -> dict[Key, State]:
        """Merge the states of all wishes, and empty `states`: what is merged is held once, not twice."""
        merged: dict[Key, State] = {}
        for _, keys in itertools.groupby(sorted(states[0], key=_first_column), _first_column):
            memory: dict[Any, Any] = {}
            for key in keys:
                merged[key] = key[0].merge_all([state.pop(key) for state in states], memory)
        return merged

    def base_columns(self, wishes: Iterable[Wish]) -> tuple[str, ...]:
        """Columns that a pass for `wishes` has to read, derive or join."""
        return tuple(sorted({c for w in wishes for c in self.needed(w.statistic.columns, w.position)[1]}))

    def _key(self, i: int, statistic: Statistic) -> Key:
        makers = [max((j for j in range(i) if c in self.outputs[j]), default=-1) for c in statistic.columns]
        return statistic, tuple(makers)

    def _keys(self, i: int) -> list[Key]:
        return [self._key(i, s) for s in self._statistics[i]]

    def _wishes(
        self, fitted: Mapping[int, Fitted], results: Mapping[Key, Any], requests: Mapping[Key, Any]
    ) -> list[Wish]:
        wishes: dict[Key, Wish] = {}
        for i, statistics in enumerate(self._statistics):
            if i in fitted:
                continue
            for statistic in statistics:
                key = self._key(i, statistic)
                ready = all(j in fitted for j in self.needed(statistic.columns, i)[0])
                if ready and key not in results and key not in wishes:
                    wishes[key] = Wish(key, i, requests.get(key))
        return list(wishes.values())

    def _fit_ready(self, fitted: dict[int, Fitted], results: dict[Key, Any]) -> None:
        """Fit the steps whose statistics are all known; forget results that no step waits for any more."""
        for i, step in enumerate(self.steps):
            keys = self._keys(i)
            if i not in fitted and all(k in results for k in keys):
                fitted[i] = step.fit(tuple(results[k] for k in keys))
        waiting = {k for i in range(len(self.steps)) if i not in fitted for k in self._keys(i)}
        for key in set(results) - waiting:
            del results[key]


def _first_column(key: Key) -> str:
    return key[0].columns[0]
