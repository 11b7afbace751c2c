"""Output folders and files: whole or not at all, and never in the place of what tabgpu has not written."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from .errors import ConfigError, listing
from .run_folder import explained, require_writable

_MARK = b"tabgpu"  # key in the schema of every file that tabgpu writes, by which it knows its own


class FileWriter:
    """Write Parquet as tabgpu writes it: zstd, a checksum on every page, and its mark in the schema.

    A context manager; the schema is that of the first table.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: pq.ParquetWriter | None = None

    def write(self, table: pa.Table) -> None:
        """Add the rows of a table as one row group."""
        if self._writer is None:
            self._writer = self._open(table.schema)
        self._writer.write_table(table)

    def _open(self, schema: pa.Schema) -> pq.ParquetWriter:
        # numbers gain nothing from dictionary pages and pay for them: 0.54 against 0.97 CPU-s for 135 MB of features
        levels = [f.name for f in schema if not (pa.types.is_floating(f.type) or pa.types.is_integer(f.type))]
        marked = schema.with_metadata({**(schema.metadata or {}), _MARK: b"1"})
        return pq.ParquetWriter(self._path, marked, compression="zstd", write_page_checksum=True, use_dictionary=levels)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._writer is None:
            return
        if error is None:
            self._writer.close()
            return
        with suppress(OSError):  # the file is thrown away; what went wrong first is what counts
            self._writer.close()


@contextmanager
def output_folder(out: Path, overwrite: bool, inputs: Iterable[Path], key: str = "--out") -> Iterator[Path]:
    """Make a folder whole or not at all: yields one beside it that takes its place at the end.

    Parameters
    ----------
    out : Path
        New or empty, or, with `overwrite`, a folder that holds nothing but files that tabgpu wrote.
    overwrite : bool
        Whether what is there may be replaced.
    inputs : iterable of Path
        Files and folders that are read; `out` may neither hold nor lie in one of them.
    key : str
        What the user calls it, for messages.

    Raises
    ------
    ConfigError
        If the folder may not be made or replaced.
    ResourceError
        If the disk is full.
    """
    out = out.resolve()
    _check_place(out, inputs, key)
    if out.is_dir() and any(out.iterdir()):
        _check_replaceable(out, overwrite, key)
    require_writable(out.parent, key)
    temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".tmp", dir=out.parent))
    temporary.chmod(0o755)
    try:
        with explained(out, key):
            yield temporary
            _put_in_place(temporary, out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _check_place(out: Path, inputs: Iterable[Path], key: str) -> None:
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{key} is {str(out)!r}, which is a file", "Expected a folder", f"Choose another {key}")
    if out == Path.cwd() or out in Path.cwd().parents:
        raise ConfigError(
            f"{key} is {str(out)!r}, the current folder or one above it",
            "Expected a new folder",
            f"Choose another {key}",
        )
    for path in inputs:
        real = path.resolve()
        if out == real or out in real.parents or (real.is_dir() and real in out.parents):
            raise ConfigError(
                f"{key} is {str(out)!r}, and {str(path)!r} is read from there",
                "Expected a folder apart from the data and the bundle",
                f"Choose another {key}",
            )


def _check_replaceable(out: Path, overwrite: bool, key: str) -> None:
    if not overwrite:
        raise ConfigError(
            f"{key} is {str(out)!r}, and it is not empty",
            "Expected a new or an empty folder",
            f"Choose another {key}, or pass --overwrite to replace what tabgpu wrote there",
        )
    strangers = [str(p.relative_to(out)) for p in sorted(out.rglob("*")) if not p.is_dir() and not _is_own(p)]
    if strangers:
        raise ConfigError(
            f"{key} is {str(out)!r}, which holds files that tabgpu did not write: {listing(strangers, 3)}",
            "Expected a folder of its own output to replace",
            f"Choose another {key}, or move these files away",
        )


def _is_own(path: Path) -> bool:
    if path.suffix != ".parquet" or path.is_symlink() or not path.is_file():
        return False
    try:
        return _MARK in (pq.read_schema(path).metadata or {})
    except (OSError, pa.ArrowException):
        return False  # whatever it is, it was not finished by us


def _put_in_place(temporary: Path, out: Path) -> None:
    if not out.exists():
        temporary.rename(out)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".old.tmp", dir=out.parent))
    out.rename(old / "old")
    temporary.rename(out)
    shutil.rmtree(old)
