"""The corner cases of the format that Apache publishes: each file is read right, or refused by name."""

from __future__ import annotations

import csv
import decimal
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabgpu.config import ColumnOptions
from tabgpu.engine.cpu import CpuEngine
from tabgpu.errors import DataError, TabgpuError
from tabgpu.files import File, make_parts, read_footer
from tabgpu.schema import Schema, unify

FOLDER = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "parquet_testing"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the files of parquet-testing are not here")

REFUSED = {  # with what the message must name beside the file
    "bad_data/ARROW-GH-41317.parquet": "holds 2 rows, its footer says 5",
    "bad_data/ARROW-GH-41321.parquet": "column 'int64'",
    "bad_data/ARROW-GH-47662.parquet": "column 'flba_field'",
    "bad_data/ARROW-RS-GH-6229-DICTHEADER.parquet": "column 'nation_key'",
    "bad_data/PARQUET-1481.parquet": "UNKNOWN",
    "data/datapage_v1-corrupt-checksum.parquet": "column 'a'",
    "data/encrypt_columns_and_footer.parquet.encrypted": "encrypted",
    "data/encrypt_columns_plaintext_footer.parquet.encrypted": "column 'float_field'",
    "data/incorrect_map_schema.parquet": "Map keys",
    "data/int96_from_spark.parquet": "column 'a'",
    "data/repeated_no_annotation.parquet": "6 rows",
    "data/rle-dict-uncompressed-corrupt-checksum.parquet": "column 'long_field'",
}
NOT_TEXT = {
    "binary_truncated_min_max",
    "fixed_length_byte_array",
    "geospatial",
    "binary",
    "byte_stream_split_extended",
}  # bytes that are no UTF-8
NO_COLUMN = {  # nothing but nested or binary columns
    "bad_data/ARROW-GH-45185.parquet",
    "bad_data/ARROW-RS-GH-6229-LEVELS.parquet",
    "data/large_string_map.brotli.parquet",
    "data/list_columns.parquet",
    "data/map_no_value.parquet",
    "data/nested_structs.rust.parquet",
    "data/null_list.parquet",
    "data/nulls.snappy.parquet",
    "data/old_list_structure.parquet",
    "data/repeated_primitive_no_list.parquet",
}
FILES = sorted(p.relative_to(FOLDER).as_posix() for p in FOLDER.glob("*/*.parquet*")) if FOLDER.is_dir() else []


def load(name: str, text: bool = True, chunk_rows: int = 97) -> tuple[Schema, pa.Table]:
    """All columns that can be used, as the engine reads them; bytes as text where wanted."""
    footer = read_footer(File(str(FOLDER / name), name))
    raw = {f.name for f in footer.schema if pa.types.is_binary(f.type) or pa.types.is_fixed_size_binary(f.type)}
    declare = text and not any(n in name for n in NOT_TEXT)
    schema = unify([footer], {n: ColumnOptions(kind="categorical") for n in raw} if declare else {})
    engine, columns = CpuEngine(), list(schema.columns.values())
    tables = []
    for part in make_parts([footer], 1000):
        for chunk in engine.read(part, columns, chunk_rows):
            decoded = {n: engine.to_arrow(c) for n, c in chunk.items()}
            tables.append(
                pa.table(
                    {n: a.dictionary_decode() if pa.types.is_dictionary(a.type) else a for n, a in decoded.items()}
                )
            )
    return schema, pa.concat_tables(tables) if tables else pa.table({n: [] for n in schema.columns})


def plain(column: pa.ChunkedArray) -> list[Any]:
    """Values as the engine ought to give them: text, numbers, integers of an instant; NaN is missing."""
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        column = column.cast(pa.timestamp("us", getattr(kind, "tz", None))).cast(pa.int64())
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    values = column.to_pylist()
    if pa.types.is_binary(kind):
        values = [v if v is None else v.decode() for v in values]
    return [None if v != v else float(v) if isinstance(v, decimal.Decimal) else v for v in values]


@pytest.mark.parametrize("name", FILES)
def test_each_file_is_read_right_or_refused_by_name(name: str) -> None:
    if name in REFUSED:
        with pytest.raises(DataError) as caught:
            load(name)
        assert Path(name).name in caught.value.happened
        assert REFUSED[name] in caught.value.happened
        return
    schema, table = load(name)
    assert bool(schema.columns) == (
        name not in NO_COLUMN and Path(name).name not in ("binary.parquet", "fixed_length_byte_array.parquet")
    )
    if not schema.columns:
        assert schema.refused
        return
    expected = pq.read_table(FOLDER / name, columns=list(schema.columns), coerce_int96_timestamp_unit="us")
    assert table.num_rows == expected.num_rows
    for column in schema.columns:
        assert plain(table[column]) == plain(expected[column]), column


def test_every_file_was_looked_at() -> None:
    assert len(FILES) == 77


@pytest.mark.parametrize("name", [n for n in FILES if "delta_" in n and "length" not in n])
def test_delta_encodings_agree_with_their_csv(name: str) -> None:
    _, table = load(name)
    lines = list(csv.reader((FOLDER / name.replace(".parquet", "_expect.csv")).read_text().splitlines()))
    for position, column in enumerate(table.column_names):
        text = ["" if v is None else str(v) for v in table[column].to_pylist()]
        assert text == [line[position] for line in lines[1:]]


def test_plain_and_split_twins_are_equal() -> None:
    _, table = load("data/byte_stream_split_extended.gzip.parquet", text=False)
    pairs = [
        n
        for n in table.column_names
        if n.endswith("_plain") and n.replace("plain", "byte_stream_split") in table.column_names
    ]
    assert len(pairs) >= 6
    for name in pairs:
        assert table[name].equals(table[name.replace("plain", "byte_stream_split")])


@pytest.mark.parametrize("name", ["data/float16_nonzeros_and_nans.parquet", "data/float16_zeros_and_nans.parquet"])
def test_null_and_nan_are_one_thing_in_halves(name: str) -> None:
    schema, table = load(name)
    (column,) = schema.columns.values()
    assert column.dtype == "float16"
    raw = pq.read_table(FOLDER / name)[column.name].to_pylist()
    assert table[column.name].to_pylist() == [None if v is None or np.isnan(v) else v for v in raw]


def test_bytes_that_are_no_text_are_refused_with_their_row() -> None:
    name = "data/fixed_length_byte_array.parquet"
    footer = read_footer(File(str(FOLDER / name), name))
    schema = unify([footer], {"flba_field": ColumnOptions(kind="categorical")})
    with pytest.raises(DataError, match=r"'flba_field' of .*fixed_length.*in row 0 .*not UTF-8"):
        list(CpuEngine().read(make_parts([footer], 10**6)[0], list(schema.columns.values()), 100))


@pytest.mark.parametrize("name", [n for n in FILES if n.endswith(".encrypted")])
def test_encrypted_files_do_not_abort_the_process(name: str) -> None:
    script = (
        "import json, sys; sys.path[:0] = json.loads(sys.argv[1])\n"
        "from test_parquet_testing import load\nfrom tabgpu.errors import DataError\n"
        "try:\n    load(sys.argv[2])\nexcept DataError as error:\n    print(error.happened)\n"
    )
    paths = json.dumps([str(Path(__file__).parent), str(Path(__file__).parent.parent)])
    done = subprocess.run([sys.executable, "-c", script, paths, name], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert Path(name).name in done.stdout


def test_a_gigabyte_of_nested_strings_costs_nothing() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    schema, _ = load("data/large_string_map.brotli.parquet")
    assert "is nested" in schema.refused["arr"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB
    with pytest.raises(TabgpuError, match="Flatten"):
        schema.require("arr", "data.target")


def test_columns_of_row_groups_with_nan_alone_have_all_rows() -> None:
    _, table = load("data/floating_orders_nan_count.parquet")
    assert table.num_rows == 50
    assert [table[n].null_count for n in table.column_names] == [14] * 6
