"""The runner that does all work on the workers of a cluster, and hands states from worker to worker.

Each part goes to a worker that is free, which merges the states of its chunks; eight states of one worker are merged
there, and so on up; what each worker has in the end is merged across workers, eight at a time. One state comes back.
States do not depend on order, so that it is the serial runner's to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar
from weakref import WeakSet, finalize

from distributed import Client, Future, KilledWorker

from ... import wire
from ...config import Cluster
from ...data.rows import Rows, Task
from ...engine.memory import MemorySettings
from ...errors import ResourceError
from ...files import File
from ...merging import MergeTree, merge_tree
from ..protocol import Group, Job, Work
from . import work
from .checks import Facts, check_files
from .cluster import Engine, connected, count_workers
from .flow import Flow
from .workers import Workers, unique

if TYPE_CHECKING:
    from ...train.share import BlockJob

S = TypeVar("S")


class DaskRunner:
    """Runs on workers, which are started or attached to when it is entered: see `cluster.connected`.

    Parameters
    ----------
    cluster : Cluster, optional
        As in the pipeline file; None beside `client`.
    engine : {'cpu', 'gpu'}
        Which kind of worker to start.
    options : mapping of str to object, optional
        Keywords of `LocalCluster` or `LocalCUDACluster`, for workers that are started.
    client : distributed.Client, optional
        The caller's, which stays open.
    """

    name = "dask"

    def __init__(
        self,
        cluster: Cluster | None,
        engine: Engine = "cpu",
        options: Mapping[str, object] | None = None,
        client: Client | None = None,
    ) -> None:
        self._how = cluster, engine, options, client
        self._opened: tuple[Workers, dict[str, Facts]] | None = None
        self.workers = count_workers(cluster, client)  # how many there will be
        self._close: Callable[[], object] = _nothing

    @property
    def on(self) -> Workers:
        """The workers, once they are there."""
        assert self._opened is not None, "a runner is used within its with block"
        return self._opened[0]

    @property
    def facts(self) -> Mapping[str, Facts]:
        """What each worker says of itself, by address."""
        assert self._opened is not None, "a runner is used within its with block"
        return self._opened[1]

    def __enter__(self) -> Self:
        stack = ExitStack()
        self._opened = stack.enter_context(connected(*self._how))
        self.workers = len(self._opened[1])
        self._close = finalize(self, stack.close)  # at the end of the program at the latest
        return self

    def __exit__(self, *reason: object) -> None:
        if self._opened:
            self.on.forget()
        self._opened = None
        close, self._close = self._close, _nothing
        close()

    def at_most(self, workers: int) -> None:
        """Start no more workers than have something to do; those that stand are left alone."""
        cluster, engine, options, client = self._how
        if client is None and cluster is not None and cluster.workers and workers < cluster.workers:
            cluster = cluster.model_copy(update={"workers": workers})
            self._how = cluster, engine, {**(options or {}), "n_workers": workers}, client
            self.workers = workers

    def set_up(self, memory: MemorySettings) -> None:
        """From now on, every worker sets up the memory of its device like this before it works."""
        self.on.memory = memory

    def check_files(self, files: Sequence[File], output: Path) -> None:
        """Make sure that all workers see the same input, and write where this process reads: see `checks`."""
        check_files(self.on, files, output)

    def reduce(self, rows: Rows, job: Job[S], tasks: Sequence[Task]) -> S | None:
        """See `Runner.reduce`."""
        with self.on.scope() as made:
            merging = _Merging(self.on, self.on.parcel_of_rows(rows), self.on.parcel_of(job, rows), made)
            packed = [wire.pack(task) for task in tasks]

            def observe(index: int, on: str, strict: bool) -> Future:
                parcels = merging.rows, merging.job
                return merging.submit(work.observe, *parcels, packed[index], on=on, strict=strict)

            flow = Flow(self.on, len(tasks), observe, lambda index: work.name_of(tasks[index]))
            for future, worker in flow.done():
                merging.add(future, worker)
            blob = merging.finish()
        state: S | None = wire.unpack(blob, rows.engine.to_device) if blob else None
        return state

    def each(self, rows: Rows, work_: Work[Any, S], tasks: Sequence[Any]) -> Iterator[S]:
        """See `Runner.each`."""
        with self.on.scope() as made:
            parcels = self.on.parcel_of_rows(rows), self.on.parcel_of(work_, rows)

            def do(index: int, on: str, strict: bool) -> Future:
                task = wire.pack(tasks[index])
                future = self.on.submit(work.do, *parcels, task, name=unique("tabgpu-do"), on=on, strict=strict)
                made.add(future)
                return future

            flow = Flow(self.on, len(tasks), do, lambda index: work.name_of(tasks[index]), ordered=True)
            for future, _ in flow.done():
                yield wire.unpack(self.on.answer(future))

    def group(
        self, rows: Rows, job: BlockJob, tasks: Sequence[Task], loads: Sequence[int]
    ) -> AbstractContextManager[Group]:
        """See `Runner.group`."""
        from .training import DaskGroup

        group: AbstractContextManager[Group] = DaskGroup(self.on, rows, job, tasks, loads)
        return group


def _nothing() -> None:
    """Nothing was started."""


class _Merging:
    """States on their workers, merged where they are as they come: see `tabgpu.merging.merge_tree`."""

    def __init__(self, workers: Workers, rows: Future, job: Future, made: WeakSet[Future]) -> None:
        self.rows, self.job = rows, job
        self._workers, self._made = workers, made
        self._trees: dict[str, MergeTree[Future]] = {}  # by worker

    def submit(self, function: Callable[..., bytes], *args: Any, on: str | None, strict: bool = False) -> Future:
        """Send one task, to be cancelled if anything goes wrong."""
        name = unique(f"tabgpu-{function.__name__}")
        future = self._workers.submit(function, *args, name=name, on=on, strict=strict)
        self._made.add(future)
        return future

    def add(self, future: Future, worker: str) -> None:
        """A task is done on a worker."""
        if worker not in self._trees:
            self._trees[worker] = MergeTree(partial(self._merge, worker))
        self._trees[worker].add(future)

    def finish(self) -> bytes:
        """The state of all tasks; empty if there was none."""
        rests = (rest for tree in self._trees.values() if (rest := tree.finish()) is not None)
        whole = merge_tree(rests, partial(self._merge, None))
        self._trees.clear()
        if whole is None:
            return b""
        try:
            state: bytes = self._workers.answer(whole)
        except KilledWorker as error:
            raise ResourceError(
                f"{error.allowed_failures + 1} workers were lost while they merged what parts had given",
                "Expected the states of a pass to fit into the memory of a worker",
                "Give workers more memory (memory.limit), or encode fewer levels (min_count, hash) in features",
            ) from error
        return state

    def _merge(self, worker: str | None, futures: Sequence[Future]) -> Future:
        if len(futures) == 1:
            return futures[0]
        return self.submit(work.merge, self.rows, self.job, *futures, on=worker)
