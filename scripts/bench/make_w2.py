"""Make the data of benchmark W2: click-log like, 13 float32 and 26 string columns, an int8 target `y`.

    python scripts/bench/make_w2.py FILE --rows 2000000

Columns `n00`..`n12` are normal, three of them shifted and scaled far from 0. Columns `c00`..`c25` are hex strings of 8
characters, with 10 to 1,000,000 possible levels in geometric steps, level ``L u^3`` for uniform u: a few are frequent,
most are rare. All 39 have 3% nulls. `y` depends on two of the numbers and seven of the strings. One Parquet file, zstd,
row groups of 100,000 rows. A row group is a function of its number and the seed alone: the same bytes on every run, and
the first rows of a longer file are those of a shorter one.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS_A_GROUP = 100_000
LEVELS = np.geomspace(10, 1_000_000, 26).astype(np.int64)
NUMBERS = [f"n{i:02}" for i in range(13)]
STRINGS = [f"c{i:02}" for i in range(26)]
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the data of benchmark W2.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--rows", type=int, default=2_000_000)
    args = parser.parse_args()
    make(args.file, args.rows)


def make(file: Path, rows: int) -> None:
    """Write `rows` rows to `file`, unless it is there."""
    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    names = [*NUMBERS, *STRINGS, "y"]
    types = [pa.float32()] * len(NUMBERS) + [pa.string()] * len(STRINGS) + [pa.int8()]
    schema = pa.schema(list(zip(names, types, strict=True)))
    with pq.ParquetWriter(unfinished, schema, compression="zstd", write_page_checksum=True) as writer:
        for first in range(0, rows, ROWS_A_GROUP):
            group = row_group(first // ROWS_A_GROUP, ROWS_A_GROUP, schema)
            writer.write_table(group.slice(0, min(ROWS_A_GROUP, rows - first)))
    os.replace(unfinished, file)


def row_group(number: int, n: int, schema: pa.Schema) -> pa.Table:
    """Row group `number` of `n` rows."""
    random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([20_260, number])))
    arrays: list[pa.Array] = []
    logit = np.full(n, -1.0)
    for i in range(len(NUMBERS)):
        x = random.standard_normal(n)
        logit += (0.8, -0.5)[i] * x if i < 2 else 0.0
        arrays.append(
            pa.array((1e4 * i + 10.0**i * x if i in (3, 6, 9) else x).astype(np.float32), mask=_nulls(random, n))
        )
    for i, n_levels in enumerate(LEVELS):
        code = np.minimum((n_levels * random.random(n) ** 3).astype(np.int64), n_levels - 1)
        word = _mix32(code + (i << 20))
        if i % 4 == 0:
            logit += (word % 1024) / 512.0 - 1.0
        arrays.append(_hex_strings(word, ~_nulls(random, n)))
    y = random.random(n) < 1.0 / (1.0 + np.exp(-logit))
    return pa.Table.from_arrays([*arrays, pa.array(y.astype(np.int8))], schema=schema)


def _nulls(random: np.random.Generator, n: int) -> np.ndarray:
    return random.random(n) < 0.03


def _mix32(x: np.ndarray) -> np.ndarray:
    """A bijection of 32-bit numbers, so that distinct levels stay distinct."""
    x = x.astype(np.uint32)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    return x ^ (x >> np.uint32(16))


def _hex_strings(word: np.ndarray, valid: np.ndarray) -> pa.Array:
    """Numbers of 32 bits as strings of 8 hex digits, null where not valid."""
    shifts = np.arange(28, -1, -4, dtype=np.uint32)
    text = _HEX[(word[:, None] >> shifts) & np.uint32(15)]
    offsets = np.concatenate([[0], np.cumsum(8 * valid)]).astype(np.int32)
    buffers = [
        pa.py_buffer(np.packbits(valid, bitorder="little")),
        pa.py_buffer(offsets),
        pa.py_buffer(text[valid].copy()),
    ]
    return pa.Array.from_buffers(pa.string(), len(word), buffers)


if __name__ == "__main__":
    main()
