"""Memory formulas against measured peaks: every term of `tabgpu.device_terms`, for six shapes of matrices.

Needs CuPy and XGBoost alone. Blocks lie on the host and go to the device one by one, cuts are our own, and XGBoost
shares CUDA's default pool with CuPy, whose high-water mark is read around each stage:

    construction   what stays is the matrix; what it took beyond is a block, its bins, and the sketch
    one level      training trees of depth 1, which have hardly a histogram: the state of the rows
    training       trees of the wished depth: what it takes beyond one level is the cache of histograms

Peaks of stages have to stay under what the plan reckons with, allowance included; terms are shown to see which is off.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from tabgpu import device_terms as terms
from tabgpu.cache import Block, Blocks, BlockWriter

from .arguments import Task, task_of
from .device import Device, Peak

ALLOWANCE = 1.15  # of the plan
_BINS, _SAMPLE_ROWS, _ROUNDS, _BLOCKS = 256, 50_000, 6, 8
_SMALL = 16_000_000  # bytes; below, a term is noise: what other small things take is as large
_TERM = {"low": 0.6, "high": 1.3}


@dataclass(frozen=True)
class Shape:
    """A matrix and a model."""

    n_rows: int
    n_features: int
    depth: int
    missing: terms.Missing = "none"
    kind: Literal["in_core", "external"] = "in_core"
    cuts: Literal["own", "exact"] = "own"

    def __str__(self) -> str:
        rows = f"{self.n_rows / 1e6:g}M" if self.n_rows >= 100_000 else str(self.n_rows)
        missing = "" if self.missing == "none" else f", missing in {self.missing}"
        extra = "" if self.cuts == "own" else ", exact cuts"
        return f"{rows} x {self.n_features}, depth {self.depth}, {self.kind}{missing}{extra}"


SHAPES: tuple[Shape, ...] = (
    Shape(2_000_000, 30, 6),
    Shape(2_000_000, 30, 6, "some"),
    Shape(500_000, 200, 8, cuts="exact"),
    Shape(200_000, 60, 12, "some"),
    Shape(2_000_000, 30, 8, kind="external"),
    Shape(1_000_000, 100, 6, "every row", "external"),
)


def main() -> None:
    task = task_of("memory")
    began = time.monotonic()
    before = _free_before()
    device = Device(task.dry)
    shapes = SHAPES
    if task.dry:
        shapes = tuple(replace(shape, n_rows=2_000, n_features=6, depth=3) for shape in SHAPES[2::2])
    for shape in shapes:
        if time.monotonic() - began > 0.8 * task.budget_s:
            task.report.left_out(str(shape), "no time is left")
            continue
        _measured(shape, task, device)
    _context(task, device, before)


def _free_before() -> int | None:
    """Free memory before CUDA was started here, as the driver tells it."""
    from tabgpu.hardware import SystemHardware

    gpus = SystemHardware().gpus()
    return gpus[0].memory_free if gpus else None


def _context(task: Task, device: Device, before: int | None) -> None:
    """What CUDA itself takes, once kernels are loaded: what is gone and not in the pool."""
    device.trim()
    free = device.free_bytes()
    if before is None or free is None:
        task.report.left_out("CUDA context", "a dry run has none" if task.dry else "nvidia-ml-py tells of no device")
        return
    # CONTEXT_BYTES of tabgpu.planning.device, which needs packages that this part does without
    task.report.add("CUDA context and kernels", before - free - device.reserved(), 500_000_000, unit="B", high=1.0)


def _measured(shape: Shape, task: Task, device: Device) -> None:
    """Write the rows of one shape; a shape that fails does not stop the others."""
    try:
        _measure(shape, task, device)
    except Exception as error:  # noqa: BLE001 - whatever it is, it becomes a row
        task.report.failed(str(shape), error)
    gc.collect()
    device.trim()


def _measure(shape: Shape, task: Task, device: Device) -> None:
    from tabgpu.train import booster, cuts, matrix

    names = [f"f{i}" for i in range(shape.n_features)]
    n_valid = shape.n_rows // 5
    block_rows = -(-shape.n_rows // _BLOCKS)
    params = {"max_depth": shape.depth, "eta": 0.3}
    described = terms.DeviceMatrix(
        shape.n_rows, n_valid, shape.n_features, _BINS, block_rows, shape.missing, cuts=shape.cuts, params=params
    )
    blocks = {
        side: make_blocks(shape, n, block_rows, names, seed)
        for seed, (side, n) in enumerate((("train", shape.n_rows), ("valid", n_valid)))
    }
    ref = None
    if shape.cuts == "own":
        first = next(iter(blocks["train"])).features[:_SAMPLE_ROWS]
        ref = cuts.matrix_of(cuts.choose(first, _BINS), _BINS, names)
    split = terms.Split(0.5, max(1 << 20, described.quantised(shape.n_rows) // 8))
    options: dict[str, Any] = {}
    if shape.kind == "external" and not task.dry:  # on the CPU XGBoost refuses them
        options = {"cache_host_ratio": split.cache_host_ratio, "min_cache_page_bytes": split.min_cache_page_bytes}
    build = matrix.Builder(shape.kind, _BINS, task.folder, device.to_device, options)
    peaks: dict[str, Peak] = {}
    with device.training():
        with device.peak() as peaks["construction"]:
            train = build(blocks["train"], ref)
            valid = build(blocks["valid"], ref or train)
        for name, depth in (("one level", 1), ("training", shape.depth)):
            spec = booster.TrainSpec(
                "binary:logistic", _ROUNDS, {**params, "max_depth": depth}, max_bin=_BINS, device=device.name
            )
            with device.peak() as peaks[name]:
                trained = booster.train(spec, train, [(valid, "valid")])
            del trained
            gc.collect()
        del train, valid
    _write(shape, task, described, split, peaks)


def _write(
    shape: Shape, task: Task, described: terms.DeviceMatrix, split: terms.Split, peaks: Mapping[str, Peak]
) -> None:
    """Terms, and peaks of stages, as rows."""
    rows = described.n_rows + described.n_watched
    held = {"matrix": described.quantised(rows)}
    pages = 0
    if shape.kind == "external":
        held, _ = terms.split_terms(described, split)
        pages = held.pop("matrix pages")
    extra = described.input_bytes + sum(terms.construction_terms(described).values())
    flat = replace(described, params={**described.params, "max_depth": 1})
    state = terms.row_state_bytes(described)
    histograms = terms.histogram_bytes(described)
    building, level, training = peaks["construction"], peaks["one level"], peaks["training"]
    found: list[tuple[str, int | None, int]] = [
        ("matrix", building.kept, sum(held.values())),
        ("construction beyond it", _minus(building.high, building.kept), extra + pages),
        ("row state", level.high, state + pages + terms.histogram_bytes(flat)),
        ("histograms", _minus(training.high, level.high), histograms - terms.histogram_bytes(flat)),
    ]
    for name, measured, predicted in found:
        bar = _TERM if predicted >= _SMALL else {}
        task.report.add(name, measured, predicted, unit="B", of="predicted", group=str(shape), **bar)
    stages = {
        "peak of construction": (building.high, sum(held.values()) + pages + extra),
        "peak of training": (_plus(building.kept, training.high), sum(held.values()) + pages + state + histograms),
    }
    for name, (measured, predicted) in stages.items():
        task.report.add(
            name, measured, round(ALLOWANCE * predicted), unit="B", of="planned", low=0.5, high=1.0, group=str(shape)
        )
    if building.outside or training.outside:
        beside = max(building.outside, training.outside)
        task.report.add("of it beside the pool", beside, unit="B", group=str(shape))


def _minus(left: int | None, right: int | None) -> int | None:
    return None if left is None or right is None else left - right


def _plus(left: int | None, right: int | None) -> int | None:
    return None if left is None or right is None else left + right


def make_blocks(shape: Shape, n_rows: int, block_rows: int, names: list[str], seed: int) -> Blocks:
    """Blocks on the host, with values missing where the shape has it."""
    random = np.random.default_rng(seed)
    with BlockWriter(names, block_rows, n_rows=n_rows) as writer:
        for start in range(0, n_rows, block_rows):
            n = min(block_rows, n_rows - start)
            features = random.standard_normal((n, shape.n_features), dtype=np.float32)
            label = (features[:, 0] + features[:, 1] > 0).astype(np.float32)
            if shape.missing == "some":
                features[random.random(n) < 0.5, -1] = np.nan
            elif shape.missing == "every row":
                features[:, -1] = np.nan
                features[0, -1] = 1.0  # a feature without any value has no bin
                features[0, 0] = np.nan
            writer.append(Block(features, label))
        return writer.finish()


if __name__ == "__main__":
    main()
