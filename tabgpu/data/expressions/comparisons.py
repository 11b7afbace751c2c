"""``< <= > >= == !=`` and ``in``: comparisons by true values.

No operand is rounded on the way: an int64 meets a fraction, an unsigned or a literal of any size by its true value, and
times of different units meet as instants. The one exception is meant: a fraction such as 0.1 beside a float32 column is
the float32 nearest to it, as it is in the file. Text compares by its UTF-8 bytes, on the levels, not on the rows. A
missing operand gives a missing result.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...columns import Array, ArrayModule, Chunk, Column
from ...errors import ConfigError
from ..times import TICKS, nanoseconds
from .values import Refusal, Scalar, Value, by_code, constant, described, kind_of, truth_column, valid_mask

COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}


def compare(symbol: str, chunk: Chunk, left: Value, right: Value) -> Column:
    """``a < b`` and its like, by true values; text by its UTF-8 bytes, times as instants."""
    if left is None or right is None:
        raise Refusal("A comparison with null is never true", "Expected missing(x), or not missing(x)")
    if not isinstance(left, Column):
        if isinstance(right, Column):
            return compare(_FLIPPED[symbol], chunk, right, left)
        left = constant(chunk, left)
    _comparable(left, right)
    if left.kind == "categorical":
        flags = _compare_text(symbol, chunk.xp, left, right)
    elif not isinstance(right, Column):
        flags = compare_scalar(chunk.xp, symbol, left.values, exact_literal(left, right))
    elif left.kind == "datetime":
        flags = _compare_times(symbol, chunk.xp, left, right)
    else:
        flags = compare_arrays(chunk.xp, symbol, left.values, right.values)
    return truth_column(flags, valid_mask(left, right))


def within(choices: tuple[Scalar, ...], chunk: Chunk, left: Value) -> Column:
    """``x in [..]``: missing where x is."""
    column = left if isinstance(left, Column) else constant(chunk, left)
    for choice in choices:
        _comparable(column, choice)
    xp, valid = chunk.xp, valid_mask(column)
    if column.kind == "categorical":
        flags = xp.zeros(chunk.n_rows, dtype=bool)
        if column.levels is not None and len(column.levels):
            numpy_flags = [_compare_levels("==", column.levels.values, c) for c in choices]
            flags = by_code(xp, column, np.logical_or.reduce(numpy_flags))
        return truth_column(flags, valid)
    dtype = column.values.dtype
    exact = {exact_literal(column, c) for c in choices}  # what the column's type cannot hold is in no row
    held = sorted(e for e in exact if _below(dtype, e) == e)
    return truth_column(
        xp.isin(column.values, xp.asarray(np.array([_below(dtype, e) for e in held], dtype=dtype))), valid
    )


def _comparable(left: Column, right: Value) -> None:
    a, b = kind_of(left), kind_of(right)
    numbers = ("number", "truth")
    fits = a == b or (a == "time" and b == "text" and isinstance(right, str))
    fits |= a in numbers and b in numbers and not isinstance(right, bool)
    fits |= a == "text" and b == "number" and not isinstance(right, Column)  # levels may be numbers: looked at later
    if b == "null":
        raise Refusal("A comparison with null is never true", "Expected missing(x), or not missing(x)")
    if not fits:
        raise Refusal(
            f"{described(left)} is compared with {described(right)}",
            "Expected numbers with numbers, text with text, times with times or with text such as '2013-10-01'",
        )


def exact_literal(column: Column, literal: Scalar) -> Any:
    """The literal as an exact number in the terms of the column: Fraction of its unit for times."""
    if column.kind == "datetime":
        try:
            return Fraction(nanoseconds(literal, column.zone) * TICKS[column.unit or "ns"], 10**9)
        except ConfigError as error:
            raise Refusal(error.happened, error.expected) from error
    if isinstance(literal, float) and column.values.dtype.kind == "f" and not literal.is_integer():
        # 0.1 beside a float32 column means its 0.1, as the file that holds 0.1 means it
        with np.errstate(all="ignore"):
            near = float(column.values.dtype.type(literal))
        return near if math.isfinite(near) and near != 0 else literal
    return int(literal) if isinstance(literal, bool) else literal


def _below(dtype: np.dtype[Any], exact: Any) -> Any:
    """The largest value of the dtype that is not above the exact number, as a Python number; None if all are."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        floor = math.floor(exact)
        return None if floor < limits.min else min(floor, int(limits.max))
    with np.errstate(all="ignore"):
        near = dtype.type(float(exact))
        return float(near) if float(near) <= exact else float(np.nextafter(near, dtype.type(-math.inf)))


def compare_scalar(xp: ArrayModule, symbol: str, values: Array, exact: Any) -> Array:
    """Compare an int or float array with an exact number (int, float or Fraction) that its dtype may not hold."""
    below = _below(values.dtype, exact)
    if below is not None and below == exact:
        return COMPARISONS[symbol](values, below)
    if symbol in ("==", "!="):
        return xp.full(len(values), symbol == "!=")
    if below is None:
        return xp.full(len(values), symbol in (">", ">="))
    return values > below if symbol in (">", ">=") else values <= below


def compare_arrays(xp: ArrayModule, symbol: str, a: Array, b: Array) -> Array:
    """Compare two arrays of any int or float dtypes by their true values; NaN as IEEE has it."""
    kinds = a.dtype.kind + b.dtype.kind
    if "f" not in kinds:
        if a.dtype == b.dtype or "uint64" not in (a.dtype.name, b.dtype.name) or kinds == "uu":
            return COMPARISONS[symbol](a, b)
        signs = _sign_int_uint64(xp, a, b) if b.dtype == "uint64" else -_sign_int_uint64(xp, b, a)
    elif a.dtype.kind != "f" and a.dtype.itemsize == 8:
        signs = _sign_int_float(xp, a, b.astype("float64"))
    elif b.dtype.kind != "f" and b.dtype.itemsize == 8:
        signs = -_sign_int_float(xp, b, a.astype("float64"))
    else:  # 32 bits and any float are exact in float64
        return COMPARISONS[symbol](a.astype("float64"), b.astype("float64"))
    return COMPARISONS[symbol](signs, 0)


def _signs(a: Array, b: Array) -> Array:
    return (a > b).astype("int8") - (a < b).astype("int8")


def _sign_int_uint64(xp: ArrayModule, a: Array, b: Array) -> Array:
    return xp.where(a < 0, xp.int8(-1), _signs(a.astype("uint64"), b))


def _sign_int_float(xp: ArrayModule, a: Array, b: Array) -> Array:
    limits = np.iinfo(a.dtype)
    low, high = float(limits.min), float(int(limits.max) + 1)  # powers of two: exact
    floor = xp.floor(b)
    inside = (floor >= low) & (floor < high)
    signs = _signs(a, xp.where(inside, floor, 0.0).astype(a.dtype))
    signs = xp.where((signs == 0) & (b > floor), xp.int8(-1), signs)
    return xp.where(inside, signs, xp.where(floor >= high, xp.int8(-1), xp.int8(1)))


def _compare_times(symbol: str, xp: ArrayModule, left: Column, right: Column) -> Array:
    fine, coarse, flip = left, right, 1
    if TICKS[left.unit or "ns"] < TICKS[right.unit or "ns"]:
        fine, coarse, flip = right, left, -1
    ratio = TICKS[fine.unit or "ns"] // TICKS[coarse.unit or "ns"]
    floor = fine.values // ratio  # never the other way: seconds as nanoseconds would not fit beyond the year 2262
    signs = _signs(floor, coarse.values)
    signs = xp.where((signs == 0) & (fine.values != floor * ratio), xp.int8(1), signs)
    return COMPARISONS[symbol](signs * flip, 0)


def _compare_text(symbol: str, xp: ArrayModule, left: Column, right: Value) -> Array:
    if left.levels is None:
        raise Refusal("A column of bare codes is compared", "Expected a column that has its levels")
    if not isinstance(right, Column):
        return by_code(xp, left, _compare_levels(symbol, left.levels.values, right))
    if symbol not in ("==", "!="):
        raise Refusal(f"Two categorical columns are compared by {symbol}", "Expected == or != between them")
    if right.levels is None:
        raise Refusal("A column of bare codes is compared", "Expected a column that has its levels")
    return COMPARISONS[symbol](by_code(xp, left, left.levels.keys), by_code(xp, right, right.levels.keys))


def _compare_levels(symbol: str, levels: pa.Array, literal: Scalar) -> Array:
    """Bool for each level."""
    kind, text = levels.type, isinstance(literal, str)
    if pa.types.is_string_view(kind):
        levels, kind = levels.cast(pa.large_string()), pa.large_string()
    if pa.types.is_null(kind) or not len(levels):
        return np.zeros(len(levels), dtype=bool)
    if text and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        names = {"<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal", "==": "equal"}
        function = names.get(symbol, "not_equal")
        return pc.call_function(function, [levels, pa.scalar(literal, kind)]).to_numpy(zero_copy_only=False)
    if not text and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        column = Column(levels.to_numpy(zero_copy_only=False))
        return compare_scalar(np, symbol, column.values, exact_literal(column, literal))
    raise Refusal(
        f"A column with levels of type {kind} is compared with {literal!r}",
        "Expected text in quotes for a column of text, a number for one of numbers",
    )
