"""Dask data frames as data: every worker writes its partitions as Parquet, and these are ordinary files from then on.

A pass reads the data several times, a run may be resumed, and a row's identity is its place in a file: a frame that
Dask computes anew at every look gives none of that, and kept in memory it is what out-of-core work is to avoid. Writing
costs one pass. Nothing is computed in this process. Works for frames of pandas and of cuDF alike.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import dask
import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import ConfigError, DataError
from .workers import Workers

_GROUP_ROWS = 250_000  # of a row group: the unit in which parts are cut


def write_frame(workers: Workers, frame: Any, folder: Path) -> Path:
    """Have every partition written below a folder that all workers share.

    Parameters
    ----------
    workers : Workers
        They compute and write; see `checks.check_files` for the folder.
    frame : dask.dataframe.DataFrame
        Of pandas or cuDF partitions. Its index is left out.
    folder : Path
        New or empty. Files are called ``part.00000.parquet`` and so on, in the order of partitions.

    Returns
    -------
    Path
        The folder: fit for ``data.source``.

    Raises
    ------
    ConfigError
        If the folder has files already.
    DataError
        If the frame has no row, or two columns of one name.
    """
    names = [str(name) for name in frame.columns]
    if len(set(names)) < len(names):
        raise DataError(
            f"The data frame has columns of equal names: {sorted({n for n in names if names.count(n) > 1})}",
            "Expected each name once",
            "Rename columns before passing the data frame",
        )
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ConfigError(
            f"{folder} is not empty", "Expected a new folder for the data frame's partitions", "Choose another folder"
        )
    write = dask.delayed(write_partition)
    parts = frame.to_delayed()
    width = max(5, len(str(len(parts))))
    with workers.scope() as made:
        # reading and writing of a partition become one task: none is kept for longer than it takes
        paths = [str(folder / f"part.{number:0{width}d}.parquet") for number in range(len(parts))]
        futures = workers.client.compute([write(part, path) for part, path in zip(parts, paths, strict=True)])
        made.update(futures)
        rows = sum(workers.answer(future) for future in futures)
    if rows == 0:
        raise DataError("The data frame has no row", "Expected rows to work on", "Look at how it is made")
    return folder


def write_partition(partition: Any, path: str) -> int:
    """On a worker: write one partition, whole or not at all; returns its rows."""
    if hasattr(partition, "to_arrow"):  # cuDF
        table = partition.to_arrow(preserve_index=False)
    else:
        table = pa.Table.from_pandas(partition, preserve_index=False)
    temporary = f"{path}.tmp-{uuid4().hex}"  # Dask may do a task twice
    pq.write_table(table, temporary, row_group_size=_GROUP_ROWS, write_page_checksum=True)
    os.replace(temporary, path)
    return int(table.num_rows)
