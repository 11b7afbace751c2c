"""What the steps ask of the columns before them, and the few moves they share.

`require` refuses a column that a step cannot use, `add` refuses to overwrite one; both speak of the pipeline file.
`group_columns` and `group_name` read items that are one column or a group of columns. `limits_of` and `to_float32`
keep numbers in the range of their type. Everything that belongs to one family of steps lives with that family.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..columns import Array, ArrayModule, Kind
from ..errors import ConfigError, listing, nearest
from .contract import Field, Fields

FLOAT32_MAX = 3.4028234663852886e38
Group = str | tuple[str, ...]


def require(step: str, fields: Fields, columns: Iterable[str], kinds: tuple[Kind, ...]) -> None:
    """Check that every column is there and of a kind that the step can use.

    Parameters
    ----------
    step : str
        Name of the step, as the pipeline file has it.
    fields : mapping of str to Field
        The fields before the step.
    columns : iterable of str
        Names of the columns that the step reads.
    kinds : tuple of {'numeric', 'categorical', 'datetime'}
        The kinds that it can use.

    Raises
    ------
    ConfigError
        Naming step, column, its kind and the way out.
    """
    for column in columns:
        if column not in fields:
            raise ConfigError(
                f"Step {step!r} names column {column!r}, which is not there",
                f"Expected a column of the data or of an earlier step. {nearest(column, fields)}",
                f"Correct the columns of step {step!r} under features (--set features.{step}.columns=[...])",
            )
        if fields[column].kind not in kinds:
            raise ConfigError(
                f"Step {step!r} cannot use column {column!r}, which is {fields[column].kind}",
                f"Expected a column of kind {listing(kinds)}",
                f"Take {column!r} out of the columns of step {step!r} under features, or declare its kind under "
                f"data.columns (--set data.columns.{column}.kind={kinds[0]})",
            )


def refuse_encoded(step: str, fields: Fields, columns: Iterable[str]) -> None:
    """Refuse columns that `categorify` has already made codes of.

    Raises
    ------
    ConfigError
        Naming step and column.
    """
    for column in columns:
        if fields[column].encoded:
            raise ConfigError(
                f"Step {step!r} cannot use column {column!r}, which an earlier step has encoded",
                "Expected a column that still has its levels; an encoded one has a code of its own for missing values",
                f"Put step {step!r} before the step that encodes {column!r} in the list under features",
            )


def add(step: str, fields: Fields, new: Iterable[tuple[str, Field]]) -> dict[str, Field]:
    """Gather the fields of the columns that a step adds.

    Raises
    ------
    ConfigError
        If a column of that name is already there, or the step makes it twice.
    """
    added: dict[str, Field] = {}
    for name, field in new:
        if name in fields or name in added:
            raise ConfigError(
                f"Step {step!r} makes column {name!r}, and there is one of that name already",
                "Expected the names of all columns to differ",
                f"Rename the column in the data, or name each column once in step {step!r} under features",
            )
        added[name] = field
    return added


def group_columns(item: Group) -> tuple[str, ...]:
    """Columns of an item that is one column or a group.

    Examples
    --------
    >>> group_columns("a"), group_columns(("a", "b"))
    (('a',), ('a', 'b'))
    """
    return (item,) if isinstance(item, str) else item


def group_name(item: Group, separator: str = "_") -> str:
    """Name of an item that is one column or a group.

    Examples
    --------
    >>> group_name("a"), group_name(("a", "b")), group_name(("a", "b"), "_x_")
    ('a', 'a_b', 'a_x_b')
    """
    return separator.join(group_columns(item))


def distinct_columns(items: Iterable[Group]) -> tuple[str, ...]:
    """Names of all columns in the items, each once, in order.

    Examples
    --------
    >>> distinct_columns(["a", ("b", "a"), "c"])
    ('a', 'b', 'c')
    """
    return tuple(dict.fromkeys(column for item in items for column in group_columns(item)))


def limits_of(dtype: np.dtype) -> tuple[float, float]:
    """Smallest and largest finite value of an int or float dtype, as Python numbers.

    Examples
    --------
    >>> limits_of(np.dtype("int8")), limits_of(np.dtype("float16"))
    ((-128, 127), (-65504.0, 65504.0))
    """
    if dtype.kind == "f":
        floats = np.finfo(dtype)
        return float(floats.min), float(floats.max)
    ints = np.iinfo(dtype)
    return int(ints.min), int(ints.max)


def to_float32(xp: ArrayModule, values: Array) -> Array:
    """Round float64 to float32; what is beyond its range becomes its largest number, NaN stays.

    Examples
    --------
    >>> to_float32(np, np.array([1.5, -1e300, np.nan]))
    array([ 1.5000000e+00, -3.4028235e+38,            nan], dtype=float32)
    """
    return xp.clip(values, -FLOAT32_MAX, FLOAT32_MAX).astype(xp.float32)
