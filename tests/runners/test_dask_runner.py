"""Law 1 over runners, with real processes: states, order of answers, errors, and workers that die."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from dask_processes import bound
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tables import visits, write_parts

pytest.importorskip("distributed", reason="the extra 'cluster' is not installed")

from dask_jobs import CountJob, Say

from tabgpu import wire
from tabgpu.config import Cluster
from tabgpu.design import design
from tabgpu.errors import ConfigError, DataError
from tabgpu.fit import Fitter
from tabgpu.frames import is_dask_frame
from tabgpu.runners import SerialRunner
from tabgpu.runners.dask import DaskRunner
from tabgpu.runners.dask.frames import write_frame
from tabgpu.stages import take_survey

pytestmark = pytest.mark.filterwarnings("default")  # of libraries that close sockets late


@pytest.fixture(scope="module")
def dask() -> Iterator[DaskRunner]:
    with DaskRunner(Cluster(workers=2, timeout=60)) as runner:
        yield runner


def learned(a: Any, runner: Any, chunk_rows: int) -> bytes:
    """All that the survey and the steps learn, packed."""
    a, found, grid = take_survey(replace(a, place=replace(a.place, runner=runner)), chunk_rows)
    fitted = Fitter(runner, a.rows, a.use, a.tasks, chunk_rows).fit_steps(design(a, grid).passes, lambda message: None)
    return wire.pack((found.rows, found.without_target, found.results, sorted(found.tasks.items()), fitted))


@given(
    sizes=st.lists(st.integers(1, 120), min_size=1, max_size=20),
    chunk_rows=st.integers(30, 200),
    seed=st.integers(0, 9),
)
@example(sizes=[10] * 40, chunk_rows=100, seed=0)  # states of eight tasks, and of one, on each worker
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_learned_is_the_serial_runners_to_the_bit(
    dask: DaskRunner, tmp_path_factory: pytest.TempPathFactory, sizes: list[int], chunk_rows: int, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("split")
    source = write_parts(visits(sum(sizes) + 200, seed), folder / "in", [200, *sizes], 50)
    a = bound(source, folder)
    assert learned(a, dask, chunk_rows) == learned(a, SerialRunner(), 100)


def test_nothing_is_learned_from_no_task(dask: DaskRunner, small: Any) -> None:
    assert dask.reduce(small.a.rows, CountJob(), []) is None
    assert list(dask.each(small.a.rows, Say("square"), [])) == []


def test_answers_come_in_order_and_few_are_ahead(dask: DaskRunner, small: Any, tmp_path: Path) -> None:
    assert list(dask.each(small.a.rows, Say("square", pause_s=0.01), range(25))) == [n * n for n in range(25)]
    answers = dask.each(small.a.rows, Say("square", str(tmp_path), 0.05), range(100))
    assert [next(answers), next(answers)] == [0, 1]
    answers.close()  # type: ignore[attr-defined]  # a generator
    time.sleep(0.3)
    assert 2 <= len(list(tmp_path.iterdir())) <= 14


def test_workers_have_the_threads_they_were_given(dask: DaskRunner, small: Any) -> None:
    answers = list(dask.each(small.a.rows, Say("threads", pause_s=0.05), range(12)))
    assert {(a["arrow"], a["omp"]) for a in answers} == {(1, "1")}
    assert len({a["pid"] for a in answers}) == 2


def test_what_a_task_raises_is_raised_here(dask: DaskRunner, small: Any) -> None:
    with pytest.raises(DataError) as rotten:
        list(dask.each(small.a.rows, Say("data error"), range(9)))
    assert str(rotten.value) == "The part is rotten. Expected a fresh one. Wash it."
    with pytest.raises(ZeroDivisionError, match="a bug on a worker") as bug:
        list(dask.each(small.a.rows, Say("bug"), [7]))
    shown = "".join(traceback.format_exception(bug.value))
    assert "dask_jobs.py" in shown
    assert "on worker tcp://" in shown
    assert "with 7" in shown


def test_work_that_nobody_waits_for_ends_at_the_next_chunk(dask: DaskRunner, small: Any) -> None:
    slow = CountJob(chunk_rows=2, pause_s=0.1)  # two seconds a part
    began = time.monotonic()
    _interrupt_after(1.0)
    with pytest.raises(KeyboardInterrupt):
        dask.reduce(small.a.rows, slow, small.a.tasks)
    assert time.monotonic() - began < 1.8
    began = time.monotonic()
    dask.reduce(small.a.rows, CountJob(), small.a.tasks)
    assert time.monotonic() - began < 1.0


def _interrupt_after(seconds: float) -> None:
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()


def test_a_worker_that_is_killed_costs_its_tasks_alone(dask: DaskRunner, small: Any, tmp_path: Path) -> None:
    expected = SerialRunner().reduce(small.a.rows, CountJob(), small.a.tasks)
    job = CountJob(deadly="09.parquet", marks=str(tmp_path))
    assert dask.reduce(small.a.rows, job, small.a.tasks) == expected
    assert (tmp_path / "killed").exists()


def test_a_part_that_ends_its_workers_is_named(dask: DaskRunner, small: Any) -> None:
    with pytest.raises(DataError, match=r"04.parquet, row group\S* .* ends the worker .*: [34] were lost"):
        dask.reduce(small.a.rows, CountJob(deadly="04.parquet"), small.a.tasks)
    assert dask.reduce(small.a.rows, CountJob(), small.a.tasks) is not None  # workers come back


def test_a_worker_that_dask_gives_up_is_replaced(dask: DaskRunner, small: Any) -> None:
    """It gives up one that dies just when it has started; what watches over it has then ended."""
    running = dask.on.client.cluster
    watching = next(iter(running.workers.values()))
    running.sync(watching.close)
    deadline = time.monotonic() + 30
    while len(dask.on.addresses(fresh=True)) < 2 and time.monotonic() < deadline:
        time.sleep(0.2)
    assert len(dask.on.addresses()) == 2
    assert dask.reduce(small.a.rows, CountJob(), small.a.tasks) is not None


def test_the_environment_of_this_process_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    with DaskRunner(Cluster(workers=1, timeout=60)) as one:
        assert len(one.facts) == 1
    assert (os.environ["OMP_NUM_THREADS"], os.environ.get("OPENBLAS_NUM_THREADS")) == ("7", None)


def test_a_dask_data_frame_becomes_files(dask: DaskRunner, tmp_path: Path) -> None:
    frames = pytest.importorskip("dask.dataframe", reason="dask.dataframe is not installed")
    table = visits(1_000)
    frame = frames.from_pandas(table.to_pandas(), npartitions=7)
    assert is_dask_frame(frame)
    assert not is_dask_frame(table.to_pandas())
    source = write_frame(dask.on, frame, tmp_path / "in")
    assert [p.name for p in sorted(source.iterdir())] == [f"part.0000{n}.parquet" for n in range(7)]
    written = pq.read_table(source)
    assert written.column_names == table.column_names
    assert written["id"].to_pylist() == table["id"].to_pylist()
    a = bound(source, tmp_path)
    assert learned(a, dask, 100) == learned(a, SerialRunner(), 100)
    with pytest.raises(ConfigError, match="is not empty"):
        write_frame(dask.on, frame, source)
    with pytest.raises(DataError, match="has no row"):
        write_frame(dask.on, frame[frame["id"] < 0], tmp_path / "none")
