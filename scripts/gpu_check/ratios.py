"""Ratios on the device: reading, each family of steps, building and training, each against a peer or a bound.

Bounds are bytes over the bandwidth of a copy on this device, measured first. What needs cuDF is left out where it is
not installed, and the rest runs with an engine that reads on the host (`gpu_check.moved`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .arguments import Task, task_of
from .device import ENGINE_MODULES, Device, Times, missing

_STEPS: dict[str, dict[str, Any]] = {
    "fill": {"columns": ["a"], "value": "median"},
    "clip": {"columns": ["b"], "lower": -1.0, "upper": 1.0},
    "log": {"columns": ["c"]},
    "standardize": {"columns": ["b"]},
    "quantile_bins": {"columns": ["a"], "bins": 16},
    "dates": {"columns": ["when"], "parts": ["month", "weekday", "hour"]},
    "cross": {"columns": [["few", "many"]]},
    "count_encode": {"columns": ["many"]},
    "target_encode": {"columns": ["many"], "folds": 5},
    "categorify": {"columns": ["few", "many"]},
}
_STEP_BAR = 100.0  # times a copy of its bytes: a guess, until a GPU has shown what is good


def main() -> None:
    task = task_of("ratios")
    device = Device(task.dry)
    for name, part in (("bandwidth", bandwidth), ("training", training), ("steps", steps), ("reading", reading)):
        try:
            part(task, device)
        except Exception as error:  # noqa: BLE001 - whatever it is, it becomes a row
            task.report.failed(name, error)


def bandwidth(task: Task, device: Device) -> None:
    """Copies on the device, and from the host."""
    n_bytes = 1 << 20 if task.dry else 1 << 30
    task.report.add("copy on the device", device.copy_bandwidth(n_bytes) / 1e9, unit="GB/s", note="read plus written")
    host = np.ones(n_bytes // 8)
    seconds = device.wall(lambda: device.to_device(host), repeats=3)
    task.report.add("copy from pageable host memory", host.nbytes / seconds.best / 1e9, unit="GB/s")


@cache
def engine_of(device: Device) -> tuple[Any, str]:
    """The GPU engine, or one that reads on the host and why it has to be."""
    if device.name == "cpu":
        return device.engine(), "this is a dry run"
    lacking = missing(*ENGINE_MODULES)
    if lacking:
        return device.engine(), f"not installed: {', '.join(lacking)}"
    try:
        engine = import_module("tabgpu.engine").resolve("gpu")[0]
    except (OSError, MemoryError, ValueError) as error:  # what tabgpu's own errors are
        return device.engine(), str(error)
    engine.setup(import_module("tabgpu.engine.memory").MemorySettings())
    return engine, ""


def reading(task: Task, device: Device) -> None:
    """Decoded bytes a second of our reader: numbers alone, and text as codes, against cuDF's own reader."""
    from bench import make_w2

    file = task.shared / "w2.parquet"
    make_w2.make(file, 4_000 if task.dry else 1_000_000)
    engine, why = engine_of(device)
    if why and not task.dry:
        task.report.left_out("reading", why)
        return
    peer = _peer_reader(task)
    for what, names, bar in (("numbers", make_w2.NUMBERS, None if task.dry else 2.0), ("text", make_w2.STRINGS, None)):
        part, columns = _part_of(file, names)
        rows = 1_000 if task.dry else 250_000

        def ours(part: Any = part, columns: Any = columns, rows: int = rows) -> None:
            for _ in engine.read(part, columns, rows):
                pass

        mine = device.wall(ours, repeats=3)
        theirs = device.wall(partial(peer, str(file), columns=names), repeats=3)
        decoded = pq.read_table(file, columns=names).nbytes
        task.report.add(f"read {what}", decoded / mine.best / 1e9, unit="GB/s", note="decoded bytes")
        of, note = "in one piece by the peer", "ours makes codes of text" if what == "text" else ""
        task.report.add(f"read {what}, time", mine.best, theirs.best, unit="s", of=of, note=note, high=bar)


def _peer_reader(task: Task) -> Callable[..., Any]:
    if task.dry or missing("cudf"):
        reader: Callable[..., Any] = pq.read_table
        return reader
    read: Callable[..., Any] = import_module("cudf").read_parquet
    return read


def _part_of(file: Path, names: list[str]) -> tuple[Any, Any]:
    """The whole file as one part, and the columns wanted of it."""
    from tabgpu.files import find, make_parts, read_footer
    from tabgpu.schema import unify

    footers = [read_footer(f) for f in find(str(file), file.parent, "the file")]
    known = unify(footers, {}).columns
    (part,) = make_parts(footers, 10**9)
    return part, [known[n] for n in names]


def steps(task: Task, device: Device) -> None:
    """Observing and transforming one chunk, against its bytes at the speed of a copy."""
    lacking = missing("pydantic", "yaml")
    if lacking:
        task.report.left_out("steps", f"not installed: {', '.join(lacking)}")
        return
    engine, why = engine_of(device)
    n_rows = 3_000 if task.dry else 2_000_000
    speed = device.copy_bandwidth(1 << 20 if task.dry else 1 << 29)
    made, chunk, fitted = _fitted(task.folder, engine, n_rows)
    if why and not task.dry:
        task.report.add("engine of the steps", note=f"reads on the host: {why}")

    def row(name: str, work: Callable[[], object], n_bytes: int) -> None:
        seconds = device.wall(work, repeats=3)
        task.report.add(
            name,
            seconds.best * 1e3,
            n_bytes / speed * 1e3,
            unit="ms",
            of="to copy its bytes",
            high=None if task.dry else _STEP_BAR,
            group=f"steps, {n_rows:,} rows",
            median=seconds.median * 1e3,
        )

    for position, step in enumerate(made):
        before, learned, statistics = chunk, fitted[position], step.statistics()
        if statistics:
            n_bytes = sum(_bytes_of(before, one.columns) for one in statistics)
            row(f"{step.name}: observe", partial(_observe, statistics, before), n_bytes)
        new = step.transform(before, learned, False)
        n_bytes = _bytes_of(before, step.inputs) + sum(map(_column_bytes, new.values()))
        row(f"{step.name}: transform", partial(_transform, step, before, learned), n_bytes)
        chunk = before.with_columns(new)


def _observe(statistics: Any, chunk: Any) -> list[Any]:
    return [one.observe(_fresh(chunk), None) for one in statistics]


def _transform(step: Any, chunk: Any, fitted: Any) -> Any:
    return step.transform(_fresh(chunk), fitted, False)


def _fresh(chunk: Any) -> Any:
    """The chunk without what it remembers of an earlier repetition."""
    return replace(chunk, _memory={})


def _bytes_of(chunk: Any, names: Any) -> int:
    return sum(_column_bytes(chunk[n]) for n in names)


def _column_bytes(column: Any) -> int:
    return int(column.values.nbytes) + (0 if column.valid is None else int(column.valid.nbytes))


def _fitted(folder: Path, engine: Any, n_rows: int) -> tuple[Any, Any, Any]:
    """The steps, one chunk of all rows on the device, and what the steps learned from it, there too."""
    from tabgpu.assemble import assemble
    from tabgpu.config import load
    from tabgpu.design import design
    from tabgpu.files import make_parts
    from tabgpu.fit import Fitter
    from tabgpu.hardware import SystemHardware
    from tabgpu.place import find_place, wish_of_pipeline
    from tabgpu.stages import take_survey

    source = folder / "steps.parquet"
    write_table(source, n_rows)
    config = {
        "version": 1,
        "name": "steps",
        "data": {"source": str(source), "target": "y"},
        "split": {"by": "random", "valid": 0, "test": 0},
        "features": [{family: options} for family, options in _STEPS.items()],
        "model": None,
        "engine": "cpu",  # what is assembled is then moved to the engine that is measured
        "output": str(folder / "runs"),
    }
    pipeline = load(config)
    a = assemble(pipeline, find_place(wish_of_pipeline(pipeline), SystemHardware()), read_tables=True)
    a = replace(a, place=replace(a.place, engine=engine), rows=replace(a.rows, engine=engine))
    a, _, grid = take_survey(a, n_rows)
    d = design(a, grid)
    fitted = Fitter(a.runner, a.rows, a.use, a.tasks, n_rows).fit_steps(d.passes, lambda message: None)
    wanted = {name for step in d.passes.steps for name in step.inputs if name in a.rows.fields}
    (part,) = make_parts(list(a.footers), 10**9)
    pieces = list(a.rows.open(part, sorted({*wanted, "y"}), n_rows))
    return d.passes.steps, max(pieces, key=lambda chunk: chunk.n_rows), engine.place(fitted)


def write_table(path: Path, n_rows: int) -> None:
    """Numbers, text of few and of many levels, a time, and a target; a twentieth is missing."""
    if path.exists():
        return
    random = np.random.default_rng(0)
    gone = random.random(n_rows) < 0.05
    few = pa.DictionaryArray.from_arrays(random.integers(0, 20, n_rows).astype(np.int32), [f"f{i}" for i in range(20)])
    levels = [f"m{i:06d}" for i in range(max(10, n_rows // 40))]
    many = pa.DictionaryArray.from_arrays(random.integers(0, len(levels), n_rows).astype(np.int32), levels)
    numbers = {name: random.standard_normal(n_rows).astype(np.float32) for name in "abc"}
    table = pa.table(
        {
            "a": pa.array(numbers["a"], mask=gone),
            "b": numbers["b"],
            "c": np.abs(numbers["c"]),
            "few": few.cast(pa.string()),
            "many": many.cast(pa.string()),
            "when": pa.array(random.integers(1_300_000_000, 1_400_000_000, n_rows), pa.timestamp("s")),
            "y": (random.random(n_rows) < 0.5).astype(np.int8),
        }
    )
    pq.write_table(table, path, row_group_size=max(1, n_rows))


def training(task: Task, device: Device) -> None:
    """Our loop over bare XGBoost on the same matrix; our building over one from an array; the device over the CPU."""
    from tabgpu.train import booster, cuts, matrix

    from .memory import Shape, make_blocks

    xgboost = import_module("xgboost")
    shape = Shape(2_000, 6, 3) if task.dry else Shape(1_000_000, 40, 8)
    names = [f"f{i}" for i in range(shape.n_features)]
    blocks = make_blocks(shape, shape.n_rows, -(-shape.n_rows // 4), names, 0)
    features = np.concatenate([block.features for block in blocks])
    label = np.concatenate([block.label for block in blocks])
    ref = cuts.matrix_of(cuts.choose(features[:50_000], 256), 256, names)
    build = matrix.Builder("in_core", 256, None, device.to_device)
    rounds = 5 if task.dry else 50
    params = {"max_depth": shape.depth, "eta": 0.3}
    spec = booster.TrainSpec("binary:logistic", rounds, params, device=device.name)
    bare_params = {**params, "objective": spec.objective, "device": device.name, "tree_method": "hist"}
    bare_params |= {"max_bin": 256, "eval_metric": "logloss", "seed_per_iteration": True}
    there = [device.to_device(features), device.to_device(label)]
    with device.training():
        ours = device.wall(lambda: build(blocks, ref), repeats=3)
        bare = device.wall(
            lambda: xgboost.QuantileDMatrix(*there, max_bin=256, ref=ref, feature_names=names), repeats=3
        )
        note = "ours moves blocks from the host, the peer has one array on the device"
        task.report.add("build the matrix", ours.best, bare.best, unit="s", of="bare XGBoost", note=note)
        made = build(blocks, ref)
        ours, bare = _interleaved(
            device,
            lambda: booster.train(spec, made),
            lambda: xgboost.train(bare_params, made, rounds),
        )
    high = None if task.dry else 1.05
    task.report.add("train on the same matrix", ours.best, bare.best, unit="s", of="bare XGBoost", high=high)
    if task.dry:
        return
    small = matrix.Builder("in_core", 256)(blocks, ref)
    began = time.perf_counter()
    booster.train(replace(spec, rounds=5, device="cpu"), small)
    host = (time.perf_counter() - began) * rounds / 5
    task.report.add(
        "train, device against host", ours.best, host, unit="s", of="this host's CPU, from 5 rounds", high=1.0
    )


def _interleaved(device: Device, ours: Callable[[], object], bare: Callable[[], object]) -> tuple[Times, Times]:
    """Turn by turn, so that a slow minute hits both."""
    pairs = [(device.wall(ours, 1, warm=int(i == 0)), device.wall(bare, 1, warm=int(i == 0))) for i in range(4)]
    return Times.of([mine.best for mine, _ in pairs]), Times.of([theirs.best for _, theirs in pairs])


if __name__ == "__main__":
    main()
