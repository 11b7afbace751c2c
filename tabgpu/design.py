"""The steps of a bound pipeline, the columns that go to its model, and its plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .assemble import Assembled, refused_explained
from .data.target import Target
from .errors import ConfigError, listing
from .features.build import Built, TargetUse, build
from .features.moments import RangeResult
from .features.passes import Passes
from .features.statistics import TargetGrid
from .planning import DataShape, Learned, Plan, Work, make, settings_of

_TEXT_BYTES = 16  # of a value, at least


@dataclass(frozen=True)
class Design:
    """Steps, the columns that flow through them, and those that go to the model."""

    built: Built
    passes: Passes
    features: tuple[str, ...]
    unused: Mapping[str, str]


def design(a: Assembled, grid: TargetGrid | None = None) -> Design:
    """Make the steps and choose the model's columns.

    Parameters
    ----------
    a : Assembled
        The bound pipeline.
    grid : TargetGrid, optional
        How the target is summed, once the survey has seen it; a plan needs none.

    Raises
    ------
    ConfigError
        If no column is left for the model.
    """
    target = a.pipeline.data.target
    if grid is None:
        grid = TargetGrid.from_range(RangeResult(0, 1, 1, 0, 0))
    fields = a.rows.with_target(Target(target, a.task) if target and a.task else None)
    with refused_explained(a.schema):
        built = build(a.options, fields, a.roles, TargetUse(target, grid) if target else None)
    passes = Passes(built.steps, fields)
    features, unused = [], {}
    for name, field in passes.fields.items():
        if name in a.roles:
            unused[name] = f"is {a.roles[name]}"
        elif name in built.dropped:
            unused[name] = "is dropped"
        elif field.to_model:
            features.append(name)
        else:
            unused[name] = f"is {field.kind} and not encoded"
    unused |= {name: why for name, why in a.schema.refused.items() if name not in unused}
    if not features:
        raise ConfigError(
            f"No column is left for the model: {listing((f'{n} {why}' for n, why in unused.items()), 6)}",
            "Expected at least one number or encoded category",
            "Add a categorify, target_encode or dates step under features",
        )
    return Design(built, passes, tuple(features), unused)


def plan_of(a: Assembled, d: Design, learned: Learned | None = None) -> Plan:
    """Make the plan of a bound pipeline; see `planning.make`."""
    pipeline, place = a.pipeline, a.place
    base = {c for step in d.passes.steps for c in step.inputs} | set(d.features) | set(a.use.columns)
    columns, _ = a.rows.sources([c for c in base if c in a.rows.fields])
    device = learned.device if learned else None
    settings = settings_of(
        pipeline,
        place.working,
        (place.runner.name, place.runner_reason),
        place.host,
        place.gpus,
        place.runner.workers,
        device,
    )
    text = sum(c.levels == "text" for c in columns)
    groups = [pair for f in a.footers for pair in zip(f.group_bytes, f.group_rows, strict=True)]
    shape = DataShape(
        a.n_rows,
        len(a.footers),
        sum(_value_bytes(c.dtype) for c in columns) + 8,
        max((rows for _, rows in groups), default=0),
        max((t.part.n_rows for t in a.tasks), default=0),
        sum(size for size, _ in groups) if text else 0,
        # a dictionary in the file hides how long text is once it is read
        max([text * _TEXT_BYTES, *(-(-size // rows) for size, rows in groups if rows)]) if text else 0,
        tuple(t.part.n_rows for t in a.tasks),
    )
    return make(shape, settings, Work(d.features, tuple(_passes(a, d)), d.unused), learned)


def _passes(a: Assembled, d: Design) -> Iterator[dict[str, Any]]:
    yield {"name": "survey", "steps": [], "columns": survey_columns(a)}
    for number, planned in enumerate(d.passes.plan(), 1):
        yield {"name": f"features {number}", "steps": list(planned.steps), "columns": list(planned.columns)}
    _, base = d.passes.needed(d.features)
    last = "matrix" if a.pipeline.model else "write features"
    yield {"name": last, "steps": [], "columns": sorted({*base, *a.use.columns})}


def survey_columns(a: Assembled) -> list[str]:
    """Columns that the survey looks at."""
    weight = a.pipeline.data.weight
    return sorted({*a.use.columns, *([weight] if weight else [])})


def _value_bytes(dtype: str) -> int:
    digits = dtype.lstrip("uintfloa")
    return int(digits) // 8 if digits.isdigit() else 8
