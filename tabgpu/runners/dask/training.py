"""The workers that hold the rows of one training, and train on them together.

Every worker makes the features of its own parts, once, and keeps them (`member`). All of them train in XGBoost's
communicator with the same cuts, which rank 0 of none but a sample decided before: so the model does not depend on how
rows are split. Checkpoints and the metrics of each round come to the client while training goes on. Where a worker is
lost (`loss`), the parts are shared out again among those that are left or have come back, and training goes on from the
last checkpoint; after a few losses it ends with `ClusterError`. Who the workers are, and how work is sent to them, is
in `workers`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from distributed import Future

from ... import wire
from ...data.rows import Rows, Task
from ...errors import ClusterError, TabgpuError
from ...merging import AT_ONCE
from ...planning import assign
from ...train.booster import Checkpoint, Trained
from ...train.run import Hooks, ModelOptions
from ...train.share import BlockJob, BlocksFound, with_intercept
from . import member, scores
from .loss import LostError, Patience, Pulse, Watch, close_shares, free
from .tracker import Tracker
from .workers import Workers, unique

if TYPE_CHECKING:
    from ...train.metrics import Task as Learned

T = TypeVar("T")
Call = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclass
class _Shares:
    """The shares of a training while they are there.

    Parameters
    ----------
    run : str
        Their name.
    members : list of str
        Addresses of their workers, by rank.
    parts : list of int
        How many tasks each has.
    job : Future
        The parcel of the job.
    found : BlocksFound
        What was found in all of them.
    rows : list of int
        Used rows of each.
    facts : list of dict
        What each worker tells of its training.
    chosen : bytes, optional
        Own cuts, packed, once they were asked for.
    """

    run: str
    members: list[str]
    parts: list[int]
    job: Future
    found: BlocksFound
    rows: list[int]
    facts: list[dict[str, float]] = field(default_factory=list)
    chosen: bytes | None = None


class DaskGroup:
    """Workers that train together. A context manager; see `tabgpu.runners.protocol.Group`.

    Parameters
    ----------
    workers : Workers
        The cluster, locked for this run.
    rows, job, tasks
        What the blocks are made of.
    loads : sequence of int
        Training rows of each task.
    patience : Patience
        When a worker is given up.
    """

    def __init__(
        self,
        workers: Workers,
        rows: Rows,
        job: BlockJob,
        tasks: Sequence[Task],
        loads: Sequence[int],
        patience: Patience = Patience(),  # noqa: B008  frozen
    ) -> None:
        # space on disk is reserved as it is used: how many rows of a side a worker gets is not known
        self._workers, self._rows, self._job = workers, rows, replace(job, n_rows={})
        self._tasks, self._loads, self._patience = list(tasks), list(loads), patience
        self._shares: _Shares | None = None
        self._watch: Watch | None = None
        self._tracker: Tracker | None = None
        self._flying: dict[str, Future] = {}
        self._losses: list[dict[str, Any]] = []
        self._trained: tuple[ModelOptions, Checkpoint] | None = None

    def make_blocks(self) -> BlocksFound:
        """See `Group.make_blocks`."""
        return self._with_losses(lambda: self._held().found)

    def fit(self, options: ModelOptions, hooks: Hooks) -> Trained:
        """See `Group.fit`.

        `hooks.on_round` is told of each round once, also where rounds are made again after a loss.

        Raises
        ------
        ClusterError
            If workers were lost too often, all of them are, or the scheduler is; the last checkpoint was handed over.
        """
        told = _Told(hooks)
        trained = self._with_losses(lambda: self._fit(options, told))
        model = np.frombuffer(trained.model, np.uint8)
        self._trained = options, Checkpoint(trained.rounds, model, trained.history, trained.best_iteration)
        return trained

    def evaluate(self, task: Learned) -> dict[str, dict[str, float | None]]:
        """See `Group.evaluate`."""
        return self._with_losses(lambda: self._evaluate(task))

    def report(self) -> dict[str, Any]:
        """See `Group.report`.

        Returns
        -------
        dict
            `workers`: of each its address, rows, parts, rounds; seconds of wall and of processor for `blocks`, `matrix`
            and `rounds`, and what it waited for others or for a processor. `imbalance`: rows of the fullest over the
            mean. `losses`: reason and round of each.
        """
        shares = self._shares
        if shares is None:
            return {"workers": [], "imbalance": None, "losses": self._losses}
        mean = sum(shares.rows) / len(shares.rows)
        workers = []
        for i, address in enumerate(shares.members):
            facts = shares.facts[i] if i < len(shares.facts) else {}
            workers.append({"worker": address, "rows": shares.rows[i], "parts": shares.parts[i], **facts})
        return {
            "workers": workers,
            "imbalance": round(max(shares.rows) / mean, 3) if mean else None,
            "losses": self._losses,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *reason: object) -> None:
        """Free the shares; workers that are still at work end it, or are restarted."""
        shares, self._shares = self._shares, None
        if self._workers.client.status != "running" or (kind is not None and issubclass(kind, ClusterError)):
            return
        with suppress(TabgpuError) if kind else nullcontext():  # what ended the block says more
            if shares is not None:
                close_shares(self._workers, shares.run, shares.members, self._patience)
            busy = {a: f for a, f in self._flying.items() if f.status == "pending"}
            if busy:
                free(self._workers, [], busy, self._patience)
            self._stop_tracker()

    def _with_losses(self, attempt: Callable[[], T]) -> T:
        """Try until it is done, or workers were lost too often."""
        while True:
            try:
                return attempt()
            except LostError as lost:
                self._recover(lost)

    def _recover(self, lost: LostError) -> None:
        """End what is left, and wait until workers are there for a new start."""
        before = len(self._shares.members) if self._shares else len(self._flying)
        self._losses.append({"workers": list(lost.addresses), "reason": lost.reason, "round": self._round()})
        self._rows.note(
            f"a worker was lost in training, after round {self._round()} ({lost.reason}): parts are shared out again, "
            "and training goes on from the last checkpoint"
        )
        flying, self._flying = self._flying, {}
        run, self._shares = (self._watch.run if self._watch else ""), None
        ended = free(self._workers, lost.addresses, flying, self._patience)
        self._stop_tracker()
        close_shares(self._workers, run, list(flying), self._patience)
        if len(self._losses) >= self._patience.losses:
            raise ClusterError(
                f"Workers were lost {len(self._losses)} times while they trained, the last time after round "
                f"{self._round()}: {lost}",
                "Expected a cluster that keeps its workers",
                "Look at the workers' logs and memory (memory.limit, cluster.workers), then run again",
            ) from lost
        deadline = time.monotonic() + self._patience.return_s
        while time.monotonic() < deadline:
            known = self._workers.addresses(fresh=True)
            if len(known) >= before and not known.keys() & set(ended):
                break
            time.sleep(0.2)
        self._workers.wait_for_one()

    def _stop_tracker(self) -> None:
        tracker, self._tracker = self._tracker, None
        if tracker is not None:
            tracker.stop()

    def _round(self) -> int:
        return self._watch.told if self._watch else 0

    def _held(self) -> _Shares:
        """The shares; made where there are none."""
        if self._shares is None:
            self._shares = self._make()
        return self._shares

    def _make(self) -> _Shares:
        addresses = list(self._workers.addresses(fresh=True)) or [self._workers.wait_for_one()]
        parts = assign(self._loads, len(addresses), [task.part.n_rows for task in self._tasks])
        members = addresses[: len(parts)]
        run = unique("tabgpu-run")
        rows, job = self._workers.parcel_of_rows(self._rows), self._workers.parcel_of(self._job, self._rows)
        packed = [wire.pack([self._tasks[i] for i in of_one]) for of_one in parts]
        importing = replace(self._patience, silent_s=self._patience.import_s)
        self._watch = Watch(self._workers, run, members, importing, self._round())
        self._wait(self._on_all([(member.ready, ())] * len(members)))
        self._watch = Watch(self._workers, run, members, self._patience, self._round())
        futures = self._on_all([(member.make, (run, rows, job, tasks)) for tasks in packed])
        self._wait(futures)
        answers = [wire.unpack(self._workers.answer(future)) for future in futures]
        used = [sum(one.rows.values()) for one in answers]
        return _Shares(run, members, [len(of_one) for of_one in parts], job, BlocksFound.merge_all(answers, None), used)

    def _on_all(self, calls: Sequence[Call]) -> list[Future]:
        """Have each member called, by rank."""
        assert self._watch is not None, "shares have been made"
        self._flying = {}
        for address, (function, args) in zip(self._watch.members, calls, strict=True):
            name = unique(f"tabgpu-{function.__name__}")
            self._flying[address] = self._workers.submit(function, *args, name=name, on=address, strict=True)
        return list(self._flying.values())

    def _wait(self, futures: Sequence[Future], told: _Told | None = None) -> None:
        """Wait for tasks that need all members."""
        assert self._watch is not None, "shares have been made"
        hears = told or _Told(Hooks())
        self._watch.until_done(futures, hears.hear, hears.wants_end)
        if told is not None:
            self._watch.ask_last(told.hear)

    def _fit(self, options: ModelOptions, told: _Told) -> Trained:
        shares = self._held()
        chosen = None
        if options.cuts == "own":
            shares.chosen = chosen = shares.chosen or self._choose(shares, options.spec.max_bin)
            options = with_intercept(options, shares.found.labels)
        parcel = self._workers.parcel(member.describe(options, chosen, told.checkpoint))
        self._tracker = tracker = Tracker(self._workers, len(shares.members)).start()
        ranks = range(len(shares.members))
        futures = self._on_all([(member.fit, (shares.run, r, tracker.arguments(r), parcel)) for r in ranks])
        self._wait(futures, told)
        self._stop_tracker()
        answers = [self._workers.answer(future) for future in futures]
        shares.facts = [answer["facts"] for answer in answers]
        model, best, rounds, history, finished = wire.unpack(answers[0]["trained"])
        return Trained(model.tobytes(), best, rounds, history, finished)

    def _choose(self, shares: _Shares, max_bin: int) -> bytes | None:
        """Own cuts, from the sample of all workers, which is merged on them."""
        samples = self._on_all([(member.sample, (shares.run,))] * len(shares.members))
        self._wait(samples)
        few = self._merge(samples, member.merge_samples, shares.job)
        chosen = self._workers.submit(member.choose, shares.job, max_bin, *few, name=unique("tabgpu-choose"))
        self._wait([chosen])
        blob: bytes = self._workers.answer(chosen)
        return blob or None

    def _evaluate(self, task: Learned) -> dict[str, dict[str, float | None]]:
        lost = self._shares is None
        shares = self._held()
        if lost and self._trained is not None:  # no round is left to be made: they get the model that there is
            options, checkpoint = self._trained
            self._fit(options, _Told(Hooks(resume=checkpoint)))
        states = self._on_all([(member.observe, (shares.run, task))] * len(shares.members))
        self._wait(states)
        few = self._merge(states, scores.merge_states)
        finished = self._workers.submit(scores.scores, *few, name=unique("tabgpu-scores"))
        self._wait([finished])
        values: dict[str, dict[str, float | None]] = self._workers.answer(finished)
        return values

    def _merge(self, states: list[Future], function: Callable[..., Any], *args: Future) -> list[Future]:
        """States of all members, merged on the workers as a tree until they are few."""
        while len(states) > AT_ONCE:
            states = [
                self._workers.submit(function, *args, *states[i : i + AT_ONCE], name=unique("tabgpu-merge"))
                for i in range(0, len(states), AT_ONCE)
            ]
        return states


class _Told:
    """What the client was told of a training, over all its losses.

    Attributes
    ----------
    checkpoint : Checkpoint, optional
        The last one: where to go on.
    """

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self.checkpoint = hooks.resume

    def hear(self, pulse: Pulse) -> None:
        """Pass on what rank 0 tells."""
        for rounds, values in pulse["news"]:
            if self._hooks.on_round is not None:
                self._hooks.on_round(rounds, values)
        if pulse["checkpoint"] is not None:
            checkpoint: Checkpoint = wire.unpack(pulse["checkpoint"][1])
            self.checkpoint = checkpoint
            if self._hooks.checkpoint is not None:
                self._hooks.checkpoint(checkpoint)

    def wants_end(self) -> bool:
        """Whether the caller wants an end."""
        return self._hooks.should_stop is not None and self._hooks.should_stop()
