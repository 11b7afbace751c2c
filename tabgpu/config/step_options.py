"""The steps of the pipeline file: the options of each, and which columns they choose.

In the file a step is a mapping of one key, ``- fill: {columns: [w_temp], value: median}``; in Python it is
``steps.fill(columns=["w_temp"], value="median")``. Both give the same frozen object, here called options: what the user
wrote, checked without looking at any data. `select_columns` turns its patterns into names once the columns are known.
The steps that compute are in `tabgpu.features`; this module imports none of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from pydantic import BeforeValidator, Discriminator, Field, PlainSerializer, Tag, model_validator

from ..errors import ConfigError, listing, nearest
from .base import Names, Options

Seed = Annotated[int, Field(ge=0, lt=2**63)]
DatePart = Literal[
    "year", "month", "day", "weekday", "hour", "minute", "second", "dayofyear", "week", "quarter", "is_weekend"
]
KINDS = ("numeric", "categorical", "datetime")


def _as_groups(value: Any) -> Any:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list | tuple):
        return tuple(tuple(item) if isinstance(item, list) else item for item in value)
    return value


Groups = Annotated[
    Sequence[str | Sequence[str]],
    BeforeValidator(_as_groups, json_schema_input_type=str | list[str | list[str]]),
]
"""Column patterns, and groups of column names that stand for one composite column; held as a tuple."""

_COLUMNS = "columns: names, globs such as 'w_*', 'kind:categorical', 'type:float32'; '!name' excludes"
_GROUPS = f"{_COLUMNS}; [a, b] means the combinations of a and b"


class _Step(Options):
    name: str = Field(default="", description="name of the step, unique in the list; its kind where not given")


class FillOptions(_Step):
    """Replace missing values in place."""

    kind: Literal["fill"] = "fill"
    columns: Names = Field(min_length=1, description=_COLUMNS)
    value: float | int | str = Field(
        default="median", description="a constant, or 'mean', 'median', 'most_frequent' of the training rows"
    )
    indicator: bool = Field(
        default=False, description="true: also add <column>_missing, 1 where the value was missing, else 0"
    )


class ClipOptions(_Step):
    """Limit values to a range in place."""

    kind: Literal["clip"] = "clip"
    columns: Names = Field(min_length=1, description=_COLUMNS)
    lower: float | int | None = Field(default=None, description="least value, or null for no bound")
    upper: float | int | None = Field(default=None, description="greatest value, or null for no bound")

    @model_validator(mode="after")
    def _check(self) -> ClipOptions:
        if self.lower is None and self.upper is None:
            raise ConfigError("clip has no bounds", "Expected lower or upper or both", "Write one in the clip step")
        if self.lower is not None and self.upper is not None and self.lower > self.upper:
            raise ConfigError(
                f"clip has lower {self.lower} above upper {self.upper}",
                "Expected lower to be at most upper",
                "Exchange the two in the clip step",
            )
        return self


class LogOptions(_Step):
    """Replace x by log(x + offset); x <= -offset becomes missing."""

    kind: Literal["log"] = "log"
    columns: Names = Field(min_length=1, description=_COLUMNS)
    offset: float = Field(default=1.0, description="what is added before the logarithm is taken")


class StandardizeOptions(_Step):
    """Subtract the mean of the training rows and divide by their standard deviation, in place."""

    kind: Literal["standardize"] = "standardize"
    columns: Names = Field(min_length=1, description=_COLUMNS)


class QuantileBinsOptions(_Step):
    """Add <column>_bin: the number of the quantile bin."""

    kind: Literal["quantile_bins"] = "quantile_bins"
    columns: Names = Field(min_length=1, description=_COLUMNS)
    bins: int = Field(default=10, ge=2, le=2**15 - 1, description="number of bins of about as many training rows each")


class CategorifyOptions(_Step):
    """Replace levels by codes in place: 0 missing, 1 unseen or too rare, 2 the most frequent level, and so on."""

    kind: Literal["categorify"] = "categorify"
    columns: Names = Field(min_length=1, description=_COLUMNS)
    min_count: int = Field(default=1, ge=1, description="levels in fewer training rows than this get code 1")
    max_levels: int | None = Field(
        default=None, ge=1, lt=2**31 - 2, description="keep this many of the most frequent levels; null for all"
    )


class CountEncodeOptions(_Step):
    """Add <column>_count: in how many training rows the level, or the combination of levels, occurs."""

    kind: Literal["count_encode"] = "count_encode"
    columns: Groups = Field(min_length=1, description=_GROUPS)


class TargetEncodeOptions(_Step):
    """Add <name>_<column>: the smoothed mean of the target of the level, out of fold for training rows."""

    kind: Literal["target_encode"] = "target_encode"
    columns: Groups = Field(min_length=1, description=_GROUPS)
    folds: int = Field(default=5, ge=2, le=100, description="number of folds for the training rows")
    smooth: float = Field(default=20.0, ge=0, description="weight of the overall mean, in rows")
    seed: Seed = Field(default=0, description="chooses the folds")


class CrossOptions(_Step):
    """Add <a>_x_<b>: the combinations of levels of several columns as one categorical column."""

    kind: Literal["cross"] = "cross"
    columns: Groups = Field(min_length=1, description="groups of two or more column names: [[a, b], [a, c]]")

    @model_validator(mode="after")
    def _check(self) -> CrossOptions:
        for group in self.columns:
            if isinstance(group, str) or len(group) < 2:
                raise ConfigError(
                    f"cross has the column {group!r} outside a group of two or more",
                    "Expected a list of groups such as [[a, b], [a, c]]",
                    "Write columns: [[a, b]] in the cross step",
                )
        return self


class DatesOptions(_Step):
    """Add <column>_<part>: calendar parts of a datetime column."""

    kind: Literal["dates"] = "dates"
    columns: Names = Field(min_length=1, description=_COLUMNS)
    parts: Annotated[
        Sequence[DatePart],
        BeforeValidator(
            lambda v: (v,) if isinstance(v, str) else tuple(v) if isinstance(v, list) else v,
            json_schema_input_type=DatePart | list[DatePart],
        ),
    ] = Field(min_length=1, description="which parts: year, month, day, weekday (Monday is 0), hour, and so on")
    zone: str | None = Field(
        default=None, description="time zone such as Europe/Berlin; null for the zone of the column"
    )


class DropOptions(_Step):
    """Leave columns out of everything that follows."""

    kind: Literal["drop"] = "drop"
    columns: Names = Field(min_length=1, description=_COLUMNS)


StepOptions = (
    FillOptions
    | ClipOptions
    | LogOptions
    | StandardizeOptions
    | QuantileBinsOptions
    | CategorifyOptions
    | CountEncodeOptions
    | TargetEncodeOptions
    | CrossOptions
    | DatesOptions
    | DropOptions
)
STEP_KINDS: dict[str, type[StepOptions]] = {
    "fill": FillOptions,
    "clip": ClipOptions,
    "log": LogOptions,
    "standardize": StandardizeOptions,
    "quantile_bins": QuantileBinsOptions,
    "categorify": CategorifyOptions,
    "count_encode": CountEncodeOptions,
    "target_encode": TargetEncodeOptions,
    "cross": CrossOptions,
    "dates": DatesOptions,
    "drop": DropOptions,
}


def step_mapping(options: StepOptions) -> dict[str, Any]:
    """Write options as the pipeline file does.

    Examples
    --------
    >>> step_mapping(steps.drop(columns="id", name="ids"))
    {'drop': {'name': 'ids', 'columns': ['id']}}
    """
    return {options.kind: options.model_dump(mode="json", exclude={"kind"})}


def _unwrap(item: Any) -> Any:
    """Turn ``{fill: {...}}`` into the options of `FillOptions` with their kind."""
    if isinstance(item, Options):
        return item
    if not isinstance(item, Mapping) or len(item) != 1:
        shown = listing(item, 3) if isinstance(item, Mapping) else repr(item)[:60]
        raise ConfigError(
            f"A step is written as {shown or 'an empty mapping'}",
            "Expected a mapping of one key, its kind, such as {fill: {columns: [a], value: median}}",
            "Write '- KIND: {OPTIONS}' with all options inside the braces",
        )
    ((kind, body),) = item.items()
    if kind not in STEP_KINDS:
        raise ConfigError(
            f"There is no step of the kind {kind!r}",
            nearest(str(kind), STEP_KINDS),
            "Correct the kind of this step under features",
        )
    if isinstance(body, Options):
        return body
    if not isinstance(body, Mapping) or "kind" in body:
        raise ConfigError(
            f"The options of the step {kind} are {repr(body)[:60]}",
            f"Expected a mapping of {listing(n for n in STEP_KINDS[kind].model_fields if n != 'kind')}",
            f"Write '- {kind}: {{columns: [a, b]}}'",
        )
    return {**body, "kind": kind}


def _kind(item: Any) -> str | None:
    return item.get("kind") if isinstance(item, Mapping) else getattr(item, "kind", None)


if TYPE_CHECKING:
    StepField = StepOptions
else:  # pydantic's own discriminator by field knows no validators around the field
    _branches = tuple(Annotated[options, Tag(kind)] for kind, options in STEP_KINDS.items())
    StepField = Annotated[
        Union[_branches],  # noqa: UP007  built from a tuple
        Discriminator(_kind),
        BeforeValidator(_unwrap),
        PlainSerializer(step_mapping),
    ]
    """One item of `features` in the pipeline model."""


def step_names(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Name of each step: the one given, or its kind with a number where taken.

    Parameters
    ----------
    pairs : sequence of (kind, name)
        In the order of the file; an empty name where none is given.

    Raises
    ------
    ConfigError
        If two steps are given the same name.

    Examples
    --------
    >>> step_names([("fill", ""), ("fill", ""), ("log", "fill_2"), ("fill", "")])
    ['fill', 'fill_3', 'fill_2', 'fill_4']
    """
    given = [name for _, name in pairs if name]
    for name in given:
        if given.count(name) > 1:
            raise ConfigError(
                f"{given.count(name)} steps under features are called {name!r}",
                "Expected each name once",
                "Give one of them another name, or leave the name out",
            )
    taken, names = set(given), []
    for kind, name in pairs:
        candidates = (f"{kind}_{number}" if number > 1 else kind for number in range(1, len(pairs) + 2))
        names.append(name or next(candidate for candidate in candidates if candidate not in taken))
        taken.add(names[-1])
    return names


def select_columns(
    patterns: Sequence[str | Sequence[str]], available: Mapping[str, tuple[str, str]], where: str
) -> tuple[str | tuple[str, ...], ...]:
    """Turn patterns into column names.

    A pattern that is the name of a column means that column, whatever it looks like. Else ``kind:categorical`` and
    ``type:int*`` choose by kind and dtype, and ``*``, ``?``, ``[ab]`` by name. ``!`` before any of these takes columns
    out again, wherever it stands; patterns that only exclude start from all columns. Groups hold names alone.

    Parameters
    ----------
    patterns : sequence of str or of sequences of str
        What the file says.
    available : mapping of str to (kind, dtype)
        The columns to choose from, in the order of the schema.
    where : str
        The key, for messages: ``features[1].fill.columns``.

    Returns
    -------
    tuple of str or of tuples of str
        In the order of the patterns, columns of one pattern in the order of `available`; none twice.

    Raises
    ------
    ConfigError
        If a name does not exist (with the nearest one), a pattern matches nothing, or nothing is left.

    Examples
    --------
    >>> columns = {"a": ("numeric", "int64"), "w_x": ("numeric", "float32"), "w_y": ("categorical", "int32")}
    >>> select_columns(["w_*", "!kind:categorical", ["a", "w_y"]], columns, "columns")
    ('w_x', ('a', 'w_y'))
    """
    excluding = [p[1:] for p in patterns if isinstance(p, str) and p[:1] == "!" and p not in available]
    including = [p for p in patterns if not (isinstance(p, str) and p[:1] == "!" and p not in available)]
    out = {name for pattern in excluding for name in _matching(pattern, available, where)}
    chosen: dict[str | tuple[str, ...], None] = {}
    for pattern in including or ["*"]:
        if isinstance(pattern, str):
            chosen |= dict.fromkeys(name for name in _matching(pattern, available, where) if name not in out)
        else:
            group = _group(tuple(pattern), available, where)
            chosen[group if len(group) > 1 else group[0]] = None
    if not chosen:
        raise ConfigError(
            f"{where} leaves no column: {listing(patterns)}",
            f"Expected at least one of {listing(available)}",
            f"Take an exclusion ('!') out of {where}, or remove the step",
        )
    return tuple(chosen)


def _matching(pattern: str, available: Mapping[str, tuple[str, str]], where: str) -> list[str]:
    if pattern in available:
        return [pattern]
    prefix, _, rest = pattern.partition(":")
    if prefix == "kind" and rest not in KINDS:
        raise ConfigError(f"{where} has {pattern!r}", nearest(rest, KINDS), f"Correct the kind in {where}")
    if prefix in ("kind", "type"):
        position = ("kind", "type").index(prefix)
        found = [name for name, facts in available.items() if fnmatchcase(facts[position], rest)]
        choices = {facts[position] for facts in available.values()}
        expected = f"Expected one of {listing(sorted(choices))}"
    else:
        found = [name for name in available if fnmatchcase(name, pattern)] if set(pattern) & set("*?[") else []
        expected = nearest(pattern, available)
    if not found:
        raise ConfigError(
            f"{where} has {pattern!r}, which matches no column", expected, f"Correct or remove it in {where}"
        )
    return found


def _group(group: tuple[str, ...], available: Mapping[str, tuple[str, str]], where: str) -> tuple[str, ...]:
    for name in group:
        if name not in available:
            raise ConfigError(
                f"{where} has the group {list(group)} with {name!r}, which is no column",
                nearest(name, available),
                f"Correct the name in {where}: groups hold names, not patterns",
            )
    if len(set(group)) < len(group) or not group:
        raise ConfigError(
            f"{where} has the group {list(group)}", "Expected different columns", f"Name each once in {where}"
        )
    return group


class steps:  # noqa: N801  a namespace, read as tabgpu.steps.fill(...)
    """Builders of steps for pipelines written in Python: ``steps.fill(columns=["a"], value="median")``."""

    fill = FillOptions
    clip = ClipOptions
    log = LogOptions
    standardize = StandardizeOptions
    quantile_bins = QuantileBinsOptions
    categorify = CategorifyOptions
    count_encode = CountEncodeOptions
    target_encode = TargetEncodeOptions
    cross = CrossOptions
    dates = DatesOptions
    drop = DropOptions
