"""Notice within a minute that a worker of a training is lost, and bring the others to where they can start again.

A training cannot go on without one of its workers, and XGBoost itself waits for a silent one until its own timeout,
which has to be hours. So the workers are asked again and again how far they are, each on its own: `Watch`.

* killed: the scheduler no longer knows it, and its socket is closed, which its peers notice at once (`PeerError`);
* stopped, or cut off: it does not answer;
* hung: it answers, and yet nobody computes, reads or ends a round; or a round takes many times longer than any before.

* hung: it answers, and yet nobody computes, reads or ends a round; or a round takes many times longer than before.
by themselves or are restarted too. What is done next, `training` decides.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distributed import Future, KilledWorker

from . import member
from .workers import Workers

_TICK_S = 0.5
_RESTART_S = 20.0  # a stopped process takes 4 s to be ended

Pulse = dict[str, Any]
Heard = Callable[[Pulse], None]
Ask = Callable[[], bool]


@dataclass(frozen=True)
class Patience:
    """How long to wait before a worker is given up; seconds.

    Parameters
    ----------
    import_s : float
        It does not answer while it imports XGBoost, for the first time perhaps, and over a network.
    pulse_s : float
        Between two questions to a worker, which notes each in its log.
    silent_s : float
        It does not answer. With the time the scheduler is given to say that it lives itself, less than a minute.
    stuck_s : float
        It answers, and no worker computes or gets further.
    slow_s, slow_factor : float
        A round takes longer than this, and so many times longer than the longest before.
    settle_s : float
        Others may take so long to end by themselves, once one has failed or an end is wanted.
    return_s : float
        A restarted worker may take so long to come back before the training goes on without it.
    losses : int
        So many losses, and no more: a cluster that loses a worker again and again is for people to look at.
    """

    import_s: float = 300.0
    pulse_s: float = 2.0
    silent_s: float = 25.0
    stuck_s: float = 45.0
    slow_s: float = 50.0
    slow_factor: float = 20.0
    settle_s: float = 10.0
    return_s: float = 60.0
    losses: int = 3


class LostError(Exception):
    """A training cannot go on with these workers.

    Parameters
    ----------
    addresses : sequence of str
        Those that are lost, or are taken to be; empty where only the connection between them broke.
    reason : str
        How it was noticed.
    """

    def __init__(self, addresses: Sequence[str], reason: str) -> None:
        super().__init__(f"{', '.join(addresses) or 'a connection'}: {reason}")
        self.addresses, self.reason = tuple(addresses), reason


@dataclass
class _Line:
    """What was asked of one worker, and what it answered last."""

    heard: float = field(default_factory=time.monotonic)
    due: float = 0.0
    asked: concurrent.futures.Future[Any] | None = None
    latest: Pulse | None = None


@dataclass
class Watch:
    """Waits for one task on each worker of a training, and asks how far they are meanwhile.

    Parameters
    ----------
    workers : Workers
        The cluster.
    run : str
        The name of the shares.
    members : sequence of str
        Addresses, by rank.
    patience : Patience
        When to give up.
    told : int
        Rounds that are known of.
    """

    workers: Workers
    run: str
    members: Sequence[str]
    patience: Patience
    told: int = 0
    _lines: dict[str, _Line] = field(init=False)

    def __post_init__(self) -> None:
        self._lines = {address: _Line() for address in self.members}

    def until_done(self, futures: Sequence[Future], heard: Heard, wants_end: Ask) -> None:
        """Wait for tasks that need all members.

        Parameters
        ----------
        futures : sequence of Future
            The tasks.
        heard : callable
            Given what rank 0 tells.
        wants_end : callable
            Asked about twice a second; once it is true, the workers are told to stop after the next round.

        Raises
        ------
        LostError
            If they cannot be done.
        ClusterError
            If the scheduler is lost.
        Exception
            What a task raised, other than that a peer is gone.
        """
        progress = _Progress(self.patience)
        for line in self._lines.values():
            line.heard, line.due = time.monotonic(), 0.0
        end, waiting = False, list(futures)
        while waiting:
            done = self.workers.done_within(waiting, _TICK_S)
            waiting = [f for f in waiting if f not in done]
            if any(f.status != "finished" for f in done):
                self._settle(futures, waiting)
            end = end or wants_end()
            self._listen(end, heard)
            if waiting:
                self._check(progress)

    def ask_last(self, heard: Heard) -> None:
        """Hear what rank 0 had to say when its task ended."""
        first = self._lines[self.members[0]]
        for _ in range(2):  # what it was asked before may have been answered before
            if first.asked is not None:
                concurrent.futures.wait([first.asked], timeout=self.patience.silent_s)
            first.due = 0.0
            self._listen(False, heard)

    def _listen(self, end: bool, heard: Heard) -> None:
        """Take the answers that have come, and ask again those whose turn it is."""
        loop = self.workers.client.loop.asyncio_loop
        now = time.monotonic()
        for address, line in self._lines.items():
            if line.asked is not None and line.asked.done():
                pulse, line.asked = _answer_of(line.asked, address), None
                if pulse is not None:
                    line.heard, line.latest = now, pulse
                    self._tell(address, pulse, heard)
            if line.asked is None and now >= line.due:
                line.asked = asyncio.run_coroutine_threadsafe(self._ask(address, end), loop)
                line.due = now + (_TICK_S if end else self.patience.pulse_s)

    async def _ask(self, address: str, end: bool) -> Any:
        return await self.workers.client.run(
            member.pulse, self.run, self.told, end, workers=[address], on_error="return"
        )

    def _tell(self, address: str, pulse: Pulse, heard: Heard) -> None:
        if address == self.members[0]:
            self.told = max([self.told, *(rounds for rounds, _ in pulse["news"])])
            heard(pulse)

    def _check(self, progress: _Progress) -> None:
        """Raise LostError if a worker is gone, silent, or all are stuck."""
        now = time.monotonic()
        known = self.workers.addresses()
        gone = [a for a in self.members if a not in known]
        if gone:
            raise LostError(gone, "the scheduler lost it")
        silent = [a for a, line in self._lines.items() if now - line.heard > self.patience.silent_s]
        if silent:
            self.workers.addresses(fresh=True)  # it may be the scheduler that is silent
            raise LostError(silent, f"no sign of life for {self.patience.silent_s:g} s")
        stuck = progress.stuck({a: line.latest for a, line in self._lines.items() if line.latest}, now)
        if stuck:
            raise LostError(self.members, stuck)

    def _settle(self, futures: Sequence[Future], waiting: Sequence[Future]) -> None:
        """One has failed: let the others end too, then say why."""
        deadline = time.monotonic() + self.patience.settle_s
        while waiting and time.monotonic() < deadline and all(a in self.workers.addresses() for a in self.members):
            done = self.workers.done_within(waiting, _TICK_S)
            waiting = [f for f in waiting if f not in done]
        errors = [f.exception() if f.status == "error" else None for f in futures]
        for future, error in zip(futures, errors, strict=True):
            if error is not None and not isinstance(error, member.PeerError | KilledWorker):
                self.workers.answer(future)
        known = self.workers.addresses(fresh=True)
        gone = [a for a in self.members if a not in known]
        broken = next((str(error) for error in errors if error is not None), "cancelled")
        raise LostError(gone, "it ended" if gone else broken)


@dataclass
class _Progress:
    """Whether a training gets on, from what its workers tell."""

    patience: Patience
    _moved: float = field(default_factory=time.monotonic)
    _seen: dict[str, tuple[Any, float, float]] = field(default_factory=dict)
    _round: tuple[int, float, float] | None = None  # rounds, when they were reached, the longest

    def stuck(self, pulses: Mapping[str, Pulse], now: float) -> str | None:
        """Say so if it does not."""
        if self._moves(pulses) or not pulses:
            self._moved = now
        if now - self._moved > self.patience.stuck_s:
            return f"nobody computed or got further for {self.patience.stuck_s:g} s"
        rounds = max((p["rounds"] for p in pulses.values() if p["stage"] == "rounds"), default=None)
        if rounds is None:
            return None
        if self._round is None or rounds > self._round[0]:
            since, longest = (self._round[1], self._round[2]) if self._round else (now, 0.0)
            self._round = (rounds, now, max(longest, now - since))
            return None
        waited, longest = now - self._round[1], self._round[2]
        if longest and waited > max(self.patience.slow_s, self.patience.slow_factor * longest):
            return f"a round takes {waited:.0f} s, and none before took more than {longest:.1f} s"
        return None

    def _moves(self, pulses: Mapping[str, Pulse]) -> bool:
        """Whether any worker is further than before, or computes: a fifth of a core is more than answering takes."""
        moved = False
        now = time.monotonic()
        for address, pulse in pulses.items():
            where = (pulse["stage"], pulse["chunks"], pulse["rounds"])
            before, cpu, since = self._seen.get(address, (None, 0.0, 0.0))
            if where != before or pulse["cpu_s"] - cpu > 0.2 * max(1.0, now - since):
                self._seen[address] = (where, pulse["cpu_s"], now)
                moved = True
        return moved


def _answer_of(asked: concurrent.futures.Future[Any], address: str) -> Pulse | None:
    """A worker's answer; None where it could not be asked: the scheduler knows more of that."""
    if asked.cancelled() or asked.exception() is not None:
        return None
    answer = asked.result().get(address)
    return answer if isinstance(answer, dict) else None


def free(workers: Workers, lost: Sequence[str], tasks: Mapping[str, Future], patience: Patience) -> list[str]:
    """End what is left of a training on its workers.

    Parameters
    ----------
    workers : Workers
        The cluster.
    lost : sequence of str
        Addresses of those that are to be ended, whatever they do.
    tasks : mapping of str to Future
        The task of each member, by address.
    patience : Patience
        How long the others may take to end theirs.

    Returns
    -------
    list of str
        Workers that were ended. The scheduler may still list them for a moment.

    Notes
    -----
    Measured with XGBoost 3.4 on the CPU: a worker that waits for a peer comes back within 0.1 s of the end of that
    peer's process, and not before, so the lost ones are ended first. A nanny ends a stopped process after 4 s. Workers
    without a nanny are told to close, and the scheduler forgets them.
    """
    restart(workers, lost)
    waiting = [future for address, future in tasks.items() if address not in lost and future.status == "pending"]
    deadline = time.monotonic() + patience.settle_s
    while waiting and (left := deadline - time.monotonic()) > 0:
        done = workers.done_within(waiting, left)
        waiting = [f for f in waiting if f not in done]
    held = [address for address, future in tasks.items() if future in waiting]
    restart(workers, held)
    workers.client.cancel(list(tasks.values()), force=True)
    return [*lost, *held]


def close_shares(workers: Workers, run: str, addresses: Sequence[str], patience: Patience) -> None:
    """Free the shares of a training, as far as their workers answer."""
    known = workers.addresses(fresh=True)
    loop = workers.client.loop.asyncio_loop

    async def ask(address: str) -> None:
        await workers.client.run(member.close, run, workers=[address], on_error="ignore")

    asked = [asyncio.run_coroutine_threadsafe(ask(address), loop) for address in addresses if address in known]
    concurrent.futures.wait(asked, timeout=patience.settle_s)


def restart(workers: Workers, addresses: Sequence[str]) -> None:
    """End the processes of some workers; their nannies start new ones."""
    if addresses:
        workers.ask_scheduler(_restart, list(addresses))


async def _restart(addresses: list[str], dask_scheduler: Any = None) -> None:
    """On the scheduler: a client can only restart workers that all have a nanny and are all there."""
    await dask_scheduler.restart_workers(
        addresses, timeout=_RESTART_S, wait_for_workers=False, on_error="return", stimulus_id="tabgpu-restart"
    )
