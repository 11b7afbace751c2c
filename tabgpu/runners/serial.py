"""The runner that does all work in this process, one task after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ..data.rows import Rows, Task
from ..engine.memory import MemorySettings
from ..files import File
from ..merging import merge_tree
from .protocol import Group, Job, Work

if TYPE_CHECKING:
    from ..train.share import BlockJob

S = TypeVar("S")


class SerialRunner:
    """Runs here."""

    name = "serial"
    workers = 1

    def reduce(self, rows: Rows, job: Job[S], tasks: Sequence[Task]) -> S | None:
        """See `Runner.reduce`."""
        placed = rows.engine.place(job)
        with rows.expecting(tasks):
            return merge_tree((state for task in tasks for state in placed.observe(rows, task)), placed.merge)

    def each(self, rows: Rows, work: Work[Any, S], tasks: Sequence[Any]) -> Iterator[S]:
        """See `Runner.each`."""
        placed = rows.engine.place(work)
        return (placed.do(rows, task) for task in tasks)

    @contextmanager
    def group(self, rows: Rows, job: BlockJob, tasks: Sequence[Task], loads: Sequence[int]) -> Iterator[Group]:
        """See `Runner.group`."""
        from ..train.share import Alone

        with Alone(rows, rows.engine.place(job), tasks) as group:
            yield group

    def at_most(self, workers: int) -> None:
        """There are no others."""

    def set_up(self, memory: MemorySettings) -> None:
        """The engine of this process is set up by whoever works with it."""

    def check_files(self, files: Sequence[File], output: Path) -> None:
        """There is nobody else to see them."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        """There is nothing to end."""
