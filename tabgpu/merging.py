"""Merge many states into one, as a tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

S = TypeVar("S")
Merge = Callable[[Sequence[S]], S]  # makes one state of one or more, in any order and grouping; may empty them

AT_ONCE = 8  # states merged at once: with more, more small states would be held, and little time saved


class MergeTree(Generic[S]):
    """Merges states as they come, equals with equals, `AT_ONCE` at a time, as a counter carries.

    A running merge would copy the growing total once a chunk; here each state is copied log8(n) times.

    Parameters
    ----------
    merge : callable
        Makes one state of several.
    """

    def __init__(self, merge: Merge[S]) -> None:
        self._merge = merge
        self._waiting: list[list[S]] = []  # states of one chunk, of 8, of 64, ...

    def add(self, state: S) -> None:
        """Take one more."""
        height = 0
        while True:
            if height == len(self._waiting):
                self._waiting.append([])
            self._waiting[height].append(state)
            if len(self._waiting[height]) < AT_ONCE:
                return
            state, self._waiting[height] = self._merge(self._waiting[height]), []
            height += 1

    def finish(self) -> S | None:
        """The state of all; None if there was none."""
        left = [state for level in reversed(self._waiting) for state in level]
        self._waiting.clear()
        return self._merge(left) if left else None


def merge_tree(states: Iterable[S], merge: Merge[S]) -> S | None:
    """Merge states by a `MergeTree`; None if there is none."""
    tree = MergeTree(merge)
    for state in states:
        tree.add(state)
        del state  # the tree alone decides how long it lives
    return tree.finish()
