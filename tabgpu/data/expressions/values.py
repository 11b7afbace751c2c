"""The values that expressions compute with, and what every operation on them asks.

A value is a `Column`, or a literal (bool, int, float, str, None). Its meaning is decided by its kind, never by its
rows, so that an empty chunk shows every mistake of types. `Refusal` carries what was wrong; `tabgpu.data.expressions`
adds where. Truth is uint8 0/1 with a mask, and three-valued (Kleene): missing stands for either.

The operations are in `logic`, `comparisons`, `choices` and `numbers`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from ...columns import Array, ArrayModule, Chunk, Column, Levels
from ...errors import ConfigError, TabgpuError
from ...hashing import hash_levels

Scalar = bool | int | float | str | None
Value = Column | Scalar
Operation = Callable[..., Column]  # of a chunk and its operands


class Refusal(Exception):  # noqa: N818 - not an error of its own: it becomes a ConfigError or DataError
    """What an operation cannot do, before it is known where in which expression it stands."""

    def __init__(self, happened: str, expected: str, error: type[TabgpuError] = ConfigError) -> None:
        super().__init__(happened)
        self.happened, self.expected, self.error = happened, expected, error


def kind_of(value: Value) -> str:
    """``'number'``, ``'truth'``, ``'text'``, ``'time'`` or ``'null'``; a uint8 column is a truth and a number."""
    if isinstance(value, Column):
        if value.kind == "numeric":
            return "truth" if value.values.dtype == np.uint8 else "number"
        return "text" if value.kind == "categorical" else "time"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "truth"
    return "text" if isinstance(value, str) else "number"


def constant(chunk: Chunk, value: Scalar) -> Column:
    """A column that has the literal in every row: int64, float64, uint8 or one level."""
    xp, n = chunk.xp, chunk.n_rows
    if value is None:
        return Column(xp.full(n, math.nan))
    if isinstance(value, str):
        return Column(xp.zeros(n, dtype="int32"), kind="categorical", levels=levels_of(xp, pa.array([value])))
    if isinstance(value, bool):
        return Column(xp.full(n, int(value), dtype="uint8"))
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise Refusal(f"The integer {value} is beyond 64 bits", "Expected a float, such as 1e19")
    return Column(xp.full(n, value, dtype="float64" if isinstance(value, float) else "int64"))


def valid_mask(*values: Value) -> Array | None:
    """Bool mask of the rows where no operand is missing; None where no operand can be."""
    mask = None
    for v in values:
        if isinstance(v, Column) and (v.kind == "categorical" or v.valid is not None or v.values.dtype.kind == "f"):
            there = ~v.missing()
            mask = there if mask is None else mask & there
    return mask


def truths(chunk: Chunk, value: Value) -> tuple[Array, Array]:
    """Two bool arrays of shape (n_rows,): where the value is true, and where it is false."""
    if kind_of(value) != "truth":
        raise Refusal(
            f"{described(value)} stands where a truth is needed", "Expected a comparison, or a column of true and false"
        )
    column = value if isinstance(value, Column) else constant(chunk, value)
    true, false, valid = column.values != 0, column.values == 0, column.valid
    return (true, false) if valid is None else (true & valid, false & valid)


def truth_column(true: Array, valid: Array | None) -> Column:
    """A column of truth from where it is true and where it is known (bool; None for everywhere)."""
    return Column(true.astype("uint8"), valid=valid)


def by_code(xp: ArrayModule, column: Column, table: Any) -> Array:
    """Take a value for each row from one for each level; any value where missing."""
    if not len(table):
        return xp.zeros(len(column), dtype=table.dtype)
    return xp.asarray(table)[xp.maximum(column.values, 0)]


def levels_of(xp: ArrayModule, values: pa.Array) -> Levels:
    """Levels whose keys are the hashes of the given distinct values."""
    return Levels(values, lambda v: xp.asarray(hash_levels(v)))


def described(value: Value) -> str:
    """The value for a message: the literal, or the kind of the column."""
    if not isinstance(value, Column):
        return "null" if value is None else f"{str(value).lower() if isinstance(value, bool) else repr(value)}"
    return f"a {value.kind} column" + (f" ({value.values.dtype})" if value.kind == "numeric" else "")
