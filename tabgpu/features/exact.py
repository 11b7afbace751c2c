"""Exact sums of floats and integers: equal to the bit in any order, with nothing lost to cancellation.

A float64 is a whole multiple of ``2**-1074``. So the sum of any floats is a whole number of such units, and the sum of
their squares one of ``2**-2148``; Python's integers hold both, and adding integers is associative and commutative. All
that is left to do fast is to sum one chunk: values are cut into slices of so few bits that a float64 sums a slice of
the whole chunk without rounding, two or three slices for usual data; only the slices' sums become Python integers.

Mean and deviation then need no shift and no second pass: they are computed in integers from the exact sums and rounded
once. `grouped_sums` is the same idea for sums by group, in fixed point.

Callers leave out missing and infinite values. What is summed, and when, is up to `tabgpu.features.statistics`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from ..columns import Array, ArrayModule
from ..hashing import array_module

UNIT = 1074  # sums are held in units of 2^-UNIT, sums of squares in units of 2^-(2*UNIT)
LIMB = 26  # bits of a limb: float64 sums 2^27 of them exactly

_SPLIT = 2.0**27 + 1.0  # Veltkamp's constant: cuts 53 bits into 26 and 26
_MOST = 2**26  # values summed at once
_CACHED = 2**14  # on the host, so many that all that is between stays in the cache: 16 against 34 to 86 ns a value


def sum_exact(xp: ArrayModule, x: Array) -> int:
    """Sum exactly.

    Parameters
    ----------
    xp : module
        NumPy or CuPy.
    x : array of any int, uint or float dtype
        Shape (n,), finite.

    Returns
    -------
    int
        The sum in units of ``2**-1074``. No error, whatever the values and their number.

    Notes
    -----
    About 3 ns a value on one core, ``x.sum()`` 0.2. Values of very different sizes take a few more passes.

    Examples
    --------
    >>> import numpy as np
    >>> sum_exact(np, np.array([1e30, 1.0, -1e30])) == 2**1074
    True
    """
    if x.dtype.kind != "f":
        return _integer_sum(xp, x) << UNIT
    return sum(_float_sum(xp, part.astype("float64", copy=False)) for part in _parts(x))


def sum_squares_exact(xp: ArrayModule, x: Array) -> int:
    """Sum the squares exactly.

    Parameters
    ----------
    xp : module
        NumPy or CuPy.
    x : array of any int, uint or float dtype
        Shape (n,), finite.

    Returns
    -------
    int
        The sum of squares in units of ``2**-2148``. No error, no overflow.

    Notes
    -----
    float64 squares are taken apart into product and error (Dekker 1971) after scaling by a power of two; values below
    ``2**-400`` of the largest are a group of their own, so that neither part under- or overflows.

    Examples
    --------
    >>> import numpy as np
    >>> sum_squares_exact(np, np.array([2**31 + 1])) == (2**31 + 1) ** 2 << 2148
    True
    """
    if x.dtype.kind != "f":
        return _integer_squares(xp, x) << (2 * UNIT)
    if x.dtype == "float64":
        return sum(_float_squares(xp, part) for part in _parts(x))
    wide = (part.astype("float64") for part in _parts(x))  # of 24 bits at most: the square is a float64
    return sum(_float_sum(xp, part * part) for part in wide) << UNIT


def mean_of(count: int, total: int) -> float:
    """Mean from the exact sum, correctly rounded.

    Parameters
    ----------
    count : int
        Number of values.
    total : int
        Their sum in units of ``2**-1074``.

    Returns
    -------
    float
        The float64 nearest to the true mean; NaN of no values.
    """
    return total / (count << UNIT) if count else math.nan  # int / int is rounded once


def remainder_of(count: int, total: int) -> float:
    """What `mean_of` rounds away: the float64 nearest to the true mean less `mean_of`; 0.0 of no values.

    Examples
    --------
    >>> total = (3 * 2**60 + 1) << UNIT
    >>> mean_of(3, total) == 2.0**60, round(remainder_of(3, total), 3)
    (True, 0.333)
    """
    if not count:
        return 0.0
    mean = mean_of(count, total)
    return float(Fraction(total, count << UNIT) - Fraction(mean)) if math.isfinite(mean) else 0.0


def deviation_of(count: int, total: int, squares: int) -> float:
    """Population standard deviation from exact sums.

    Parameters
    ----------
    count, total, squares : int
        Number of values, their sum in units of ``2**-1074``, the sum of their squares in units of ``2**-2148``.

    Returns
    -------
    float
        The float64 nearest to the true deviation, whatever the mean; 0.0 of equal values; NaN of no values. It is never
        larger than the range of the values, so it is finite.

    Notes
    -----
    ``sqrt(n * S2 - S1**2) / n`` in integers, in units of 2^-1075. All floats and the middles between them are whole
    numbers of these, so that whatever lies between two whole numbers is rounded to the same float.

    Examples
    --------
    >>> deviation_of(2, 0, 2 << 2148)
    1.0
    """
    if not count:
        return math.nan
    spread = count * squares - total * total
    root = math.isqrt(4 * spread)
    between = 2 * root + (root * root != 4 * spread)  # stands for all between root and root + 1
    return between / (count << (UNIT + 2))


def fixed_point(xp: ArrayModule, y: Array, shift: int) -> tuple[Array, Array]:
    """Values as whole multiples of ``2**-shift``, in two limbs.

    Parameters
    ----------
    xp : module
        NumPy or CuPy.
    y : array of a real dtype
        Shape (n,); ``abs(y) * 2**shift`` is at most ``2**52``.
    shift : int
        Number of binary places, may be negative.

    Returns
    -------
    high, low : arrays of float64
        Whole numbers, ``high * 2**26 + low`` is ``y * 2**shift`` rounded to the nearest; ``0 <= low < 2**26``.
    """
    half = shift // 2  # in two steps: 2.0**shift alone may overflow
    units = xp.rint(y.astype("float64") * 2.0**half * 2.0 ** (shift - half))
    high = xp.floor(units * 2.0**-LIMB)
    return high, units - high * 2.0**LIMB


def grouped_counts(xp: ArrayModule, groups: Array, n_groups: int) -> Array:
    """Count the rows of each group.

    Parameters
    ----------
    xp : module
        NumPy or CuPy.
    groups : array of int
        Group of each row, shape (n,), from 0 and below `n_groups`.
    n_groups : int
        Number of groups.

    Returns
    -------
    array of int64
        Shape (n_groups,).
    """
    if not len(groups):  # CuPy's bincount takes no empty array
        return xp.zeros(n_groups, dtype="int64")
    return xp.bincount(groups, minlength=n_groups)


def grouped_sums(xp: ArrayModule, groups: Array, limb: Array, n_groups: int) -> Array:
    """Sum one limb by group, exactly.

    Parameters
    ----------
    xp : module
        NumPy or CuPy.
    groups : array of int
        Group of each row, shape (n,), below `n_groups`; n is at most 2^26.
    limb : array
        Whole numbers of at most 26 bits, shape (n,).
    n_groups : int
        Number of groups.

    Returns
    -------
    array of float64
        Whole numbers, shape (n_groups,).
    """
    if not len(groups):
        return xp.zeros(n_groups)
    return xp.bincount(groups, weights=limb, minlength=n_groups)


def _units(value: Any) -> int:
    """A finite float as a whole number of ``2**-1074``."""
    numerator, denominator = float(value).as_integer_ratio()
    return numerator * ((1 << UNIT) // denominator)


def _parts(x: Array) -> Iterator[Array]:
    """Cut into parts that are summed at once."""
    size = _CACHED if array_module(x) is np else _MOST
    return (x[i : i + size] for i in range(0, len(x), size))


def _largest(x: Array) -> float:
    return max(float(x.max()), -float(x.min())) if len(x) else 0.0


def _float_sum(xp: ArrayModule, x: Array) -> int:
    """Sum finite float64 values, at most 2^26 of them."""
    largest = _largest(x)
    if largest > 2.0**900:  # the constants below would overflow: sum the huge values apart, scaled down
        huge = xp.abs(x) > 2.0**800
        scaled = xp.where(huge, x, 0.0) * 2.0**-400
        return (_float_sum(xp, scaled) << 400) + _float_sum(xp, xp.where(huge, 0.0, x))
    bits = 51 - len(x).bit_length()  # a slice: the sum of len(x) of them has 51 bits at most
    total = 0
    while largest:
        # Adding and taking away 1.5 * 2^52 units rounds to whole units.
        unit = math.frexp(largest)[1] - bits
        push = 1.5 * 2.0 ** (52 + unit)
        piece = x + push
        piece -= push
        total += _units(piece.sum())
        x = x - piece  # exact: the rest has no more bits than x, and is half a unit at most
        largest = math.ldexp(0.5, unit) if bool(x.any()) else 0.0
    return total


def _float_squares(xp: ArrayModule, x: Array) -> int:
    """Sum the squares of finite float64 values, at most 2^26 of them."""
    total, largest = 0, _largest(x)
    while largest:
        exponent = math.frexp(largest)[1]
        size = xp.abs(x)
        tiny = size < math.ldexp(1.0, max(exponent - 400, -UNIT))
        has_tiny = bool((tiny & (size > 0)).any())
        y = xp.where(tiny, 0.0, x) if has_tiny else x
        half = -exponent // 2
        y = y * 2.0**half * 2.0 ** (-exponent - half)  # below 1
        square, error = _two_square(y)
        scaled = _float_sum(xp, square) + _float_sum(xp, error)
        # In units of 2^-1074 of y**2; those of x**2 are 2^(2 * exponent) as large, and stay whole.
        shift = UNIT + 2 * exponent
        total += scaled << shift if shift >= 0 else scaled >> -shift
        if not has_tiny:
            break
        x = xp.where(tiny, x, 0.0)
        largest = _largest(x)
    return total


def _two_square(y: Array) -> tuple[Array, Array]:
    """Square and its rounding error, ``square + error == y**2`` exactly (Veltkamp's split, Dekker's product)."""
    high = y * _SPLIT
    high = high - (high - y)
    low = y - high
    square = y * y
    error = ((high * high - square) + (high + high) * low) + low * low
    return square, error


def _integer_sum(xp: ArrayModule, x: Array) -> int:
    """Sum integers in halves of 32 bits, none of which overflows below 2^31 values."""
    if x.dtype.itemsize < 8:
        return int(x.sum(dtype="int64"))
    half = x.dtype.type(32)
    mask = x.dtype.type(2**32 - 1)
    return (int((x >> half).sum()) << 32) + int((x & mask).sum())


def _integer_squares(xp: ArrayModule, x: Array) -> int:
    """Sum the squares of integers."""
    if not len(x):
        return 0
    low, high = int(x.min()), int(x.max())
    if max(-low, high) < 2**31:
        wide = x.astype("int64")
        return _integer_sum(xp, wide * wide)
    wide = x if x.dtype.itemsize == 8 else x.astype("int64")
    top = wide >> wide.dtype.type(32)
    rest = wide & wide.dtype.type(2**32 - 1)
    squares_of_rest = rest.astype("uint64")
    return (
        (_integer_sum(xp, top * top) << 64)
        + (_integer_sum(xp, top * rest) << 33)
        + _integer_sum(xp, squares_of_rest * squares_of_rest)
    )
