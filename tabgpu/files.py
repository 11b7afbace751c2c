"""Files and parts: descriptions of data, never data.

`find` turns a source (a file, folder, glob, list or URL) into an ordered list of files, `read_footer` reads what a
Parquet footer says, and `make_parts` cuts files into parts: a file and some of its row groups, the unit that travels to
workers. Only row counts and sizes of row groups are taken from footers; column chunks are not looked at, because
pyarrow aborts the process on those of an encrypted file.

What the columns of many files have in common is the matter of `tabgpu.schema`; rows are read by an engine.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from .errors import ConfigError, DataError, correct, listing
from .wire import record

_SUFFIXES = (".parquet", ".pq", ".parq")
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


@record
@dataclass(frozen=True)
class File:
    """One file of a source.

    Parameters
    ----------
    path : str
        Absolute path or URL.
    name : str
        Path below the source, with forward slashes: the file's part of a row's identity and the name of its output.
    partition : tuple of (str, str or None)
        Values that Hive-style folders (``key=value``) give to all rows; None is the null partition.
    """

    path: str
    name: str
    partition: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True)
class Footer:
    """What a footer says of one file.

    Parameters
    ----------
    file : File
        The file.
    schema : pyarrow.Schema
        Its columns.
    group_rows, group_bytes : tuple of int
        Rows and uncompressed bytes of each row group.
    """

    file: File
    schema: pa.Schema = field(repr=False)
    group_rows: tuple[int, ...]
    group_bytes: tuple[int, ...]

    @property
    def n_rows(self) -> int:
        """Rows of the file."""
        return sum(self.group_rows)


@record
@dataclass(frozen=True)
class Part:
    """Some consecutive row groups of one file.

    Parameters
    ----------
    file : File
        The file.
    groups : tuple of int
        Row groups, ascending.
    first_row : int
        Row number in the file of the part's first row.
    n_rows : int
        Rows of the part.
    """

    file: File
    groups: tuple[int, ...]
    first_row: int
    n_rows: int

    def __str__(self) -> str:
        first, last = self.groups[0], self.groups[-1]
        return f"{self.file.name}, " + (f"row group {first}" if first == last else f"row groups {first} to {last}")


def find(source: str | Sequence[str], base_dir: Path, key: str) -> list[File]:
    """List the files of a source, ordered by name, each once.

    Parameters
    ----------
    source : str or sequence of str
        Path, glob, folder (searched below for ``*.parquet``; names that begin with ``_`` or ``.`` are left out), URL of
        a file or folder that pyarrow can open, or several of these. A glob that matches folders alone stands for what
        is in them. Folders called ``key=value`` below the source give a column to the rows of their files.
    base_dir : Path
        What relative paths are relative to.
    key : str
        The key of the pipeline file, for messages.

    Raises
    ------
    ConfigError
        If a path does not exist, matches nothing, or is not Parquet by its name.
    """
    sources = [source] if isinstance(source, str) else list(source)
    if not all(s.strip() for s in sources):
        raise ConfigError(
            f"{key} is {source!r}", "Expected the path of a file, folder or glob", f"Write one under {key}"
        )
    if not sources:
        raise ConfigError(f"{key} is an empty list", "Expected at least one path", f"Name files under {key}")
    found = [pair for s in sources for pair in _expand(s, base_dir, key)]
    if len(sources) > 1:  # names below what all have in common, so that two folders with equal file names stay apart
        common = os.path.commonpath([os.path.dirname(_place(path)) for path, _ in found])
        found = [(path, os.path.relpath(_place(path), common)) for path, _ in found]
    files = {}
    for path, relative in found:
        name = relative.replace(os.sep, "/")
        files[path] = File(path, name, _partition(name))
    return sorted(files.values(), key=lambda f: f.name)


def _place(path: str) -> str:
    """Return a path that a URL has in common with its neighbours."""
    return "/" + unquote(path.split("?")[0]).replace("://", "/") if "://" in path else path


def _expand(source: str, base_dir: Path, key: str) -> list[tuple[str, str]]:
    """Return (path, name below the source) of each file."""
    if "://" in source:
        return _expand_url(source, key)
    pattern = os.path.expanduser(source)
    path = os.path.normpath(os.path.join(base_dir, pattern))
    if os.path.isdir(path):
        root, paths = path, _below(path)
    elif glob.has_magic(pattern) and not os.path.exists(path):
        # the pattern alone is a glob: the folder that it is relative to may have brackets in its name
        matches = glob.glob(pattern, root_dir=base_dir, recursive=True)
        places = [os.path.normpath(os.path.join(base_dir, m)) for m in matches]
        paths = [p for p in places if os.path.isfile(p)] or [p for d in places for p in _below(d)]
        fixed = pattern.split("*")[0].split("?")[0].split("[")[0]
        root = os.path.normpath(os.path.join(base_dir, os.path.dirname(fixed)))
    else:
        root, paths = os.path.dirname(path), [path] if os.path.exists(path) else []
    if not paths:
        raise ConfigError(
            f"{key} is {source!r}, and no Parquet file was found at {path}",
            _near_path(path),
            correct(key, "PATH"),
        )
    _refuse_others([p for p in paths if not p.endswith(_SUFFIXES)], key)
    return [(p, os.path.relpath(p, root)) for p in paths]


def _below(folder: str) -> list[str]:
    """Return all Parquet files below a folder that are not hidden."""
    inside = [os.path.join(d, f) for d, _, names in os.walk(folder) for f in names]
    return [p for p in inside if p.endswith(_SUFFIXES) and not _hidden(os.path.relpath(p, folder))]


def _expand_url(url: str, key: str) -> list[tuple[str, str]]:
    """Return (URL, name below the source) of each file."""
    try:
        filesystem, path = pafs.FileSystem.from_uri(url)
        info = filesystem.get_file_info(path)
        if info.is_file:
            _refuse_others([path] if not path.endswith(_SUFFIXES) else [], key)
            return [(url, path.rsplit("/", 1)[-1])]
        if info.type == pafs.FileType.NotFound:
            raise FileNotFoundError("there is nothing")
        found = filesystem.get_file_info(pafs.FileSelector(path, recursive=True))
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(
            f"{key} is {url!r}, which cannot be opened: {first_line(error)}",
            "Expected a URL of a Parquet file or folder that pyarrow can open, such as s3://bucket/folder",
            correct(key, "URL"),
        ) from error
    base, mark, options = url.partition("?")
    names = [i.path[len(path) :].lstrip("/") for i in found if i.is_file and i.path.endswith(_SUFFIXES)]
    names = [n for n in names if not _hidden(n)]
    if not names:
        raise ConfigError(
            f"{key} is {url!r}, and no Parquet file was found there",
            "Expected files that end in .parquet",
            correct(key, "URL"),
        )
    return [(f"{base.rstrip('/')}/{quote(n)}{mark}{options}", n) for n in names]


def _hidden(relative: str) -> bool:
    """Tell whether writers keep a file for themselves; ``_part=1`` is a partition all the same."""
    pieces = relative.replace(os.sep, "/").split("/")
    return any(p.startswith(".") or (p.startswith("_") and "=" not in p) for p in pieces)


def _near_path(path: str) -> str:
    """Say what is at the nearest folder that exists."""
    folder = path
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    inside = sorted(os.listdir(folder))
    return f"The folder {folder} holds {listing(inside, 6)}" if inside else f"The folder {folder} is empty"


def _refuse_others(paths: list[str], key: str) -> None:
    if paths:
        raise ConfigError(
            f"{key} matches {listing(map(os.path.basename, paths), 3)}, which is not Parquet by its name",
            "Expected files that end in .parquet (CSV is not read yet)",
            f"Narrow {key}, as in 'folder/*.parquet', or convert with pyarrow.csv and pyarrow.parquet",
        )


def _partition(name: str) -> tuple[tuple[str, str | None], ...]:
    pieces = [piece.split("=", 1) for piece in name.split("/")[:-1] if "=" in piece[1:]]
    return tuple((unquote(k), None if v == _HIVE_NULL else unquote(v)) for k, v in pieces)


def open_parquet(path: str, **options: Any) -> pq.ParquetFile:
    """Open a local file or a URL for reading; pages carrying a CRC are verified, INT96 is read as microseconds."""
    options = {"page_checksum_verification": True, "coerce_int96_timestamp_unit": "us", "pre_buffer": False, **options}
    if "://" in path:
        filesystem, path = pafs.FileSystem.from_uri(path)
    else:
        filesystem = pafs.LocalFileSystem()
    return pq.ParquetFile(path, filesystem=filesystem, **options)


def read_footer(file: File) -> Footer:
    """Read one footer.

    Raises
    ------
    DataError
        If the file is empty, cut, encrypted or not Parquet: names it.
    """
    try:
        with open_parquet(file.path) as parquet:
            meta = parquet.metadata
            groups = [meta.row_group(i) for i in range(meta.num_row_groups)]
            rows = tuple(g.num_rows for g in groups)
            if min(rows, default=0) < 0 or sum(rows) != meta.num_rows:
                raise OSError(f"its row groups hold {sum(rows)} rows, the file {meta.num_rows}")
            return Footer(file, parquet.schema_arrow, rows, tuple(g.total_byte_size for g in groups))
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise DataError(
            f"The file {file.path} {_ailment(file.path, error)}",
            "Expected a whole, unencrypted Parquet file",
            "Write it again, or leave it out of data.source",
        ) from error


def _ailment(path: str, error: BaseException) -> str:
    if "://" not in path and not os.path.exists(path):
        return "is gone"
    if "://" not in path and os.path.getsize(path) == 0:
        return "is empty (0 bytes)"
    return f"cannot be read: {first_line(error)}"


def first_line(error: BaseException) -> str:
    """First line of a library's message, for ours."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def make_parts(footers: Iterable[Footer], part_rows: int) -> list[Part]:
    """Cut files into parts of at least one row group and, where groups are small, up to `part_rows` rows."""
    parts: list[Part] = []
    for footer in footers:
        start = first_row = rows = 0
        for g, n in enumerate(footer.group_rows):
            if rows and rows + n > part_rows:
                parts.append(Part(footer.file, tuple(range(start, g)), first_row, rows))
                start, first_row, rows = g, first_row + rows, 0
            rows += n
        if rows:
            parts.append(Part(footer.file, tuple(range(start, len(footer.group_rows))), first_row, rows))
    return parts
