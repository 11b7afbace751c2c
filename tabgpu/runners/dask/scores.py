"""Metrics of a model over the rows of all workers: states are merged on the workers, eight at a time, and finished.

The state of a binary side is a sorted table as long as it has distinct predictions, so tables are merged a range of
keys at a time: two of 2.5 million rows at once took 390 MB, in ranges 100 MB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ... import wire
from ...features import counts
from ...features.counts import Counts
from ...train import metrics

_PIECE = 2**18  # rows of the largest table that are merged at once

Packed = dict[str, bytes]  # by side


def pack(states: dict[str, metrics.State]) -> Packed:
    """States of a share, emptied on the way."""
    return {side: wire.pack(states.pop(side)) for side in list(states)}


def merge_states(*found: Packed) -> Packed:
    """The states of several workers together."""
    return {side: wire.pack(_together([one[side] for one in found])) for side in found[0]}


def scores(*found: Packed) -> dict[str, dict[str, float | None]]:
    """Metrics of each side from the states of all workers."""
    return {side: metrics.finish(_together([one[side] for one in found])).values for side in found[0]}


def _together(blobs: Sequence[bytes]) -> metrics.State:
    states = [wire.unpack(blob) for blob in blobs]
    if not all(isinstance(state, Counts) for state in states):
        return metrics.merge_all(states)
    most = sum(map(len, states))
    keys, numbers, filled = np.empty(most, np.uint64), np.empty((most, 1), np.uint8), 0
    for piece in _pieces(states):
        rows = slice(filled, filled + len(piece))
        numbers = numbers.astype(np.result_type(numbers, piece.counts), copy=False)
        keys[rows], numbers[rows] = piece.keys, piece.counts
        filled += len(piece)
    return Counts(keys[:filled], numbers[:filled])


def _pieces(tables: Sequence[Counts]) -> Iterator[Counts]:
    """Merged rows, one range of keys after the other."""
    largest = max(tables, key=len)
    bounds = largest.keys[_PIECE::_PIECE]
    edges = [[0, *np.searchsorted(t.keys, bounds).tolist(), len(t)] for t in tables]
    for i in range(len(bounds) + 1):
        parts = [slice(of[i], of[i + 1]) for of in edges]
        yield counts.merge_all([Counts(t.keys[p], t.counts[p]) for t, p in zip(tables, parts, strict=True)])
