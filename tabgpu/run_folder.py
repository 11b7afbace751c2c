"""The run folder: everything that a run leaves behind, readable at any instant and after any crash.

    runs/<name>/latest -> 20261130T184730Z-1a2b3c4d     the newest run that ended with exit code 0
    runs/<name>/last -> ...                             the newest attempt
    runs/<name>/<UTC>-<hash8>/
        status.json     running | done | failed | interrupted, with stage and heartbeat; replaced last
        events.jsonl    one JSON object a line, appended
        manifest.json, plan.json, metrics.json, ...     what the workflow writes
        checkpoints/    the last two, each with its digest
        model/          the bundle

A file appears under its final name whole or not at all: temporary file in the same folder, fsync, rename, fsync of the
folder. Durations come from the monotonic clock, order from numbers, neither from the wall clock. What is written is
the caller's to keep clean of secrets. Locks and the decision to resume are left to the workflow.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import platform
import re
import secrets
import shutil
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from .errors import ConfigError, ResourceError, TabgpuError

Status = Literal["running", "done", "failed", "interrupted"]

HEARTBEAT_S = 5.0
_KEPT_CHECKPOINTS = 2
TEMPORARY = ".tmp-"
_CHECKPOINT = re.compile(r"(\d{8,})\.checkpoint")
_MAGIC = b"tabgpu-checkpoint-1\n"
_HEAD_BYTES = len(_MAGIC) + hashlib.blake2b().digest_size
_TAIL_BYTES = 65536  # holds the footer of nearly all Parquet files, and the offsets of all pages with it
_PACKAGES = ("tabgpu", "numpy", "pyarrow", "xgboost", "xgboost-cpu", "xgboost-cu12", "xgboost-cu13")


class RunFolder:
    """One run's folder, open for writing; a context manager that writes how the run ended.

    Made by `create` for a new run and `open` for one that goes on. `path` is the run's own folder; `timings_s` (dict of
    str to float) holds the seconds spent in each stage that has ended, on the monotonic clock.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.timings_s: dict[str, float] = {}
        self._lock = threading.Lock()
        self._began = self._stage_began = time.monotonic()
        self._stop = threading.Event()
        self._status: dict[str, Any] = {"status": "running", "stage": "start", "heartbeat": None, "exit_code": None}
        self._status |= {"error": None, "pid": os.getpid(), "started": _now(), "ended": None, "elapsed_s": None}
        self.checkpoints = path / "checkpoints"
        with explained(path):
            self.checkpoints.mkdir(exist_ok=True)
            remove_temporaries(path)
            remove_temporaries(self.checkpoints)
            if (events := path / "events.jsonl").exists() and not events.read_bytes().endswith(b"\n"):
                with events.open("ab") as file:
                    file.write(b"\n")  # a power cut left half a line
        self._write_status()
        _point(path.parent / "last", path.name)
        self._heart = threading.Thread(target=self._beat_until_stopped, name="heartbeat", daemon=True)
        self._heart.start()

    @classmethod
    def create(cls, output: Path, name: str, config_hash: str) -> RunFolder:
        """Make ``output/name/<UTC>-<hash8>/``; a number is appended where two runs begin in one second.

        Raises
        ------
        ConfigError
            If the folder cannot be written to, or `name` cannot name a folder.
        ResourceError
            If the disk is full.
        """
        if name in ("", ".", "..") or any(c in name for c in "/\\\0"):
            what = f"The pipeline is called {name!r}"
            raise ConfigError(what, "Expected a name without slashes", "Change the key name, or pass --set name=NAME")
        stem = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{config_hash[:8]}"
        for attempt in itertools.count(1):
            path = output / name / (stem if attempt == 1 else f"{stem}-{attempt}")
            with explained(path), suppress(FileExistsError):
                path.mkdir(parents=True)
                break
        try:
            return cls(path)
        except TabgpuError:
            shutil.rmtree(path, ignore_errors=True)
            raise

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Go on in the folder of an earlier attempt: its temporary files are removed, its status is running again."""
        return cls(resolve_run(path))

    def write_json(self, name: str, value: Any) -> None:
        """Write ``<name>`` atomically; NaN and infinities become null, NumPy scalars numbers, dataclasses objects."""
        self.write_text(name, to_json(value, indent=2) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write ``<name>`` atomically as UTF-8."""
        write_atomically(self.path / name, text.encode("utf-8", "backslashreplace"))

    def event(self, kind: str, **values: Any) -> None:
        """Append one line to ``events.jsonl``: `kind`, UTC time, seconds since the start, and `values`."""
        line = to_json({"time": _now(), "elapsed_s": round(self.elapsed_s, 3), "event": kind, **values}) + "\n"
        with explained(self.path), (self.path / "events.jsonl").open("ab", buffering=0) as file:
            file.write(line.encode())  # one write, so that threads and processes do not mix lines

    @property
    def elapsed_s(self) -> float:
        """Seconds since this attempt began, on the monotonic clock."""
        return time.monotonic() - self._began

    def stage(self, name: str) -> None:
        """End the running stage, add its seconds to `timings_s`, and begin another."""
        with self._lock:
            self._end_stage()
            self._status["stage"] = name
            self._write_status()
        self.event("stage", stage=name)

    def finish(self, status: Status, exit_code: int, error: TabgpuError | str | None = None) -> None:
        """Write how the run ended; after exit code 0, move ``latest`` here.

        Everything else that belongs to the run has to be written before.
        """
        self._stop.set()
        self._heart.join()
        self._end_stage()
        self.event("end", status=status, exit_code=exit_code)
        self._status |= {"status": status, "exit_code": exit_code, "error": error and str(error)}
        self._status |= {"ended": _now(), "elapsed_s": round(self.elapsed_s, 3)}
        self._write_status()
        if exit_code == 0:
            _point(self.path.parent / "latest", self.path.name)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._status["status"] != "running":
            return  # the caller said how it ended
        try:
            self.finish(*_ending(error))
        except (ConfigError, ResourceError) as second:
            if error is None:
                raise
            error.add_note(f"Nor could this be written down: {second}")

    def write_checkpoint(self, sequence: int, blob: bytes) -> None:
        """Keep `blob` as number `sequence`, beside the one before it; checkpoints with higher numbers are dropped."""
        name = f"{sequence:08d}.checkpoint"
        write_atomically(self.checkpoints / name, _checkpoint_head(name, blob) + blob)
        numbers = self._checkpoint_numbers()
        keep = [n for n in numbers if n <= sequence][-_KEPT_CHECKPOINTS:]
        for number in set(numbers) - set(keep):
            (self.checkpoints / f"{number:08d}.checkpoint").unlink(missing_ok=True)
        self.event("checkpoint", sequence=sequence, bytes=len(blob))

    def latest_checkpoint(self) -> bytes | None:
        """Read the newest checkpoint that is whole; None where there is none. A damaged one is warned about."""
        for number in reversed(self._checkpoint_numbers()):
            path = self.checkpoints / f"{number:08d}.checkpoint"
            content = path.read_bytes()
            blob = content[_HEAD_BYTES:]
            if content[:_HEAD_BYTES] == _checkpoint_head(path.name, blob):
                return blob
            warnings.warn(f"{path} is damaged: the checkpoint before it is used", stacklevel=2)
            self.event("damaged checkpoint", sequence=number)
        return None

    def _checkpoint_numbers(self) -> list[int]:
        matches = (_CHECKPOINT.fullmatch(p.name) for p in self.checkpoints.iterdir())
        return sorted(int(m[1]) for m in matches if m)

    def _end_stage(self) -> None:
        now = time.monotonic()
        name = self._status["stage"]
        self.timings_s[name] = self.timings_s.get(name, 0.0) + now - self._stage_began
        self._stage_began = now

    def _write_status(self) -> None:
        self._status["heartbeat"] = _now()
        self.write_json("status.json", self._status)

    def _beat_until_stopped(self) -> None:
        while not self._stop.wait(HEARTBEAT_S):
            # a full disk is the main thread's to report, with what it was writing; the next beat may succeed
            with self._lock, suppress(ConfigError, ResourceError):
                self._write_status()


def _ending(error: BaseException | None) -> tuple[Status, int, str | None]:
    """Status, exit code and message for an error that ends a run."""
    if error is None:
        return "done", 0, None
    if isinstance(error, TabgpuError):
        return "failed", error.exit_code, str(error)
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 130, "Interrupted."
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        return ("interrupted" if code in (124, 130, 143) else "failed" if code else "done"), code, None
    # the message of a foreign exception may hold a secret: its type alone is written
    return "failed", 1, f"A bug in tabgpu: {type(error).__name__}."


def resolve_run(path: Path) -> Path:
    """Follow ``latest`` or ``last``, a link or a small file that names a folder, to the run's real folder."""
    if path.name in ("last", "latest") and path.is_file():
        path = path.with_name(path.read_text(encoding="utf-8", errors="replace").strip() or path.name)
    return path.resolve()


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that `path` holds the old content or the new, whatever happens, and the new once this returns.

    Raises
    ------
    ResourceError, ConfigError
        If the disk is full, or the folder cannot be written to.
    """
    temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{secrets.token_hex(4)}")
    with explained(path):
        try:
            sync_file(temporary, content)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def sync_file(path: Path, content: bytes) -> None:
    """Write a new file and wait until it is on the disk."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def require_writable(folder: Path, key: str) -> None:
    """Make a folder where there is none and try to write in it, before anything is read.

    Permission bits do not tell (read-only mounts, quotas, a user who may do all): only writing does. `key` is the key
    or flag that the folder came from, for the message. Raises what `write_atomically` raises.
    """
    probe = folder / f"{TEMPORARY}{os.getpid()}-{secrets.token_hex(4)}"
    with explained(folder, key):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            probe.write_bytes(b"x")
        finally:
            probe.unlink(missing_ok=True)


def remove_temporaries(folder: Path) -> None:
    """Remove what a killed run left between write and rename."""
    for path in folder.glob(f"{TEMPORARY}*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


@contextmanager
def explained(path: Path, key: str = "output") -> Iterator[None]:
    """Turn errors of the file system while `path` is written into tabgpu's own, with three sentences."""
    try:
        yield
    except TabgpuError:  # some of them are OSErrors too
        raise
    except OSError as error:
        what = f"{path} cannot be written: {error.strerror or type(error).__name__}"
        choose = f"Choose another {key}" if key.startswith("-") else f"Choose another: --set {key}=DIR"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            raise ResourceError(what, "Expected a disk with room for it", f"{choose}, or make room") from error
        raise ConfigError(what, "Expected a place to write to", f"{choose}, or change its permissions") from error


def _point(pointer: Path, target: str) -> None:
    """Let `pointer` name `target`, atomically: a link, or a file that holds the name where links are not possible."""
    # made inside the run's folder, which is swept when the run goes on
    temporary = pointer.parent / target / f"{TEMPORARY}{os.getpid()}-{secrets.token_hex(4)}"
    try:
        temporary.symlink_to(target)
    except OSError:
        write_atomically(pointer, f"{target}\n".encode())
        return
    with explained(pointer):
        os.replace(temporary, pointer)
        sync_folder(pointer.parent)


def to_json(value: Any, indent: int | None = None) -> str:
    """Print as JSON that every reader accepts: NaN and infinities become null, everything else plain.

    Examples
    --------
    >>> to_json({"auc": float("nan"), "folder": Path("runs")})
    '{"auc": null, "folder": "runs"}'
    """
    return json.dumps(_plain(value), indent=indent, allow_nan=False)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if hasattr(value, "tolist"):  # arrays and their scalars
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def fingerprint(files: Iterable[Path]) -> list[dict[str, Any]]:
    """Facts that differ when a file does, cheaply: ``path``, ``size`` in bytes, ``mtime_ns``, and as ``tail`` the
    blake2b of the last 64 kB, which hold the footer of a Parquet file.
    """
    found = []
    for path in files:
        with path.open("rb") as file:
            facts = os.fstat(file.fileno())
            file.seek(max(0, facts.st_size - _TAIL_BYTES))
            tail = hashlib.blake2b(file.read(_TAIL_BYTES), digest_size=16).hexdigest()
        found.append({"path": str(path), "size": facts.st_size, "mtime_ns": facts.st_mtime_ns, "tail": tail})
    return found


def versions() -> dict[str, str]:
    """Versions of Python and of the installed packages that a result depends on, without importing them."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def git_revision(folder: Path) -> str | None:
    """Commit checked out where `folder` lies, read from git's own files; None where they cannot be found or read."""
    with suppress(OSError):
        for parent in (folder.resolve(), *folder.resolve().parents):
            git = parent / ".git"
            if git.is_file():  # a worktree or submodule: the file names the real one
                git = parent / git.read_text().removeprefix("gitdir:").strip()
            if (git / "HEAD").is_file():
                return _head(git)
    return None


def _head(git: Path) -> str | None:
    head = (git / "HEAD").read_text().strip()
    name = head.removeprefix("ref:").strip()
    if name == head:
        return head
    if (git / "commondir").is_file():  # a worktree keeps its branches there
        git = git / (git / "commondir").read_text().strip()
    if (git / name).is_file():
        return (git / name).read_text().strip()
    lines = (git / "packed-refs").read_text().splitlines()
    return next((line.split()[0] for line in lines if line.endswith(f" {name}")), None)


def _checkpoint_head(name: str, blob: bytes) -> bytes:
    """What stands before `blob` in a file; the name is part of the digest, so a renamed checkpoint is not another."""
    return _MAGIC + hashlib.blake2b(blob, key=name.encode()).digest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
