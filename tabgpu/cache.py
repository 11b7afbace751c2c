"""Blocks: rows of features ready to feed, kept for the several passes that a matrix is built in.

A `BlockWriter` takes blocks of any size and re-blocks them to a fixed number of rows, so that what is kept depends on
the rows alone and never on the chunks they came in. `finish` turns it into `Blocks`, which are iterated in order any
number of times. They lie in memory or in one file, read with ``pread`` into one buffer (a mapped file that cannot be
read would end the process), each block with its row count and a digest that is verified on every read.

The file has no name from the moment it is opened: whatever ends the process, nothing stays behind. Space is reserved
before it is used, so that a full disk is an answer and never a signal. Which rows and columns go in, and whether
keeping them pays at all, is for others to decide.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from .columns import Array, ArrayModule
from .errors import ConfigError, DataError, ResourceError, listing
from .units import format_bytes

_FLOAT = np.dtype("<f4")


@dataclass(frozen=True, slots=True)
class Block:
    """Rows ready to feed.

    Parameters
    ----------
    features : Array
        float32, C-contiguous, shape (n_rows, n_features); NaN where missing.
    label : Array
        float32, shape (n_rows,).
    weight : Array, optional
        float32, shape (n_rows,), not negative. None means that all rows weigh 1.
    """

    features: Array
    label: Array
    weight: Array | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.label)


class _Entry(NamedTuple):
    """Where one block lies in the file, and what it has to hash to."""

    n_rows: int
    offset: int
    digest: int


class Blocks:
    """Blocks kept in memory or in a file: iterate in order, as often as needed.

    A block of a file lies in a buffer that the next step of the iteration overwrites: use it before, or copy it.
    Only one iteration at a time. Made by `BlockWriter.finish`; a context manager that frees memory and disk.

    Attributes
    ----------
    columns : tuple of str
        Names of the features.
    n_rows, n_features, n_blocks : int
        Sizes.
    block_rows : int
        Rows of every block but the last, which may be shorter.
    has_missing, has_weight : bool
        Whether any feature is NaN; whether blocks carry weights.
    has_complete_row : bool
        Whether any row has all of its features: on a GPU, XGBoost packs bins more closely then.
    nbytes : int
        Bytes kept, in memory or on disk.
    on_disk : bool
        Which of the two.
    """

    def __init__(
        self, columns: tuple[str, ...], block_rows: int, has_weight: bool, has_missing: bool, store: _Memory | _File
    ) -> None:
        self.columns, self.block_rows = columns, block_rows
        self.has_weight, self.has_missing, self.has_complete_row = has_weight, has_missing, True
        self._store = store
        self.n_features, self.n_blocks = len(columns), store.n_blocks
        self.n_rows, self.nbytes = store.n_rows, store.nbytes
        self.on_disk = isinstance(store, _File)

    def __len__(self) -> int:
        return self.n_blocks

    def __iter__(self) -> Iterator[Block]:
        return self._store.read()

    def close(self) -> None:
        """Free memory and disk. May be called twice."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()


class BlockWriter:
    """Take blocks of any size, keep blocks of `block_rows`.

    Use it as a context manager: if the body fails, memory and disk are freed. After `finish` the `Blocks` own them.

    Parameters
    ----------
    columns : sequence of str
        Names of the features, in their order.
    block_rows : int
        Rows of a kept block, unless fewer are to come.
    has_weight : bool
        Whether blocks carry weights.
    directory : path, optional
        Where the file lies; None keeps the blocks in memory.
    n_rows : int, optional
        Number of rows to come where known: the space for all is then reserved at once.
    xp : module
        Array module of what is kept in memory: a device can keep blocks, too.
    move : callable
        Moves an array of a block to where it is kept.

    Raises
    ------
    ResourceError
        If the disk has no room for the blocks: names needed and free bytes.

    Examples
    --------
    >>> import numpy as np
    >>> with BlockWriter(["a"], block_rows=2) as writer:
    ...     writer.append(Block(np.zeros((5, 1), "float32"), np.arange(5, dtype="float32")))
    ...     blocks = writer.finish()
    >>> [block.label.tolist() for block in blocks]
    [[0.0, 1.0], [2.0, 3.0], [4.0]]
    """

    def __init__(
        self,
        columns: Sequence[str],
        block_rows: int,
        *,
        has_weight: bool = False,
        directory: str | os.PathLike[str] | None = None,
        n_rows: int | None = None,
        xp: ArrayModule = np,
        move: Callable[[Array], Array] = np.asarray,
    ) -> None:
        if block_rows < 1:
            raise ValueError(f"block_rows must be at least 1, not {block_rows}")
        self.columns, self.has_weight = tuple(columns), has_weight
        self.block_rows = min(block_rows, n_rows or block_rows)
        self._xp, self._move = xp, move
        self._width = len(self.columns) + 1 + has_weight  # float32 values of a row
        self._has_missing = self._has_complete_row = False
        self._filled = 0
        shape = (len(self.columns), has_weight)
        self._store = _Memory(*shape) if directory is None else _File(*shape, Path(directory), self.block_rows)
        self._store.reserve((n_rows or 0) * self._width * _FLOAT.itemsize)
        self._open: Array = None  # what is being filled, once there is a row: a device has no room to spare

    def append(self, block: Block) -> None:
        """Take a block of any number of rows; its arrays are copied.

        Raises
        ------
        DataError
            If a feature is infinite, a label missing or infinite, or a weight missing, infinite or negative.
        ResourceError
            If the disk is full.
        """
        self._check(block)
        weight = None if block.weight is None else self._move(block.weight)
        block = Block(self._move(block.features), self._move(block.label), weight)
        taken = 0
        while taken < block.n_rows:
            count = min(self.block_rows - self._filled, block.n_rows - taken)
            self._copy(block, taken, count)
            taken += count
            if self._filled == self.block_rows:
                self._flush()

    def finish(self) -> Blocks:
        """Keep the last, shorter block and hand over all of them."""
        if self._filled:
            self._flush()
        self._store.seal()
        store, self._store = self._store, _Memory(0, False)
        self._open = None
        blocks = Blocks(self.columns, self.block_rows, self.has_weight, self._has_missing, store)
        blocks.has_complete_row = self._has_complete_row
        return blocks

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self._store.close()

    def _copy(self, block: Block, start: int, count: int) -> None:
        if self._open is None:
            self._open = self._xp.empty(self.block_rows * self._width, dtype="float32")
        held = _view(self._open, self.block_rows, len(self.columns), self.has_weight)
        into, rows = slice(self._filled, self._filled + count), slice(start, start + count)
        held.features[into] = block.features[rows]
        held.label[into] = block.label[rows]
        if held.weight is not None and block.weight is not None:
            held.weight[into] = block.weight[rows]
        self._filled += count

    def _flush(self) -> None:
        n_rows, values = self._filled, self._open
        if n_rows < self.block_rows:
            held = _view(values, self.block_rows, len(self.columns), self.has_weight)
            parts = [held.features[:n_rows].ravel(), held.label[:n_rows]]
            values = self._xp.concatenate([*parts, held.weight[:n_rows]] if held.weight is not None else parts)
        self._store.add(values, n_rows)
        self._filled = 0
        if isinstance(self._store, _Memory):
            self._open = None  # the store keeps it

    def _check(self, block: Block) -> None:
        if block.features.shape != (block.n_rows, len(self.columns)) or (block.weight is None) == self.has_weight:
            raise ValueError(f"features are {block.features.shape}, names {self.columns}, weights {self.has_weight}")
        drop = "Drop such rows with data.filter, for example 'not missing(target)'"
        _refuse(~np.isfinite(block.label), "a missing or infinite target", drop)
        if block.weight is not None:
            bad = ~np.isfinite(block.weight) | (block.weight < 0)
            _refuse(bad, "a weight that is missing, infinite or negative", f"Repair the column of data.weight. {drop}")
        if np.isfinite(block.features).all():
            self._has_complete_row |= block.n_rows > 0
            return
        infinite = np.isinf(block.features).any(axis=0)
        if infinite.any():
            names = [name for name, bad in zip(self.columns, infinite.tolist(), strict=True) if bad]
            raise DataError(
                f"Infinite values, or values beyond the range of float32, in feature {listing(names)}",
                "Expected finite numbers or missing values",
                "Put a clip step on the column under features, or drop such rows with data.filter",
            )
        self._has_missing = True
        if not self._has_complete_row:
            self._has_complete_row = bool((~np.isnan(block.features)).all(axis=1).any())


class _Memory:
    """Blocks as arrays in memory."""

    def __init__(self, n_features: int, has_weight: bool) -> None:
        self._n_features, self._has_weight = n_features, has_weight
        self._blocks: list[tuple[Array, int]] = []
        self.n_rows, self.nbytes = 0, 0

    @property
    def n_blocks(self) -> int:
        return len(self._blocks)

    def reserve(self, size: int) -> None:
        """Memory is reserved as it is used."""

    def add(self, values: Array, n_rows: int) -> None:
        self._blocks.append((values, n_rows))
        self.n_rows += n_rows
        self.nbytes += values.nbytes

    def seal(self) -> None:
        """Nothing is left to write."""

    def read(self) -> Iterator[Block]:
        for values, n_rows in self._blocks:
            yield _view(values, n_rows, self._n_features, self._has_weight)

    def close(self) -> None:
        self._blocks = []


class _File:
    """Blocks as raw little-endian float32 in one file without a name."""

    def __init__(self, n_features: int, has_weight: bool, directory: Path, block_rows: int) -> None:
        self._n_features, self._has_weight = n_features, has_weight
        self._directory = directory
        self._buffer_size = block_rows * (n_features + 1 + has_weight)
        self._entries: list[_Entry] = []
        self._reserved = 0
        self.n_rows, self.nbytes = 0, 0
        try:
            directory.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix="tabgpu-blocks-", dir=directory)
        except OSError as error:
            raise ConfigError(
                f"The folder of the feature cache, {str(directory)!r}, cannot be written to: {error.strerror}",
                "Expected a folder in which files can be made",
                "Set cache.dir to such a folder (--set cache.dir=PATH)",
            ) from error
        os.unlink(name)  # the open file lives on; no end of the process can leave it behind
        self._handle: int | None = handle

    @property
    def n_blocks(self) -> int:
        return len(self._entries)

    def reserve(self, size: int) -> None:
        """Reserve disk space up to `size` bytes from the start of the file."""
        if size <= self._reserved:
            return
        try:
            _allocate(self._descriptor(), self._reserved, size - self._reserved)
        except OSError as error:
            raise self._full(error, size) from error
        self._reserved = size

    def add(self, values: np.ndarray, n_rows: int) -> None:
        self.reserve(self.nbytes + values.nbytes)
        raw = values.data.cast("B")
        self._entries.append(_Entry(n_rows, self.nbytes, zlib.crc32(raw)))
        try:
            _write_all(self._descriptor(), raw, self.nbytes)
        except OSError as error:
            raise self._full(error, self.nbytes + values.nbytes) from error
        self.n_rows += n_rows
        self.nbytes += values.nbytes

    def seal(self) -> None:
        """Give back what was reserved for rows that never came."""
        os.ftruncate(self._descriptor(), self.nbytes)

    def read(self) -> Iterator[Block]:
        buffer = np.empty(min(self._buffer_size, self.nbytes // _FLOAT.itemsize), dtype=_FLOAT)
        for entry in self._entries:
            values = buffer[: entry.n_rows * (self._n_features + 1 + self._has_weight)]
            raw = values.data.cast("B")
            if _read_all(self._descriptor(), raw, entry.offset) < len(raw) or zlib.crc32(raw) != entry.digest:
                raise DataError(
                    f"The block of {entry.n_rows:,} rows at byte {entry.offset:,} of the feature cache in "
                    f"{str(self._directory)!r} is not what was written",
                    "Expected the bytes that were written a moment ago: the disk or the memory is at fault",
                    "Run again, with cache.dir on another disk",
                )
            yield _view(values, entry.n_rows, self._n_features, self._has_weight)

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _descriptor(self) -> int:
        if self._handle is None:
            raise ValueError("the blocks are closed")
        return self._handle

    def _full(self, error: OSError, needed: int) -> Exception:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return error
        place, free = str(self._directory), format_bytes(shutil.disk_usage(self._directory).free)
        return ResourceError(
            f"The feature cache needs {format_bytes(needed)} on the disk of {place!r}, of which "
            f"{format_bytes(self._reserved)} are taken, and {free} are free there",
            "Expected room for all features of all rows",
            "Free space, set cache.dir to a larger disk, or raise memory.limit to keep the cache in memory",
        )


def _view(values: Array, n_rows: int, n_features: int, has_weight: bool) -> Block:
    """Block over a flat array: features, then labels, then weights. A new array object each time (see `iterator`)."""
    end = n_rows * n_features
    weight = values[end + n_rows : end + 2 * n_rows] if has_weight else None
    return Block(values[:end].reshape(n_rows, n_features), values[end : end + n_rows], weight)


def _refuse(bad: Array, what: str, remedy: str) -> None:
    if bad.any():
        raise DataError(
            f"{int(bad.sum()):,} rows of a chunk have {what}",
            "Expected a finite number in every row that is trained on or evaluated, and no negative weight",
            remedy,
        )


def _allocate(handle: int, offset: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, offset, size)
    else:  # macOS: the write itself reports a full disk, which is enough where nothing is mapped
        os.ftruncate(handle, offset + size)


def _write_all(handle: int, raw: memoryview, offset: int) -> None:
    while raw:
        count = os.pwrite(handle, raw, offset)
        raw, offset = raw[count:], offset + count


def _read_all(handle: int, raw: memoryview, offset: int) -> int:
    done = 0
    while done < len(raw):
        count = os.preadv(handle, [raw[done:]], offset + done)
        if not count:
            break
        done += count
    return done
