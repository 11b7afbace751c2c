"""Joins with small tables: for each row of a chunk the one table row with an equal key, or none.

The table is held whole, as one chunk, sorted by the 64-bit key of its key tuple. A row's key is made of its values, not
of how they are stored: integers of all widths and whole floats are one kind of key, timestamps of all units another,
text a third. So a chunk finds its rows with one lookup, and rows stay as many as they were and in their order. A row
with a missing part in its key matches nothing. What does not match is missing in all columns of the table.

Reading the table, and keeping it in the bundle as the Arrow table that it was, is the matter of `tabgpu.data.rows`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from ..columns import Array, ArrayModule, Chunk, Column
from ..errors import ConfigError, DataError, nearest
from ..features.contract import Field
from ..hashing import KeyTable, combine, splitmix64, value_keys
from .expressions.values import by_code
from .times import TICKS

_NEVER = 0x5D6C_91E0_7A3B_42F1  # tells unsigned integers beyond int64 from the negative ones with the same bits


@dataclass(frozen=True)
class JoinTable:
    """A small table, ready to be joined; made by `build`. It never travels: its Arrow table does.

    Parameters
    ----------
    name : str
        Of the table, as the pipeline file has it.
    by : tuple of str
        The key columns, named the same in the data and in the table.
    prefix : str
        Stands before the names of the columns that the table brings.
    table : Chunk
        All rows with a whole key, sorted by that key: the key columns and those that are brought.
    keys : KeyTable
        The keys, one for each row of `table`.
    fields : mapping of str to Field
        The columns that the join adds, by their new names.
    """

    name: str
    by: tuple[str, ...]
    prefix: str
    table: Chunk
    keys: KeyTable
    fields: Mapping[str, Field]

    @classmethod
    def build(
        cls,
        name: str,
        table: Chunk,
        by: tuple[str, ...],
        prefix: str,
        table_fields: Mapping[str, Field],
        data_fields: Mapping[str, Field],
    ) -> JoinTable:
        """Make the join of a table with the data.

        Parameters
        ----------
        name, by, prefix
            See the class.
        table : Chunk
            All rows of the table, in any order.
        table_fields, data_fields : mapping of str to Field
            Columns of the table, and of the data before the join.

        Raises
        ------
        ConfigError
            If a key column is not there, the table brings nothing, or a column that it brings is there already.
        DataError
            If a key column is time on one side only, or two rows of the table have one key.
        """
        fields = join_fields(name, by, prefix, table_fields, data_fields)
        keys, whole = _row_keys(table, by)
        rows = table.xp.flatnonzero(whole)
        rows = rows[table.xp.argsort(keys[rows], kind="stable")]
        keys = keys[rows]
        twice = table.xp.flatnonzero(keys[1:] == keys[:-1])
        if len(twice):
            raise _duplicates(name, by, table.take(rows[twice[:1]]), len(twice))
        return cls(name, tuple(by), prefix, table.take(rows), KeyTable(keys), fields)

    def join(self, chunk: Chunk) -> dict[str, Column]:
        """Return the columns that the table brings, for each row of the chunk, under their new names.

        Parameters
        ----------
        chunk : Chunk
            With at least the key columns.

        Returns
        -------
        dict of str to Column
            n_rows values each: of the table's dtype, codes into the table's own levels; missing where none matches.

        Raises
        ------
        DataError
            If a key column is text on one side and numbers or times on the other.

        Examples
        --------
        >>> import numpy as np
        >>> small = Chunk({"k": Column(np.array([7, 3])), "x": Column(np.array([0.7, 0.3]))}, np.zeros(2, "uint64"), np)
        >>> fields = {"k": Field("numeric", "int64"), "x": Field("numeric", "float64")}
        >>> joined = JoinTable.build("t", small, ("k",), "t_", fields, {"k": Field("numeric", "int8")})
        >>> chunk = Chunk({"k": Column(np.array([3, 4, 7], "int8"))}, np.zeros(3, "uint64"), np)
        >>> joined.join(chunk)["t_x"].values.tolist()
        [0.3, nan, 0.7]
        """
        self._check_kinds(chunk)
        rows = self._rows(chunk)
        brought = (n for n in self.table.columns if n not in self.by)
        return {self.prefix + n: _taken(chunk.xp, self.table[n], rows) for n in brought}

    def _rows(self, chunk: Chunk) -> Array:
        """Row of the table for each row of the chunk, -1 where none."""
        xp = chunk.xp
        column = chunk[self.by[0]]
        if len(self.by) == 1 and column.levels is not None and len(column.levels) <= chunk.n_rows:
            of_level = self.keys.lookup(_level_keys(xp, column))  # one lookup a level, not one a row
            return xp.where(column.missing(), -1, by_code(xp, column, of_level))
        keys, whole = _row_keys(chunk, self.by)
        return xp.where(whole, self.keys.lookup(keys), -1)

    def _check_kinds(self, chunk: Chunk) -> None:
        for name in self.by:
            here, there = _key_kind(chunk[name]), _key_kind(self.table[name])
            if here != there and "nothing" not in (here, there):
                raise _kinds_differ(self.name, name, here, there)


def join_fields(
    name: str,
    by: tuple[str, ...],
    prefix: str,
    table_fields: Mapping[str, Field],
    data_fields: Mapping[str, Field],
) -> dict[str, Field]:
    """Return the columns that a join adds, from what is known before any row is read.

    Parameters
    ----------
    name, by, prefix
        Of the join; see `JoinTable`.
    table_fields, data_fields : mapping of str to Field
        Columns of the table, and of the data before the join.

    Raises
    ------
    ConfigError
        If a key column is not there, the table brings nothing, or a column that it brings is there already.
    DataError
        If a key column is time on one side only.
    """
    key = f"data.join.{name}"
    for column in by:
        for side, fields in (("the data", data_fields), (f"the table {name!r}", table_fields)):
            if column not in fields:
                raise ConfigError(
                    f"{key} joins by {column!r}, which is no column of {side}",
                    f"Expected a column of both. {nearest(column, fields)}",
                    f"Correct {key}.by, or derive the column in the data under data.derive",
                )
        here, there = data_fields[column].kind, table_fields[column].kind
        if here != there and "datetime" in (here, there):
            raise _kinds_differ(name, column, here, there)
    brought = {prefix + column: field for column, field in table_fields.items() if column not in by}
    if not brought or not by:
        raise ConfigError(
            f"{key} joins by {', '.join(by) or 'nothing'} and brings {len(brought)} columns",
            "Expected key columns, and a table that has others beside them",
            f"Correct {key}.by and {key}.columns",
        )
    for column in brought:
        if column in data_fields:
            raise ConfigError(
                f"{key} brings a column {column!r}, which is there already",
                "Expected new names",
                f"Set another prefix (--set {key}.prefix={name}_), or name the columns to bring under {key}.columns",
            )
    return brought


def _kinds_differ(table: str, column: str, here: str, there: str) -> DataError:
    return DataError(
        f"data.join.{table} joins by {column!r}, which is {here} in the data and {there} in the table",
        "Expected one kind on both sides",
        f"Declare its kind under data.columns, or derive a fitting column under data.derive and correct "
        f"data.join.{table}.by",
    )


def _duplicates(name: str, by: tuple[str, ...], row: Chunk, n_more: int) -> DataError:
    example = ", ".join(f"{column} {_shown(row[column])}" for column in by)
    return DataError(
        f"The joined table {name!r} has {n_more} rows whose key occurred before, for example {example}",
        f"Expected one row for each {', '.join(by)}",
        f"Remove what is double in the table, or add to data.join.{name}.by the columns that tell its rows apart",
    )


def _shown(column: Column) -> str:
    """The one value of a column, for a message."""
    value = column.values[0].item()
    if column.levels is not None:
        return repr(column.levels.values[value].as_py())
    if column.kind != "datetime":
        return repr(value)
    seconds, rest = divmod(value, TICKS[column.unit or "ns"])
    try:
        moment = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    except OverflowError:
        return f"{value} {column.unit}"
    return moment + (f" and {rest} {column.unit}" if rest else "") + " UTC"


def _key_kind(column: Column) -> str:
    if column.kind == "datetime":
        return "time"
    if column.levels is None:
        return "a number"
    kind = column.levels.values.type
    if not len(column.levels) or pa.types.is_null(kind):
        return "nothing"
    return "a number" if _is_number(kind) else f"text ({kind})" if not _is_text(kind) else "text"


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _row_keys(chunk: Chunk, by: tuple[str, ...]) -> tuple[Array, Array]:
    """uint64 key of each row's key tuple, and where none of its parts is missing (bool)."""
    keys, whole = None, None
    for name in by:
        column = chunk[name]
        part, there = _column_keys(chunk.xp, column), ~column.missing()
        keys = part if keys is None else combine(keys, part)
        whole = there if whole is None else whole & there
    return keys, whole


def _column_keys(xp: ArrayModule, column: Column) -> Array:
    if column.levels is not None:
        return by_code(xp, column, _level_keys(xp, column))
    if column.kind == "datetime":
        ticks = TICKS[column.unit or "ns"]
        seconds = column.values // ticks
        # Seconds and nanoseconds apart: together they would not hold the year 9999.
        rest = (column.values - seconds * ticks) * (10**9 // ticks)
        return combine(splitmix64(seconds.view("uint64")), rest.view("uint64"))
    return _number_keys(xp, column.values)


def _level_keys(xp: ArrayModule, column: Column) -> Array:
    """Key of each level; those of numbers are the keys of the numbers."""
    assert column.levels is not None
    values = column.levels.values
    if not _is_number(values.type):
        return column.levels.keys
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    return _number_keys(xp, xp.asarray(values.to_numpy(zero_copy_only=False)))


def _number_keys(xp: ArrayModule, values: Array) -> Array:
    """Keys that equal numbers of all dtypes share (floats from 2^63 on meet floats alone); any for NaN."""
    if values.dtype == "uint64":
        return xp.where(values >> xp.uint64(63) != 0, splitmix64(values ^ xp.uint64(_NEVER)), splitmix64(values))
    if values.dtype.kind != "f":
        return splitmix64(values.astype("int64").view("uint64"))
    wide = values.astype("float64")
    whole = (xp.floor(wide) == wide) & (wide >= -(2.0**63)) & (wide < 2.0**63)
    integers = xp.where(whole, wide, 0.0).astype("int64").view("uint64")
    return xp.where(whole, splitmix64(integers), value_keys(wide))


def _taken(xp: ArrayModule, column: Column, rows: Array) -> Column:
    """The table's values for each row of the chunk, missing where the row is -1."""
    none = rows < 0
    at = xp.maximum(rows, 0)
    values = column.values[at] if len(column) else xp.zeros(len(rows), dtype=column.values.dtype)
    if column.kind == "categorical":
        return replace(column, values=xp.where(none, xp.int32(-1), values))
    if values.dtype.kind == "f":
        return replace(column, values=xp.where(none, values.dtype.type(math.nan), values))
    valid = ~none
    if column.valid is not None and len(column):
        valid &= column.valid[at]
    return replace(column, values=values, valid=valid)
