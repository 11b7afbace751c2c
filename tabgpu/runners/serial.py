"""What a runner does, and the runner that does it in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from ..merging import Merge, merge_tree

T = TypeVar("T")
S = TypeVar("S")


class Runner(Protocol):
    """Where tasks run. A task is a description (a part and what to do with it); states come back, rows do not."""

    name: str
    workers: int

    def reduce(self, observe: Callable[[T], Iterator[S]], tasks: Iterable[T], merge: Merge[S]) -> S | None:
        """Observe every task and merge all states as a tree; None if there was none."""

    def each(self, work: Callable[[T], S], tasks: Iterable[T]) -> Iterator[S]:
        """Results of every task, in order."""


class SerialRunner:
    """Runs here, one task after the other."""

    name = "serial"
    workers = 1

    def reduce(self, observe: Callable[[T], Iterator[S]], tasks: Iterable[T], merge: Merge[S]) -> S | None:
        """See `Runner.reduce`."""
        return merge_tree((state for task in tasks for state in observe(task)), merge)

    def each(self, work: Callable[[T], S], tasks: Iterable[T]) -> Iterator[S]:
        """See `Runner.each`."""
        return map(work, tasks)
