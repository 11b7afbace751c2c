"""Build the matrix that XGBoost trains on from blocks: in core, or external with its pages on disk.

Both kinds give the same model. The disk space that an external matrix takes is computed (`terms`) and compared with
what is free before anything is built, because XGBoost ends the process when a disk is full. Its files lie in a folder
of their own, which goes away with the matrix, and when building fails. A signal waits until XGBoost has returned, which
it does at the next block. Which kind, how many bins and whose cuts: the caller decides.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xgboost

from ..cache import Blocks
from ..columns import Array
from ..errors import DataError, ResourceError
from ..interrupts import deferred
from ..terms import matrix_bytes
from ..units import format_bytes
from .iterator import BlockIterator

Kind = Literal["in_core", "external"]
Matrix = xgboost.QuantileDMatrix | xgboost.ExtMemQuantileDMatrix


@dataclass(frozen=True)
class Builder:
    """Bins all blocks.

    Parameters
    ----------
    kind : {'in_core', 'external'}
        Where the binned rows lie: in memory, or in files below `directory`.
    max_bin : int
        Most bins of a feature; the same number has to be given in training.
    directory : path, optional
        For 'external': where the folder with the files is made. The folder is removed with the matrix.
    to_device : callable
        Moves an array of a block to where the matrix is made.
    external : mapping
        What else XGBoost is told of an external matrix on a GPU: `cache_host_ratio` and `min_cache_page_bytes`.
    nthread : int, optional
        Threads for XGBoost; all by default.
    """

    kind: Kind = "in_core"
    max_bin: int = 256
    directory: str | os.PathLike[str] | None = None
    to_device: Callable[[Array], Array] = np.asarray
    external: Mapping[str, Any] = field(default_factory=dict)
    nthread: int | None = None

    def __call__(self, blocks: Blocks, ref: xgboost.DMatrix | None = None) -> Matrix:
        """Build the matrix of `blocks`: read four times in core and three times external, one time less with `ref`.

        Parameters
        ----------
        blocks : Blocks
            Rows to be held.
        ref : xgboost.DMatrix, optional
            The matrix whose cuts are used: `cuts.matrix_of` for cuts of our own, or the training matrix for validation.
            None lets XGBoost find cuts from these blocks.

        Raises
        ------
        ResourceError
            If the disk of `directory` has less room than the external matrix takes: names both numbers.
        DataError
            If the blocks change between passes.
        """
        if self.kind == "external" and self.directory is None:
            raise ValueError("an external matrix needs a directory")
        while True:
            with deferred() as waiting:
                try:
                    if self.directory is None or self.kind == "in_core":
                        return self._in_core(blocks, ref, waiting)
                    return self._external(blocks, ref, Path(self.directory), waiting)
                except Exception:
                    if not waiting:
                        raise
            # here the signal's handler has returned: the program is to go on, and so is the matrix

    def _options(self, ref: xgboost.DMatrix | None) -> dict[str, Any]:
        return {"max_bin": self.max_bin, "ref": ref, "nthread": self.nthread}

    def _in_core(self, blocks: Blocks, ref: xgboost.DMatrix | None, waiting: Sequence[int]) -> Matrix:
        iterator = BlockIterator(blocks, blocks.columns, waiting=waiting, to_device=self.to_device)
        return _read(xgboost.QuantileDMatrix, iterator, blocks.n_rows, self._options(ref))

    def _external(self, blocks: Blocks, ref: xgboost.DMatrix | None, directory: Path, waiting: Sequence[int]) -> Matrix:
        options = {**self._options(ref), **self.external}
        page_bytes = options.pop("min_cache_page_bytes", None)
        if not self.external:  # on a GPU, pages lie in memory of the host
            check_disk(blocks, directory, self.max_bin)
        folder = tempfile.mkdtemp(prefix="tabgpu-matrix-", dir=directory)
        pages = os.path.join(folder, "pages")
        iterator = BlockIterator(blocks, blocks.columns, pages, waiting, self.to_device, page_bytes)
        try:
            matrix = _read(xgboost.ExtMemQuantileDMatrix, iterator, blocks.n_rows, options)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        weakref.finalize(matrix, shutil.rmtree, folder, ignore_errors=True)  # runs at the interpreter's end too
        return matrix


def check_disk(blocks: Blocks, directory: Path, max_bin: int) -> None:
    """Raise ResourceError if the external matrix of `blocks` does not fit on the disk of `directory`."""
    needed = matrix_bytes(blocks.n_rows, blocks.n_features, max_bin, blocks.has_missing)
    free = shutil.disk_usage(directory).free
    if needed > free:
        raise ResourceError(
            f"The external matrix of {blocks.n_rows:,} rows and {blocks.n_features:,} features needs "
            f"{format_bytes(needed)} on the disk of {str(directory)!r}, and {format_bytes(free)} are free there",
            "Expected room for the binned features of all rows",
            "Free space, set cache.dir to a larger disk, or raise memory.limit so that the matrix is kept in memory",
        )


def _read(made_by: Callable[..., Matrix], iterator: BlockIterator, n_rows: int, options: dict[str, Any]) -> Matrix:
    try:
        matrix = made_by(iterator, **options)
    except Exception:
        if iterator.interrupted is not None:
            raise iterator.interrupted from None
        raise
    if matrix.num_row() != n_rows:  # XGBoost takes whatever ends a pass for the end of the blocks
        raise DataError(
            f"The matrix holds {matrix.num_row():,} of {n_rows:,} rows",
            "Expected all of them: the input changed while it was read",
            "Run again when nothing writes to data.source any more",
        )
    return matrix
