"""From a pipeline file and footers to everything a run works with: files, schema, rows, roles, steps and the plan.

Nothing is read here but footers, the small joined tables (of which a plan needs the schema alone), and, where features
are left to default, the first rows of the first file, to see how many levels text columns have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from .config import Join, Pipeline, StepOptions
from .data.expressions import parse
from .data.rows import JoinRecipe, Recipe, Rows, Task, Use, read_join_table
from .data.splits import ColumnSplit, GroupSplit, RandomSplit, Splitter, TimeSplit
from .data.target import Objective, task_of
from .data.times import parse_gap, parse_time
from .engine import Engine
from .engine.cpu import CpuEngine
from .errors import ConfigError, DataError, listing
from .features.build import default_options
from .features.contract import Fields
from .files import File, Footer, find, make_parts, read_footer
from .place import Place, set_up
from .planning import Plan
from .runners import Runner
from .schema import Schema, unify
from .train.params import check_params

_PEEK_ROWS = 10_000
_PARTS_A_WORKER = 4  # so that the fullest has at most a quarter more than the mean
_PART_ROWS = 500_000  # small row groups are put together up to this, so that tasks are worth their overhead


@dataclass(frozen=True)
class Assembled:
    """A pipeline bound to its data. See `assemble`.

    `rows` are read by the CPU engine until `on_engine` moves them to the engine that does the work.
    `fractions` holds the fractions (valid, test) of a time split whose boundaries only the data can tell; `splitter` is
    None until then.
    """

    pipeline: Pipeline
    place: Place
    footers: tuple[Footer, ...]
    tasks: tuple[Task, ...]
    schema: Schema
    rows: Rows
    roles: Mapping[str, str]
    use: Use
    fractions: tuple[float, float] | None
    task: Objective | None
    options: tuple[StepOptions, ...]
    defaulted: bool

    @property
    def engine(self) -> Engine:
        """Of this process."""
        return self.place.engine

    @property
    def runner(self) -> Runner:
        """Where tasks run."""
        return self.place.runner

    @property
    def n_rows(self) -> int:
        """Rows of all files."""
        return sum(f.n_rows for f in self.footers)


def assemble(pipeline: Pipeline, place: Place, read_tables: bool, sample: float | None = None) -> Assembled:
    """Bind a pipeline to its data.

    Parameters
    ----------
    pipeline : Pipeline
        The checked pipeline file.
    place : Place
        Where the work is done.
    read_tables : bool
        Whether to read the rows of joined tables; a plan needs their schema alone.
    sample : float, optional
        Share of rows to use, above 0 and below 1.

    Raises
    ------
    ConfigError, DataError
        If files, columns or expressions are not as the pipeline file says.
    """
    _check_promises(pipeline)
    data = pipeline.data
    sides = [(data.source, None if data.valid is None and data.test is None else 0, "data.source")]
    sides += [(s, i, k) for s, i, k in ((data.valid, 1, "data.valid"), (data.test, 2, "data.test")) if s is not None]
    footers: list[Footer] = []
    tasks: list[Task] = []
    for source, side, key in sides:
        own = [read_footer(f) for f in find(source, pipeline.base_dir, key)]
        footers += own
        tasks += [Task(part, side) for part in make_parts(own, _part_rows(own, place.runner.workers))]
    schema = unify(footers, data.columns)
    if not sum(f.n_rows for f in footers):
        raise DataError(
            f"data.source has {len(footers)} files and no row", "Expected at least one row", "Look at data.source"
        )
    _check_sides(sides, footers, tasks, schema)
    rows = _make_rows(pipeline, CpuEngine(), schema, read_tables)
    with refused_explained(schema):
        roles = _roles(pipeline, rows)
    use, fractions = _use(pipeline, rows, has_sides=len(sides) > 1)
    use = replace(use, sample=sample)
    task = _task(pipeline, rows)
    if pipeline.model:
        check_params(pipeline.model.params, pipeline.model.objective)
    options = pipeline.features
    if options is None:
        options = tuple(_default_options(rows, tasks, roles, data.target is not None))
    return Assembled(
        pipeline,
        place,
        tuple(footers),
        tuple(tasks),
        schema,
        rows,
        roles,
        use,
        fractions,
        task,
        tuple(options),
        pipeline.features is None,
    )


def _part_rows(footers: Sequence[Footer], workers: int) -> int:
    """Rows of small row groups that are put together: no more than leaves several parts to each worker."""
    if workers == 1:
        return _PART_ROWS
    return min(_PART_ROWS, max(1, sum(f.n_rows for f in footers) // (_PARTS_A_WORKER * workers)))


def _check_promises(pipeline: Pipeline) -> None:
    """Refuse keys that this version would ignore: an ignored key is a wrong result that nobody sees."""
    if pipeline.precision != "full":
        raise ConfigError(
            f"precision is {pipeline.precision!r}, and this version of tabgpu has full precision alone",
            "Expected precision: full",
            "Leave precision out, or pass --set precision=full",
        )
    if pipeline.data.group and pipeline.split.by == "random" and not (pipeline.data.valid or pipeline.data.test):
        raise ConfigError(
            f"data.group is {pipeline.data.group!r}, and split.by is 'random', which would tear groups apart",
            "Expected a split that keeps the rows of a group on one side",
            "Write split: {by: group}, or leave data.group out (--set split.by=group)",
        )


def _check_sides(sides: Any, footers: Sequence[Footer], tasks: Sequence[Task], schema: Schema) -> None:
    """Refuse a source of validation or test rows that lacks a column which the training files have."""
    own: dict[int, set[str]] = {}
    names = {f.file.path: {*f.schema.names, *(n for n, _ in f.file.partition)} for f in footers}
    for task in tasks:
        own.setdefault(task.side or 0, set()).update(names[task.part.file.path])
    for _, side, key in sides:
        lacking = [n for n in schema.columns if n in own.get(0, ()) and n not in own.get(side or 0, own.get(0, ()))]
        if lacking:
            raise DataError(
                f"The files of {key} lack the column {listing(lacking, 6)}, which the files of data.source have",
                "Expected the same columns on every side",
                f"Write the files of {key} again with these columns, or declare them data.columns.NAME.kind=ignore",
            )


def _make_rows(pipeline: Pipeline, engine: Engine, schema: Schema, read_tables: bool) -> Rows:
    data = pipeline.data
    if data.key:
        schema.require(data.key, "data.key")
    joins, tables = [], {}
    for join in data.join:
        joined, tables[join.name] = _read_join(join, pipeline, read_tables)
        joins.append(joined)
    recipe = Recipe(tuple(schema.columns.values()), tuple(joins), tuple(data.derive.items()), data.key)
    with refused_explained(schema):
        return Rows(engine, recipe, tables)


@contextmanager
def refused_explained(schema: Schema) -> Iterator[None]:
    """Where something names a column that cannot be used, say so rather than that it does not exist."""
    try:
        yield
    except ConfigError as error:
        for name in schema.refused:
            if repr(name) in error.happened:
                schema.require(name, error.happened.split(" ")[0])
        raise


def _read_join(join: Join, pipeline: Pipeline, read_tables: bool) -> tuple[JoinRecipe, pa.Table]:
    key = f"data.join.{join.name}.source"
    footers = [read_footer(f) for f in find(join.source, pipeline.base_dir, key)]
    schema = unify(footers, {})
    wanted = [*join.by, *(join.columns or [n for n in schema.columns if n not in join.by])]
    types = tuple(schema.require(n, f"data.join.{join.name}") for n in dict.fromkeys(wanted))
    table = read_join_table(schema, [f.file.path for f in footers], join.name) if read_tables else pa.table({})
    return JoinRecipe(join.name, tuple(join.by), join.prefix, types), table


def _roles(pipeline: Pipeline, rows: Rows) -> dict[str, str]:
    data = pipeline.data
    named = {"target": data.target, "weight": data.weight, "group": data.group, "time": data.time, "key": data.key}
    roles: dict[str, str] = {}
    for role, name in named.items():
        if name is not None:
            rows.require(name, f"data.{role}")
            roles.setdefault(name, f"the {role}")
    for name, why in _target_kin(pipeline).items():
        roles.setdefault(name, why)
    if pipeline.split.by == "column" and pipeline.split.column:
        rows.require(pipeline.split.column, "split.column")
        roles.setdefault(pipeline.split.column, "the split")
    if data.weight and rows.fields[data.weight].kind != "numeric":
        raise ConfigError(
            f"data.weight names {data.weight!r}, which is {rows.fields[data.weight].kind}",
            "Expected a column of numbers",
            "Correct data.weight, or make numbers of it with data.derive",
        )
    return roles


def _task(pipeline: Pipeline, rows: Rows) -> Objective | None:
    """What is learned; for features alone, what the target looks like."""
    target = pipeline.data.target
    if target is None:
        if pipeline.model is None:
            return None
        raise ConfigError(
            "There is a model, and data.target is not set",
            "Expected the column to predict",
            "Set data.target, or model: null for features alone",
        )
    kind = rows.fields[target].kind
    task = task_of(pipeline.model.objective) if pipeline.model else "binary" if kind == "categorical" else "regression"
    if kind == "datetime" or (task == "regression" and kind != "numeric"):
        raise ConfigError(
            f"data.target names {target!r}, which is {kind}",
            f"Expected {'numbers' if task == 'regression' else 'two labels, as text or numbers'}",
            "Correct data.target, make numbers of it with data.derive, or choose another objective",
        )
    return task


def _use(pipeline: Pipeline, rows: Rows, has_sides: bool) -> tuple[Use, tuple[float, float] | None]:
    data = pipeline.data
    condition = None
    if data.filter:
        condition = parse(data.filter, "data.filter")
        condition.check(rows.fields, condition=True)
    if has_sides:
        return Use(None, condition, data.target), None
    splitter, fractions = _splitter(pipeline, rows.fields)
    return Use(splitter, condition, data.target), fractions


def _splitter(pipeline: Pipeline, fields: Fields) -> tuple[Splitter | None, tuple[float, float] | None]:
    split, data = pipeline.split, pipeline.data
    valid, test = split.valid, split.test
    if split.by == "column":
        return ColumnSplit(str(split.column)), None
    if split.by == "time":
        if data.time is None:
            raise ConfigError(
                "split.by is 'time', and data.time is not set", "Expected the column with the time", "Set data.time"
            )
        field = fields[data.time]
        if all(v is None or isinstance(v, float) or v == 0 for v in (valid, test)):
            return None, (float(valid or 0), float(test or 0))
        times = [None if v is None else parse_time(v, field.unit, field.zone) for v in (valid, test)]
        return TimeSplit(data.time, times[0], times[1], parse_gap(split.gap, field.unit)), None
    fractions = float(valid or 0), float(test or 0)
    if split.by == "group":
        if data.group is None:
            raise ConfigError(
                "split.by is 'group', and data.group is not set", "Expected the column of groups", "Set data.group"
            )
        return GroupSplit((data.group,), *fractions, split.seed), None
    return RandomSplit(*fractions, split.seed), None


def _default_options(
    rows: Rows, tasks: Sequence[Task], roles: Mapping[str, str], has_target: bool
) -> list[StepOptions]:
    """Plan features from the fields and the first rows of the first part."""
    text = [n for n, f in rows.fields.items() if f.kind == "categorical" and n not in roles]
    cardinality = {}
    if text:
        chunk = next(rows.open(tasks[0].part, text, _PEEK_ROWS))
        for name in text:
            codes = rows.engine.to_host(chunk[name].values)
            present = codes[codes >= 0]
            cardinality[name] = (len(set(present.tolist())), len(present))
    return default_options(rows.fields, roles, cardinality, has_target)


def _target_kin(pipeline: Pipeline) -> dict[str, str]:
    """Columns that would give the target away: what it is derived of, and what is derived of that or of it."""
    target = pipeline.data.target
    derived = {name: set(parse(text, f"data.derive.{name}").columns) for name, text in pipeline.data.derive.items()}
    origins: set[str] = set()
    todo = [target] if target else []
    while todo:
        new = derived.get(todo.pop(), set()) - origins
        origins |= new
        todo += new
    kin = dict.fromkeys(sorted(origins), "what the target is derived of")
    telling = {*origins, *([target] if target else [])}
    for name in pipeline.data.derive:  # in order: each may stand on those before it
        if derived[name] & telling and name not in telling:
            telling.add(name)
            kin[name] = "made of the target or of what it is derived of"
    return kin


def on_engine(a: Assembled, plan: Plan, note: Callable[[str], None]) -> Assembled:
    """Have rows read by the engine of this process, its memory set up as the plan has it; `note` as in `Rows`."""
    engine = set_up(a.place, a.pipeline, plan)
    return replace(a, rows=replace(a.rows, engine=engine, readers=plan.readers, note=note))


def files_of(a: Assembled) -> list[File]:
    """All input files, tables excluded."""
    return [f.file for f in a.footers]
