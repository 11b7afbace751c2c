"""What every column of an engine keeps to, and short names for the tests beside this file."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tabgpu.columns import Column
from tabgpu.config import ColumnOptions
from tabgpu.engine.conversion import Origin
from tabgpu.engine.cpu import CpuEngine
from tabgpu.files import find, make_parts, read_footer
from tabgpu.schema import ColumnType, unify

ENGINE = CpuEngine()
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
        assert column.values.min(initial=0) >= -1
        assert column.values.max(initial=-1) < len(levels)


def write(path: Path, table: pa.Table | dict[str, Any], **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table if isinstance(table, pa.Table) else pa.table(table), path, **options)
    return path
