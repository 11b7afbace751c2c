"""Sources, footers and parts."""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabgpu import wire
from tabgpu.errors import ConfigError, DataError
from tabgpu.files import File, Footer, find, make_parts, open_parquet, read_footer

TABLE = pa.table({"x": [1, 2, 3]})


def put(path: Path, table: pa.Table = TABLE, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **options)
    return path


def names(source: str | list[str], base: Path) -> list[str]:
    return [f.name for f in find(source, base, "data.source")]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("b.parquet", "a.parquet", "sub/c.parquet", "_tmp/d.parquet", ".e.parquet", "sub/_f.parquet"):
        put(tmp_path / "data" / name)
    (tmp_path / "data" / "README.md").write_text("about")
    return tmp_path


def test_folder_is_searched_below_and_leaves_out_what_is_hidden_or_no_parquet(tree: Path) -> None:
    assert names("data", tree) == ["a.parquet", "b.parquet", "sub/c.parquet"]
    assert names(str(tree / "data"), Path("/")) == names("data", tree) == names("data/", tree)


def test_glob_file_and_list(tree: Path) -> None:
    assert names("data/*.parquet", tree) == ["a.parquet", "b.parquet"]
    assert names("data/**/*.parquet", tree)[-2:] == ["sub/_f.parquet", "sub/c.parquet"]
    assert names("data/sub/c.parquet", tree) == ["c.parquet"]
    assert names(["data/sub/c.parquet", "data/a.parquet", "data"], tree) == ["a.parquet", "b.parquet", "sub/c.parquet"]
    assert names("data/s*", tree) == ["sub/c.parquet"]  # a folder, by a glob


def test_two_folders_with_equal_file_names_stay_apart(tmp_path: Path) -> None:
    put(tmp_path / "old" / "x.parquet")
    put(tmp_path / "new" / "x.parquet")
    assert names(["old", "new"], tmp_path) == ["new/x.parquet", "old/x.parquet"]


def test_brackets_in_the_folder_of_the_pipeline_are_no_glob(tmp_path: Path) -> None:
    put(tmp_path / "run[1]" / "d" / "x.parquet")
    assert names("d/*.parquet", tmp_path / "run[1]") == ["x.parquet"]
    assert names("run[1]/d/x.parquet", tmp_path) == ["x.parquet"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("dta", "holds 'data'"),
        ("data/*.csv", "holds"),
        ("data/*", "'README.md', which is not Parquet"),
        ("data/README.md", "not Parquet by its name"),
        ([], "empty list"),
        (["data", "nowhere/x.parquet"], "nowhere/x.parquet"),
        ("nosuch://bucket/x", "cannot be opened"),
        ("file:///nowhere/at/all", "there is nothing"),
    ],
)
def test_a_source_without_files_is_refused(tree: Path, source: str | list[str], expected: str) -> None:
    with pytest.raises(ConfigError, match=r"data\.source") as caught:
        find(source, tree, "data.source")
    assert expected in str(caught.value)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(ConfigError, match="is empty"):
        find("data", tmp_path, "data.source")
    with pytest.raises(ConfigError, match="no Parquet file was found there"):
        find((tmp_path / "data").as_uri(), tmp_path, "data.source")


def test_hive_folders_give_values_as_text(tmp_path: Path) -> None:
    for folder in ("zip=01234", "zip=__HIVE_DEFAULT_PARTITION__", "zip=a%2Fb%20c", "zip=", "_part=1"):
        put(tmp_path / "d" / folder / "day=2013-10-01" / "x.parquet")
    found = {f.name.split("/")[0]: dict(f.partition) for f in find("d", tmp_path, "data.source")}
    day = {"day": "2013-10-01"}
    assert found == {
        "zip=01234": {"zip": "01234", **day},
        "zip=__HIVE_DEFAULT_PARTITION__": {"zip": None, **day},
        "zip=a%2Fb%20c": {"zip": "a/b c", **day},
        "zip=": {"zip": "", **day},
        "_part=1": {"_part": "1", **day},
    }
    assert names("d/zip=0*/*/*.parquet", tmp_path) == ["zip=01234/day=2013-10-01/x.parquet"]


def test_urls_of_a_file_and_a_folder(tmp_path: Path) -> None:
    put(tmp_path / "my data" / "zip=a%2Fb" / "x y.parquet")
    put(tmp_path / "my data" / "_hidden" / "z.parquet")
    folder = (tmp_path / "my data").as_uri()
    (file,) = find(folder, Path("/"), "data.source")
    assert (file.name, file.partition) == ("zip=a%2Fb/x y.parquet", (("zip", "a/b"),))
    assert read_footer(file).n_rows == 3
    (again,) = find(file.path, Path("/"), "data.source")
    assert (again.path, again.name) == (file.path, "x y.parquet")
    put(tmp_path / "other" / "x.parquet")
    both = find([folder, (tmp_path / "other").as_uri()], Path("/"), "data.source")
    assert [f.name for f in both] == ["my data/zip=a%2Fb/x y.parquet", "other/x.parquet"]
    (tmp_path / "t.csv").write_text("a")
    with pytest.raises(ConfigError, match="not Parquet"):
        find((tmp_path / "t.csv").as_uri(), Path("/"), "data.source")


def test_options_of_a_url_stay_with_each_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "a.parquet")
    asked = []

    def from_uri(url: str) -> tuple[pa.fs.FileSystem, str]:
        asked.append(url)
        return pa.fs.LocalFileSystem(), str(tmp_path)

    monkeypatch.setattr("tabgpu.files.pafs.FileSystem", type("F", (), {"from_uri": staticmethod(from_uri)}))
    (file,) = find("s3://bucket/folder/?region=eu", Path("/"), "data.source")
    assert (file.path, file.name) == ("s3://bucket/folder/a.parquet?region=eu", "a.parquet")


def test_opened_urls_are_closed(tmp_path: Path) -> None:
    url = put(tmp_path / "a.parquet").as_uri()
    with open_parquet(url) as parquet:
        source = parquet.reader
    del source
    assert parquet.closed


def whole(tmp_path: Path) -> bytes:
    return put(tmp_path / "whole.parquet").read_bytes()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda b: b"", r"is empty \(0 bytes\)"),
        (lambda b: b[: len(b) // 2], "cannot be read"),
        (lambda b: b[:-1], "cannot be read"),
        (lambda b: b"PK" + b[:-4] + b"PK\x03\x04", "cannot be read"),
        (lambda b: b[:-8] + struct.pack("<I", 2**31 - 1) + b"PAR1", "cannot be read"),
        (lambda b: b.replace(b"\x16\x06\x19", b"\x16\x08\x19", 1), "cannot be read: its row groups hold 3"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, damage: object, said: str) -> None:
    path = tmp_path / "bad.parquet"
    path.write_bytes(damage(whole(tmp_path)))  # type: ignore[operator]
    with pytest.raises(DataError, match=f"bad.parquet {said}"):
        read_footer(File(str(path), "bad.parquet"))


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.parquet is gone"):
        read_footer(File(str(tmp_path / "gone.parquet"), "gone.parquet"))
    with pytest.raises(DataError, match=r"gone\.parquet cannot be read"):
        read_footer(File((tmp_path / "gone.parquet").as_uri(), "gone.parquet"))


def test_footer_counts_rows_and_bytes_of_row_groups(tmp_path: Path) -> None:
    table = pa.table({"x": np.arange(10.0)})
    footer = read_footer(
        File(str(put(tmp_path / "a.parquet", table, row_group_size=4, compression="none")), "a.parquet")
    )
    assert (footer.group_rows, footer.n_rows) == ((4, 4, 2), 10)
    assert all(b >= 8 * n for b, n in zip(footer.group_bytes, footer.group_rows, strict=True))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.integers(0, 9), max_size=8), max_size=4), st.integers(1, 20))
def test_parts_hold_every_row_once_in_order(files: list[list[int]], part_rows: int) -> None:
    footers = [Footer(File(f"/{i}", f"{i}"), pa.schema([]), tuple(rows), tuple(rows)) for i, rows in enumerate(files)]
    parts = make_parts(footers, part_rows)
    assert sum(p.n_rows for p in parts) == sum(f.n_rows for f in footers)
    for footer in footers:
        own = [p for p in parts if p.file == footer.file]
        groups = [g for p in own for g in p.groups]
        assert groups == list(range(len(groups)))
        assert not any(footer.group_rows[len(groups) :])
        for part in own:
            rows = [footer.group_rows[g] for g in part.groups]
            assert part.n_rows == sum(rows) > 0
            assert part.first_row == sum(footer.group_rows[: part.groups[0]])
            assert part.n_rows <= part_rows or sum(r > 0 for r in rows) == 1
        for one, other in pairwise(own):  # no smaller cut would do
            assert one.n_rows + footer.group_rows[other.groups[0]] > part_rows


def test_parts_travel_and_name_themselves() -> None:
    parts = make_parts([Footer(File("/d/x", "x", (("zip", None),)), pa.schema([]), (5, 5, 9), (1, 1, 1))], 10)
    assert wire.unpack(wire.pack(parts)) == parts
    assert [str(p) for p in parts] == ["x, row groups 0 to 1", "x, row group 2"]
