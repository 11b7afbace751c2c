"""What every column of an engine keeps to, and short names for the tests beside this file.

The tests run on the engine that ``TABGPU_TEST_ENGINE`` names: ``cpu``, ``gpu``, or the GPU engine on a ``stand-in`` for
its libraries, which `contract.test_gpu_engine_laws` asks for. What a test does to Arrow's reader is of the CPU alone.
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tabgpu.columns import Column
from tabgpu.config import ColumnOptions
from tabgpu.engine import Engine, resolve
from tabgpu.engine.conversion import Origin
from tabgpu.errors import DataError
from tabgpu.files import File, find, make_parts, read_footer
from tabgpu.hashing import hash_levels
from tabgpu.schema import ColumnType, unify


def _engine() -> Engine:
    name = os.environ.get("TABGPU_TEST_ENGINE", "cpu")
    if name != "stand-in":
        return resolve(name)[0]
    from contract import rapids_stand_in

    engine: Engine = rapids_stand_in.engine()
    return engine


ENGINE = _engine()
HERE = Origin("the test")


def numeric(dtype: str, unit: str | None = None) -> ColumnType:
    return ColumnType("x", "numeric", dtype, unit=unit)


def category(levels: str = "text") -> ColumnType:
    return ColumnType("x", "categorical", "int32", levels=levels)


def moment(unit: str, zone: str | None = None) -> ColumnType:
    return ColumnType("x", "datetime", "int64", unit=unit, zone=zone)


def values(column: Column) -> list[Any]:
    """Decoded values, None where missing."""
    missing = column.missing().tolist()
    decoded = column.values.tolist()
    if column.levels is not None:
        levels = column.levels.values.to_pylist()
        decoded = [levels[c] if c >= 0 else None for c in decoded]
    return [None if m else v for m, v in zip(missing, decoded, strict=True)]


def read(
    source: str | Path, part_rows: int = 10**6, chunk_rows: int = 10**6, **declared: ColumnOptions
) -> dict[str, list[Any]]:
    """All columns of a source, chunk by chunk, decoded."""
    footers = [read_footer(f) for f in find(str(source), Path("/"), "data.source")]
    columns = list(unify(footers, declared).columns.values())
    out: dict[str, list[Any]] = defaultdict(list)
    for part in make_parts(footers, part_rows):
        rows = 0
        for chunk in ENGINE.read(part, columns, chunk_rows):
            assert list(chunk) == [c.name for c in columns]
            assert len({len(c) for c in chunk.values()}) == 1
            for c in columns:
                check_column(chunk[c.name], c)
                out[c.name] += values(chunk[c.name])
            rows += len(next(iter(chunk.values())))
            assert len(next(iter(chunk.values()))) <= chunk_rows
        assert rows == part.n_rows
    return dict(out)


def on_device(column: Column) -> Column:
    valid = None if column.valid is None else ENGINE.to_device(column.valid)
    return replace(column, values=ENGINE.to_device(column.values), valid=valid)


def check_column(column: Column, kind: ColumnType) -> None:
    """What `tabgpu.columns` promises of every column."""
    assert (column.kind, column.values.dtype.name) == (kind.kind, kind.dtype)
    assert column.zone == kind.zone
    assert column.valid is None or (column.valid.dtype == bool and column.kind != "categorical")
    if column.kind == "categorical":
        levels = column.levels
        assert levels is not None
        assert levels.values.null_count == 0
        assert kind.levels != "text" or levels.values.type == pa.string()
        assert len(set(levels.keys.tolist())) == len(levels) <= len(column)
        assert type(levels.keys) is type(column.values)
        codes = ENGINE.to_host(column.values)
        assert codes.min(initial=0) >= -1
        assert codes.max(initial=-1) < len(levels)
        np.testing.assert_array_equal(ENGINE.to_host(levels.keys), hash_levels(levels.values))


def published() -> list[Path]:
    """The readable files of Apache's parquet-testing, where they are."""
    folder = Path(__file__).resolve().parents[3] / "shared" / "data" / "parquet_testing" / "data"
    return sorted(p for p in folder.glob("*.parquet") if "corrupt" not in p.name)


def differing(one: Engine, other: Engine, path: Path, chunk_rows: int) -> list[str]:
    """Columns of a file of which two engines read different values; none where both refuse it."""
    try:
        footer = read_footer(File(str(path), path.name))
        columns = list(unify([footer], {}).columns.values())
    except DataError:
        return []
    found = []
    for part in make_parts([footer], 10**6):
        for column in columns:
            got = []
            for engine in (one, other):
                try:
                    chunks = list(engine.read(part, [column], chunk_rows))
                    got.append(repr([v for chunk in chunks for v in values(chunk[column.name])]))
                except DataError as error:
                    got.append(str(error))
            if got[0] != got[1]:
                found.append(column.name)
    return found


def write(path: Path, table: pa.Table | dict[str, Any], **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table if isinstance(table, pa.Table) else pa.table(table), path, **options)
    return path
