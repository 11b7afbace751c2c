"""Who gets which rows, and what workers have to tell each other in every round. Pure arithmetic."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

from ..units import format_bytes, format_rows, format_seconds

LINKS = {  # bytes a second in each direction; networks at 94% of their nominal speed
    "loopback": 1_000_000_000,  # assumed: a bare TCP stream did 4 GB/s here, and both ends also add up
    "1 GbE": 117_000_000,
    "10 GbE": 1_170_000_000,
    "25 GbE": 2_930_000_000,
    "100 GbE": 11_700_000_000,
    "PCIe": 24_000_000_000,  # generation 4, x16
    "NVLink": 200_000_000_000,  # assumed for a ring over NVSwitch
}
_HISTOGRAM_BIN = 16
_THREAD_CELLS = 200_000_000  # cells a second and thread, depth 6; measured: 5M x 30, 50 rounds, two threads, 18.5 s
_GPU_CELLS = 5_000_000_000  # assumed, not measured
_USUAL_DEPTH = 6


def assign(loads: Sequence[int], workers: int, rows: Sequence[int] | None = None) -> tuple[tuple[int, ...], ...]:
    """Share tasks between workers, once and for all.

    Largest first, each to the worker with the least so far: loads of two workers differ by at most the largest task.
    Tasks without load (no training rows) are shared the same way by their rows. It depends on the numbers alone.

    Parameters
    ----------
    loads : sequence of int
        What is balanced: training rows of each task.
    workers : int
        At least 1.
    rows : sequence of int, optional
        All rows of each task, which balance what `loads` leaves equal.

    Returns
    -------
    tuple of tuple of int
        Positions of the tasks of each worker, ascending. No worker has none, so there are fewer workers where there
        are fewer tasks with a load.

    Examples
    --------
    >>> assign([5, 1, 4, 2], 2)
    ((0, 1), (2, 3))
    >>> assign([7, 0], 3, rows=[7, 9])
    ((0, 1),)
    """
    rows = loads if rows is None else rows
    tasks = range(len(loads))
    loaded = [i for i in tasks if loads[i] > 0]
    count = max(1, min(workers, len(loaded) or len(loads)))
    owned: list[list[int]] = [[] for _ in range(count)]
    _share(owned, loaded, loads)
    _share(owned, [i for i in tasks if loads[i] <= 0], rows)
    return tuple(tuple(sorted(own)) for own in owned)


def _share(owned: list[list[int]], tasks: Sequence[int], sizes: Sequence[int]) -> None:
    """Give tasks to owners, the largest first, each to the one with the least."""
    waiting = [(sum(sizes[i] for i in own), len(own), worker) for worker, own in enumerate(owned)]
    heapq.heapify(waiting)
    for task in sorted(tasks, key=lambda i: (-sizes[i], i)):
        size, n, worker = heapq.heappop(waiting)
        owned[worker].append(task)
        heapq.heappush(waiting, (size + sizes[task], n + 1, worker))


def built_nodes(params: Mapping[str, Any]) -> int:
    """Nodes of a tree whose histograms are built and exchanged: the root, and the smaller child of every split.

    The larger child is the parent less the smaller. ``2^(d - 1)`` for a full tree of depth d, whose last level has no
    histograms: `tree/updater_gpu_hist.cu` (`ReduceHist`), `tree/hist/histogram.h` (`SyncHistogram`).

    Examples
    --------
    >>> built_nodes({"max_depth": 6}), built_nodes({"max_depth": 0, "max_leaves": 100})
    (32, 99)
    """
    depth, leaves = (_whole(params, name, default) for name, default in (("max_depth", 6), ("max_leaves", 0)))
    by_depth = 2 ** min(depth - 1, 30) if depth > 0 else 2**30
    return max(1, min(by_depth, leaves - 1 if leaves > 1 else 2**30))


def round_bytes(n_features: int, params: Mapping[str, Any], max_bin: int, workers: int, trees: int = 1) -> int:
    """Bytes that each worker sends, and receives, in a round.

    16 bytes (two sums) x bins of all features x nodes that are built x trees of a round, of which a ring allreduce
    moves ``2 (W - 1) / W`` through every worker (Patarasuk and Yuan 2009; NCCL counts the same).

    Examples
    --------
    >>> round_bytes(30, {"max_depth": 6}, 256, workers=2)
    3932160
    """
    tree = _HISTOGRAM_BIN * n_features * max_bin * built_nodes(params)
    trees *= max(1, _whole(params, "num_parallel_tree", 1))
    return 2 * (workers - 1) * tree * trees // max(1, workers)


def round_reason(moved: int, link: str, cells: int, params: Mapping[str, Any], threads: int | None) -> str:
    """Say what a round moves, and whether that outweighs computing.

    Parameters
    ----------
    moved : int
        From `round_bytes`.
    link : str
        One of `LINKS`.
    cells : int
        Rows x features x trees of the fullest worker.
    params : mapping
        Parameters of XGBoost; a round costs in proportion to the depth.
    threads : int, optional
        Threads of a worker; None for a GPU.
    """
    depth = _whole(params, "max_depth", _USUAL_DEPTH) or _USUAL_DEPTH
    speed = _GPU_CELLS if threads is None else _THREAD_CELLS * threads
    computing, moving = cells * depth / _USUAL_DEPTH / speed, moved / LINKS[link]
    text = (
        f"each round moves {format_bytes(moved)} through every worker, {format_seconds(moving)} on {link}, and "
        f"computes for about {format_seconds(computing)}{' (assumed)' if threads is None else ''}"
    )
    if moving > computing:
        text += ": moving outweighs computing, so fewer workers, a lower max_depth or a lower max_bin may be faster"
    return text


def workers_reason(wanted: int, worker_rows: Sequence[int]) -> str:
    """How the rows are shared."""
    count, largest = len(worker_rows), max(worker_rows)
    mean = sum(worker_rows) / count
    shared = (
        f"{format_rows(largest)} rows at most on each of {count} workers, {largest / max(1, mean):.2f} times the mean"
    )
    if count < wanted:
        return f"{shared}; {wanted} were asked for, and there are {count} parts with rows: write smaller row groups"
    return shared


def _whole(params: Mapping[str, Any], name: str, default: int) -> int:
    """What is no whole number is refused by XGBoost later."""
    value = params.get(name, default)
    return value if isinstance(value, int) else default
