"""The stages of a run, in their order: survey, features, training, evaluation, saving.

Each takes what the stages before it made and returns what the next needs; `tabgpu.workflow.run` strings them together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from . import bundle, config, wire
from .assemble import Assembled, files_of
from .columns import Chunk, Column
from .data.rows import Rows, Task, Use
from .data.splits import SIDES, TimeSplit
from .data.target import Target
from .design import Design
from .engine import Engine
from .errors import DataError
from .features.contract import Fitted
from .features.moments import RangeResult
from .features.passes import Passes
from .features.statistics import Quantiles, Sample, TargetGrid
from .features.target import TargetEncodeFitted
from .fit import Fitter, Progress
from .hardware import MemoryMonitor
from .model import FittedPipeline, feature_array
from .outputs import FileWriter, output_folder
from .place import cache_dir
from .planning import SAMPLE_ROWS, Plan
from .run_folder import RunFolder
from .survey import (
    StatisticJob,
    Survey,
    SurveyJob,
    check_rows,
    check_weights,
    observe_fully,
    statistics_of,
    survey,
    target_of,
)

if TYPE_CHECKING:  # XGBoost is imported when a model is trained
    from .train.booster import Checkpoint, Trained
    from .train.run import ModelOptions
    from .train.share import BlockJob, BlocksFound


@dataclass(frozen=True)
class Watch:
    """Who is told what a run is doing: its folder, the memory monitor, and whoever looks on.

    Parameters
    ----------
    folder : RunFolder
        Keeps status and times.
    memory : MemoryMonitor
        Keeps the peak of every stage.
    say : callable
        Told what begins, one sentence at a time.
    engine : Engine
        Notes the peak of each stage too, and tells profilers where it begins and ends.
    """

    folder: RunFolder
    memory: MemoryMonitor
    say: Progress
    engine: Engine
    _stage: ExitStack = field(default_factory=ExitStack, repr=False)

    def enter(self, stage: str) -> None:
        """A stage begins, and the one before it ends."""
        self.leave()
        self.folder.stage(stage)
        self.memory.stage(stage)
        self._stage.enter_context(self.engine.stage(stage))

    def leave(self) -> None:
        """The stage ends."""
        self._stage.close()

    def note(self, message: str) -> None:
        """Something did not go as planned, and what was done about it."""
        self.folder.event("note", message=message)
        self.say(f"note: {message}")


def device_memory(a: Assembled, plan: Plan) -> dict[str, Any] | None:
    """What was planned and measured of the memory of this process's device; None where there is none."""
    if plan.device_limit_bytes is None:
        return None
    use = a.engine.memory
    return {
        "limit_bytes": plan.device_limit_bytes,
        "predicted_peak_bytes": plan.device_peak_bytes,
        "measured_peak_bytes": use.peak_bytes,
        "stages": dict(use.stage_peaks),
        "spilled_bytes": use.spilled_bytes,
    }


def take_survey(a: Assembled, chunk_rows: int) -> tuple[Assembled, Survey, TargetGrid | None]:
    """Count rows, find the boundaries of a split by fractions of time, and learn what the target is."""
    if a.fractions is not None:
        a = replace(a, use=replace(a.use, splitter=_time_split(a, chunk_rows)))
    data = a.pipeline.data
    wanted = statistics_of(data.target, a.task, data.weight)
    found = survey(a.runner, a.rows, SurveyJob(a.use, tuple(wanted), chunk_rows), a.tasks)
    check_rows(found, data.target)
    if data.weight:
        check_weights(found.results[-1], data.weight)
    if data.target is None or a.task is None:
        return a, found, None
    target = target_of(data.target, a.task, found.results[0])
    grid = TargetGrid.from_range(RangeResult(0, 1, 1, 0, 0) if a.task == "binary" else found.results[0])
    rows = replace(a.rows, target=target)
    return replace(a, rows=rows), found, grid


def _time_split(a: Assembled, chunk_rows: int) -> TimeSplit:
    """Boundaries such that the last fraction of rows is test and the one before it is valid."""
    valid, test = a.fractions or (0.0, 0.0)
    time = str(a.pipeline.data.time)
    points = tuple(p for p in (1 - valid - test, 1 - test) if p < 1)
    use = Use(None, a.use.filter, a.use.target)
    job = StatisticJob(use, Quantiles(time, points), None, chunk_rows)
    result = observe_fully(a.runner, a.rows, job, a.tasks)
    if any(r is None for r in result):
        raise DataError(
            f"The time column {time!r} is missing in every row", "Expected times to split by", "Correct data.time"
        )
    times: list[Any] = list(result)
    first_test = times.pop() if test else None
    return TimeSplit(time, times[0] if valid and times else None, first_test, 0)


def fit_features(a: Assembled, d: Design, plan: Plan, watch: Watch) -> dict[int, Fitted]:
    """Fit every step on the training rows."""
    return Fitter(a.runner, a.rows, a.use, a.tasks, plan.chunk_rows).fit_steps(d.passes, watch.say)


def fitted_bytes(a: Assembled, fitted: Mapping[int, Fitted]) -> int:
    """Bytes of what the steps learned."""
    return sum(array.nbytes for array in wire.split(tuple(fitted.values()), a.engine.to_host)[1])


@dataclass(frozen=True)
class Outcome:
    """What training gave: the model, the metrics of each side, the plan that was followed, how workers shared it."""

    trained: Trained
    metrics: dict[str, dict[str, Any]]
    plan: Plan
    workers: dict[str, Any]


def train_model(
    a: Assembled,
    d: Design,
    plan: Plan,
    fitted: Mapping[int, Fitted],
    found: Survey,
    watch: Watch,
    replan: Callable[[BlocksFound], Plan],
) -> Outcome:
    """Make blocks of all used rows, train on them, and evaluate every side; `probe_model` has come before.

    `replan` makes the plan again once it is known whether any feature is missing: the matrix is smaller if none is.
    """
    from .train.run import Hooks

    model = a.pipeline.model
    assert model is not None, "train_model is called for pipelines with a model alone"
    job = _block_job(a, d, plan, fitted, found)
    loads = [found.tasks[t.key][0] if t.key in found.tasks else 0 for t in a.tasks]
    with a.runner.group(a.rows, job, a.tasks, loads) as group:
        watch.enter("matrix")
        watch.say(f"matrix: {len(d.features)} features of {sum(found.rows[s] for s in SIDES):,} rows")
        made = group.make_blocks()
        made.varying.check(d.features)
        plan = replan(made)
        watch.enter("train")
        watch.say(f"train: up to {model.rounds} rounds, {plan.matrix} matrix")
        hooks = Hooks(checkpoint=_saver(watch.folder), on_round=_reporter(watch.say))
        trained = group.fit(_model_options(model, plan, a.place.device), hooks)
        watch.enter("evaluate")
        metrics = group.evaluate(a.task or "regression")
        return Outcome(trained, metrics, plan, group.report())


def _block_job(a: Assembled, d: Design, plan: Plan, fitted: Mapping[int, Fitted], found: Survey) -> BlockJob:
    from .train.sampling import share_of
    from .train.share import BlockJob

    model = a.pipeline.model
    assert model is not None, "blocks are made for models alone"
    rows = {side: found.rows[side] for side in SIDES if found.rows[side]}
    return BlockJob(
        passes=d.passes,
        fitted=dict(fitted),
        features=tuple(d.features),
        use=a.use,
        weight=a.pipeline.data.weight,
        sample=_sample(d, rows["train"]) if model.cuts == "own" else None,
        sides=tuple(rows),
        chunk_rows=plan.chunk_rows,
        block_rows=plan.block_rows,
        cache=plan.cache or "memory",
        directory=str(cache_dir(a.pipeline)),
        n_rows=rows if a.runner.workers == 1 else {},
        draws_rows=model.cuts == "own" and share_of(model.params) is not None,
    )


def probe_model(a: Assembled, d: Design, plan: Plan) -> None:
    """Ask XGBoost about the parameters before any row is read.

    Raises
    ------
    ConfigError
        If XGBoost is not installed, or refuses a value.
    """
    from .train import require_xgboost

    if a.pipeline.model:
        require_xgboost()
        from .train.run import probe

        probe(_model_options(a.pipeline.model, plan, a.engine.device).spec, d.features)


def _model_options(model: config.Model, plan: Plan, device: str) -> ModelOptions:
    from .train.run import ModelOptions, TrainSpec, check_params

    params = check_params(model.params, model.objective)
    metric = params.pop("eval_metric", ())
    spec = TrainSpec(
        model.objective,
        model.rounds,
        params,
        model.seed,
        model.early_stopping,
        (metric,) if isinstance(metric, str) else tuple(metric),
        int(params.pop("max_bin", 256)),
        device,
        checkpoint_every=model.checkpoint_every,
    )
    return ModelOptions(spec, model.cuts, plan.matrix or "in_core", plan.matrix_options)


def _saver(folder: RunFolder) -> Callable[[Checkpoint], None]:
    return lambda checkpoint: folder.write_checkpoint(checkpoint.rounds, wire.pack(checkpoint))


def _reporter(progress: Progress) -> Callable[[int, Any], None]:
    """Report every 25th round."""

    def report(rounds: int, values: Any) -> None:
        if rounds % 25 == 0:
            shown = "  ".join(f"{part} {m} {v:.5f}" for part, of in values.items() for m, v in of.items())
            progress(f"train: round {rounds}  {shown}")

    return report


def _sample(d: Design, n_rows: int) -> Sample:
    """The rows that decide the cuts, with a threshold that keeps all of them with near certainty."""
    share = (SAMPLE_ROWS + 6 * SAMPLE_ROWS**0.5) / n_rows
    return Sample(d.features, SAMPLE_ROWS, None if share >= 1 else int(share * 2**64))


@wire.record
@dataclass(frozen=True)
class FileTasks:
    """The parts of one input file, in their order."""

    name: str
    tasks: tuple[Task, ...]


@wire.record
@dataclass(frozen=True)
class WriteFeatures:
    """Write the features of all rows of a file, rows in order; out of fold for training rows.

    `beside` are columns that stand beside the features, `split` is what the column of sides is called.
    """

    passes: Passes
    fitted: dict[int, Fitted]
    features: tuple[str, ...]
    beside: tuple[str, ...]
    split: str
    use: Use
    chunk_rows: int
    folder: str

    def do(self, rows: Rows, file: FileTasks) -> int:
        """Write it; the number of rows."""
        _, base = self.passes.needed([*self.features, *self.beside])
        columns = sorted({*base, *self.use.columns})
        path = Path(self.folder) / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        written = 0
        with FileWriter(path) as writer:
            for task in file.tasks:
                for chunk in rows.open(task.part, columns, self.chunk_rows):
                    sides = rows.assign(chunk, self.use, task.side)
                    writer.write(pa.table(self._arrays(rows.engine, chunk, sides)))
                    written += chunk.n_rows
        return written

    def _arrays(self, engine: Engine, chunk: Chunk, sides: Any) -> dict[str, pa.Array]:
        done = _transform_all(self.passes, chunk, self.fitted, [*self.features, *self.beside], sides == 0)
        arrays = {n: engine.to_arrow(done[n]) for n in self.beside}
        arrays[self.split] = _side_names(engine.to_host(sides))
        return arrays | {n: feature_array(engine, done, n) for n in self.features}


def write_features(a: Assembled, d: Design, plan: Plan, fitted: Mapping[int, Fitted], watch: Watch) -> dict[str, int]:
    """Write the features of all rows, one file for each input file.

    Beside the features stand the key, the target as a number, and `split`: which side each row is on.
    """
    target, key = a.pipeline.data.target, a.pipeline.data.key
    beside = tuple(n for n in (key, target) if n and n not in d.features)
    split = "split" if "split" not in {*d.features, *beside} else "split_"
    by_file: dict[str, list[Task]] = {f.name: [] for f in files_of(a)}
    for task in a.tasks:
        by_file[task.part.file.name].append(task)
    files = [FileTasks(name, tuple(tasks)) for name, tasks in by_file.items()]
    rows, written = 0, 0
    with output_folder(watch.folder.path / "features", False, [], "output") as out:
        work = WriteFeatures(d.passes, dict(fitted), tuple(d.features), beside, split, a.use, plan.chunk_rows, str(out))
        for file, written in zip(files, a.runner.each(a.rows, work, files), strict=True):
            watch.say(f"written: {file.name}")
            rows += written
    return {"rows": rows, "files": len(files)}


def _side_names(sides: np.ndarray) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(sides, mask=sides < 0), pa.array(SIDES))


def _transform_all(
    passes: Passes, chunk: Chunk, fitted: Mapping[int, Fitted], names: list[str], training: Any
) -> Chunk:
    """Transform a chunk of which some rows are training rows: these out of fold, the others with the full encodings."""
    if bool(training.all()) or not bool(training.any()):
        return passes.transform(chunk, fitted, names, training=bool(training.any()))
    xp = chunk.xp
    inside = passes.transform(chunk.take(training), fitted, names, training=True)
    outside = passes.transform(chunk.take(~training), fitted, names, training=False)
    back = xp.argsort(xp.concatenate([xp.flatnonzero(training), xp.flatnonzero(~training)]))
    return chunk.with_columns({n: _join_columns(xp, inside[n], outside[n]).take(back) for n in names}).select(names)


def _join_columns(xp: Any, first: Column, second: Column) -> Column:
    valid = None
    if first.valid is not None or second.valid is not None:
        valid = xp.concatenate([~first.missing(), ~second.missing()])
    return replace(first, values=xp.concatenate([first.values, second.values]), valid=valid)


def save_bundle(a: Assembled, d: Design, fitted: Mapping[int, Fitted], outcome: Outcome | None, folder: Path) -> str:
    """Write the fitted pipeline; returns the digest of the bundle."""
    done = tuple(_for_scoring(fitted[i]) for i in range(len(d.passes.steps)))
    target: Target | None = a.rows.target
    best = outcome.trained.best_iteration if outcome else 0
    pipeline = FittedPipeline(a.rows.recipe, d.passes.steps, done, d.features, target, best)
    about = {
        "name": a.pipeline.name,
        "target": a.pipeline.data.target,
        "objective": a.pipeline.model.objective if a.pipeline.model else None,
        "best_iteration": best if outcome else None,
        "features": list(d.features),
    }
    model = outcome.trained.model if outcome else None
    return bundle.save(folder, {"pipeline": pipeline}, model, about, a.rows.tables, a.engine.to_host)


def _for_scoring(fitted: Fitted) -> Fitted:
    """What scoring needs: without the tables that training rows alone look at."""
    return fitted.without_folds() if isinstance(fitted, TargetEncodeFitted) else fitted
