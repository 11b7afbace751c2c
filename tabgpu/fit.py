"""Fit the steps: passes over the training rows, wherever the runner makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .columns import Chunk
from .data.rows import Rows, Task, Use
from .errors import DataError
from .features.contract import Fitted, State
from .features.passes import Key, Passes, Wish
from .runners import Runner
from .wire import record

Progress = Callable[[str], None]


@record
@dataclass(frozen=True)
class PassJob:
    """One pass: observe `wishes` on the training rows, as the steps that are fitted leave them."""

    passes: Passes
    use: Use
    wishes: list[Wish]
    fitted: dict[int, Fitted]
    chunk_rows: int

    def observe(self, rows: Rows, task: Task) -> Iterator[dict[Key, State]]:
        """States of a task."""
        columns = sorted({*self.passes.base_columns(self.wishes), *self.use.columns})
        for chunk in rows.open(task.part, columns, self.chunk_rows):
            train = rows.pick(chunk, self.use, task, 0)
            if train is not None:
                yield from rows.in_pieces(train, self._observe)

    def _observe(self, chunk: Chunk) -> dict[Key, State]:
        return self.passes.observe_chunk(chunk, self.wishes, self.fitted)

    def merge(self, states: Sequence[dict[Key, State]]) -> dict[Key, State]:
        """State of all together."""
        return self.passes.merge_all(states)


@dataclass(frozen=True)
class Fitter:
    """What fitting works on.

    Parameters
    ----------
    runner : Runner
        Where tasks run.
    rows : Rows
        Opens parts.
    use : Use
        Which rows are used, and as what.
    tasks : sequence of Task
        All parts.
    chunk_rows : int
        Rows a chunk.
    """

    runner: Runner
    rows: Rows
    use: Use
    tasks: Sequence[Task]
    chunk_rows: int

    def fit_steps(self, passes: Passes, progress: Progress) -> dict[int, Fitted]:
        """Fit all steps on the training rows, in as few passes as they allow."""
        number = 0

        def observe(wishes: list[Wish], fitted: Mapping[int, Fitted]) -> Mapping[Key, State]:
            nonlocal number
            number += 1
            progress(f"features: pass {number} over {len(passes.base_columns(wishes))} columns")
            applied = {i for w in wishes for i in passes.needed(w.statistic.columns, w.position)[0]}
            job = PassJob(passes, self.use, wishes, {i: fitted[i] for i in sorted(applied)}, self.chunk_rows)
            states: Any = self.runner.reduce(self.rows, job, [t for t in self.tasks if t.side in (None, 0)])
            if states is None:  # the survey has counted training rows: they were there a moment ago
                raise DataError(
                    "No training row was found in a pass over the features",
                    "Expected the rows that the survey counted",
                    "Leave the input files as they are while a run reads them",
                )
            return dict(states)

        return passes.fit(observe)
