"""The first pass: how many rows each side has, and what target and weight look like on the training side.

Everything else stands on it: the labels of the target, the grid of target sums, whether there is anything to train on.
Only the columns that decide (split, filter, target, weight) are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from .data.rows import Rows, Task, Use
from .data.splits import SIDES
from .data.target import Objective, Target
from .errors import DataError, listing
from .features.contract import Again, Statistic
from .features.statistics import LevelCounts, Range
from .runners import Runner
from .units import format_rows
from .wire import record


@record
@dataclass(frozen=True)
class SurveyState:
    """Mergeable: `counts` is int64 (2,): in no side, without target; `tasks` has the rows of each side by task."""

    counts: np.ndarray
    tasks: dict[str, tuple[int, ...]]
    states: tuple[Any, ...]


@record
@dataclass(frozen=True)
class Survey:
    """What the first pass found.

    Parameters
    ----------
    rows : dict of str to int
        Rows of 'train', 'valid', 'test', and 'outside' (in no side: filter, gap, no target).
    without_target : int
        Rows that the filter keeps but that have no target.
    results : tuple
        Results of the statistics, in their order.
    tasks : dict of str to tuple of int
        Rows of 'train', 'valid' and 'test' in each task, by its key.
    """

    rows: dict[str, int]
    without_target: int
    results: tuple[Any, ...]
    tasks: dict[str, tuple[int, ...]]


@record
@dataclass(frozen=True)
class SurveyJob:
    """Count the rows of each side and observe one-pass `statistics` on the training side."""

    use: Use
    statistics: tuple[Statistic, ...]
    chunk_rows: int

    def observe(self, rows: Rows, task: Task) -> Iterator[SurveyState]:
        """States of a task."""
        use = self.use
        columns = sorted({*use.columns, *(c for s in self.statistics for c in s.columns)})
        for chunk in rows.open(task.part, columns, self.chunk_rows):
            sides = rows.assign(chunk, use, task.side)
            outside, *inside = (int(n) for n in chunk.xp.bincount(sides.astype("int64") + 1, minlength=4))
            untargeted = 0
            if use.target:
                kept = rows.assign(chunk, Use(use.splitter, use.filter), task.side) >= 0
                untargeted = int((kept & chunk[use.target].missing()).sum())
            train = chunk.take(sides == 0)
            states = tuple(s.observe(train, None) for s in self.statistics)
            yield SurveyState(np.array([outside, untargeted], np.int64), {task.key: tuple(inside)}, states)

    def merge(self, states: Sequence[SurveyState]) -> SurveyState:
        """State of all together."""
        tasks: dict[str, tuple[int, ...]] = {}
        for state in states:
            for key, counts in state.tasks.items():
                tasks[key] = tuple(map(sum, zip(counts, tasks.get(key, (0,) * len(SIDES)), strict=True)))
        merged = tuple(s.merge_all([f.states[i] for f in states], {}) for i, s in enumerate(self.statistics))
        return SurveyState(np.sum([f.counts for f in states], axis=0), tasks, merged)


def survey(runner: Runner, rows: Rows, job: SurveyJob, tasks: Sequence[Task]) -> Survey:
    """Make the first pass."""
    state = runner.reduce(rows, job, tasks)
    if state is None:
        return Survey(dict.fromkeys((*SIDES, "outside"), 0), 0, (), {})
    inside = [sum(counts) for counts in zip(*state.tasks.values(), strict=True)]
    outside, untargeted = (int(n) for n in state.counts)
    results = tuple(s.finish(x, None) for s, x in zip(job.statistics, state.states, strict=True))
    return Survey(dict(zip((*SIDES, "outside"), (*inside, outside), strict=True)), untargeted, results, state.tasks)


@record
@dataclass(frozen=True)
class StatisticJob:
    """Observe one statistic on the training rows."""

    use: Use
    statistic: Statistic
    request: Any
    chunk_rows: int

    def observe(self, rows: Rows, task: Task) -> Iterator[Any]:
        """States of a task."""
        columns = sorted({*self.use.columns, *self.statistic.columns})
        for chunk in rows.open(task.part, columns, self.chunk_rows):
            yield self.statistic.observe(chunk.take(rows.assign(chunk, self.use, task.side) == 0), self.request)

    def merge(self, states: Sequence[Any]) -> Any:
        """State of all together."""
        return self.statistic.merge_all(states, {})


def observe_fully(runner: Runner, rows: Rows, job: StatisticJob, tasks: Sequence[Task]) -> Any:
    """Result of a statistic, in as many passes as it takes (at most `max_passes`); None if there is no chunk."""
    while True:
        state = runner.reduce(rows, job, tasks)
        if state is None:
            return None
        result = job.statistic.finish(state, job.request)
        if not isinstance(result, Again):
            return result
        job = replace(job, request=result.request)


def statistics_of(target: str | None, task: Objective | None, weight: str | None) -> list[Statistic]:
    """What the survey has to observe: the labels or the range of the target, and the range of the weights."""
    wanted: list[Statistic] = []
    if target:
        wanted.append(Range(target) if task == "regression" else LevelCounts((target,), keep_levels=True))
    if weight:
        wanted.append(Range(weight))
    return wanted


def check_rows(found: Survey, target: str | None) -> None:
    """Raise DataError if there is nothing to train on."""
    if found.rows["train"] == 0:
        lost = found.rows["outside"]
        sides = ", ".join(f"{found.rows[s]:,} {s}" for s in SIDES)
        without = f" ({format_rows(found.without_target)} of them have no {target!r})" if found.without_target else ""
        raise DataError(
            f"No row is left to train on: {sides}, {lost:,} in no side{without}",
            "Expected at least one training row after data.filter and split",
            "Look at data.filter, data.target and split in the pipeline file",
        )


def check_weights(result: Any, weight: str) -> None:
    """Raise DataError unless weights are there, finite, not negative, and not all zero."""
    problem = None
    if result.n_missing or result.n_infinite:
        problem = f"is missing in {result.n_missing:,} training rows and infinite in {result.n_infinite:,}"
    elif result.min is not None and result.min < 0:
        problem = f"has negative values, down to {result.min}"
    elif result.max == 0:
        problem = "is 0 in every training row"
    if problem:
        raise DataError(
            f"The weight {weight!r} {problem}",
            "Expected a finite number >= 0 in every row, and not all 0",
            "Correct it with data.derive, or leave data.weight out",
        )


def target_of(column: str, task: Objective, result: Any) -> Target:
    """Make the target of what the survey found.

    Raises
    ------
    DataError
        If two classes are wanted and there are not just two, or a number is wanted and there is none.
    """
    if task == "regression":
        if result.n_infinite:
            raise DataError(
                f"The target {column!r} is infinite in {result.n_infinite:,} training rows",
                "Expected finite numbers",
                "Drop such rows with data.filter",
            )
        return Target(column, task)
    labels = sorted(level for level in result.levels.to_pylist() if level is not None)
    if len(labels) != 2:
        raise DataError(
            f"The target {column!r} has {len(labels)} labels in the training rows: {listing(labels, 6)}",
            "Expected just two labels for two classes",
            "Look at data.target and data.filter, or choose regression (--set model.objective=reg:squarederror)",
        )
    return Target(column, task, pa.array(labels))
