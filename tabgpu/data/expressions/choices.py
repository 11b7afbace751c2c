"""``where`` and ``coalesce``: one column made of several.

What is chosen from is brought to one kind first: integers and floats as in `numbers`, text under one table
of levels, times of one unit; text beside a time is read as a time, and null takes the kind of what it stands beside.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa

from ...columns import Array, ArrayModule, Chunk, Column
from .comparisons import exact_literal
from .logic import missing
from .numbers import INT64_MAX, common_dtype, operand
from .values import Refusal, Value, by_code, constant, described, kind_of, levels_of, truths, valid_mask


def where(chunk: Chunk, condition: Value, then: Value, other: Value) -> Column:
    """``where(c, a, b)``: a where c is true, b where it is false, missing where it is missing."""
    true, false = truths(chunk, condition)
    chosen = choose(chunk, true, then, other)
    return chosen if valid_mask(condition) is None else _without(chunk.xp, chosen, ~(true | false))


def coalesce(chunk: Chunk, *values: Value) -> Column:
    """``coalesce(a, b, ...)``: the first that is not missing."""
    result = values[-1]
    for value in reversed(values[:-1]):
        result = choose(chunk, missing(chunk, value).values == 0, value, result)
    return result if isinstance(result, Column) else constant(chunk, result)


def choose(chunk: Chunk, first: Array, a: Value, b: Value) -> Column:
    """`a` where `first`, else `b`, brought to one kind."""
    xp = chunk.xp
    if a is None and b is None:
        raise Refusal("null is all there is to choose from", "Expected a value beside null")
    if a is None or b is None:
        present = b if a is None else a
        column = present if isinstance(present, Column) else constant(chunk, present)
        return _without(xp, column, first if a is None else ~first)
    a, b = _as_times(chunk, a, b)
    kinds = {kind_of(a), kind_of(b)}
    columns = [v if isinstance(v, Column) else constant(chunk, v) for v in (a, b)]
    if kinds == {"text"}:
        return _choose_text(xp, first, *columns)
    if kinds == {"time"} and columns[0].unit == columns[1].unit:
        values = xp.where(first, columns[0].values, columns[1].values)
        return replace(columns[0], values=values, valid=_choose_valid(xp, first, *columns))
    if not kinds <= {"number", "truth"}:
        raise Refusal(
            f"{described(a)} and {described(b)} are one column",
            "Expected numbers with numbers, text with text, times with times of the same unit",
        )
    dtype = np.dtype("uint8") if kinds == {"truth"} else common_dtype(a, b)
    arrays = [operand(v, dtype) for v in columns]
    valid = None if dtype.kind == "f" else _choose_valid(xp, first, *columns)
    return Column(xp.where(first, *arrays), valid=valid)


def _as_times(chunk: Chunk, a: Value, b: Value) -> tuple[Value, Value]:
    """Text beside a time is a time."""
    for time, text in ((a, b), (b, a)):
        if isinstance(time, Column) and time.kind == "datetime" and isinstance(text, str):
            exact = exact_literal(time, text)
            if exact.denominator != 1 or abs(exact.numerator) > INT64_MAX:
                raise Refusal(f"{text!r} is no time in the column's unit {time.unit!r}", "Expected a time that is")
            filled = chunk.xp.full(chunk.n_rows, exact.numerator, dtype="int64")
            constant_time = replace(time, values=filled, valid=None)
            return (time, constant_time) if time is a else (constant_time, time)
    return a, b


def _choose_valid(xp: ArrayModule, first: Array, a: Column, b: Column) -> Array | None:
    if a.valid is None and b.valid is None:
        return None
    return xp.where(first, ~a.missing(), ~b.missing())


def _choose_text(xp: ArrayModule, first: Array, a: Column, b: Column) -> Column:
    tables = [c.levels.values for c in (a, b) if c.levels is not None]
    if len(tables) < 2:
        raise Refusal("A column of bare codes is chosen from", "Expected a column that has its levels")
    if not all(
        pa.types.is_null(t.type) or pa.types.is_large_string(t.type) or pa.types.is_string(t.type) for t in tables
    ):
        raise Refusal("Levels that are no text are chosen from", "Expected columns of text; numbers as kind numeric")
    tables = [t.cast(pa.large_string()) for t in tables]
    unified = pa.concat_arrays(tables).dictionary_encode()
    codes = unified.indices.to_numpy(zero_copy_only=False).astype("int32")
    split = len(tables[0])
    rows = [
        xp.where(c.values < 0, xp.int32(-1), by_code(xp, c, t)) for c, t in ((a, codes[:split]), (b, codes[split:]))
    ]
    return Column(xp.where(first, *rows), kind="categorical", levels=levels_of(xp, unified.dictionary))


def _without(xp: ArrayModule, column: Column, rows: Array) -> Column:
    """The column with the given rows (bool) missing."""
    if column.kind == "categorical":
        return replace(column, values=xp.where(rows, xp.int32(-1), column.values))
    if column.values.dtype.kind == "f":
        return replace(column, values=xp.where(rows, column.values.dtype.type(math.nan), column.values))
    return replace(column, valid=~rows if column.valid is None else column.valid & ~rows)
