"""Make the passes over the data: fit the steps, then turn rows into blocks.

Both are the same functions wherever the runner runs them: a task (a part) in, states or blocks out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .cache import Block, Blocks, BlockWriter
from .columns import Chunk
from .data.rows import Rows, Task, Use
from .data.splits import SIDES
from .errors import DataError, listing
from .features.contract import Fitted, State
from .features.passes import Key, Passes, Wish
from .features.statistics import Sample
from .runners import Runner

Progress = Callable[[str], None]


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
            base = passes.base_columns(wishes)
            progress(f"features: pass {number} over {len(base)} columns")
            columns = sorted({*base, *self.use.columns})

            def observe_task(task: Task) -> Iterator[dict[Key, State]]:
                for chunk in self.rows.open(task.part, columns, self.chunk_rows):
                    train = self._side(chunk, task, 0)
                    if train is not None:
                        yield passes.observe_chunk(train, wishes, fitted)

            states = self.runner.reduce(observe_task, self._tasks_of(0), passes.merge_all)
            if states is None:  # the survey has counted training rows: they were there a moment ago
                raise DataError(
                    "No training row was found in a pass over the features",
                    "Expected the rows that the survey counted",
                    "Leave the input files as they are while a run reads them",
                )
            return states

        return passes.fit(observe)

    def _tasks_of(self, side: int) -> list[Task]:
        return [t for t in self.tasks if t.side is None or t.side == side]

    def _side(self, chunk: Chunk, task: Task, side: int) -> Chunk | None:
        """Rows of one side, or None if there is none."""
        chosen = self.rows.assign(chunk, self.use, task.side) == side
        if bool(chosen.all()):
            return chunk if chunk.n_rows else None
        return chunk.take(chosen) if bool(chosen.any()) else None

    def make_blocks(
        self,
        passes: Passes,
        fitted: Mapping[int, Fitted],
        features: Sequence[str],
        writers: Mapping[str, BlockWriter],
        weight: str | None,
        sample: Sample | None,
    ) -> tuple[dict[str, Blocks], Any]:
        """Transform every used row once, into the blocks of its side.

        Parameters
        ----------
        passes, fitted
            The steps and what they learned.
        features : sequence of str
            Columns of the matrix, in order.
        writers : mapping of str to BlockWriter
            One for each side that has rows.
        weight : str, optional
            Column of weights.
        sample : Sample, optional
            Observed on the transformed training rows, for own cuts.

        Returns
        -------
        blocks : dict of str to Blocks
            By side.
        sampled : SampleResult or None
            Result of `sample`.

        Raises
        ------
        DataError
            If no feature differs between training rows.
        """
        target = str(self.use.target)
        extra = [target, *([weight] if weight else [])]
        _, base = passes.needed([*features, *extra])
        columns = sorted({*base, *self.use.columns})
        constant = ConstantColumns(features)

        def observe(task: Task) -> Iterator[Any]:
            for chunk in self.rows.open(task.part, columns, self.chunk_rows):
                for number, side in enumerate(SIDES):
                    rows = self._side(chunk, task, number) if side in writers else None
                    if rows is None:
                        continue
                    done = passes.transform(rows, fitted, dict.fromkeys([*features, *extra]), training=number == 0)
                    block = self._block(done, features, target, weight)
                    writers[side].append(block)
                    if number == 0:
                        constant.observe(block.features)
                        if sample is not None:
                            yield sample.observe(done, None)

        state = self.runner.reduce(observe, self.tasks, lambda states: sample.merge_all(states, {}) if sample else None)
        constant.check()
        blocks = {side: writer.finish() for side, writer in writers.items()}
        return blocks, (sample.finish(state, None) if sample is not None and state is not None else None)

    def _block(self, chunk: Chunk, features: Sequence[str], target: str, weight: str | None) -> Block:
        engine = self.rows.engine
        matrix = engine.matrix(chunk.columns, features, chunk.n_rows)
        label = chunk[target].values.astype("float32")
        return Block(matrix, label, chunk[weight].floats("float32") if weight else None)


class ConstantColumns:
    """Features that had one value, or none, in all training rows so far."""

    def __init__(self, features: Sequence[str]) -> None:
        self._names = list(features)
        self._low = np.full(len(features), np.inf, np.float32)
        self._high = np.full(len(features), -np.inf, np.float32)
        self._missing = np.zeros(len(features), bool)

    def observe(self, features: Any) -> None:
        """Look at a block, at the columns alone that have not varied yet."""
        for j in np.flatnonzero(~self._varies()):
            column = features[:, j]
            present = column[column == column]
            self._missing[j] |= len(present) < len(column)
            if len(present):
                self._low[j] = min(self._low[j], float(present.min()))
                self._high[j] = max(self._high[j], float(present.max()))

    def _varies(self) -> np.ndarray:
        return (self._low < self._high) | (self._missing & (self._high > -np.inf))

    @property
    def names(self) -> list[str]:
        """Names of the features that do not vary."""
        return [n for n, varies in zip(self._names, self._varies(), strict=True) if not varies]

    def check(self) -> None:
        """Raise DataError if no feature varies."""
        if len(self.names) == len(self._names):
            values = [
                f"{n}: {'all missing' if h == -np.inf else f'always {h:g}'}"
                for n, h in zip(self._names, self._high, strict=True)
            ]
            raise DataError(
                f"No feature differs between training rows: {listing(values, 6)}",
                "Expected at least one feature with two values",
                "Look at features and data.filter in the pipeline file",
            )
