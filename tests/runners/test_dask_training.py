"""Training on two real workers: the serial model to the bit, however rows are split and whatever is lost on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

distributed = pytest.importorskip("distributed", reason="needs the extra 'cluster'")
pytest.importorskip("xgboost.collective", reason="needs XGBoost")

from tables import visits, write_parts

from tabgpu.config import Cluster
from tabgpu.data.rows import Recipe, Rows, Task, Use
from tabgpu.data.splits import TimeSplit
from tabgpu.data.target import Target
from tabgpu.engine.cpu import CpuEngine
from tabgpu.errors import ClusterError
from tabgpu.features.passes import Passes
from tabgpu.features.statistics import Sample
from tabgpu.files import find, make_parts, read_footer
from tabgpu.runners.dask import DaskRunner
from tabgpu.runners.dask.loss import LostError, Patience
from tabgpu.runners.dask.training import DaskGroup
from tabgpu.runners.dask.workers import Workers
from tabgpu.schema import unify
from tabgpu.train.booster import Checkpoint, Trained
from tabgpu.train.run import Hooks, ModelOptions, TrainSpec
from tabgpu.train.share import Alone, BlockJob

pytestmark = pytest.mark.filterwarnings("default")  # of libraries that close sockets late

FEATURES = ("town", "shop", "age", "visits")
QUICK = Patience(pulse_s=0.2, silent_s=4, stuck_s=5, slow_s=30, settle_s=4)
LONG = 1_500
HERE = Path(__file__).resolve().parent


@dataclass
class Training:
    """A training, its parts in time order: the last file alone has validation and test rows."""

    rows: Rows
    job: BlockJob
    tasks: list[Task]
    loads: list[int]

    def options(self, rounds: int, **spec: Any) -> ModelOptions:
        """What to train."""
        spec = {"params": {"max_depth": 4}, "checkpoint_every": 200, **spec}
        return ModelOptions(TrainSpec("binary:logistic", rounds, **spec), "own", "in_core")

    def alone(self, options: ModelOptions, hooks: Hooks | None = None) -> tuple[Trained, Any]:
        """The serial runner's model and metrics."""
        with Alone(self.rows, self.job, self.tasks) as group:
            group.make_blocks()
            trained = group.fit(options, hooks or Hooks())
            return trained, group.evaluate("binary")


def training(folder: Path, sizes: list[int], kind: str = "memory") -> Training:
    """Small files, of which the last one holds validation and test rows."""
    table = visits(sum(sizes))
    source = write_parts(table, folder / "in", sizes, max(sizes))
    footers = [read_footer(f) for f in find(str(source), folder, "data.source")]
    target = Target("bought", "binary", pa.array([0, 1]))
    rows = Rows(CpuEngine(), Recipe(tuple(unify(footers, {}).columns.values())), target=target)
    times = np.sort(table["when"].cast(pa.int64()).to_numpy()) * 1000  # Parquet has no seconds
    n = len(times)
    use = Use(TimeSplit("when", int(times[n - sizes[-1] + 50]), int(times[n - 100])), target="bought")
    tasks = [Task(p) for p in make_parts(footers, 1)]
    passes = Passes((), rows.with_target(target))
    sample, sides = Sample(FEATURES, 300), ("train", "valid", "test")
    job = BlockJob(passes, {}, FEATURES, use, None, sample, sides, 500, 256, kind, str(folder / "cache"), {})
    (folder / "cache").mkdir(exist_ok=True)
    return Training(rows, job, tasks, [*sizes[:-1], 50])


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Training:
    return training(tmp_path_factory.mktemp("few"), [700, 300, 500, 400, 600])


@pytest.fixture(scope="module")
def long(few: Training) -> tuple[Trained, Any]:
    """What comes of rounds enough to be struck in, seconds of them."""
    return few.alone(few.options(LONG))


@pytest.fixture(scope="module")
def on() -> Iterator[Workers]:
    """Two workers."""
    with DaskRunner(Cluster(workers=2, timeout=60)) as runner:
        yield runner.on


@dataclass
class Seen:
    """What a client was told."""

    rounds: list[int] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    at_first: Callable[[], None] | None = None
    struck: float = 0.0

    def hooks(self, **others: Any) -> Hooks:
        """Hooks that note it, and do something once the first checkpoint is there."""
        return Hooks(checkpoint=self._keep, on_round=lambda n, values: self.rounds.append(n), **others)

    def _keep(self, checkpoint: Checkpoint) -> None:
        self.checkpoints.append(checkpoint)
        act, self.at_first = self.at_first, None
        if act is not None:
            self.struck = time.monotonic()
            act()


def train(on: Workers, of: Training, options: ModelOptions, hooks: Hooks) -> tuple[Trained, Any, dict[str, Any]]:
    with DaskGroup(on, of.rows, of.job, of.tasks, of.loads, QUICK) as group:
        group.make_blocks()
        trained = group.fit(options, hooks)
        return trained, group.evaluate("binary"), group.report()


def pids(on: Workers) -> dict[str, int]:
    return on.ask(os.getpid)


def same(one: Trained, other: Trained) -> bool:
    """Whether models are equal to the bit. XGBoost's AUC of many workers is a mean of theirs and not compared."""
    losses = [np.array(t.history["valid"]["logloss"]) for t in (one, other)]
    return one.model == other.model and bool(np.allclose(*losses, rtol=1e-12))


@pytest.mark.parametrize(("sizes", "kind"), [([700, 300, 500, 400, 600], "in_core"), ([1000, 700, 800], "external")])
def test_the_model_is_the_serial_one_however_rows_are_split(
    on: Workers, tmp_path: Path, sizes: list[int], kind: Any
) -> None:
    of = training(tmp_path, sizes, "memory" if kind == "in_core" else "disk")
    options = replace(of.options(60, early_stopping=50), kind=kind)
    expected, metrics = of.alone(options)
    seen = Seen()
    found = None
    with DaskGroup(on, of.rows, of.job, of.tasks, of.loads, QUICK) as group:
        found = group.make_blocks()
        trained = group.fit(options, seen.hooks())
        assert group.evaluate("binary") == metrics
        report = group.report()
    assert found.rows == {"train": sum(sizes) - sizes[-1] + 50, "valid": sizes[-1] - 150, "test": 100}
    assert found.sampled is None  # rows stay with the workers
    assert same(trained, expected)
    assert trained.best_iteration == expected.best_iteration
    assert seen.rounds == list(range(1, trained.rounds + 1))
    assert [w["rows"] for w in report["workers"]] != []
    assert sum(w["rows"] for w in report["workers"]) == sum(sizes)
    assert {"blocks_s", "matrix_s", "rounds_s", "rounds_cpu_s"} <= report["workers"][0].keys()
    json.dumps(report)


def test_all_stop_after_the_same_round_and_go_on_from_there(on: Workers, few: Training) -> None:
    seen = Seen()
    stopped, _, _ = train(on, few, few.options(100_000), seen.hooks(should_stop=lambda: bool(seen.rounds)))
    assert not stopped.finished
    last = seen.checkpoints[-1]
    assert last.rounds == stopped.rounds > 0
    options = few.options(last.rounds + 50)
    expected, _ = few.alone(options)
    whole, _, _ = train(on, few, options, Hooks(resume=last))
    assert same(whole, expected)


def test_what_one_worker_raises_is_raised_here(on: Workers, few: Training) -> None:
    refused = few.options(5, params={"max_depth": 4, "eval_metric": "nonsense"})
    refused = replace(refused, spec=replace(refused.spec, params={"monotone_constraints": "(1,2,3,4,5,6,7)"}))
    with pytest.raises(Exception, match=r"monotone|constraint") as raised:
        train(on, few, refused, Hooks())
    assert not isinstance(raised.value, LostError | ClusterError)
    trained, _, report = train(on, few, few.options(5), Hooks())
    assert trained.rounds == 5
    assert report["losses"] == []


@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_killed_in_training_changes_nothing(on: Workers, few: Training, long: Any, rank: int) -> None:
    expected, metrics = long
    before = pids(on)

    def kill() -> None:
        os.kill(before[sorted(before)[rank]], signal.SIGKILL)

    seen = Seen(at_first=kill)
    trained, values, report = train(on, few, few.options(LONG), seen.hooks())
    assert same(trained, expected)
    assert values == metrics
    assert [loss["workers"] for loss in report["losses"]] == [[sorted(before)[rank]]]
    assert seen.rounds == list(range(1, LONG + 1))


def test_a_stopped_worker_is_noticed_and_ended(on: Workers, few: Training, long: Any) -> None:
    expected, _ = long
    before = pids(on)
    victim = sorted(before)[1]
    seen = Seen(at_first=lambda: os.kill(before[victim], signal.SIGSTOP))
    trained, _, report = train(on, few, few.options(LONG), seen.hooks())
    assert same(trained, expected)
    assert [loss["reason"] for loss in report["losses"]] == ["no sign of life for 4 s"]
    assert not Path(f"/proc/{before[victim]}").exists()


def hang() -> None:
    """From now on this process waits in training, and answers beside it."""
    from tabgpu.runners.dask import member

    member.Member._is_over = lambda self: time.sleep(3600)  # type: ignore[method-assign,assignment,return-value]
    for held in member._HELD.values():
        held._count_round = lambda rounds, values: time.sleep(3600)  # type: ignore[method-assign]
    member.collective.allreduce = lambda *args: time.sleep(3600)


def test_workers_that_hang_are_noticed(on: Workers, few: Training, long: Any) -> None:
    expected, _ = long
    victim = sorted(pids(on))[1]
    seen = Seen(at_first=lambda: on.ask(hang, workers=[victim]) and None)
    trained, _, report = train(on, few, few.options(LONG), seen.hooks())
    assert same(trained, expected)
    assert [loss["reason"] for loss in report["losses"]] == ["nobody computed or got further for 5 s"]


def test_three_losses_end_it_and_the_checkpoint_is_kept(on: Workers, few: Training) -> None:
    seen = Seen()

    def kill_one(checkpoint: Checkpoint) -> None:
        seen.checkpoints.append(checkpoint)
        known = pids(on)
        os.kill(known[max(known)], signal.SIGKILL)

    with pytest.raises(
        ClusterError, match="Workers were lost 3 times while they trained, the last time after round"
    ) as e:
        train(on, few, few.options(100_000), Hooks(checkpoint=kill_one))
    assert e.value.exit_code == 5
    assert len(seen.checkpoints) == 3


def test_an_interrupt_frees_the_workers(on: Workers, few: Training) -> None:
    def interrupt(rounds: int, values: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(on, few, few.options(100_000), Hooks(on_round=interrupt))
    began = time.monotonic()
    trained, _, report = train(on, few, few.options(5), Hooks())
    assert trained.rounds == 5
    assert report["losses"] == []
    assert time.monotonic() - began < 10


def test_a_lost_scheduler_ends_it(few: Training, tmp_path: Path) -> None:
    file = tmp_path / "scheduler.json"
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "OMP_WAIT_POLICY": "passive"}
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
    command = [sys.executable, "-m", "dask", "scheduler", "--scheduler-file", str(file)]
    scheduler = subprocess.Popen([*command, "--port", "0", "--no-dashboard", "--host", "127.0.0.1"], **quiet)
    command = [sys.executable, "-m", "dask", "worker", "--scheduler-file", str(file)]
    worker = subprocess.Popen([*command, "--nthreads", "1", "--no-dashboard", "--death-timeout", "5"], **quiet)
    try:
        with DaskRunner(Cluster(scheduler_file=str(file), timeout=60)) as runner:
            seen = Seen(at_first=scheduler.kill)
            with pytest.raises(ClusterError) as lost:
                train(runner.on, few, few.options(1_000_000), seen.hooks())
            assert lost.value.exit_code == 5
            assert time.monotonic() - seen.struck < 60
            assert seen.checkpoints
    finally:
        for process in (scheduler, worker):
            process.terminate()
        worker.wait(60)  # it ends by itself
        scheduler.wait(10)
