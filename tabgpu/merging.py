"""Merge many states into one, as a tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

S = TypeVar("S")
Merge = Callable[[Sequence[S]], S]  # makes one state of one or more, in any order and grouping; may empty them

_AT_ONCE = 8  # states merged at once: with more, more small states would be held, and little time saved


def merge_tree(states: Iterable[S], merge: Merge[S]) -> S | None:
    """Merge states, equals with equals, `_AT_ONCE` at a time, as a counter carries; None if there is none.

    A running merge would copy the growing total once a chunk; here each state is copied log8(n) times.
    """
    waiting: list[list[S]] = []  # states of one chunk, of 8, of 64, ...
    for state in states:
        height, carried = 0, state
        while True:
            if height == len(waiting):
                waiting.append([])
            waiting[height].append(carried)
            if len(waiting[height]) < _AT_ONCE:
                break
            carried, waiting[height] = merge(waiting[height]), []
            height += 1
    left = [state for level in reversed(waiting) for state in level]
    return merge(left) if left else None
