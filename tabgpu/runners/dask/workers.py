"""The workers behind a Dask client: who is there, what they are asked to do, and what it means when no answer comes.

Futures are waited for with a pulse: the scheduler is asked whether it lives and who its workers are, so that a lost
scheduler, or a cluster without workers, becomes a `ClusterError` and not a wait without end. What a task raised on a
worker is raised here as it is.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from typing import Any
from uuid import uuid4
from weakref import WeakSet

import dask
from distributed import Client, Future, wait

from ... import wire
from ...data.rows import Rows
from ...engine.memory import MemorySettings
from ...errors import ClusterError
from ...files import first_line
from ...units import format_seconds
from . import work

_PULSE_S = 5.0  # without news, ask the scheduler
_ANSWER_S = 30.0  # a scheduler that takes longer is lost: with the pulse, noticed within 60 s
_FRESH_S = 2.0  # how long what is known of the workers is taken to be true
_TRANSFER_S = 600.0  # one state, however large
_NO_WARNING = {"distributed.admin.large-graph-warning-threshold": "1TB"}
_KEPT_ROWS = 4  # descriptions of rows that workers keep


class Workers:
    """The workers of a cluster.

    Parameters
    ----------
    client : distributed.Client
        Connected; it belongs to the caller.
    patience_s : float
        Seconds for which a cluster may be without any worker.
    engine : str
        Name of the engine that they work on.
    revive : callable, optional
        Starts workers again that are gone for good, where that is for us to do.
    """

    def __init__(
        self,
        client: Client,
        patience_s: float = 60.0,
        engine: str = "cpu",
        revive: Callable[[], None] | None = None,
    ) -> None:
        self.client, self._patience_s, self._engine, self._revive = client, patience_s, engine, revive
        self.memory: MemorySettings | None = None  # how each sets up the memory of its device
        self._known: dict[str, int] = {}
        self._asked = self._seen = float("-inf")
        self._most = 0  # workers that there ever were
        self._kept: OrderedDict[str, Future] = OrderedDict()

    def addresses(self, fresh: bool = False) -> dict[str, int]:
        """Threads of each worker by its address, in order of addresses; what was true a moment ago unless `fresh`.

        Raises
        ------
        ClusterError
            If the scheduler does not answer, or had no worker for too long.
        """
        now = time.monotonic()
        if fresh or now - self._asked > _FRESH_S:
            with self._unless_lost("asking for its workers"):
                found = self.client.sync(self.client.scheduler.ncores, callback_timeout=_ANSWER_S)
            self._known, self._asked = dict(sorted(found.items())), time.monotonic()
            if found or self._seen == float("-inf"):
                self._seen = self._asked
            self._most = max(self._most, len(found))
            if self._revive is not None and len(found) < self._most:
                self._revive()
        if not self._known and now - self._seen > self._patience_s:
            raise ClusterError(
                f"The cluster has had no worker for {format_seconds(now - self._seen)}",
                "Expected workers to come back",
                "Look at the workers' logs, then run again",
            )
        return self._known

    def wait_for_one(self) -> str:
        """Address of a worker, as soon as there is one."""
        while not (known := self.addresses(fresh=True)):
            time.sleep(0.2)
        return next(iter(known))

    def ask(self, function: Callable[..., Any], *args: Any, workers: Sequence[str] | None = None) -> dict[str, Any]:
        """Call a function on every worker, beside its tasks; what it raises there is returned, not raised."""
        with self._unless_lost(f"calling {function.__name__} on every worker"):
            answers: dict[str, Any] = self.client.sync(  # within the client's own loop `run` is a coroutine
                self.client.run,
                function,
                *args,
                workers=None if workers is None else list(workers),
                on_error="return",
                callback_timeout=self._patience_s,
            )
        return dict(sorted(answers.items()))

    def ask_scheduler(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function on the scheduler."""
        with self._unless_lost(f"calling {function.__name__} on the scheduler"):
            return self.client.sync(self.client.run_on_scheduler, function, *args, callback_timeout=_ANSWER_S)

    def submit(
        self, function: Callable[..., Any], *args: Any, name: str, on: str | None = None, strict: bool = False
    ) -> Future:
        """Have a function called on a worker.

        Parameters
        ----------
        function, args
            What to call; futures among `args` are passed as what they stand for.
        name : str
            Unique: Dask's key. What stands before its first digits names the kind of work on a dashboard.
        on : str, optional
            Worker that should do it.
        strict : bool
            Whether no other worker may, even if that one is lost.
        """
        # the warning about large graphs is for data; what is sent here are descriptions and what steps learned
        with (
            self._unless_lost("sending work"),
            dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TB"}),
        ):
            return self.client.submit(
                function,
                *args,
                key=name,
                pure=False,
                **({"workers": [on], "allow_other_workers": not strict} if on else {}),
            )

    def parcel(self, value: bytes, *modules: str, keep: bool = False) -> Future:
        """Send a packed value to the workers: once to one of them, which the others fetch it from.

        Parameters
        ----------
        value : bytes
            As `wire.pack` made it.
        modules : str
            Modules that define records in it, beside those of this package.
        keep : bool
            Whether it will be wanted again.
        """
        digest = hashlib.blake2b(value, digest_size=16).hexdigest()
        if digest in self._kept and self._kept[digest].status not in ("cancelled", "error", "lost"):
            self._kept.move_to_end(digest)
            return self._kept[digest]
        ours = [name for name in sys.modules if name.split(".")[0] == "tabgpu"]
        parcel = work.Parcel((*sorted(ours), *modules), value)
        future = self.submit(work.hold, parcel, name=unique("tabgpu-parcel"))
        if keep:
            self._kept[digest] = future
            while len(self._kept) > _KEPT_ROWS:
                self._kept.popitem(last=False)
        return future

    def parcel_of_rows(self, rows: Rows) -> Future:
        """Send the description of rows; see `parcel`."""
        return self.parcel(work.describe_rows(rows, self._engine, self.memory), keep=True)

    def parcel_of(self, job: Any, rows: Rows) -> Future:
        """Send a job: a record, whose arrays are where `rows` are; see `parcel`."""
        return self.parcel(wire.pack(job, rows.engine.to_host), type(job).__module__)

    def first_done(self, futures: Sequence[Future]) -> list[Future]:
        """Those that are done, as soon as one is; done means finished or failed.

        Raises
        ------
        ClusterError
            If the scheduler is lost, or all workers are.
        """
        while not (done := self.done_within(futures, _PULSE_S)):
            self.addresses(fresh=True)
        return done

    def done_within(self, futures: Sequence[Future], seconds: float) -> list[Future]:
        """Those that are done within so many seconds; empty if none is."""
        with self._unless_lost("waiting for workers"), self.client.as_current():
            try:
                found = wait(list(futures), timeout=seconds, return_when="FIRST_COMPLETED").done
            except TimeoutError:
                return []
        return [f for f in futures if f in found]

    def answer(self, future: Future) -> Any:
        """What a task returned; what it raised is raised, with the worker's part of the traceback."""
        self.first_done([future])
        if future.status == "error":
            with self._unless_lost("fetching an error"):
                error, trace = future.exception(), future.traceback()
            raise error.with_traceback(trace)
        with self._unless_lost("fetching an answer"):
            return future.result(timeout=_TRANSFER_S)

    @contextmanager
    def scope(self) -> Iterator[WeakSet[Future]]:
        """Futures added to the set are cancelled where the block is left by an exception, Ctrl-C included."""
        made: WeakSet[Future] = WeakSet()
        try:
            yield made
        except BaseException:
            with suppress(Exception):  # what ended the block says more than that the scheduler is gone
                self.client.cancel(list(made))
            raise

    @contextmanager
    def _unless_lost(self, doing: str) -> Iterator[None]:
        """Turn what Dask raises when the scheduler is gone into a ClusterError."""
        try:
            yield
        except (CancelledError, OSError, RuntimeError, AttributeError) as error:
            if isinstance(error, RuntimeError | AttributeError) and self.client.status == "running":
                raise  # else they tell of a client that has closed itself
            raise ClusterError(
                f"The cluster was lost while {doing}: {first_line(error)}",
                "Expected the scheduler to answer",
                "Look at the scheduler's log, then run again",
            ) from error

    def forget(self) -> None:
        """Let go of what workers were to keep."""
        self._kept.clear()


def unique(name: str) -> str:
    """A key that no other task has."""
    return f"{name}-{uuid4().hex}"
