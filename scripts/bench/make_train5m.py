"""Make the data of benchmark train5m: float32 features `f00`..`f29` and a binary int8 target `y`.

    python scripts/bench/make_train5m.py FOLDER --rows 5000000

Row groups of 200,000 rows, 5 in a file, zstd. A third of the features are normal, a third skewed, a third rounded to
one decimal; there are no missing values. `y` depends on eight of them, one product and noise, so that trees have work
to do. A row group is a function of its number alone.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS_A_GROUP, GROUPS_A_FILE = 200_000, 5
FEATURES = [f"f{i:02}" for i in range(30)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the data of benchmark train5m.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=5_000_000)
    args = parser.parse_args()
    make(args.folder, args.rows)


def make(folder: Path, rows: int) -> list[Path]:
    """Write the files that are missing, and return all of them in order."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for first in range(0, rows, ROWS_A_GROUP * GROUPS_A_FILE):
        file = folder / f"part-{len(files):03}.parquet"
        files.append(file)
        if file.exists():
            continue
        schema = pa.schema([(name, pa.float32()) for name in FEATURES] + [("y", pa.int8())])
        unfinished = file.with_name(f".{file.name}.{os.getpid()}")
        with pq.ParquetWriter(unfinished, schema, compression="zstd", write_page_checksum=True) as writer:
            for start in range(first, min(rows, first + ROWS_A_GROUP * GROUPS_A_FILE), ROWS_A_GROUP):
                writer.write_table(row_group(start // ROWS_A_GROUP, min(ROWS_A_GROUP, rows - start), schema))
        os.replace(unfinished, file)
    return files


def row_group(number: int, n: int, schema: pa.Schema) -> pa.Table:
    """Row group `number`, cut to `n` rows."""
    random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([5_030, number])))
    x = random.standard_normal((len(FEATURES), ROWS_A_GROUP), dtype=np.float32)
    x[10:20] = np.exp(x[10:20])
    x[20:] = np.round(x[20:], 1)
    logit = 0.9 * x[0] - 0.7 * x[1] + 0.5 * np.log(x[10]) + 0.4 * x[20] * x[2] + 0.6 * (x[3] > 0.5) - 0.5 * (x[21] < -1)
    y = (random.random(ROWS_A_GROUP) < 1.0 / (1.0 + np.exp(-logit))).astype(np.int8)
    return pa.Table.from_arrays([*(pa.array(column) for column in x), pa.array(y)], schema=schema).slice(0, n)


if __name__ == "__main__":
    main()
