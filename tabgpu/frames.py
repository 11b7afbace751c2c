"""Frames in memory: whatever speaks Arrow comes in, and what came in goes out again.

pandas, Polars, cuDF, pyarrow and all else with the Arrow interface are turned into a pyarrow.Table and answered in
their own kind. A Dask collection is a frame in pieces: `by_pieces` asks for each piece where it lies, and gives a
collection back, of which nothing is computed yet. No library is imported here: whose frame comes in has imported it.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from . import runners
from .errors import ConfigError, DataError, listing

_GROUP_ROWS = 250_000


def library_of(frame: Any) -> str:
    """Name of the library whose frame it is: 'pandas', 'polars', 'cudf', 'dask', ..."""
    return {"dask_expr": "dask", "dask_cudf": "dask"}.get(name := type(frame).__module__.split(".")[0], name)


def table_of(frame: Any) -> pa.Table:
    """Arrow table of a frame.

    Raises
    ------
    DataError
        If it is no frame with rows, or its columns have no one type or name.
    """
    if type(frame).__name__ == "LazyFrame":
        raise DataError(
            "The data is a LazyFrame, which holds no rows yet", "Expected a frame with rows", "Call .collect() first"
        )
    try:
        if library_of(frame) == "cudf":
            table = frame.to_arrow(preserve_index=False)
        else:
            table = frame if isinstance(frame, pa.Table) else pa.table(frame)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise DataError(
            f"The data is a {type(frame).__name__} that cannot become an Arrow table: {str(error).splitlines()[0]}",
            "Expected a pandas, Polars, cuDF or pyarrow frame with one type in each column, or a path",
            "Convert its columns to plain numbers, text or timestamps",
        ) from error
    doubles = sorted({n for n in table.column_names if table.column_names.count(n) > 1})
    if doubles:
        raise DataError(
            f"The frame has more than one column called {listing(doubles)}", "Expected each name once", "Rename them"
        )
    return table


def frame_like(frame: Any, table: pa.Table) -> Any:
    """The table as the library of `frame` holds frames, with the index of `frame` where it has one."""
    library = library_of(frame)
    if library == "pandas":
        return table.to_pandas().set_index(frame.index)
    if library == "cudf":
        return sys.modules["cudf"].DataFrame.from_arrow(table).set_index(frame.index)
    if library == "polars":
        return sys.modules["polars"].from_arrow(table)
    return table


@contextmanager
def as_files(frame: Any, folder: Path, client: Any = None) -> Iterator[Path]:
    """A frame as Parquet files, for as long as the block lasts.

    A run reads its data several times, and a row's identity is its place in a file: so a frame becomes files first.
    Partitions of a Dask data frame are written by the workers that compute them, and never come to this process.

    Parameters
    ----------
    frame : frame
        As for `table_of`, or a Dask data frame.
    folder : Path
        New; where the files lie. Workers have to see it too.
    client : distributed.Client, optional
        For a Dask data frame.

    Raises
    ------
    ConfigError
        If a Dask data frame comes without a client.
    DataError
        If the frame cannot be used.
    """
    folder.mkdir(parents=True)
    try:
        if library_of(frame) != "dask":
            pq.write_table(table_of(frame), folder / "frame.parquet", row_group_size=_GROUP_ROWS)
        elif not is_dask_frame(frame):
            raise _no_dask_frame(frame)
        elif client is None:
            raise ConfigError(
                "data is a Dask data frame, and there is no client",
                "Expected the client of the workers that compute it",
                "Pass client=Client(...) beside data",
            )
        else:
            runners.write_frame(client, frame, folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def by_pieces(collection: Any, answer: Callable[[Any], Any], columns: list[str]) -> Any:
    """Answer every partition of a Dask collection where it lies.

    Parameters
    ----------
    collection : dask.dataframe.DataFrame
        Of pandas or cuDF frames.
    answer : callable
        Given a frame, returns a pyarrow.Table, or an array of shape (n_rows,) or (n_rows, len(columns)).
    columns : list of str
        Names of the columns of an array.

    Returns
    -------
    dask.dataframe.DataFrame
        Lazy, with the index and the partitions of `collection`.

    Raises
    ------
    DataError
        If it is another collection than a data frame.
    """
    if not is_dask_frame(collection):
        raise _no_dask_frame(collection)
    piece = Piece(answer, columns)
    return collection.map_partitions(piece, meta=piece(collection._meta))


def is_dask_frame(value: Any) -> bool:
    """Whether it is a table: a Dask series has columns too, and a Dask array may have two dimensions."""
    return library_of(value) == "dask" and hasattr(value, "columns") and value.ndim == 2


def _no_dask_frame(collection: Any) -> DataError:
    return DataError(
        f"The data is a Dask {type(collection).__name__}, which is no table with columns",
        "Expected a Dask data frame",
        "Make one of it with its to_frame() or to_dataframe(), or pass a path",
    )


class Piece:
    """Answers one partition; travels to the worker that has it."""

    def __init__(self, answer: Callable[[Any], Any], columns: list[str]) -> None:
        self._answer, self._columns = answer, columns

    def __call__(self, frame: Any) -> Any:
        """Frame of the answers, of the same kind and index as `frame`."""
        table = self._answer(frame)
        if not isinstance(table, pa.Table):
            columns = np.reshape(table, (len(frame), len(self._columns))).T
            table = pa.table(dict(zip(self._columns, map(pa.array, columns), strict=True)))
        return frame_like(frame, table)
