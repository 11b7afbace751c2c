"""The verbs: plan, run, score, transform, inspect. Each reads top to bottom on one screen.

They run in the caller's process and raise; the command line turns what they raise into exit codes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from . import runners
from .assemble import assemble, design, files_of, plan_of
from .config import Pipeline
from .config import load as load_pipeline
from .errors import DataError
from .files import find, read_footer
from .hardware import Hardware, MemoryMonitor, SystemHardware
from .model import Model, load
from .planning import Learned, Plan
from .run_folder import RunFolder, fingerprint, git_revision, versions
from .schema import unify
from .scoring import Output, What, score_files
from .stages import (
    Watch,
    fit_features,
    fitted_bytes,
    probe_model,
    save_bundle,
    take_survey,
    train_model,
    write_features,
)
from .units import format_bytes, format_rows, format_seconds, parse_share

Source = str | Path | Mapping[str, Any] | Pipeline
Overrides = Mapping[str, Any] | Sequence[str]
Progress = Callable[[str], None]


def _silent(message: str) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class Run:
    """A run that ended well.

    Parameters
    ----------
    folder : Path
        The run folder; its ``model`` is the bundle.
    metrics : dict
        Metrics by side and name; empty for ``model: null``.
    summary : dict
        What ``run --json`` prints.
    plan : Plan
        The plan it followed.
    """

    folder: Path
    metrics: dict[str, dict[str, float | None]]
    summary: dict[str, Any] = field(repr=False)
    plan: Plan = field(repr=False)

    @property
    def model(self) -> Model:
        """The fitted pipeline, loaded from the run folder."""
        return load(self.folder)

    def __str__(self) -> str:
        rows = ", ".join(f"{format_rows(n)} {side}" for side, n in self.summary["rows"].items() if n)
        memory = self.summary["memory"]
        lines = [f"Run {self.folder}", f"  rows     {rows}"]
        for side, values in self.metrics.items():
            shown = "  ".join(f"{name} {'-' if v is None else f'{v:.4f}'}" for name, v in values.items())
            lines.append(f"  {side:<8} {shown}")
        lines.append(
            f"  memory   {format_bytes(memory['measured_peak_bytes'])} at the peak, "
            f"{format_bytes(memory['predicted_peak_bytes'])} predicted, limit {format_bytes(memory['limit_bytes'])}"
        )
        lines.append(f"  time     {format_seconds(sum(self.summary['timings_s'].values()))}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from html import escape

        names = sorted({n for values in self.metrics.values() for n in values})
        head = "".join(f"<th>{escape(n)}</th>" for n in names)
        body = "".join(
            f"<tr><th>{escape(side)}</th>"
            + "".join(f"<td>{'' if values.get(n) is None else format(values[n], '.4f')}</td>" for n in names)
            + "</tr>"
            for side, values in self.metrics.items()
        )
        return f"<table><tr><th></th>{head}</tr>{body}</table><p>{escape(str(self.folder))}</p>"


def plan(source: Source, *, set: Overrides = (), hardware: Hardware | None = None) -> Plan:
    """Say what a run would do, from footers and hardware alone.

    Parameters
    ----------
    source : path, dict or Pipeline
        The pipeline file, or what it holds.
    set : mapping or sequence of 'key.path=value'
        Overrides, as ``--set`` on the command line.
    hardware : Hardware, optional
        Facts of this machine by default.

    Raises
    ------
    ConfigError, DataError
        If the pipeline cannot run on these files.
    ResourceError
        If it cannot fit under the memory limit: shows the sum.
    """
    a = assemble(load_pipeline(source, set), read_tables=False)
    return plan_of(a, design(a), hardware or SystemHardware())


def run(
    source: Source,
    *,
    set: Overrides = (),
    sample: float | str | None = None,
    progress: Progress = _silent,
    hardware: Hardware | None = None,
) -> Run:
    """Fit the features, train, evaluate, and write a run folder.

    Parameters
    ----------
    source, set, hardware
        As in `plan`.
    sample : float or str, optional
        Use this share of the rows alone, such as 0.02 or '2%', to try a pipeline.
    progress : callable
        Told what begins, one sentence at a time.

    Raises
    ------
    TabgpuError
        ConfigError, DataError or ResourceError; the run folder's ``status.json`` then says the same.
    """
    hardware = hardware or SystemHardware()
    pipeline = load_pipeline(source, set)
    a = assemble(pipeline, read_tables=True, sample=None if sample is None else parse_share(sample, "--sample"))
    d = design(a)
    first = plan_of(a, d, hardware)
    probe_model(a, d, first)
    output = pipeline.base_dir / Path(pipeline.output).expanduser()
    with (
        a.runner,
        RunFolder.create(output, pipeline.name, pipeline.digest) as folder,
        MemoryMonitor() as memory,
    ):
        folder.write_text("pipeline.yaml", pipeline.to_yaml(folder=folder.path))
        folder.write_json("plan.json", first.to_json())
        manifest = _manifest(a.pipeline, [f.path for f in files_of(a)])
        folder.write_json("manifest.json", manifest)
        watch = Watch(folder, memory, progress)
        watch.enter("survey")
        progress(f"survey: {format_rows(a.n_rows)} rows in {len(a.footers)} files")
        a, found, grid = take_survey(a, first.chunk_rows)
        d = design(a, grid)
        watch.enter("features")
        fitted = fit_features(a, d, first, watch)
        used = sum(n for side, n in found.rows.items() if side != "outside")
        learned = Learned(fitted_bytes(a, fitted), found.rows["train"], used)
        final = plan_of(a, d, hardware, learned)
        outcome = written = None
        if pipeline.model is None:
            watch.enter("write")
            written = write_features(a, d, final, fitted, watch)
        else:
            outcome = train_model(
                a, d, final, fitted, found, watch, lambda m: plan_of(a, d, hardware, replace(learned, has_missing=m))
            )
            final = outcome.plan
            folder.write_json("metrics.json", {"metrics": outcome.metrics, "history": outcome.trained.history})
        folder.write_json("plan.json", final.to_json())
        _check_unchanged(manifest["inputs"])
        watch.enter("save")
        digest = save_bundle(a, d, fitted, outcome, folder.path / "model")
        summary: dict[str, Any] = {
            "run": str(folder.path),
            "status": "done",
            "metrics": outcome.metrics if outcome else {},
            "best_iteration": outcome.trained.best_iteration if outcome else None,
            "rows": found.rows,
            "rows_without_target": found.without_target,
            "features": len(d.features),
            "written": written,
            "model_digest": digest,
            "workers": outcome.workers if outcome else {},
            "memory": {
                "limit_bytes": final.limit_bytes,
                "predicted_peak_bytes": final.peak_bytes,
                "measured_peak_bytes": memory.peak_bytes,
                "stages": dict(memory.stage_peaks),
            },
            "timings_s": folder.timings_s,
            "resumed": False,
            "drift": list(a.schema.drift),
        }
        folder.write_json("result.json", summary)
        folder.finish("done", 0)
    return Run(folder.path, summary["metrics"], summary, final)


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


def score(
    bundle: str | Path,
    data: str | Sequence[str],
    out: str | Path,
    *,
    keep: Sequence[str] = (),
    tables: Mapping[str, str | Path] | None = None,
    overwrite: bool = False,
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

    Returns
    -------
    dict
        What ``score --json`` prints.
    """
    return _write_files("predictions", bundle, data, out, keep, tables, overwrite)


def transform(
    bundle: str | Path,
    data: str | Sequence[str],
    out: str | Path,
    *,
    keep: Sequence[str] = (),
    tables: Mapping[str, str | Path] | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write the features of files as the model sees them; parameters as in `score`."""
    return _write_files("features", bundle, data, out, keep, tables, overwrite)


def _write_files(
    what: What, bundle: Any, data: Any, out: Any, keep: Any, tables: Any, overwrite: bool
) -> dict[str, Any]:
    began = time.monotonic()
    with MemoryMonitor() as memory:
        model = load(bundle, tables)
        loaded = time.monotonic()
        files = find(data if isinstance(data, str) else [str(d) for d in data], Path.cwd(), "DATA")
        runner, _ = runners.resolve(None)
        with runner:
            written = score_files(model, runner, files, Output(Path(out), keep, overwrite, what))
        ended = time.monotonic()
    return {
        "out": str(out),
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
