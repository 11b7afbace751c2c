"""The expression language of ``data.derive`` and ``data.filter``: read, checked and evaluated without `eval`.

    arr_delay >= 15      not missing(arr_delay) and carrier in ['UA', 'DL']      where(seats > 0, load / seats, null)

An expression is text over column names; ``expression.evaluate(chunk)`` is a column. A strict list
(`grammar`) decides what may stand in it: ``+ - * / // % **``, comparisons (chained too), ``in [..]``,
``and or not``, functions ``missing where coalesce abs min max log exp sqrt round floor ceil``, numbers, quoted
text, ``true false null``, and names. A name that is no word of its own stands in backquotes: `` `my col` `` (a
backquote in it is written twice). Times are compared with ISO text on the clock of their zone:
``time_hour >= '2013-10-01'``.

What the operations mean is said in `logic`, `comparisons`, `choices` and `numbers`. Types are checked by
evaluating on a chunk of no rows, so that what is checked and what is computed cannot differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from ...columns import Array, Chunk, Column
from ...errors import ConfigError, DataError, nearest
from ...features.contract import Field
from ...wire import record
from .grammar import Call, Literal, Name, Node, Reader, at, shortened, walk
from .values import Refusal, Value, constant, levels_of


@record
@dataclass(frozen=True)
class Expression:
    """An expression that has been read; made by `parse`. Only its text travels.

    Parameters
    ----------
    text : str
        As the pipeline file has it.
    where : str
        Its key there, such as ``'data.filter'``, for messages.
    """

    text: str
    where: str

    @cached_property
    def _tree(self) -> Node:
        return Reader(self.text, self.where).read()

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that it reads, each once, in the order in which they first stand."""
        return tuple(dict.fromkeys(node.name for node in walk(self._tree) if isinstance(node, Name)))

    def check(self, fields: Mapping[str, Field], condition: bool = False) -> Field:
        """Return the field of the result; no row is read.

        The type of the levels of a categorical column is not known here: comparing text with a number is refused
        when the first chunk is evaluated.

        Parameters
        ----------
        fields : mapping of str to Field
            The columns there are.
        condition : bool
            Whether the result has to be a truth, as that of a filter.

        Raises
        ------
        ConfigError
            If a column is not there, or a piece has a type that its place cannot use.

        Examples
        --------
        >>> parse("delay >= 15", "data.derive.late").check({"delay": Field("numeric", "float32")}).dtype
        'uint8'
        """
        for name in self.columns:
            if name not in fields:
                raise ConfigError(
                    f"{self.where} reads column {name!r}, which is not there: {shortened(self.text)}",
                    f"Expected a column of the data. {nearest(name, fields)}",
                    f"Correct the expression under {self.where}",
                )
        empty = Chunk({n: _empty(fields[n]) for n in self.columns}, np.zeros(0, np.uint64), np)
        column = self.evaluate(empty)
        if condition:
            self._require_truth(column)
        dtype = "int32" if column.kind == "categorical" else column.values.dtype.name
        return Field(column.kind, dtype, column.unit, column.zone)

    def evaluate(self, chunk: Chunk) -> Column:
        """Return the result for each row of the chunk.

        Parameters
        ----------
        chunk : Chunk
            With the columns named in `columns`.

        Returns
        -------
        Column
            n_rows values: uint8 0/1 for truths, int64 or floats for numbers, int32 codes for text, int64 for times.

        Raises
        ------
        ConfigError
            If a piece has a type that its place cannot use.
        DataError
            If an integer result does not fit in 64 bits.
        """
        values: dict[Node, Value] = {}  # a chained comparison has its middle operand twice
        result = self._value(self._tree, chunk, values)
        if result is None:
            raise ConfigError(
                f"{self.where} is null alone",
                "Expected a column, or something made of columns",
                f"Correct the expression under {self.where}",
            )
        return result if isinstance(result, Column) else constant(chunk, result)

    def keep(self, chunk: Chunk) -> Array:
        """Return where the result is true and not missing: bool, shape (n_rows,).

        Raises
        ------
        ConfigError
            As `evaluate`, and if the result is no truth.
        DataError
            As `evaluate`.
        """
        column = self.evaluate(chunk)
        self._require_truth(column)
        return (column.values != 0) & ~column.missing()

    def _value(self, node: Node, chunk: Chunk, values: dict[Node, Value]) -> Value:
        if node in values:
            return values[node]
        result: Value
        if isinstance(node, Literal):
            result = node.value
        elif isinstance(node, Name):
            result = chunk[node.name]
        else:
            assert isinstance(node, Call)
            arguments = [self._value(a, chunk, values) for a in node.arguments]
            try:
                result = node.operation(chunk, *arguments)
            except Refusal as refusal:
                remedy = f"Correct the expression under {self.where}"
                if refusal.error is DataError:
                    remedy += ", or filter the rows that it cannot hold"
                raise refusal.error(
                    f"{refusal.happened} in {at(node.piece, node.offset)} of {self.where}: {shortened(self.text)}",
                    refusal.expected,
                    remedy,
                ) from None
        values[node] = result
        return result

    def _require_truth(self, column: Column) -> None:
        if column.kind != "numeric" or column.values.dtype != np.uint8:
            raise ConfigError(
                f"{self.where} is {shortened(self.text)}, which is no condition",
                "Expected a comparison, or a column of true and false",
                f"Write one under {self.where}, such as x != 0",
            )


def parse(text: str, where: str) -> Expression:
    """Read an expression.

    Parameters
    ----------
    text : str
        At most 10,000 characters, nested at most 100 deep.
    where : str
        Its key in the pipeline file: ``'data.derive.NAME'`` or ``'data.filter'``.

    Raises
    ------
    ConfigError
        Naming the piece that is not allowed and its position (1 is the first character).

    Examples
    --------
    >>> parse("not missing(`my col`) and 0 <= x < 10", "data.filter").columns
    ('my col', 'x')
    >>> parse("__import__('os')", "data.filter")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    tabgpu.errors.ConfigError: data.filter has "__import__('os')" at position 1 of "__import__('os')"...
    """
    expression = Expression(text, where)
    _ = expression.columns
    return expression


def _empty(field: Field) -> Column:
    values = np.zeros(0, np.dtype(field.dtype))
    levels = levels_of(np, pa.nulls(0)) if field.kind == "categorical" else None
    return Column(values, kind=field.kind, levels=levels, unit=field.unit, zone=field.zone)
