"""Who gets which task, and who is to blame when workers die: with workers that are made up."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("distributed", reason="the extra 'cluster' is not installed")

from distributed import KilledWorker

from tabgpu.errors import DataError
from tabgpu.runners.dask.flow import Flow


@dataclass(eq=False)
class MadeUpFuture:
    index: int
    worker: str
    error: Exception | None = None

    @property
    def status(self) -> str:
        return "error" if self.error else "finished"

    def exception(self) -> Exception | None:
        return self.error

    def cancel(self) -> None:
        """Nothing runs."""


@dataclass
class MadeUpWorkers:
    """Finish whatever a seed says next; give `accused` tasks up at first; end when they have a `deadly` one alone."""

    names: list[str]
    order: Any  # None: the newest first
    accused: set[int] = field(default_factory=set)
    deadly: set[int] = field(default_factory=set)
    most: Counter[str] = field(default_factory=Counter)
    flying: list[MadeUpFuture] = field(default_factory=list)
    sent: int = 0

    def submit(self, index: int, on: str, strict: bool) -> MadeUpFuture:
        given_up = index in self.accused | self.deadly and not strict
        future = MadeUpFuture(index, on, KilledWorker("task", None, 2) if given_up else None)
        self.flying.append(future)
        self.sent = max(self.sent, index)
        busy = Counter(f.worker for f in self.flying)
        self.most |= busy
        if strict:
            assert len(self.flying) == 1
        return future

    def addresses(self, fresh: bool = False) -> dict[str, int]:
        alone = len(self.flying) == 1 and self.flying[0].index in self.deadly and self.flying[0].error is None
        return {name: 1 for name in self.names if not (alone and name == self.flying[0].worker)}

    def wait_for_one(self) -> str:
        return self.names[-1]

    def first_done(self, futures: list[MadeUpFuture]) -> list[MadeUpFuture]:
        done = futures[self.order.randrange(len(futures)) if self.order else -1]
        self.flying.remove(done)
        return [done]

    def done_within(self, futures: list[MadeUpFuture], seconds: float) -> list[MadeUpFuture]:
        return [] if futures[0].index in self.deadly else self.first_done(futures)


@given(
    n=st.integers(0, 40),
    n_workers=st.integers(1, 5),
    accused=st.just(set()) | st.sets(st.integers(0, 39)),
    order=st.none() | st.randoms(),
)
@settings(max_examples=50, deadline=None)
def test_every_task_is_done_once_and_few_wait_at_a_worker(
    n: int, n_workers: int, accused: set[int], order: Any
) -> None:
    workers = MadeUpWorkers([f"w{i}" for i in range(n_workers)], order, accused)
    for ordered in (False, True):
        flow = Flow(workers, n, workers.submit, str, ordered)  # type: ignore[arg-type]  # made up
        done = []
        for future, worker in flow.done():
            done.append(future.index)  # type: ignore[attr-defined]  # made up
            assert future.worker == worker  # type: ignore[attr-defined]  # made up
            if ordered and not accused:
                assert workers.sent <= len(done) + 4 * n_workers
        assert done == list(range(n)) if ordered else sorted(done) == list(range(n))
        assert max(workers.most.values(), default=0) <= 2
        workers.sent = 0


@given(n=st.integers(1, 12), data=st.data(), order=st.randoms())
@settings(max_examples=30, deadline=None)
def test_the_deadly_one_alone_is_blamed(n: int, data: Any, order: Any) -> None:
    deadly = data.draw(st.integers(0, n - 1))
    accused = data.draw(st.sets(st.integers(0, n - 1)))
    workers = MadeUpWorkers(["a", "b"], order, accused - {deadly}, {deadly})
    flow = Flow(workers, n, workers.submit, lambda index: f"part {index}")  # type: ignore[arg-type]  # made up
    with pytest.raises(DataError, match=rf"^part {deadly} ends the worker .*: 4 were lost"):
        list(flow.done())
