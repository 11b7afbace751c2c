"""How a part becomes chunks: read, join, derive; and which rows a run uses.

`Recipe` describes it (it travels and is saved in the bundle), `Rows` does it on one engine. Columns are made on demand:
asking for a derived or joined column reads only what it is made of. Scoring keeps every row; training drops those that
the filter drops, that have no target, or that no side of the split wants (`Rows.assign`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

import pyarrow as pa

from ..columns import Array, Chunk, Column
from ..engine import Engine
from ..engine.halving import read_halving, work_halving
from ..errors import ConfigError, DataError, correct, nearest
from ..features.contract import Field, Fields
from ..files import Part
from ..hashing import hash_levels, splitmix64
from ..schema import ColumnType, Schema
from ..wire import record
from .expressions import Expression, parse
from .joins import JoinTable
from .prefetch import Reader
from .splits import OUTSIDE, Splitter
from .target import Target

T = TypeVar("T")
Read = dict[str, Column]  # columns as they are in the file
_SAMPLE_SALT = 0x7461_6267_7075_2025


def _ignore(message: str) -> None:
    """Tell nobody."""


@record
@dataclass(frozen=True)
class JoinRecipe:
    """A small table and how it is joined; its rows stand beside, as a pyarrow.Table called `name`."""

    name: str
    by: tuple[str, ...]
    prefix: str
    columns: tuple[ColumnType, ...]


@record
@dataclass(frozen=True)
class Recipe:
    """How rows are made of files.

    Parameters
    ----------
    columns : tuple of ColumnType
        Of the files.
    joins : tuple of JoinRecipe
        Small tables, joined before anything is derived.
    derive : tuple of (str, str)
        Name and expression of derived columns, in order.
    key : str, optional
        Column whose value is a row's identity, in place of file and row number.
    """

    columns: tuple[ColumnType, ...]
    joins: tuple[JoinRecipe, ...] = ()
    derive: tuple[tuple[str, str], ...] = ()
    key: str | None = None


@record
@dataclass(frozen=True)
class Task:
    """A part to work on, and the side its rows are on where their source decides it (data.valid, data.test)."""

    part: Part
    side: int | None = None

    @property
    def key(self) -> str:
        """What tells it from the other tasks of a run."""
        return f"{self.side}:{self.part.file.path}:{self.part.groups[0]}"


@dataclass(frozen=True)
class Maker:
    """Something that makes columns of other columns: a join or a derivation."""

    outputs: Fields
    inputs: tuple[str, ...]
    make: Callable[[Chunk], Mapping[str, Column]]


@record
@dataclass(frozen=True)
class Use:
    """Which rows a run uses, and as what.

    Parameters
    ----------
    splitter : Splitter, optional
        Puts rows on a side; None where every task has its own.
    filter : Expression, optional
        Rows for which it is not true are used nowhere.
    target : str, optional
        Rows without it are used nowhere.
    sample : float, optional
        Share of rows to use, chosen by the hash of their identity.
    """

    splitter: Splitter | None = None
    filter: Expression | None = None
    target: str | None = None
    sample: float | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that deciding needs."""
        names = list(self.splitter.columns) if self.splitter else []
        names += list(self.filter.columns) if self.filter else []
        names += [self.target] if self.target else []
        return tuple(dict.fromkeys(names))


@dataclass
class Rows:
    """Opens parts as chunks on one engine.

    Parameters
    ----------
    engine : Engine
        Reads and computes.
    recipe : Recipe
        How rows are made.
    tables : mapping of str to pyarrow.Table
        The rows of the joined tables, by name.
    target : Target, optional
        Turns the target column into numbers; set once its levels are known.
    readers : int
        Parts that are read at the same time; one chunk of each waits.
    note : callable
        Told in one sentence where memory did not suffice for a chunk, and what is done.
    """

    engine: Engine
    recipe: Recipe
    tables: Mapping[str, pa.Table] = field(default_factory=dict)
    target: Target | None = None
    readers: int = 1
    note: Callable[[str], None] = _ignore

    def __post_init__(self) -> None:
        self._expected: list[Part] = []
        self._begun: dict[tuple[Part, tuple[str, ...]], Reader[Read]] = {}
        self._types = {c.name: c for c in self.recipe.columns}
        fields = {c.name: field_of(c) for c in self.recipe.columns}
        self._makers: list[Maker] = []
        for join in self.recipe.joins:
            self._add(self._join(join, fields), fields, f"data.join.{join.name}")
        for name, text in self.recipe.derive:
            self._add(_derivation(name, text, fields), fields, f"data.derive.{name}")
        self.fields: dict[str, Field] = fields

    def _add(self, maker: Maker, fields: dict[str, Field], key: str) -> None:
        for name in maker.outputs:
            if name in fields:
                raise ConfigError(
                    f"{key} makes a column {name!r}, which is there already",
                    "Expected a new name",
                    f"Choose another name or a prefix under {key}",
                )
        self._makers.append(maker)
        fields.update(maker.outputs)

    def _join(self, join: JoinRecipe, fields: Fields) -> Maker:
        table = self.tables[join.name]
        where = f"the table {join.name!r}"
        small = Chunk(
            self.engine.from_arrow(table, join.columns, where),
            self.engine.xp.zeros(table.num_rows, dtype="uint64"),
            self.engine.xp,
        )
        joined = JoinTable.build(
            join.name, small, join.by, join.prefix, {c.name: field_of(c) for c in join.columns}, fields
        )
        return Maker(joined.fields, joined.by, joined.join)

    def require(self, name: str, key: str) -> None:
        """Raise ConfigError unless there is such a column (read, joined or derived)."""
        if name not in self.fields:
            raise ConfigError(
                f"{key} names the column {name!r}, which does not exist",
                nearest(name, self.fields),
                f"{correct(key, 'COLUMN')}; tabgpu inspect DATA lists the columns",
            )

    def with_target(self, target: Target | None) -> dict[str, Field]:
        """Fields as steps see them: the target as the number that it becomes once its labels are known."""
        known = target is not None and target.column in self.fields
        return {**self.fields, target.column: target.field} if target is not None and known else dict(self.fields)

    def sources(self, names: Iterable[str]) -> tuple[list[ColumnType], list[Maker]]:
        """Columns to read and makers to apply, in order, for `names` to be there."""
        wanted = set(names)
        makers = []
        for maker in reversed(self._makers):
            if wanted & maker.outputs.keys():
                makers.append(maker)
                wanted = (wanted - maker.outputs.keys()) | set(maker.inputs)
        if self.recipe.key:
            wanted.add(self.recipe.key)
        return [c for c in self.recipe.columns if c.name in wanted], makers[::-1]

    def open(self, part: Part, names: Iterable[str], chunk_rows: int) -> Iterator[Chunk]:
        """Chunks of a part with the named columns, every row, in order; the next one is read ahead."""
        names = list(names)
        columns, makers = self.sources(names)
        row = part.first_row
        for read in self._read(part, columns, chunk_rows):
            n = len(next(iter(read.values()))) if read else min(chunk_rows, part.first_row + part.n_rows - row)
            identity = self._identity(read, part.file.name, row, n)
            yield self._finish(Chunk(read, identity, self.engine.xp), makers, names, part.file.path)
            row += n

    def _read(self, part: Part, columns: list[ColumnType], chunk_rows: int) -> Iterator[Read]:
        """Chunks of a part as they are in the file; other readers begin with the parts that are expected next."""

        def begin(of: Part) -> Reader[Read]:
            return Reader(read_halving(self.engine, of, columns, chunk_rows, note=self.note))

        what = tuple(c.name for c in columns)
        reader = self._begun.pop((part, what), None) or begin(part)
        if part in self._expected:
            place = self._expected.index(part)
            following = self._expected[place + 1 : place + self.readers]
            del self._expected[: place + 1]
            for other in following:
                if (other, what) not in self._begun:
                    self._begun[other, what] = begin(other)
        return reader.items()

    @contextmanager
    def expecting(self, tasks: Sequence[Task]) -> Iterator[None]:
        """While these tasks are done in their order, `readers` of their parts are read at the same time."""
        self._expected = [task.part for task in tasks] if self.readers > 1 else []
        try:
            yield
        finally:
            self._expected = []
            while self._begun:
                self._begun.popitem()[1].close()

    def in_pieces(self, chunk: Chunk, work: Callable[[Chunk], T]) -> Iterator[T]:
        """What `work` makes of a chunk; where memory does not suffice for it, of its halves, in order."""
        return work_halving(self.engine, chunk, work, note=self.note)

    def from_table(self, table: pa.Table, names: Iterable[str], where: str) -> Chunk:
        """One chunk of a table in memory, every row, in order."""
        names = list(names)
        columns, makers = self.sources(names)
        read = self.engine.from_arrow(table, columns, where)
        identity = self._identity(read, where, 0, table.num_rows)
        return self._finish(Chunk(read, identity, self.engine.xp), makers, names, where)

    def _finish(self, chunk: Chunk, makers: list[Maker], names: list[str], where: str) -> Chunk:
        for maker in makers:
            chunk = chunk.with_columns(maker.make(chunk))
        if self.target and self.target.column in names:
            encoded = self.target.encode(chunk[self.target.column], chunk.xp, where)
            chunk = chunk.with_columns({self.target.column: encoded})
        return chunk.select(names)

    def _identity(self, read: Mapping[str, Column], file_name: str, first_row: int, n_rows: int) -> Array:
        """uint64 identity of each row: hash of its key, or of its file's name and its row number there."""
        xp = self.engine.xp
        if self.recipe.key:
            return _key_identity(read[self.recipe.key], self.recipe.key, xp)
        numbers = xp.arange(first_row, first_row + n_rows, dtype="uint64")
        return splitmix64(numbers + xp.uint64(_file_key(file_name)))

    def assign(self, chunk: Chunk, use: Use, side: int | None) -> Array:
        """int8 array: the side of each row, an index into `SIDES` or `OUTSIDE`.

        Parameters
        ----------
        chunk : Chunk
            With at least ``use.columns``.
        use : Use
            What decides.
        side : int, optional
            The side of the whole task, where its source decides it.
        """
        xp = chunk.xp
        if side is not None or use.splitter is None:
            sides = xp.full(chunk.n_rows, side or 0, dtype="int8")
        else:
            sides = use.splitter.assign(chunk)
        keep = xp.ones(chunk.n_rows, dtype=bool)
        if use.filter is not None:
            keep &= use.filter.keep(chunk)
        if use.sample is not None:  # another salt than splits and folds have, so that it thins all of them alike
            keep &= splitmix64(chunk.identity ^ xp.uint64(_SAMPLE_SALT)) < xp.uint64(int(use.sample * 2**64))
        if use.target is not None:
            keep &= ~chunk[use.target].missing()
        return xp.where(keep, sides, xp.int8(OUTSIDE))

    def pick(self, chunk: Chunk, use: Use, task: Task, side: int) -> Chunk | None:
        """Rows of a chunk that are on one side, or None if there is none."""
        chosen = self.assign(chunk, use, task.side) == side
        if bool(chosen.all()):
            return chunk if chunk.n_rows else None
        return chunk.take(chosen) if bool(chosen.any()) else None


def field_of(column: ColumnType) -> Field:
    """The field of a column as it comes from a file."""
    return Field(column.kind, column.dtype, column.unit, column.zone)


def _derivation(name: str, text: str, fields: Fields) -> Maker:
    expression = parse(text, f"data.derive.{name}")
    return Maker({name: expression.check(fields)}, expression.columns, lambda chunk: {name: expression.evaluate(chunk)})


def _key_identity(column: Column, name: str, xp: object) -> Array:
    if bool(column.missing().any()):
        raise DataError(
            f"The key column {name!r} has missing values",
            "Expected a value in every row, since it is the row's identity",
            "Fill it when writing the files, or leave data.key out",
        )
    if column.levels is not None:
        return splitmix64(column.levels.keys[column.values])
    return splitmix64(column.values.astype("uint64" if column.values.dtype.kind in "iu" else "float64").view("uint64"))


@lru_cache(maxsize=4096)
def _file_key(name: str) -> int:
    return int(hash_levels(pa.array([name]))[0])


def read_join_table(schema: Schema, paths: Iterable[str], name: str) -> pa.Table:
    """Read all rows of a small table, its usable columns alone, as the files hold them."""
    from ..files import first_line, open_parquet

    tables = []
    for path in paths:
        try:
            with open_parquet(path) as parquet:
                wanted = [c for c in parquet.schema_arrow.names if c in schema.columns]
                tables.append(parquet.read(columns=wanted))
        except (OSError, pa.ArrowException) as error:
            raise DataError(
                f"The joined table {name!r} cannot be read from {path}: {first_line(error)}",
                "Expected a whole Parquet file",
                f"Write it again, or correct data.join.{name}.source (score: --table {name}=PATH)",
            ) from error
    return pa.concat_tables(tables, promote_options="permissive")
