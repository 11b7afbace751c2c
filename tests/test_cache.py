"""Blocks: what goes in comes out, re-blocked by rows alone; damage and full disks are answers."""

from __future__ import annotations

import errno
import os
import resource
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabgpu.cache import Block, Blocks, BlockWriter
from tabgpu.errors import ConfigError, DataError, ResourceError

NAMES = ("a", "b", "c")


def rows(n: int, *, weight: bool = False, seed: int = 0) -> Block:
    random = np.random.default_rng(seed)
    features = random.standard_normal((n, len(NAMES))).astype("float32")
    return Block(features, random.random(n).astype("float32"), random.random(n).astype("float32") if weight else None)


def write(block: Block, sizes: list[int], block_rows: int, directory: Path | None = None, **options: int) -> Blocks:
    with BlockWriter(NAMES, block_rows, has_weight=block.weight is not None, directory=directory, **options) as writer:
        start = 0
        for size in [*sizes, block.n_rows]:
            part = slice(start, start + size)
            weight = None if block.weight is None else block.weight[part]
            writer.append(Block(block.features[part], block.label[part], weight))
            start += size
        return writer.finish()


def copies(blocks: Blocks) -> list[tuple[bytes, bytes, bytes | None]]:
    return [(b.features.tobytes(), b.label.tobytes(), None if b.weight is None else b.weight.tobytes()) for b in blocks]


@settings(deadline=None, max_examples=40)
@given(
    n_rows=st.integers(0, 60),
    sizes=st.lists(st.integers(0, 25), max_size=5),
    block_rows=st.integers(1, 70),
    weight=st.booleans(),
)
def test_chunks_change_nothing_and_disk_equals_memory(
    tmp_path_factory: pytest.TempPathFactory, n_rows: int, sizes: list[int], block_rows: int, weight: bool
) -> None:
    block = rows(n_rows, weight=weight)
    whole = write(block, [], block_rows)
    assert [b.n_rows for b in whole] == [min(block_rows, n_rows - i) for i in range(0, n_rows, block_rows)]
    if n_rows:
        assert b"".join(f for f, _, _ in copies(whole)) == block.features.tobytes()
        assert b"".join(y for _, y, _ in copies(whole)) == block.label.tobytes()
    directory = tmp_path_factory.mktemp("blocks")
    with write(block, sizes, block_rows) as memory, write(block, sizes, block_rows, directory) as disk:
        assert copies(memory) == copies(whole) == copies(disk) == copies(disk)
        assert memory.nbytes == whole.nbytes == disk.nbytes == 4 * n_rows * (4 + weight)
        assert (disk.n_rows, disk.n_features, disk.n_blocks) == (n_rows, 3, len(whole))
        assert (disk.on_disk, memory.on_disk) == (True, False)
    assert not list(directory.iterdir())


@pytest.mark.parametrize("n_rows", [None, 3, 25])
def test_nothing_is_held_beside_the_rows(n_rows: int | None) -> None:
    """A block of a device may have 256 MB: none is made before there is a row, nor a whole one for a few rows."""
    made: list[int] = []

    def empty(size: int, dtype: str) -> np.ndarray:
        made.append(size)
        return np.empty(size, dtype)

    counting = SimpleNamespace(empty=empty, concatenate=np.concatenate)
    with BlockWriter(NAMES, 10, n_rows=n_rows, xp=counting) as writer:
        assert made == []
        writer.append(rows(n_rows or 20))
        blocks = writer.finish()
    width = len(NAMES) + 1
    assert made == [min(10, n_rows or 10) * width] * -(-(n_rows or 20) // 10)
    assert sum(b.n_rows for b in blocks) == (n_rows or 20)


def test_blocks_are_contiguous_and_new_objects() -> None:
    blocks = write(rows(10, weight=True), [], 4)
    first, again = list(blocks), list(blocks)
    assert all(b.features.flags.c_contiguous and b.features.dtype == np.float32 for b in first)
    assert all(a.features is not b.features for a, b in zip(first, again, strict=True))


def test_missing_is_seen_in_any_chunk() -> None:
    block = rows(10)
    assert not write(block, [3], 4).has_missing
    block.features[9, 2] = np.nan
    assert write(block, [3], 4).has_missing


def test_infinite_feature_is_named() -> None:
    block = rows(5)
    block.features[1, 1] = np.inf
    block.features[0, 0] = np.nan
    with pytest.raises(DataError, match=r"Infinite.*feature 'b'\. .*clip"):
        write(block, [], 4)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_label_has_to_be_a_number(value: float) -> None:
    block = rows(5)
    block.label[2] = value
    with pytest.raises(DataError, match=r"1 rows .* target"):
        write(block, [], 4)


@pytest.mark.parametrize("value", [np.nan, -1.0])
def test_weight_has_to_be_a_number_from_zero(value: float) -> None:
    block = rows(5, weight=True)
    assert block.weight is not None
    block.weight[2] = value
    with pytest.raises(DataError, match=r"1 rows .* weight"):
        write(block, [], 4)


def test_wrong_shape_is_a_bug() -> None:
    writer = BlockWriter(NAMES, 4)
    with pytest.raises(ValueError, match="features are"):
        writer.append(Block(np.zeros((2, 2), "float32"), np.zeros(2, "float32")))
    with pytest.raises(ValueError, match="weights"):
        writer.append(rows(2, weight=True))
    with pytest.raises(ValueError, match="block_rows"):
        BlockWriter(NAMES, 0)


def test_every_flipped_byte_is_found(tmp_path: Path) -> None:
    with write(rows(9, weight=True), [], 4, tmp_path) as blocks:
        handle = blocks._store._handle
        for offset in range(0, blocks.nbytes, 7):
            byte = os.pread(handle, 1, offset)
            os.pwrite(handle, bytes([byte[0] ^ 4]), offset)
            with pytest.raises(DataError, match="is not what was written"):
                copies(blocks)
            os.pwrite(handle, byte, offset)
        assert len(copies(blocks)) == 3
        os.ftruncate(handle, blocks.nbytes - 1)
        with pytest.raises(DataError, match="is not what was written"):
            copies(blocks)


def test_nothing_is_left_whatever_happens(tmp_path: Path) -> None:
    opened = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    writer = BlockWriter(NAMES, 4, directory=tmp_path)
    writer.append(rows(9))
    assert not list(tmp_path.iterdir()), "a name would outlive a kill"
    with pytest.raises(RuntimeError, match="stop"), writer:
        raise RuntimeError("stop")
    blocks = write(rows(9), [], 4, tmp_path)
    blocks.close()
    blocks.close()
    with pytest.raises(ValueError, match="closed"):
        list(blocks)
    assert not list(tmp_path.iterdir())
    if opened:
        assert len(os.listdir("/proc/self/fd")) == opened


@pytest.mark.parametrize("known", [True, False])
def test_full_disk_says_needed_and_free(tmp_path: Path, known: bool) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))  # the kernel refuses more, as a full disk does
    try:
        with pytest.raises(ResourceError, match=r"needs .*B on the disk of .* are free there.*cache\.dir"):
            write(rows(2000), [], 100, tmp_path, **({"n_rows": 2000} if known else {}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_nothing_is_written_before_there_is_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    def refuse(handle: int, offset: int, size: int) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(ResourceError if error == errno.ENOSPC else OSError):
        write(rows(200), [], 100, tmp_path)


def test_space_is_reserved_first_and_the_rest_given_back(tmp_path: Path) -> None:
    writer = BlockWriter(NAMES, 100, directory=tmp_path, n_rows=1000)
    assert os.fstat(writer._store._handle).st_size == 1000 * 16
    writer.append(rows(150))
    with writer.finish() as blocks:
        assert os.fstat(blocks._store._handle).st_size == blocks.nbytes == 150 * 16


def test_folder_is_made_or_refused(tmp_path: Path) -> None:
    write(rows(3), [], 2, tmp_path / "new" / "folder").close()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be written to.*cache\.dir"):
        write(rows(3), [], 2, tmp_path / "file")


def test_reading_a_file_holds_one_block(tmp_path: Path) -> None:
    with write(rows(20_000), [], 1000, tmp_path) as blocks:
        tracemalloc.start()
        total = sum(float(b.label.sum()) for b in blocks)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert total > 0
    assert peak < 2 * 1000 * 16


@pytest.mark.parametrize(
    ("rows", "missing", "complete"),
    [([[1, 2]], False, True), ([[1, np.nan], [np.nan, 2]], True, False), ([[1, np.nan], [3, 2]], True, True)],
)
def test_blocks_know_what_is_missing(rows: list[list[float]], missing: bool, complete: bool) -> None:
    with BlockWriter(["a", "b"], 2) as writer:
        for row in rows:
            writer.append(Block(np.array([row], "float32"), np.zeros(1, "float32")))
        blocks = writer.finish()
    assert (blocks.has_missing, blocks.has_complete_row) == (missing, complete)
