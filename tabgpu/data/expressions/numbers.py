"""Arithmetic and functions on numeric columns and literals.

Integers stay integers (int64) through ``+ - * // % abs min max``; a result beyond int64 is refused, never wrapped.
``/``, ``**`` and functions such as `log` give floats: float32 if a float32 (or float16) column and no wider number is
there, else float64, into which integers beyond 2^53 are rounded. An undefined number (x / 0, the logarithm of what is
not positive, inf - inf) is missing. A missing operand gives a missing result.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ...columns import Array, ArrayModule, Chunk, Column
from ...errors import DataError
from ..times import TICKS
from .values import Refusal, Value, constant, described, kind_of, valid_mask

INT64_MAX = 2**63 - 1


def common_dtype(*values: Value) -> np.dtype[Any]:
    """int64 if all are integers, else float32 or float64: the widest of the columns, where it can hold the literals."""
    for v in values:
        if kind_of(v) not in ("number", "truth") or isinstance(v, bool):
            raise Refusal(f"{described(v)} stands where a number is needed", "Expected numbers")
    columns = [v.values.dtype for v in values if isinstance(v, Column)]
    literals = [v for v in values if isinstance(v, int | float)]
    if all(d.kind in "iu" for d in columns) and not any(isinstance(v, float) for v in literals):
        if any(not -INT64_MAX - 1 <= v <= INT64_MAX for v in literals):
            raise Refusal("An integer is beyond 64 bits", "Expected a float, such as 1e19")
        return np.dtype("int64")
    if not any(d.kind == "f" for d in columns):
        return np.dtype("float64")
    dtype = np.result_type(*columns, np.float32)
    with np.errstate(all="ignore"):
        for v in literals:
            near = float(dtype.type(v))
            if near != v and (isinstance(v, int) or near == 0 or not math.isfinite(near)):
                return np.dtype("float64")
    return dtype


def operand(value: Value, dtype: np.dtype[Any]) -> Any:
    """An array of the dtype, NaN where missing if it is a float; a literal stays a Python number."""
    if not isinstance(value, Column):
        return float(value) if dtype.kind == "f" and value is not None else value
    if dtype.kind == "f":
        return value.floats(dtype.name)
    if value.values.dtype == "uint64":
        _refuse_overflow(value.values > INT64_MAX, valid_mask(value))
    return value.values.astype(dtype, copy=False)


def _refuse_overflow(wrong: Array, valid: Array | None) -> None:
    if bool((wrong if valid is None else wrong & valid).any()):
        raise Refusal(
            "An integer result is beyond 64 bits", "Expected results below 2^63; 1.0 * x is a float", DataError
        )


def arithmetic(symbol: str, chunk: Chunk, left: Value, right: Value) -> Column:
    """``+ - * / // % **``; ``time - time`` is the difference in seconds."""
    if not isinstance(left, Column) and not isinstance(right, Column) and kind_of(left) == "number":
        left = constant(chunk, left)
    if symbol == "-" and kind_of(left) == "time" == kind_of(right):
        return _seconds_between(chunk, left, right)
    dtype = common_dtype(left, right)
    if dtype.kind == "i" and symbol not in ("/", "**"):
        return _integer(symbol, chunk, left, right)
    if dtype.kind == "i":
        dtype = np.dtype("float64")
    a, b = operand(left, dtype), operand(right, dtype)
    with np.errstate(all="ignore"):
        divides = symbol in ("//", "%")
        result = _float_division(symbol, chunk.xp, a, b) if divides else _FLOAT_OPERATORS[symbol](a, b)
        if divides or symbol == "/":
            result = chunk.xp.where(chunk.xp.asarray(b == 0), dtype.type(math.nan), result)
        elif symbol == "**":
            result = chunk.xp.where(chunk.xp.asarray((a == 0) & (b < 0)), dtype.type(math.nan), result)
    return Column(result.astype(dtype, copy=False))


_FLOAT_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}


def _integer(symbol: str, chunk: Chunk, left: Value, right: Value) -> Column:
    """int64 arithmetic that refuses overflow in the rows that count."""
    a, b = operand(left, np.dtype("int64")), operand(right, np.dtype("int64"))
    valid = valid_mask(left, right)
    if symbol in ("//", "%"):
        return _integer_division(symbol, chunk, a, b, valid)
    result = _FLOAT_OPERATORS[symbol](a, b)
    if symbol == "*":
        if not _narrow(left, right):
            # One rounding of a product moves it by 2^-53 of itself: near the edge this refuses what might just fit.
            _refuse_overflow(abs(1.0 * a * b) >= 2.0**63 * (1 - 2.0**-50), valid)
    elif not _narrow(left, right):  # a sum overflowed if its sign differs from the sign that both operands share
        _refuse_overflow(((a ^ result) & ((b if symbol == "+" else ~b) ^ result)) < 0, valid)
    return Column(result, valid=valid)


def _narrow(*values: Value) -> bool:
    """Whether all operands are of at most 31 bits and a sign, so that no result leaves int64."""
    return all(
        v.values.dtype.itemsize < 4 or v.values.dtype == np.int32
        if isinstance(v, Column)
        else isinstance(v, int) and abs(v) < 2**31
        for v in values
    )


def _integer_division(symbol: str, chunk: Chunk, a: Any, b: Any, valid: Array | None) -> Column:
    zero = chunk.xp.broadcast_to(chunk.xp.asarray(b == 0), (chunk.n_rows,))
    divisor = chunk.xp.where(zero, 1, b)
    if symbol == "//":
        lowest = (a == -INT64_MAX - 1) & (divisor == -1)
        _refuse_overflow(chunk.xp.broadcast_to(chunk.xp.asarray(lowest), (chunk.n_rows,)), valid)
    with np.errstate(over="ignore"):
        result = a // divisor if symbol == "//" else a % divisor
    if isinstance(b, int) and b != 0:
        return Column(result, valid=valid)
    return Column(result, valid=~zero if valid is None else valid & ~zero)


def _float_division(symbol: str, xp: ArrayModule, a: Any, b: Any) -> Array:
    """``a // b`` or ``a % b`` of floats as Python and NumPy have them, from the exact remainder.

    CuPy's own are ``floor(a / b)`` and what that leaves, which differ where the quotient rounds to a whole number:
    1.0 // 0.1 is 9, and not 10.
    """
    rest = xp.fmod(a, b)  # of the sign of a
    quotient = (a - rest) / b
    crosses = (rest != 0) & ((rest < 0) != (b < 0))
    if symbol == "%":
        return xp.where(crosses, rest + b, xp.where(rest == 0, xp.copysign(rest, b), rest))
    quotient = xp.where(crosses, quotient - 1, quotient)
    floor = xp.floor(quotient)
    floor = xp.where(quotient - floor > 0.5, floor + 1, floor)
    return xp.where(quotient == 0, xp.copysign(floor, a / b), floor)


def _seconds_between(chunk: Chunk, left: Value, right: Value) -> Column:
    """Difference of two times in seconds; float64, from the exact difference where that is below 285 years."""
    parts: list[tuple[Array, Array]] = []
    for v in (left, right):
        if not isinstance(v, Column):
            raise Refusal(f"{described(v)} is subtracted", "Expected two datetime columns")
        ticks = TICKS[v.unit or "ns"]
        seconds = v.values // ticks
        parts.append((seconds, (v.values - seconds * ticks) * (10**9 // ticks)))
    (seconds_a, rest_a), (seconds_b, rest_b) = parts
    near = (seconds_a - seconds_b) * 10**9 + (rest_a - rest_b)
    far = seconds_a.astype("float64") - seconds_b.astype("float64")
    result = chunk.xp.where(abs(far) < 9e9, near / 1e9, far)
    valid = valid_mask(left, right)
    return Column(result if valid is None else chunk.xp.where(valid, result, math.nan))


def negative(chunk: Chunk, value: Value) -> Column:
    """``-x``."""
    return arithmetic("-", chunk, 0, value)


def positive(chunk: Chunk, value: Value) -> Column:
    """``+x``."""
    return arithmetic("+", chunk, 0, value)


def absolute(chunk: Chunk, value: Value) -> Column:
    """``abs(x)``."""
    dtype = common_dtype(value)
    column = value if isinstance(value, Column) else constant(chunk, value)
    if dtype.kind == "i":
        values = operand(column, dtype)
        _refuse_overflow(values == -INT64_MAX - 1, column.valid)
        return Column(abs(values), valid=column.valid)
    return Column(abs(operand(column, dtype)))


def extreme(name: str, chunk: Chunk, *values: Value) -> Column:
    """``min(a, b, ...)`` and ``max(a, b, ...)`` of a row; missing where any is missing."""
    dtype = common_dtype(*values)
    function = chunk.xp.minimum if name == "min" else chunk.xp.maximum
    result = operand(values[0] if isinstance(values[0], Column) else constant(chunk, values[0]), dtype)
    for v in values[1:]:
        result = function(result, operand(v, dtype))  # NaN wins over numbers
    return Column(result.astype(dtype, copy=False), valid=None if dtype.kind == "f" else valid_mask(*values))


def smooth(name: str, chunk: Chunk, value: Value) -> Column:
    """``log(x)``, ``exp(x)``, ``sqrt(x)``; missing where undefined, so log(0) too."""
    dtype = common_dtype(value)
    dtype = np.dtype("float64") if dtype.kind == "i" else dtype
    x = operand(value if isinstance(value, Column) else constant(chunk, value), dtype)
    with np.errstate(all="ignore"):
        result = getattr(chunk.xp, name)(x)
    return Column(chunk.xp.where(x == 0, dtype.type(math.nan), result) if name == "log" else result)


def rounded(name: str, chunk: Chunk, value: Value) -> Column:
    """``round(x)`` (half to even), ``floor(x)``, ``ceil(x)``; integers stay as they are, floats stay floats."""
    dtype = common_dtype(value)
    column = value if isinstance(value, Column) else constant(chunk, value)
    if dtype.kind == "i":
        return column
    return Column(getattr(chunk.xp, "rint" if name == "round" else name)(operand(column, dtype)))
