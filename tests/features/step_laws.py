"""What holds for every step, and how tests make chunks of it. Imported by the tests of the step families."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from tabgpu import wire
from tabgpu.columns import Chunk, Column, Levels
from tabgpu.features.contract import Again, Field, Step
from tabgpu.hashing import hash_levels


def numbers(values: Sequence[Any], dtype: str = "float64") -> Column:
    """Numeric column; None is missing."""
    if np.dtype(dtype).kind == "f":
        return Column(np.array([np.nan if v is None else v for v in values], dtype=dtype))
    valid = np.array([v is not None for v in values], dtype=bool)
    filled = np.array([0 if v is None else v for v in values], dtype=dtype)
    return Column(filled, valid=None if valid.all() else valid)


def levels_of(values: Sequence[Any], spare: Sequence[Any] = (), type_: Any = None) -> Column:
    """Categorical column; None is missing. `spare` are levels that no row has."""
    array = pa.array([*spare, *values], type_ or pa.string()).dictionary_encode()
    codes = array.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)[len(spare) :]
    return Column(codes, "categorical", levels=Levels(array.dictionary, hash_levels))


def times(values: Sequence[Any], unit: str = "ns") -> Column:
    """Datetime column; None is missing."""
    plain = numbers(values, "int64")
    return Column(plain.values, "datetime", valid=plain.valid, unit=unit)


def chunk_of(first_row: int = 0, **columns: Column) -> Chunk:
    """Chunk of columns of equal length; rows are known by their number."""
    n = len(next(iter(columns.values())))
    return Chunk(columns, np.arange(first_row, first_row + n, dtype=np.uint64), np)


def fields_of(chunk: Chunk) -> dict[str, Field]:
    """Fields of the columns of a chunk."""
    return {n: Field(c.kind, c.values.dtype.name, c.unit, c.zone, encoded=False) for n, c in chunk.columns.items()}


def pieces_of(chunk: Chunk, cuts: Sequence[int]) -> list[Chunk]:
    """The chunk cut at some rows; pieces may be empty."""
    bounds = [0, *sorted(min(c, chunk.n_rows) for c in cuts), chunk.n_rows]
    return [chunk.take(slice(a, b)) for a, b in pairwise(bounds)]


def fit(step: Step, chunks: Sequence[Chunk]) -> Any:
    """Observe, merge and finish the statistics of a step until they are known, and fit it."""
    results = []
    for statistic in step.statistics():
        result: Any = Again(None)
        while isinstance(result, Again):
            request = result.request
            states = [statistic.observe(chunk, request) for chunk in chunks]
            state = states[0]
            for other in states[1:]:
                state = statistic.merge(other, state)
            result = statistic.finish(state, request)
        results.append(result)
    return step.fit(tuple(results))


def values_of(columns: Mapping[str, Column]) -> dict[str, list[Any]]:
    """Columns as lists: None where missing; a categorical value by the key of its level, which codes do not change."""
    out = {}
    for name, column in columns.items():
        if column.kind == "categorical":
            assert column.levels is not None
            plain = [None if code < 0 else int(column.levels.keys[code]) for code in column.values]
        else:
            plain = [None if m else v for v, m in zip(column.values.tolist(), column.missing(), strict=True)]
        out[name] = plain
    return out


def check_step(step: Step, training: Chunk, other: Chunk, cuts: Sequence[int]) -> Any:
    """Check that pieces give the pieces, that what is fitted travels, and that fields say what comes; return fitted.

    `other` are rows that were not trained on; it has the columns of `training`.
    """
    fitted = fit(step, [training])
    assert wire.pack(fit(step, pieces_of(training, cuts)[::-1])) == wire.pack(fitted)
    travelled = wire.unpack(wire.pack(fitted))
    fields = step.outputs(fields_of(training))
    for chunk, is_training in ((training, True), (training, False), (other, False)):
        made = step.transform(chunk, fitted, is_training)
        assert {n: (f.kind, f.dtype) for n, f in fields.items()} == {
            n: (c.kind, c.values.dtype.name) for n, c in made.items()
        }
        assert all(len(column) == chunk.n_rows for column in made.values())
        whole = values_of(made)
        assert values_of(step.transform(chunk, travelled, is_training)) == whole
        joined: dict[str, list[Any]] = {name: [] for name in whole}
        for piece in pieces_of(chunk, cuts):
            for name, values in values_of(step.transform(piece, fitted, is_training)).items():
                joined[name] += values
        assert joined == whole
    return fitted
