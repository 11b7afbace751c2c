"""The verbs: plan, run, score, transform, inspect. Each reads top to bottom on one screen.

They run in the caller's process and raise; the command line turns what they raise into exit codes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from .assemble import Assembled, assemble, files_of, on_engine
from .config import Pipeline
from .config import load as load_pipeline
from .design import Design, design, plan_of
from .errors import DataError
from .features.contract import Fitted
from .files import find, read_footer
from .frames import as_files
from .hardware import DeviceMonitor, Hardware, MemoryMonitor, SystemHardware
from .model import load
from .place import Wish, find_place, wish_of, wish_of_pipeline
from .planning import Learned, Plan
from .result import Run
from .run_folder import RunFolder, fingerprint, git_revision, versions
from .schema import unify
from .scoring import Output, score_files
from .stages import (
    Outcome,
    Watch,
    device_memory,
    fit_features,
    fitted_bytes,
    probe_model,
    save_bundle,
    take_survey,
    train_model,
    write_features,
)
from .survey import Survey
from .units import format_rows, parse_share

if TYPE_CHECKING:  # XGBoost is imported when a model is trained
    from .train.share import BlocksFound

Source = str | Path | Mapping[str, Any] | Pipeline
Overrides = Mapping[str, Any] | Sequence[str]
Progress = Callable[[str], None]


def _silent(message: str) -> None:
    """Report nothing."""


def plan(source: Source, *, set: Overrides = (), hardware: Hardware | None = None, client: Any = None) -> Plan:
    """Say what a run would do, from footers and hardware alone.

    Parameters
    ----------
    source : path, dict or Pipeline
        The pipeline file, or what it holds.
    set : mapping or sequence of 'key.path=value'
        Overrides, as ``--set`` on the command line.
    hardware : Hardware, optional
        Facts of this machine by default.
    client : distributed.Client, optional
        Work on its workers, in place of ``cluster``; it stays open.

    Raises
    ------
    ConfigError, DataError
        If the pipeline cannot run on these files.
    ResourceError
        If it cannot fit under the memory limit: shows the sum.
    """
    pipeline = load_pipeline(source, set)
    place = find_place(wish_of_pipeline(pipeline), hardware or SystemHardware(), client)
    a = assemble(pipeline, place, read_tables=False)
    return plan_of(a, design(a))


def run(
    source: Source,
    *,
    set: Overrides = (),
    sample: float | str | None = None,
    progress: Progress = _silent,
    hardware: Hardware | None = None,
    client: Any = None,
    data: Any = None,
) -> Run:
    """Fit the features, train, evaluate, and write a run folder.

    Parameters
    ----------
    source, set, hardware, client
        As in `plan`.
    sample : float or str, optional
        Use this share of the rows alone, such as 0.02 or '2%', to try a pipeline.
    progress : callable
        Told what begins, one sentence at a time.
    data : frame, optional
        In place of ``data.source``: a pandas, Polars, cuDF or pyarrow frame, or a Dask data frame beside `client`. Its
        rows are written to Parquet files in the output folder, by the workers where it is Dask's, for the time of the
        run.

    Raises
    ------
    TabgpuError
        ConfigError, DataError, ResourceError or ClusterError; the run folder's ``status.json`` then says the same.
    """
    if data is not None:
        output = _output_of(load_pipeline(source, _with_source(set, ".")))
        with as_files(data, output / f".data-{uuid4().hex}", client) as files:
            wanted = _with_source(set, str(files))
            return run(source, set=wanted, sample=sample, progress=progress, hardware=hardware, client=client)
    pipeline = load_pipeline(source, set)
    place = find_place(wish_of_pipeline(pipeline), hardware or SystemHardware(), client)
    a = assemble(pipeline, place, read_tables=True, sample=None if sample is None else parse_share(sample, "--sample"))
    d = design(a)
    first = plan_of(a, d)
    probe_model(a, d, first)
    with (
        RunFolder.create(_output_of(pipeline), pipeline.name, pipeline.digest) as folder,
        MemoryMonitor() as memory,
        DeviceMonitor(lambda sample: folder.event("sample", **sample)) as devices,
    ):
        watch = Watch(folder, memory, progress, a.engine)
        folder.write_text("pipeline.yaml", pipeline.to_yaml(folder=folder.path))
        folder.write_json("plan.json", first.to_json())
        manifest = _manifest(a.pipeline, [f.path for f in files_of(a)])
        folder.write_json("manifest.json", manifest)
        watch.enter("start")
        a.runner.at_most(first.workers)
        with a.runner:
            a.runner.check_files(files_of(a), folder.path)
            a = on_engine(a, first, watch.note)
            done = _stages(a, first, watch)
            _check_unchanged(manifest["inputs"])
            watch.enter("save")
            digest = save_bundle(done.bound, done.design, done.fitted, done.outcome, folder.path / "model")
            watch.leave()
        summary = {
            **_summary(a, done, folder),
            "model_digest": digest,
            "memory": _memory(done.plan, memory),
            "device_memory": device_memory(a, done.plan),
            "machine": devices.summary(),
            "timings_s": folder.timings_s,
        }
        folder.write_json("result.json", summary)
        folder.finish("done", 0)
    return Run(folder.path, summary["metrics"], summary, done.plan)


def _output_of(pipeline: Pipeline) -> Path:
    return pipeline.base_dir / Path(pipeline.output).expanduser()


def _with_source(overrides: Overrides, folder: str) -> Overrides:
    if isinstance(overrides, Mapping):
        return {**overrides, "data.source": folder}
    return [*overrides, f"data.source={folder}"]


@dataclass(frozen=True)
class _Done:
    """What the stages of a run gave; `bound` knows the labels of the target."""

    bound: Assembled
    design: Design
    fitted: dict[int, Fitted]
    found: Survey
    outcome: Outcome | None
    written: dict[str, int] | None
    plan: Plan


def _stages(a: Assembled, first: Plan, watch: Watch) -> _Done:
    """Survey, features, and training or writing; the plan is made again after each."""
    folder = watch.folder
    watch.enter("survey")
    watch.say(f"survey: {format_rows(a.n_rows)} rows in {len(a.footers)} files")
    a, found, grid = take_survey(a, first.chunk_rows)
    d = design(a, grid)
    watch.enter("features")
    fitted = fit_features(a, d, first, watch)
    used = sum(n for side, n in found.rows.items() if side != "outside")
    learned = Learned(fitted_bytes(a, fitted), found.rows["train"], used, device=first.device)
    final = plan_of(a, d, learned)
    outcome = written = None
    if a.pipeline.model is None:
        watch.enter("write")
        written = write_features(a, d, final, fitted, watch)
    else:

        def replan(made: BlocksFound) -> Plan:
            known = replace(learned, has_missing=made.has_missing, has_complete_row=made.has_complete_row)
            return plan_of(a, d, known)

        outcome = train_model(a, d, final, fitted, found, watch, replan)
        final = outcome.plan
        folder.write_json("metrics.json", {"metrics": outcome.metrics, "history": outcome.trained.history})
    folder.write_json("plan.json", final.to_json())
    return _Done(a, d, fitted, found, outcome, written, final)


def _summary(a: Assembled, done: _Done, folder: RunFolder) -> dict[str, Any]:
    outcome = done.outcome
    return {
        "run": str(folder.path),
        "status": "done",
        "metrics": outcome.metrics if outcome else {},
        "best_iteration": outcome.trained.best_iteration if outcome else None,
        "rows": done.found.rows,
        "rows_without_target": done.found.without_target,
        "features": len(done.design.features),
        "written": done.written,
        "engine": done.plan.engine,
        "runner": {"name": done.plan.runner, "workers": done.plan.workers, **(outcome.workers if outcome else {})},
        "resumed": False,
        "notes": list(a.engine.notes),
        "drift": list(a.schema.drift),
    }


def _memory(plan: Plan, memory: MemoryMonitor) -> dict[str, Any]:
    return {
        "limit_bytes": plan.limit_bytes,
        "predicted_peak_bytes": plan.peak_bytes,
        "measured_peak_bytes": memory.peak_bytes,
        "stages": dict(memory.stage_peaks),
    }


def _manifest(pipeline: Pipeline, paths: Sequence[str]) -> dict[str, Any]:
    local = [Path(p) for p in paths if "://" not in p]
    return {
        "inputs": fingerprint(local),
        "remote_inputs": [p for p in paths if "://" in p],
        "versions": versions(),
        "seeds": {"split": pipeline.split.seed, "model": pipeline.model.seed if pipeline.model else None},
        "git_revision": git_revision(pipeline.base_dir),
    }


def _check_unchanged(inputs: list[dict[str, Any]]) -> None:
    """Raise DataError if a file is not what it was when the run began: passes may have seen different rows."""
    for was in inputs:
        path = Path(was["path"])
        if not path.exists() or fingerprint([path]) != [was]:
            raise DataError(
                f"The file {path} {'was replaced or written to' if path.exists() else 'was removed'} during the run",
                "Expected the input to stay as it was when the run began",
                "Run again when nothing writes to data.source",
            )


def score(  # noqa: PLR0913  # what a verb is asked with are its options
    bundle: str | Path,
    data: str | Sequence[str],
    out: str | Path,
    *,
    keep: Sequence[str] = (),
    tables: Mapping[str, str | Path] | None = None,
    overwrite: bool = False,
    engine: str = "auto",
    cluster: Mapping[str, Any] | None = None,
    client: Any = None,
) -> dict[str, Any]:
    """Score files: one Parquet file of predictions for each input file, rows in order.

    Parameters
    ----------
    bundle : path
        A bundle, a run folder, or ``runs/NAME/latest``.
    data : str or sequence of str
        File, folder, glob or URL of Parquet files.
    out : path
        New or empty folder; all files appear in it at once, at the end.
    keep : sequence of str
        Columns of the input to write beside the prediction.
    tables : mapping of str to path, optional
        Parquet files that replace joined tables, by name.
    overwrite : bool
        Whether `out` may be replaced.
    engine : {'auto', 'cpu', 'gpu'}
        Where arrays live.
    cluster : mapping, optional
        Workers that score files in parallel, as in the pipeline file: ``{"workers": 4}``.
    client : distributed.Client, optional
        Work on its workers, in place of `cluster`; it stays open.

    Returns
    -------
    dict
        What ``score --json`` prints.

    Raises
    ------
    TabgpuError
        ConfigError, DataError, ResourceError or ClusterError.
    """
    output = Output(Path(out), keep, overwrite, "predictions")
    return _write_files(bundle, data, output, tables, wish_of(engine, cluster), client)


def transform(  # noqa: PLR0913  # as above
    bundle: str | Path,
    data: str | Sequence[str],
    out: str | Path,
    *,
    keep: Sequence[str] = (),
    tables: Mapping[str, str | Path] | None = None,
    overwrite: bool = False,
    engine: str = "auto",
    cluster: Mapping[str, Any] | None = None,
    client: Any = None,
) -> dict[str, Any]:
    """Write the features of files as the model sees them; parameters as in `score`."""
    output = Output(Path(out), keep, overwrite, "features")
    return _write_files(bundle, data, output, tables, wish_of(engine, cluster), client)


def _write_files(
    bundle: str | Path,
    data: str | Sequence[str],
    output: Output,
    tables: Mapping[str, str | Path] | None,
    wish: Wish,
    client: Any,
) -> dict[str, Any]:
    began = time.monotonic()
    with MemoryMonitor() as memory:
        place = find_place(wish, SystemHardware(), client)
        model = load(bundle, tables, place.engine.name)
        files = find(data if isinstance(data, str) else [str(d) for d in data], Path.cwd(), "DATA")
        with place.runner:
            loaded = time.monotonic()
            written = score_files(model, place.runner, files, output)
        ended = time.monotonic()
    return {
        "out": str(output.folder),
        **written,
        "timings_s": {"load": loaded - began, "score": ended - loaded},
        "memory": {"measured_peak_bytes": memory.peak_bytes},
    }


def inspect(data: str | Sequence[str]) -> dict[str, Any]:
    """Say what the footers of files hold: files, rows, columns with type and kind, and where files differ.

    Raises
    ------
    ConfigError, DataError
        If there are no such files, or they cannot be one table.
    """
    files = find(data if isinstance(data, str) else list(data), Path.cwd(), "DATA")
    footers = [read_footer(f) for f in files]
    if not footers:
        raise DataError("There is no file", "Expected Parquet files", "Correct DATA")
    schema = unify(footers, {})
    return {
        "files": len(footers),
        "rows": sum(f.n_rows for f in footers),
        "row_groups": sum(len(f.group_rows) for f in footers),
        "uncompressed_bytes": sum(sum(f.group_bytes) for f in footers),
        "columns": [
            {"name": c.name, "kind": c.kind, "type": c.levels or c.unit or c.dtype, "zone": c.zone}
            for c in schema.columns.values()
        ],
        "refused": dict(schema.refused),
        "drift": list(schema.drift),
    }
