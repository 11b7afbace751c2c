"""``missing``, ``and``, ``or``, ``not``: three-valued (Kleene) logic on columns of truth.

A missing truth stands for either: the result is missing only where it would depend on which. So ``false and missing``
is false, ``true or missing`` is true. Truth is held as `values` says.
"""

from __future__ import annotations

from ...columns import Chunk, Column
from .values import Value, constant, truth_column, truths, valid_mask


def missing(chunk: Chunk, value: Value) -> Column:
    """``missing(x)``: truth, never missing itself."""
    column = value if isinstance(value, Column) else constant(chunk, value)
    return Column(column.missing().astype("uint8"))


def both(chunk: Chunk, *values: Value) -> Column:
    """``a and b ...``: false where any is false, true where all are true, else missing."""
    pairs = [truths(chunk, v) for v in values]
    true, false = pairs[0]
    for t, f in pairs[1:]:
        true, false = true & t, false | f
    return truth_column(true, None if valid_mask(*values) is None else true | false)


def either(chunk: Chunk, *values: Value) -> Column:
    """``a or b ...``: true where any is true, false where all are false, else missing."""
    pairs = [truths(chunk, v) for v in values]
    true, false = pairs[0]
    for t, f in pairs[1:]:
        true, false = true | t, false & f
    return truth_column(true, None if valid_mask(*values) is None else true | false)


def negation(chunk: Chunk, value: Value) -> Column:
    """``not a``."""
    _, false = truths(chunk, value)
    return truth_column(false, valid_mask(value))
