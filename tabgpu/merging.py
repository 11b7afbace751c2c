"""Merge many states into one, as a tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

S = TypeVar("S")


def merge_tree(states: Iterable[S], merge: Callable[[S, S], S]) -> S | None:
    """Merge states pairwise, equals with equals, as a binary counter carries.

    A running merge would copy the growing total once a chunk; here each state is copied log2(n) times.
    """
    stack: list[tuple[int, S]] = []
    for state in states:
        height = 0
        while stack and stack[-1][0] == height:
            state = merge(stack.pop()[1], state)
            height += 1
        stack.append((height, state))
    if not stack:
        return None
    total = stack.pop()[1]
    while stack:
        total = merge(stack.pop()[1], total)
    return total
