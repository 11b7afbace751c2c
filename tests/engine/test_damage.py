"""Damaged and changing files are refused by name: never a wrong value, never another error."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from engine_laws import ENGINE, numeric, read, write

from tabgpu.errors import DataError
from tabgpu.files import File, Part, find, make_parts, read_footer
from tabgpu.schema import unify

verified = pytest.mark.skipif(
    os.environ.get("TABGPU_TEST_ENGINE") == "gpu", reason="libcudf does not verify the checksums of pages"
)
cpu_alone = pytest.mark.skipif(ENGINE.name != "cpu", reason="of Arrow's reader, which another engine does not use")


@cpu_alone
def test_a_dictionary_page_that_holds_a_value_twice_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", {"s": ["aaXXaa", "aaYYaa", "cc"]}, compression="none", write_statistics=False)
    path.write_bytes(path.read_bytes().replace(b"aaYYaa", b"aaXXaa"))
    with pytest.raises(DataError, match=r"'s' of x\.parquet, row group 0 of .* has code 2, and 2 distinct"):
        read(path)


def test_text_that_is_not_utf8_is_refused_with_its_row(tmp_path: Path) -> None:
    raw = pa.array([b"a", b"b", b"caf\xe9", b"a"] * 2).view(pa.string())
    path = write(tmp_path / "latin.parquet", pa.table({"s": raw}), row_group_size=4)
    with pytest.raises(DataError, match=r"'s' of latin\.parquet.* holds b'caf\\xe9' in row 2 \(from 0\).*not UTF-8"):
        read(path)
    footer = read_footer(find(str(path), Path("/"), "data.source")[0])
    second = make_parts([footer], 1)[1]
    with pytest.raises(DataError, match="in row 6 "):
        list(ENGINE.read(second, list(unify([footer], {}).columns.values()), 1))


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, dict[str, list[Any]], int]:
    rng, n = np.random.default_rng(7), 600
    table = pa.table(
        {
            "i": pa.array(rng.integers(0, 10**12, n), mask=rng.random(n) < 0.1),
            "f": rng.standard_normal(n).astype("f4"),
            "s": [f"k{i}" for i in rng.integers(0, 20, n)],
        }
    )
    path = write(tmp_path_factory.mktemp("f") / "x.parquet", table, row_group_size=200, write_page_checksum=True)
    raw = path.read_bytes()
    return raw, read(path), len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")


def outcome(path: Path, raw: bytes) -> dict[str, list[Any]] | None:
    """What is read, or None for a refusal that names the file."""
    path.write_bytes(raw)
    try:
        return read(path, chunk_rows=150)
    except DataError as error:
        if str(path) not in error.happened:
            raise
        return None


@verified
def test_a_flipped_bit_in_checked_pages_is_never_a_wrong_value(
    tmp_path: Path, fragile: tuple[bytes, dict[str, list[Any]], int]
) -> None:
    raw, expected, pages_end = fragile
    rng, refused = np.random.default_rng(1), 0
    for _ in range(300):
        bad = bytearray(raw)
        bad[int(rng.integers(4, pages_end))] ^= 1 << int(rng.integers(8))
        got = outcome(tmp_path / "x.parquet", bytes(bad))
        refused += got is None
        assert got is None or got == expected
    assert refused > 270


def test_a_file_cut_anywhere_is_refused(tmp_path: Path, fragile: tuple[bytes, dict[str, list[Any]], int]) -> None:
    raw, _, _ = fragile
    for length in np.random.default_rng(2).integers(0, len(raw), 40):
        assert outcome(tmp_path / "x.parquet", raw[:length]) is None


@verified
def test_a_scrambled_footer_is_refused_or_read(
    tmp_path: Path, fragile: tuple[bytes, dict[str, list[Any]], int]
) -> None:
    """Footers carry no checksum: a changed name or offset cannot be seen. No other error, no abort."""
    raw, _, pages_end = fragile
    rng, refused = np.random.default_rng(3), 0
    for _ in range(100):
        bad = bytearray(raw)
        for at in rng.integers(pages_end, len(raw), 3):
            bad[at] = int(rng.integers(256))
        refused += outcome(tmp_path / "x.parquet", bytes(bad)) is None
    assert refused > 50


@verified
def test_the_damaged_column_is_named(tmp_path: Path, fragile: tuple[bytes, dict[str, list[Any]], int]) -> None:
    raw, _, _ = fragile
    path = tmp_path / "x.parquet"
    path.write_bytes(raw)
    chunk = pq.ParquetFile(path).metadata.row_group(1).column(1)
    bad = bytearray(raw)
    bad[(chunk.dictionary_page_offset or chunk.data_page_offset) + chunk.total_compressed_size // 2] ^= 1
    path.write_bytes(bad)
    footer = read_footer(File(str(path), "x.parquet"))
    with pytest.raises(DataError, match=r"x\.parquet, row groups 0 to 2, column 'f', of .*checksum"):
        list(ENGINE.read(make_parts([footer], 600)[0], list(unify([footer], {}).columns.values()), 600))


@pytest.mark.parametrize(
    ("rows", "group", "said"), [(5, 5, "had 10 rows, and has 5 now"), (4, 4, "had 2 rows, and has 0 now")]
)
def test_a_file_that_changed_since_its_footer_was_read_is_named(
    tmp_path: Path, rows: int, group: int, said: str
) -> None:
    path = write(tmp_path / "x.parquet", {"x": range(10)}, row_group_size=10 if rows == 5 else 4)
    footer = read_footer(File(str(path), "x.parquet"))
    write(path, {"x": range(rows)}, row_group_size=group)
    last = make_parts([footer], 4)[-1]
    with pytest.raises(DataError, match=rf"x\.parquet.*{said}"):
        list(ENGINE.read(last, [numeric("int64")], 100))
    path.unlink()
    with pytest.raises(DataError, match="cannot be read"):
        list(ENGINE.read(make_parts([footer], 4)[0], [numeric("int64")], 100))


@cpu_alone
def test_columns_of_unequal_length_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "x.parquet", {"x": [1, 2, 3]})

    def short(parquet: pq.ParquetFile, *_: object) -> list[pa.RecordBatch]:
        return [next(parquet.iter_batches(2))]

    monkeypatch.setattr("tabgpu.engine.cpu._batches", short)
    with pytest.raises(DataError, match="it holds 2 rows, its footer says 3"):
        list(ENGINE.read(Part(File(str(path), "x"), (0,), 0, 3), [numeric("int64")], 10))


@cpu_alone
def test_out_of_memory_is_no_damage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", {"x": [1]})

    def fail(*_: object, **__: object) -> None:
        raise pa.ArrowMemoryError("malloc of size 99 failed")

    monkeypatch.setattr("tabgpu.engine.cpu.to_column", fail)
    with pytest.raises(pa.ArrowMemoryError) as caught:
        list(ENGINE.read(Part(File(str(path), "x"), (0,), 0, 1), [numeric("int64")], 1))
    assert ENGINE.is_out_of_memory(caught.value)
    assert ENGINE.is_out_of_memory(RuntimeError("std::bad_alloc"))
    assert not ENGINE.is_out_of_memory(OSError("checksum"))
