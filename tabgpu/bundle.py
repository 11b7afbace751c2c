"""Save and load a fitted pipeline: JSON, Parquet and XGBoost's UBJ, never pickle.

    model/
        bundle.json            format, versions, `about`, size and sha256 of every other file, digest of the whole
        features.json          one part: the tree that `wire.split` makes ...
        features/0000.parquet  ... and its arrays
        tables/0000.parquet    small tables that the pipeline joins
        model.ubj              the booster

A bundle is written beside its final place and renamed, so it is there whole or not at all; equal content gives equal
bytes, so it holds no time. `load` looks at each file before it opens it (no links, pipes, strangers), reads it once,
compares size and sha256, and only then lets a parser see those very bytes: a flipped bit in a model crashes XGBoost or
changes predictions silently. Digests tell damage, not forgery. What the parts mean is left to the workflow.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from . import wire
from .errors import ConfigError, DataError, listing
from .run_folder import TEMPORARY, explained, resolve_run, sync_file, sync_folder, to_json

FORMAT = 1
_NEEDS = "0.1.0"  # the first version of tabgpu that reads FORMAT
_INDEX = "bundle.json"
_MODEL = "model.ubj"
_TABLES = "tables"
_PART = re.compile(r"[a-z][a-z0-9_]{0,60}", re.ASCII)
_FILE = re.compile(r"model\.ubj|[a-z][a-z0-9_]{0,60}(\.json|/\d{4,8}\.parquet)", re.ASCII)
_INDEX_BYTES = 64 * 2**20  # an index is read before its digest is known, so it must be small
_WRITE_AGAIN = "Copy the bundle again from where it was made, or make it again with tabgpu run"


@dataclass(frozen=True)
class Bundle:
    """A fitted pipeline as it was saved, every byte verified; parts are joined when they are asked for.

    Parameters
    ----------
    about : dict
        What the workflow wrote about it: plain values.
    digest : str
        sha256, hexadecimal, over `about`, versions and the digests of all files: equal for equal content.
    version : str
        The version of tabgpu that wrote it.
    model : bytes or None
        The booster in XGBoost's UBJ.
    part_names, table_names : tuple of str
        What `part` and `table` know.
    folder : Path
        Where it lies.
    """

    about: dict[str, Any]
    digest: str
    version: str
    model: bytes | None = field(repr=False)
    part_names: tuple[str, ...]
    table_names: tuple[str, ...]
    folder: Path
    _files: Mapping[str, bytes] = field(repr=False)

    def part(self, name: str, to_device: Callable[[np.ndarray], Any] = np.asarray) -> Any:
        """Put one part together; its classes must have been imported.

        Raises
        ------
        DataError
            If there is no such part, or it was written by a version whose classes this one does not know.
        """
        if name not in self.part_names:
            raise DataError(f"The bundle has no part {name!r}", f"It has {listing(self.part_names)}", _WRITE_AGAIN)
        with _parsing(f"part {name}"):
            tree = json.loads(self._files[f"{name}.json"])
            count = sum(file.startswith(f"{name}/") for file in self._files)
            arrays = [_only_column(self._files[f"{name}/{i:04d}.parquet"]) for i in range(count)]
        return wire.join(tree, arrays, to_device)

    def table(self, name: str) -> pa.Table:
        """Read one of the tables that the pipeline joins.

        Raises
        ------
        DataError
            If there is no such table.
        """
        if name not in self.table_names:
            raise DataError(f"The bundle has no table {name!r}", f"It has {listing(self.table_names)}", _WRITE_AGAIN)
        with _parsing(f"table {name}"):
            return _read_parquet(self._files[f"{_TABLES}/{self.table_names.index(name):04d}.parquet"])


def save(
    folder: Path,
    parts: Mapping[str, Any],
    model: bytes | None,
    about: Mapping[str, Any],
    tables: Mapping[str, pa.Table] | None = None,
    to_host: Callable[[Any], np.ndarray] = np.asarray,
) -> str:
    """Write a bundle to `folder`, atomically, in the place of a bundle that may be there.

    Parameters
    ----------
    folder : Path
        Its final name.
    parts : mapping of str to object
        Named by lower-case identifiers; anything that `wire.split` takes.
    model : bytes or None
        ``Booster.save_raw("ubj")``; None for a pipeline of features alone.
    about : mapping
        Plain values, without times; NaN becomes null.
    tables : mapping of str to pyarrow.Table, optional
        Joined tables by any name.
    to_host : callable
        Moves an array of the device to the host.

    Returns
    -------
    str
        The digest of the bundle.

    Raises
    ------
    ConfigError
        If `folder` holds something else than a bundle, or cannot be written to.
    ResourceError
        If the disk is full.
    """
    tables = tables or {}
    if folder.exists() and not _replaceable(folder):
        raise ConfigError(
            f"{folder} exists and is not a bundle",
            "Expected a name that is free, an empty folder, or an older bundle",
            "Choose another with the key output or --set output=DIR, or remove it",
        )
    temporary = folder.with_name(f"{TEMPORARY}{os.getpid()}-{secrets.token_hex(4)}")
    with explained(folder):
        temporary.mkdir(parents=True)
        try:
            digests = {
                name: _write(temporary / name, content) for name, content in _contents(parts, tables, model, to_host)
            }
            index = _index(digests, about, list(tables))
            sync_file(temporary / _INDEX, _canonical(index))
            for inner in {(temporary / name).parent for name in digests} | {temporary}:
                sync_folder(inner)
            _rename(temporary, folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    return str(index["digest"])


def load(path: Path | str) -> Bundle:
    """Read and verify a bundle.

    Parameters
    ----------
    path : Path or str
        The bundle's folder, a run folder, or ``latest`` or ``last`` beside run folders.

    Raises
    ------
    DataError
        If anything in it is missing, damaged, of another size, not a plain file, not of the bundle, or of a newer
        format. The message names the file.
    """
    root = _find(Path(path))
    index = _read_index(root)
    declared: dict[str, dict[str, Any]] = index["files"]
    present = set(_walk(root, declared)) - {_INDEX}
    if missing := sorted(set(declared) - present):
        raise _damaged(root / missing[0], "is missing")
    files = {name: _read_verified(root / name, facts) for name, facts in sorted(declared.items())}
    return Bundle(
        about=index["about"],
        digest=index["digest"],
        version=index["tabgpu"],
        model=files.pop(_MODEL, None),
        part_names=tuple(name.removesuffix(".json") for name in files if name.endswith(".json")),
        table_names=tuple(index["tables"]),
        folder=root,
        _files=files,
    )


def _contents(
    parts: Mapping[str, Any], tables: Mapping[str, pa.Table], model: bytes | None, to_host: Callable[[Any], np.ndarray]
) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of every file but the index, one at a time."""
    for name, value in parts.items():
        if not _PART.fullmatch(name) or f"{name}.json" == _INDEX or name == _TABLES:
            raise ValueError(f"a part of a bundle cannot be called {name!r}")
        tree, arrays = wire.split(value, to_host)
        yield f"{name}.json", _canonical(tree)
        for i, array in enumerate(arrays):
            packs = array.type != pa.uint64()  # keys are spread like hashes
            yield f"{name}/{i:04d}.parquet", _write_parquet(pa.table({"values": array}), "zstd" if packs else "none")
    for i, table in enumerate(tables.values()):
        yield f"{_TABLES}/{i:04d}.parquet", _write_parquet(table)
    if model is not None:
        yield _MODEL, model


def _write(path: Path, content: bytes) -> dict[str, Any]:
    path.parent.mkdir(exist_ok=True)
    sync_file(path, content)
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _index(files: dict[str, dict[str, Any]], about: Mapping[str, Any], tables: list[str]) -> dict[str, Any]:
    try:
        written_by = version("tabgpu")
    except PackageNotFoundError:  # run from a source tree
        written_by = _NEEDS
    index = {"format": FORMAT, "needs": _NEEDS, "tabgpu": written_by, "tables": tables, "files": files}
    index["about"] = json.loads(to_json(about))  # as a reader will see it: keys are strings, tuples lists
    return index | {"digest": _digest(index)}


def _canonical(value: Any) -> bytes:
    return (json.dumps(value, sort_keys=True, indent=1, allow_nan=False) + "\n").encode()


def _digest(index: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical({k: v for k, v in index.items() if k != "digest"})).hexdigest()


def _write_parquet(table: pa.Table, compression: str = "zstd") -> bytes:
    sink = io.BytesIO()
    # no dictionaries: keys and levels are distinct, so that one would hold them twice
    pq.write_table(
        table, sink, compression=compression, use_dictionary=False, write_statistics=False, write_page_checksum=True
    )
    return sink.getvalue()


def _read_parquet(content: bytes) -> pa.Table:
    return pq.read_table(pa.BufferReader(content), page_checksum_verification=True)


def _only_column(content: bytes) -> pa.Array:
    return _read_parquet(content).column(0).combine_chunks()


def _replaceable(folder: Path) -> bool:
    return folder.is_dir() and ((folder / _INDEX).is_file() or not any(folder.iterdir()))


def _rename(temporary: Path, folder: Path) -> None:
    """Rename to the final name; an older bundle is set aside first, since a full folder cannot be replaced."""
    aside = temporary.with_name(f"{temporary.name}-old")
    if folder.exists():
        os.rename(folder, aside)
    try:
        os.rename(temporary, folder)
    except OSError:
        if aside.exists():
            os.rename(aside, folder)
        raise
    sync_folder(folder.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _find(path: Path) -> Path:
    """The folder with the index, all links on the way to it followed once, so that `latest` may move meanwhile."""
    try:
        base = resolve_run(path)
        for candidate in (base, base / "model", resolve_run(base / "latest") / "model"):
            if os.path.lexists(candidate / _INDEX):
                return candidate
        what = "does not exist" if not base.exists() else "holds no bundle.json" if base.is_dir() else "is not a folder"
    except (OSError, RuntimeError, ValueError) as error:  # no permission, a ring of links, a name that cannot be
        what = f"cannot be opened: {error}"
    raise DataError(
        f"{path} {what}",
        "Expected the folder of a bundle, a run folder with model/ in it, or latest",
        "Give such a folder; pickled models are never read",
    )


def _read_index(root: Path) -> dict[str, Any]:
    path = root / _INDEX
    content = _read_plain(path, _INDEX_BYTES)
    try:
        index: dict[str, Any] = json.loads(content)
        newer = index["format"] > FORMAT
        # not a byte may differ: the digest holds for what is read, the canonical form for how it is written
        intact = newer or (_canonical(index) == content and index["digest"] == _digest(index))
        sound = newer or _is_sound(index)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(path, f"is not the index of a bundle: {type(error).__name__}") from error
    if newer:
        raise DataError(
            f"{path} is of format {index['format']!r}, and this version of tabgpu reads up to {FORMAT}",
            f"The bundle needs tabgpu >= {index.get('needs', index.get('tabgpu', '?'))}",
            "Install that version or a later one: pip install --upgrade tabgpu",
        )
    if not intact:
        raise _damaged(path, "does not agree with its digest")
    if not sound:
        raise _damaged(path, f"names files that no bundle has: {listing(sorted(index['files']), 3)}")
    return index


def _is_sound(index: Mapping[str, Any]) -> bool:
    """Whether an index names files of a bundle alone (no pattern leads out of its folder), each with its facts."""
    if not (isinstance(index["about"], dict) and isinstance(index["tables"], list)):
        return False
    names_fit = all(_FILE.fullmatch(name) and name != _INDEX for name in index["files"])
    return names_fit and all(isinstance(f["bytes"], int) and f["sha256"] for f in index["files"].values())


def _walk(root: Path, declared: Mapping[str, Any], inside: str = "") -> Iterator[str]:
    """Names of all files, after a look that opens none of them."""
    folders = {name.split("/")[0] for name in declared if "/" in name}
    for entry in _entries(root / inside):
        name, mode = f"{inside}{entry.name}", entry.stat(follow_symlinks=False).st_mode
        if name in folders and stat.S_ISDIR(mode):
            yield from _walk(root, declared, f"{name}/")
        elif name not in declared and name != _INDEX:
            raise _damaged(root / name, "does not belong to the bundle")
        elif not stat.S_ISREG(mode):
            raise _damaged(root / name, "is a link, a folder or a device, not a plain file")
        else:
            yield name


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda e: e.name)
    except OSError as error:
        raise _damaged(folder, f"cannot be read: {error.strerror}") from error


def _read_verified(path: Path, facts: Mapping[str, Any]) -> bytes:
    content = _read_plain(path, facts["bytes"])
    if len(content) != facts["bytes"]:
        raise _damaged(path, f"has {len(content)} bytes instead of {facts['bytes']}")
    if hashlib.sha256(content).hexdigest() != facts["sha256"]:
        raise _damaged(path, "does not agree with its digest")
    return content


def _read_plain(path: Path, at_most: int) -> bytes:
    """Read a plain file: never through a link, never waiting for a pipe, never more than `at_most` bytes."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(handle, "rb") as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode):
                raise _damaged(path, "is not a plain file")
            if facts.st_size > at_most:
                raise _damaged(path, f"has {facts.st_size} bytes, more than the {at_most} it may have")
            return file.read(facts.st_size)
    except OSError as error:
        raise _damaged(path, f"cannot be read: {error.strerror}") from error


@contextmanager
def _parsing(what: str) -> Iterator[None]:
    """Errors of parsers on verified bytes: another version wrote them."""
    try:
        yield
    except (pa.ArrowException, ValueError, LookupError, RecursionError, OSError) as error:
        raise DataError(
            f"The {what} of the bundle cannot be read: {type(error).__name__}",
            "Expected what this version of tabgpu writes",
            _WRITE_AGAIN,
        ) from error


def _damaged(path: Path, what: str) -> DataError:
    return DataError(f"{path} {what}", "Expected a bundle as tabgpu wrote it, to the byte", _WRITE_AGAIN)
