"""What a runner does: work is described and sent to where the rows are; states and answers come back, rows never do.

Work is a record (`tabgpu.wire.record`), so that it travels as it is, without pickle: a `Job` observes the rows of each
task, and its states merge; a `Work` does something with each task and answers; a `BlockJob` makes the features of a
training, which stay with the `Group` that made them and trains on them. A task is a description too: a part of a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from ..data.rows import Rows, Task
from ..engine.memory import MemorySettings
from ..files import File

if TYPE_CHECKING:  # XGBoost is imported when a model is trained
    from ..train.booster import Trained
    from ..train.metrics import Task as Learned
    from ..train.run import Hooks, ModelOptions
    from ..train.share import BlockJob, BlocksFound

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)


class Job(Protocol[S]):
    """What to learn from rows: one state from each chunk, and how states become one. A record."""

    def observe(self, rows: Rows, task: Task) -> Iterator[S]:
        """States of a task, which are records or plain values."""

    def merge(self, states: Sequence[S]) -> S:
        """State of one or more together, equal to the bit in any order and grouping; may empty `states`."""


class Work(Protocol[T_contra, S_co]):
    """What to do with each task. A record."""

    def do(self, rows: Rows, task: T_contra) -> S_co:
        """Do it; the answer is a record or a plain value."""


class Group(Protocol):
    """Those who hold the rows of one training: this process, or the workers of a cluster. A context manager."""

    def make_blocks(self) -> BlocksFound:
        """Make the features of all used rows and keep them; says what was found on the way."""

    def fit(self, options: ModelOptions, hooks: Hooks) -> Trained:
        """Train on the blocks."""

    def evaluate(self, task: Learned) -> dict[str, dict[str, float | None]]:
        """Metrics of each side with the model that `fit` trained."""

    def report(self) -> dict[str, Any]:
        """How the work was shared: fit for JSON; empty where one process did it."""


class Runner(AbstractContextManager["Runner"], Protocol):
    """Where work is done. Opened by ``with``; what it started ends with it."""

    name: str
    workers: int

    def reduce(self, rows: Rows, job: Job[S], tasks: Sequence[Task]) -> S | None:
        """Observe every task and merge all states as a tree; None if there was none."""

    def each(self, rows: Rows, work: Work[Any, S], tasks: Sequence[Any]) -> Iterator[S]:
        """Answers to every task, in order."""

    def group(
        self, rows: Rows, job: BlockJob, tasks: Sequence[Task], loads: Sequence[int]
    ) -> AbstractContextManager[Group]:
        """Those who will train on the rows of `tasks`.

        Parameters
        ----------
        rows, job, tasks
            What the blocks are made of.
        loads : sequence of int
            Training rows of each task.
        """

    def at_most(self, workers: int) -> None:
        """Start no more workers than have something to do."""

    def set_up(self, memory: MemorySettings) -> None:
        """From now on, workers set up the memory of their devices like this before they work."""

    def check_files(self, files: Sequence[File], output: Path) -> None:
        """Make sure that whoever works sees the same input, and writes where this process reads."""

    def __enter__(self) -> Self:
        """Open it."""
