"""From the options of the pipeline file to steps: columns chosen, names resolved, defaults planned.

`build` walks the options in order, so that each step chooses from the columns that the steps before it leave. Patterns
never choose a column with a role (target, weight, group, time, key); naming one chooses it, except the target, which
would leak. `default_options` plans features where the pipeline file has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..config import StepOptions, select_columns, step_names
from ..config import step_options as options_of
from ..errors import ConfigError
from ..wire import record
from .categorical import Categorify, CountEncode, Cross
from .contract import Field, Fields, Step
from .dates import Dates
from .fill import Fill
from .numeric import Clip, Log, QuantileBins, Standardize
from .statistics import LevelCounts, Moments, Quantiles, Range, Sample, TargetGrid, TargetSums
from .target import TargetEncode

for _step in (Categorify, Clip, CountEncode, Cross, Dates, Fill, Log, QuantileBins, Standardize, TargetEncode):
    record(_step)  # steps are saved in bundles and travel to workers
for _statistic in (LevelCounts, Moments, Quantiles, Range, Sample, TargetSums):
    record(_statistic)  # what to observe travels to workers, and its name comes back with the state

# A text column of more levels than this is target-encoded as well by default: codes alone say little there
DEFAULT_ENCODE_ABOVE = 20
# A column of which nearly every value is different is an identifier, not a feature
IDENTIFIER_SHARE = 0.95


@dataclass(frozen=True)
class TargetUse:
    """What target encoding needs to know of the target."""

    column: str
    grid: TargetGrid


@dataclass(frozen=True)
class Built:
    """Steps, and the columns that were dropped on the way."""

    steps: tuple[Step, ...]
    dropped: frozenset[str]


def build(options: Sequence[StepOptions], fields: Fields, roles: Mapping[str, str], target: TargetUse | None) -> Built:
    """Make the steps.

    Parameters
    ----------
    options : sequence of StepOptions
        As in the pipeline file.
    fields : mapping of str to Field
        Columns before the first step.
    roles : mapping of str to str
        Columns that have a role, with what it is ('the target', 'the time'); patterns leave them out.
    target : TargetUse, optional
        Needed by target encoding.

    Raises
    ------
    ConfigError
        If a column does not exist, is the target, or has a kind that its step cannot use.
    """
    names = step_names([(o.kind, o.name) for o in options])
    flowing: dict[str, Field] = dict(fields)
    dropped: set[str] = set()
    steps: list[Step] = []
    for position, (option, name) in enumerate(zip(options, names, strict=True)):
        where = f"features[{position}].{option.kind}.columns"
        columns = _select(option.columns, flowing, roles, dropped, where)
        if isinstance(option, options_of.DropOptions):
            dropped |= {c for c in columns if isinstance(c, str)}
            continue
        step = _MAKERS[option.kind](name, columns, option, target)
        flowing.update(step.outputs(flowing))
        steps.append(step)
    return Built(tuple(steps), frozenset(dropped))


def _select(
    patterns: Any, fields: Fields, roles: Mapping[str, str], dropped: set[str], where: str
) -> tuple[str | tuple[str, ...], ...]:
    for item in patterns:
        for name in [item] if isinstance(item, str) else item:
            if roles.get(name) == "the target":
                raise ConfigError(
                    f"{where} names {name!r}, which is the target",
                    "Expected columns that are known when a row is scored",
                    f"Take {name!r} out of {where}",
                )
    named = {n for item in patterns for n in ([item] if isinstance(item, str) else item)}
    available = {n: (f.kind, f.dtype) for n, f in fields.items() if n not in dropped and (n not in roles or n in named)}
    return select_columns(patterns, available, where)


def _target(target: TargetUse | None) -> TargetUse:
    if target is None:
        raise ConfigError(
            "features has a target_encode step, and there is no target",
            "Expected data.target to name a column",
            "Set data.target, or remove the step",
        )
    return target


def _target_encode(name: str, columns: Any, o: Any, target: TargetUse | None) -> Step:
    t = _target(target)
    return TargetEncode(name, columns, t.column, o.folds, o.smooth, o.seed, t.grid)


_MAKERS: dict[str, Callable[[str, Any, Any, TargetUse | None], Step]] = {
    "fill": lambda n, c, o, t: Fill(n, c, o.value, o.indicator),
    "clip": lambda n, c, o, t: Clip(n, c, o.lower, o.upper),
    "log": lambda n, c, o, t: Log(n, c, o.offset),
    "standardize": lambda n, c, o, t: Standardize(n, c),
    "quantile_bins": lambda n, c, o, t: QuantileBins(n, c, o.bins),
    "categorify": lambda n, c, o, t: Categorify(n, c, o.min_count, o.max_levels),
    "count_encode": lambda n, c, o, t: CountEncode(n, c),
    "target_encode": _target_encode,
    "cross": lambda n, c, o, t: Cross(n, c),
    "dates": lambda n, c, o, t: Dates(n, c, tuple(o.parts), o.zone),
}


def default_options(
    fields: Fields, roles: Mapping[str, str], cardinality: Mapping[str, tuple[int, int]], has_target: bool
) -> list[StepOptions]:
    """Plan features by kind and cardinality.

    Numbers stay as they are (trees need no scaling and XGBoost takes missing values). Dates give month, weekday and
    hour. Text is categorified; where it has many levels it is also target-encoded. Text that is different in nearly
    every row is an identifier and left out.

    Parameters
    ----------
    fields, roles
        As in `build`.
    cardinality : mapping of str to (int, int)
        Levels of each categorical column in a sample of rows, and the rows of the sample that have a value.
    has_target : bool
        Whether there is a target to encode with.
    """
    usable = {n: f for n, f in fields.items() if n not in roles}
    dates = [n for n, f in usable.items() if f.kind == "datetime"]
    text = [n for n, f in usable.items() if f.kind == "categorical"]
    identifiers = [n for n in text if _is_identifier(*cardinality.get(n, (0, 0)))]
    codes = [n for n in text if n not in identifiers]
    many = [n for n in codes if cardinality.get(n, (0, 0))[0] > DEFAULT_ENCODE_ABOVE]
    plan: list[StepOptions] = []
    if dates:
        plan.append(options_of.DatesOptions(columns=tuple(dates), parts=("month", "weekday", "hour")))
    if many and has_target:
        plan.append(options_of.TargetEncodeOptions(columns=tuple(many)))
    if codes:
        plan.append(options_of.CategorifyOptions(columns=tuple(codes), min_count=10))
    return plan


def _is_identifier(levels: int, rows: int) -> bool:
    return rows >= 100 and levels > IDENTIFIER_SHARE * rows
