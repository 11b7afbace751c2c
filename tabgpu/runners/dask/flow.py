"""Tasks of which each goes to a worker that is free, two at a time to each so that none waits for the next.

Where a worker is lost, Dask does its tasks again on another. A task that Dask gives up, since workers died whenever
they had it, is tried once more, alone on a worker: others that died with it are not to blame, and go on.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

from distributed import Future, KilledWorker

from ...errors import DataError
from .workers import Workers

_EACH = 2  # tasks that a worker has: one runs while the other waits


class Submit(Protocol):
    """Sends task number `index` to a worker."""

    def __call__(self, index: int, on: str, strict: bool) -> Future:
        """The future of its answer; `strict` if no other worker may do it."""


@dataclass
class Flow:
    """Tasks on their way.

    Parameters
    ----------
    workers : Workers
        Who does them.
    count : int
        How many tasks there are.
    submit : callable
        Sends one.
    name : callable
        What a task is called in messages, by its number.
    ordered : bool
        Whether to give them back in their order: no more than a few are then ahead of the slowest.
    """

    workers: Workers
    count: int
    submit: Submit
    name: Callable[[int], str]
    ordered: bool = False
    _waiting: deque[int] = field(init=False)
    _flying: dict[Future, tuple[int, str]] = field(init=False, default_factory=dict)
    _accused: dict[int, int] = field(init=False, default_factory=dict)  # task -> workers that died with it
    _following: int = field(init=False, default=0)  # the next to be given back, where that is in order

    def __post_init__(self) -> None:
        self._waiting = deque(range(self.count))

    def done(self) -> Iterator[tuple[Future, str]]:
        """Future and worker of each task that is done, as they come or in order.

        Raises
        ------
        DataError
            If a task ends every worker that does it.
        Exception
            What a task raised.
        """
        if not self.ordered:
            yield from ((future, worker) for _, future, worker in self._as_they_come(lambda: self.count))
            return
        early: dict[int, tuple[Future, str]] = {}
        for index, future, worker in self._as_they_come(
            lambda: self._following + 2 * _EACH * len(self.workers.addresses())
        ):
            early[index] = (future, worker)
            while self._following in early:
                yield early.pop(self._following)
                self._following += 1

    def _as_they_come(self, before: Callable[[], int]) -> Iterator[tuple[int, Future, str]]:
        """Tasks that are done; of those that wait, only numbers below `before()` are sent."""
        while self._waiting or self._flying or self._accused:
            self._send(before())
            if not self._flying:
                if self._accused:
                    yield self._alone()
                else:
                    self.workers.wait_for_one()
                continue
            for future in self.workers.first_done(list(self._flying)):
                index, worker = self._flying.pop(future)
                error = future.exception() if future.status == "error" else None
                if isinstance(error, KilledWorker):
                    self._accused[index] = error.allowed_failures + 1
                elif error is not None:
                    self.workers.answer(future)
                else:
                    yield index, future, worker

    def _send(self, before: int) -> None:
        """Fill up the workers, the emptiest first; nobody gets new tasks while some are accused."""
        if self._accused or not self._waiting:
            return
        addresses = self.workers.addresses()
        busy = Counter(worker for _, worker in self._flying.values())
        for nth in range(_EACH):
            for address in addresses:
                if busy[address] <= nth and self._waiting and self._waiting[0] < before:
                    index = self._waiting.popleft()
                    self._flying[self.submit(index, address, False)] = index, address
                    busy[address] += 1

    def _alone(self) -> tuple[int, Future, str]:
        """Try a task that is accused on a worker that has no other."""
        index, deaths = self._accused.popitem()
        worker = self.workers.wait_for_one()
        future = self.submit(index, worker, True)
        while not (done := self.workers.done_within([future], 1.0)):
            if worker not in self.workers.addresses(fresh=True):
                future.cancel()
                self._blame(index, deaths + 1)
        if done[0].status == "error":
            if isinstance(future.exception(), KilledWorker):
                self._blame(index, deaths + 1)
            self.workers.answer(future)
        return index, future, worker

    def _blame(self, index: int, deaths: int) -> NoReturn:
        raise DataError(
            f"{self.name(index)} ends the worker that works on it: {deaths} were lost to it, the last one with nothing "
            "else to do",
            "Expected a part that a worker can read and that fits into its memory",
            "Look at that file, give workers more memory (memory.limit), or lower memory.chunk_rows",
        )
