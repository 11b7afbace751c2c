"""The tracker of XGBoost's communicator: where the workers of one training meet and get their ranks.

It runs beside the scheduler, whose address all workers know, or in this process where the scheduler lacks XGBoost.
Ranks follow the task ids that the workers bring (`arguments`), so that they are the same in every run.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any, Self
from uuid import uuid4

from distributed.comm import get_address_host
from distributed.utils import get_ip
from xgboost.core import XGBoostError
from xgboost.tracker import RabitTracker

from .workers import Workers

# How long a worker waits for another: not how a loss is noticed (see `loss`), but a bound on what nothing else ends.
# An external matrix of one worker may take half an hour longer than another's.
TIMEOUT_S = 4 * 3600

_RUNNING: dict[str, RabitTracker] = {}  # in the process that holds them


class Tracker:
    """A tracker for so many workers.

    Parameters
    ----------
    workers : Workers
        The cluster.
    count : int
        Workers of the training.
    """

    def __init__(self, workers: Workers, count: int) -> None:
        self._workers, self._count = workers, count
        self._name = uuid4().hex
        self._beside_scheduler = False
        self._arguments: dict[str, Any] = {}

    def arguments(self, rank: int) -> dict[str, Any]:
        """What `xgboost.collective.CommunicatorContext` is given on the worker of that rank."""
        # ranks follow the order of the ids as text
        return {**self._arguments, "dmlc_task_id": f"{rank:06d}", "dmlc_timeout": TIMEOUT_S}

    def start(self) -> Self:
        """Start it."""
        host = get_address_host(self._workers.client.scheduler.address)
        try:
            self._arguments = self._workers.ask_scheduler(start, self._name, self._count, host)
            self._beside_scheduler = True
        except (ImportError, XGBoostError, ValueError):  # it lacks XGBoost, or cannot listen on that address
            self._arguments = start(self._name, self._count, "127.0.0.1" if host == "127.0.0.1" else get_ip())
        return self

    def stop(self) -> None:
        """End it; not before the workers have left, who would wait for it."""
        if not self._beside_scheduler:
            stop(self._name)
        elif self._workers.client.status == "running":
            self._workers.ask_scheduler(stop, self._name)


def start(name: str, count: int, host: str) -> dict[str, Any]:
    """Start a tracker in this process; returns where it listens."""
    tracker = RabitTracker(n_workers=count, host_ip=host, sortby="task")
    tracker.start()
    _RUNNING[name] = tracker
    return dict(tracker.worker_args())


def stop(name: str) -> None:
    """End it, if it is there; nobody waits for that: a tracker that lost a worker waits for it for many seconds."""
    tracker = _RUNNING.pop(name, None)
    if tracker is not None:
        threading.Thread(target=_free, args=(tracker,), daemon=True).start()


def _free(tracker: RabitTracker) -> None:
    with suppress(XGBoostError):  # what became of the workers is known by then
        tracker.free()
