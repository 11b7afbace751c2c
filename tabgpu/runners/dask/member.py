"""What a worker does in a training: it holds a share of the rows, and trains on it with the others.

The functions here are what Dask is asked to call: `ready`, `make`, `fit` and `observe` as tasks, one at a time;
`pulse` and `close` beside them, on the worker's event loop. A worker holds one share; it is freed when it is closed, or
when the next one is made, whatever became of the client. Blocks and matrices never leave their worker; the sample that
cuts are made of and the states of metrics go from worker to worker, and the model comes from rank 0.
"""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from xgboost import collective, config_context
from xgboost.core import _LIB, XGBoostError

from ... import wire
from ...cache import Block, Blocks
from ...columns import Chunk
from ...data.rows import Rows, Task
from ...data.splits import SIDES
from ...features.statistics import SampleResult
from ...train import cuts, metrics
from ...train.booster import Checkpoint
from ...train.run import Hooks, ModelOptions
from ...train.share import BlockJob, BlocksFound, Share
from . import scores, work
from .work import Parcel

_ALONE_S = 600.0  # a worker that no client has asked for so long ends the training at the next round
_COLLECTIVE = re.compile(r"[Aa]ll(reduce|gather)|[Bb]roadcast|[Ss]ocket|[Tt]racker|collective|[Nn]ccl|NCCL|comm\.")

_RANK = b" got rank "
_CALLBACKS: list[Any] = []  # has to live as long as the process
_HELD: dict[str, Member] = {}  # at most one; a run's name -> its share here


class PeerError(Exception):
    """Another worker of the training is gone, or does not answer."""


class Member:
    """The share of this worker, and how far it is.

    Parameters
    ----------
    rows, job, tasks
        What the share is made of.

    Attributes
    ----------
    stage : str
        What it does.
    chunks, rounds : int
        How far it is.
    news : list of (int, dict)
        Metrics of each round; on rank 0.
    checkpoint : tuple of (int, bytes), optional
        The last one, packed; on rank 0.
    stop : bool
        Whether the client wants an end.
    """

    def __init__(self, rows: Rows, job: BlockJob, tasks: Sequence[Task]) -> None:
        Path(job.directory).mkdir(parents=True, exist_ok=True)
        self.share = _CountedShare(rows, job, tasks)
        self.stage, self.rounds = "blocks", 0
        self.news: list[tuple[int, Any]] = []
        self.checkpoint: tuple[int, bytes] | None = None
        self.sampled: SampleResult | None = None
        self.stop, self.closing = False, False
        self.heard = time.monotonic()
        self.facts: dict[str, float] = {}
        self._tells = False
        self._began = (time.monotonic(), time.process_time())

        self.release = rows.engine.release

    @property
    def chunks(self) -> int:
        """Chunks of rows that were read."""
        return self.share.chunks

    def hooks(self, rank: int, resume: Checkpoint | None) -> Hooks:
        """What the round loop tells and asks on this rank."""
        self.news, self.checkpoint = [], None
        self.rounds = resume.rounds if resume else 0
        self._began = (time.monotonic(), time.process_time())
        self._tells = rank == 0
        return Hooks(resume, self._keep if self._tells else None, self._count_round, self._is_over)

    def _keep(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = (checkpoint.rounds, wire.pack(checkpoint))

    def _count_round(self, rounds: int, values: Any) -> None:
        if self.stage == "matrix":
            self.note("matrix")
            self.stage = "rounds"
        self.rounds = rounds
        if self._tells:
            self.news.append((rounds, values))

    def _is_over(self) -> bool:
        """Whether to end: all ranks have to do so after the same round, so they ask one another."""
        alone = time.monotonic() - self.heard > _ALONE_S
        wants = np.array([self.stop or self.closing or alone], np.int32)
        return bool(collective.allreduce(wants, collective.Op.MAX)[0])

    def note(self, stage: str) -> None:
        """Keep the seconds that a stage took, and those in which this process computed, all threads together."""
        now = (time.monotonic(), time.process_time())
        self.facts[f"{stage}_s"] = now[0] - self._began[0]
        self.facts[f"{stage}_cpu_s"] = now[1] - self._began[1]
        self._began = now


class _CountedShare(Share):
    """A share that may be without rows on a side, and tells how far it is: `chunks` is how many were read."""

    def __init__(self, rows: Rows, job: BlockJob, tasks: Sequence[Task]) -> None:
        super().__init__(rows, job, tasks)
        self.chunks = 0

    def make_blocks(self) -> BlocksFound:
        """See `Share.make_blocks`."""
        found = super().make_blocks()
        for side in SIDES[:2]:  # those that a matrix is built of
            if side in self._blocks and not self._blocks[side].n_rows:
                self._blocks[side] = _NoRows(self._blocks[side])
        return found

    def _transformed(self) -> Iterator[tuple[str, Chunk, Block]]:
        for found in super()._transformed():
            self.chunks += 1
            yield found


class _NoRows(Blocks):
    """Blocks of a side of which this worker has no row: one without rows, since XGBoost wants to see a batch."""

    def __init__(self, empty: Blocks) -> None:
        super().__init__(empty.columns, empty.block_rows, empty.has_weight, False, empty._store)

    def __iter__(self) -> Iterator[Block]:
        none = np.zeros(0, np.float32)
        yield Block(np.zeros((0, self.n_features), np.float32), none, none if self.has_weight else None)


def ready() -> None:
    """Nothing; to call it imports all that a training needs, which may hold the interpreter for many seconds."""


def make(run: str, rows: Parcel, job: Parcel, tasks: bytes) -> bytes:
    """Make the blocks of some tasks and hold them; says what was found, without the sample.

    Returns
    -------
    bytes
        Packed: `BlocksFound`.
    """
    _free_all()
    opened = work.rows_of(rows)
    member = Member(opened, work.job_of(job, opened), wire.unpack(tasks))
    _HELD[run] = member
    found = member.share.make_blocks()
    member.sampled = found.sampled
    member.note("blocks")
    member.stage = "ready"
    return wire.pack(replace(found, sampled=None))


def sample(run: str) -> bytes:
    """The rows of this worker that own cuts are made of, packed; empty where there are none."""
    member = _HELD[run]
    sampled, member.sampled = member.sampled, None
    return b"" if sampled is None else wire.pack(sampled)


def merge_samples(job: Parcel, *blobs: bytes) -> bytes:
    """The sample of several workers together."""
    described: BlockJob = work.job_of(job, None)
    some = [wire.unpack(blob) for blob in blobs if blob]
    assert described.sample is not None, "only a sample makes states"
    return wire.pack(described.sample.merge_all(some, {})) if some else b""


def choose(job: Parcel, max_bin: int, *blobs: bytes) -> bytes:
    """Own cuts from the samples of all workers, packed; empty where there is none."""
    blob = merge_samples(job, *blobs)
    return wire.pack(cuts.choose(wire.unpack(blob).rows, max_bin)) if blob else b""


def fit(run: str, rank: int, communicator: dict[str, Any], parcel: Parcel) -> dict[str, Any]:
    """Train on the share of this worker, with all others.

    Parameters
    ----------
    run : str
        As given to `make`.
    rank : int
        Of this worker.
    communicator : dict
        Where the others are: `tracker.Tracker.arguments`.
    parcel : Parcel
        Options, cuts and checkpoint, as `describe` packed them.

    Returns
    -------
    dict
        `facts`: seconds and rounds. `trained` on rank 0: the packed model.

    Raises
    ------
    PeerError
        If another worker is gone.
    """
    member = _HELD[run]
    options, chosen, resume = _described(parcel)
    member.stage, member.stop, member.heard = "matrix", False, time.monotonic()
    _quieten()
    try:
        # what a parameter says of verbosity would hold for the process
        with config_context(verbosity=0), _peers(), collective.CommunicatorContext(**communicator):
            if collective.get_rank() != rank:
                raise PeerError(f"rank {rank} was given rank {collective.get_rank()}")
            done = member.share.fit(options, chosen, member.hooks(rank, resume))
        member.note("rounds")
    finally:
        member.stage = "ready"
        if member.closing:
            _free_all()
    member.facts["rounds"] = done.rounds - (resume.rounds if resume else 0)
    model = np.frombuffer(done.model, np.uint8)
    packed = wire.pack((model, done.best_iteration, done.rounds, done.history, done.finished))
    return {"facts": dict(member.facts), "trained": packed if rank == 0 else None}


def _quieten() -> None:
    """Keep XGBoost from printing the rank of this worker on standard output, which may be that of ``run --json``.

    No verbosity keeps it from that. Its messages go through one callback, to which all others are passed on.
    """
    if _CALLBACKS:
        return
    passed_on = _LIB.callback

    def tell(message: bytes) -> None:
        if _RANK not in message:
            passed_on(message)

    _CALLBACKS.append(ctypes.CFUNCTYPE(None, ctypes.c_char_p)(tell))
    _LIB.XGBRegisterLogCallback(_CALLBACKS[0])


@contextmanager
def _peers() -> Iterator[None]:
    """What XGBoost says of a broken connection, as a parameter's or the label's fault or as it is, is a `PeerError`."""
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, XGBoostError) and _COLLECTIVE.search(str(cause)):
                raise PeerError(str(cause).split("\nStack trace")[0][-600:]) from None
            cause = cause.__cause__
        raise


def describe(options: ModelOptions, chosen: bytes | None, resume: Checkpoint | None) -> bytes:
    """Pack what `fit` is given on every worker."""
    return wire.pack((options, wire.unpack(chosen) if chosen else None, resume))


def _described(parcel: Parcel) -> tuple[ModelOptions, np.ndarray | None, Checkpoint | None]:
    options, chosen, resume = parcel.open(wire.unpack)
    spec = replace(options.spec, params={"nthread": work.threads(), **options.spec.params})
    return replace(options, spec=spec), chosen, resume


def observe(run: str, task: metrics.Task) -> scores.Packed:
    """States of the metrics of every side."""
    member = _HELD[run]
    found = scores.pack(member.share.observe(task))
    member.release()
    return found


def pulse(run: str, told: int, stop: bool) -> dict[str, Any]:
    """Say how far this worker is; it costs the training nothing.

    Parameters
    ----------
    run : str
        As given to `make`.
    told : int
        Rounds that the client knows of.
    stop : bool
        Whether to end after the next round.

    Returns
    -------
    dict
        `stage`, `chunks`, `rounds`; `cpu_s` of the process; on rank 0 `news` of the rounds after `told`, and
        `checkpoint`, (rounds, packed) or None, if it is newer.
    """
    member = _HELD.get(run)
    if member is None:
        return {"stage": "none", "chunks": 0, "rounds": 0, "cpu_s": time.process_time(), "news": [], "checkpoint": None}
    member.heard = time.monotonic()
    member.stop |= stop
    news = [(rounds, values) for rounds, values in member.news if rounds > told]
    member.news = news
    kept, member.checkpoint = member.checkpoint, None
    return {
        "stage": member.stage,
        "chunks": member.chunks,
        "rounds": member.rounds,
        "cpu_s": time.process_time(),
        "news": news,
        "checkpoint": kept,
    }


def close(run: str) -> None:
    """Free the share; one that is being trained on ends with the next round."""
    member = _HELD.get(run)
    if member is None:
        return
    member.closing = True
    if member.stage == "ready":
        _free_all()


def _free_all() -> None:
    while _HELD:
        _HELD.popitem()[1].share.close()
