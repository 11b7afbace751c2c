from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabgpu import run_folder as run_module
from tabgpu.errors import ConfigError, DataError, ResourceError
from tabgpu.run_folder import (
    RunFolder,
    fingerprint,
    git_revision,
    require_writable,
    resolve_run,
    to_json,
    versions,
    write_atomically,
)

ROOT = Path(run_module.__file__).parent.parent


def status_of(folder: RunFolder | Path) -> dict[str, object]:
    path = folder.path if isinstance(folder, RunFolder) else folder
    return dict(json.loads((path / "status.json").read_text()))


def events_of(folder: RunFolder) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder.path / "events.jsonl").read_text().splitlines()]


def begin(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "flights", "abcdef0123456789")


def test_a_run_that_ends_well(tmp_path: Path) -> None:
    with begin(tmp_path) as folder:
        assert status_of(folder)["status"] == "running"
        assert not (tmp_path / "flights/latest").exists()
        assert resolve_run(tmp_path / "flights/last") == folder.path
        folder.stage("survey")
        assert status_of(folder)["stage"] == "survey"
        folder.write_json("metrics.json", {"auc": np.float32(0.5), "n": np.int64(3), "nan": float("nan")})
    status = status_of(folder)
    assert folder.path.name.endswith("Z-abcdef01")
    assert (status["status"], status["exit_code"], status["error"], status["stage"]) == ("done", 0, None, "survey")
    assert resolve_run(tmp_path / "flights/latest") == folder.path
    assert json.loads((folder.path / "metrics.json").read_text()) == {"auc": 0.5, "n": 3, "nan": None}
    assert [e["event"] for e in events_of(folder)] == ["stage", "end"]
    assert set(folder.timings_s) == {"start", "survey"}
    assert not list(folder.path.rglob(".tmp-*"))


@pytest.mark.parametrize(
    ("error", "status", "code", "words"),
    [
        (DataError("The file is bad", "Expected a good one", "Give one"), "failed", 3, "The file is bad. Expected"),
        (KeyboardInterrupt(), "interrupted", 130, "Interrupted."),
        (SystemExit(143), "interrupted", 143, None),
        (SystemExit("no"), "failed", 1, None),
        (RuntimeError("password=hunter2"), "failed", 1, "A bug in tabgpu: RuntimeError."),
    ],
)
def test_a_run_that_ends_badly(tmp_path: Path, error: BaseException, status: str, code: int, words: str | None) -> None:
    with begin(tmp_path) as good:
        pass
    with pytest.raises(type(error)), begin(tmp_path) as folder:
        raise error
    written = status_of(folder)
    assert (written["status"], written["exit_code"]) == (status, code)
    assert written["error"] is None if words is None else str(written["error"]).startswith(words)
    assert resolve_run(tmp_path / "flights/latest") == good.path
    assert resolve_run(tmp_path / "flights/last") == folder.path
    everything = b"".join(p.read_bytes() for p in folder.path.rglob("*") if p.is_file())
    assert b"hunter2" not in everything


def test_the_caller_may_say_how_it_ended(tmp_path: Path) -> None:
    with begin(tmp_path) as folder:
        folder.finish("interrupted", 124, "Out of time.")
    assert (status_of(folder)["status"], status_of(folder)["exit_code"]) == ("interrupted", 124)
    assert not (tmp_path / "flights/latest").exists()


def test_folders_are_unique_whatever_the_clock_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopped(run_module.datetime):
        @classmethod
        def now(cls, tz: object = None) -> run_module.datetime:
            return run_module.datetime(2026, 1, 2, 3, 4, 5, tzinfo=run_module.UTC)

    monkeypatch.setattr(run_module, "datetime", Stopped)
    folders = [begin(tmp_path) for _ in range(3)]
    for folder in folders:
        folder.finish("done", 0)
    stem = "20260102T030405Z-abcdef01"
    assert [f.path.name for f in folders] == [stem, f"{stem}-2", f"{stem}-3"]
    assert resolve_run(tmp_path / "flights/latest") == folders[2].path


def test_durations_survive_a_clock_that_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with begin(tmp_path) as folder:
        folder.stage("a")
        monkeypatch.setattr(run_module, "_now", lambda: "1999-01-01T00:00:00+00:00")
        monkeypatch.setattr(time, "time", lambda: 0.0)
        time.sleep(0.01)
        folder.stage("b")
        folder.stage("a")
    assert folder.timings_s["a"] >= 0.01
    elapsed = [float(str(e["elapsed_s"])) for e in events_of(folder)]
    assert elapsed == sorted(elapsed)
    assert elapsed[0] >= 0


def test_the_heart_beats_and_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "HEARTBEAT_S", 0.005)
    with begin(tmp_path) as folder:
        first = status_of(folder)["heartbeat"]
        deadline = time.monotonic() + 5
        while status_of(folder)["heartbeat"] == first and time.monotonic() < deadline:
            time.sleep(0.005)
        assert status_of(folder)["heartbeat"] != first
    last = (folder.path / "status.json").stat().st_mtime_ns
    time.sleep(0.03)
    assert (folder.path / "status.json").stat().st_mtime_ns == last
    assert not [t for t in threading.enumerate() if t.name == "heartbeat"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "a\0"])
def test_names_that_are_no_folders(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="without slashes"):
        RunFolder.create(tmp_path / "runs", name, "0")
    assert not (tmp_path / "runs").exists()


def test_output_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for output in (tmp_path / "file", tmp_path / "file/deeper", Path("/proc/nothing"), Path("/sys/kernel")):
        for attempt in (lambda o=output: begin(o), lambda o=output: require_writable(o / "x", "output")):
            with pytest.raises(ConfigError, match="cannot be written") as caught:
                attempt()
            assert "--set output=DIR" in caught.value.remedy


def test_a_writable_folder_is_made_and_left_empty(tmp_path: Path) -> None:
    require_writable(tmp_path / "a/b", "out")
    assert list((tmp_path / "a/b").iterdir()) == []


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, ResourceError), (errno.EDQUOT, ResourceError), (errno.EROFS, ConfigError)]
)
def test_a_failed_write_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    write_atomically(tmp_path / "a", b"old")

    def fail(handle: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(kind, match=os.strerror(number)):
        write_atomically(tmp_path / "a", b"new")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"a": b"old"}


def test_the_error_of_the_run_outlives_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, content: bytes) -> None:
        raise ResourceError("The disk is full", "Expected room", "Make some")

    error = DataError("bad", "x", "y")
    folder = begin(tmp_path)
    monkeypatch.setattr(run_module, "write_atomically", fail)
    with pytest.raises(DataError, match="bad"), folder:
        raise error
    assert "The disk is full" in error.__notes__[0]


def test_the_order_of_an_atomic_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(handle: int) -> None:
        calls.append("folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "file")
        real_fsync(handle)

    def replace(source: Path, target: Path) -> None:
        calls.append(f"to {Path(target).name}")
        real_replace(source, target)

    folder = begin(tmp_path)
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    folder.write_json("a.json", {})
    folder.finish("done", 0)
    steps = ["file", "to a.json", "folder", "file", "to status.json", "folder", "to latest", "folder"]
    assert calls == steps


WRITER = """
import os, signal, sys
from pathlib import Path
from tabgpu.run_folder import RunFolder
real = os.replace
count = 0
def replace(source, target):
    global count
    count += 1
    if count == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    real(source, target)
os.replace = replace
with RunFolder.create(Path(sys.argv[1]), "n", "0" * 8) as folder:
    folder.write_checkpoint(1, b"one")
    folder.write_checkpoint(2, b"two")
"""


@pytest.mark.parametrize(("at", "found"), [(3, None), (4, b"one"), (5, b"two"), (6, b"two")])
def test_killed_before_any_rename_it_goes_on_from_the_checkpoint_before(
    tmp_path: Path, at: int, found: bytes | None
) -> None:
    done = subprocess.run([sys.executable, "-c", WRITER, str(tmp_path), str(at)], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "n/latest").exists()
    run_path = resolve_run(tmp_path / "n/last")
    assert list(run_path.rglob(".tmp-*"))
    assert status_of(run_path)["status"] == ("running" if at < 6 else "done")
    with RunFolder.open(tmp_path / "n/last") as folder:
        assert not list(folder.path.rglob(".tmp-*"))
        assert folder.latest_checkpoint() == found
        assert status_of(folder)["status"] == "running"
    assert resolve_run(tmp_path / "n/latest") == folder.path


@settings(deadline=None, max_examples=15)
@given(blobs=st.lists(st.binary(max_size=50), min_size=2, max_size=4), data=st.data())
def test_a_damaged_checkpoint_is_never_read(
    tmp_path_factory: pytest.TempPathFactory, blobs: list[bytes], data: st.DataObject
) -> None:
    with begin(tmp_path_factory.mktemp("runs")) as folder:
        for number, blob in enumerate(blobs):
            folder.write_checkpoint(number, blob)
        assert len(list(folder.checkpoints.iterdir())) == 2
        assert folder.latest_checkpoint() == blobs[-1]
        newest = max(folder.checkpoints.iterdir())
        content = bytearray(newest.read_bytes())
        if data.draw(st.booleans()):
            del content[data.draw(st.integers(0, len(content) - 1)) :]
        else:
            content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        newest.write_bytes(content)
        with pytest.warns(UserWarning, match="is damaged"):
            assert folder.latest_checkpoint() == blobs[-2]
        folder.write_checkpoint(len(blobs) - 1, b"again")
        assert folder.latest_checkpoint() == b"again"


def test_checkpoints_of_an_abandoned_future_are_dropped(tmp_path: Path) -> None:
    with begin(tmp_path) as folder:
        assert folder.latest_checkpoint() is None
        for number in (8, 9, 10**9):
            folder.write_checkpoint(number, b"old")
        folder.write_checkpoint(3, b"new")
        assert folder.latest_checkpoint() == b"new"


def test_a_renamed_checkpoint_is_not_another(tmp_path: Path) -> None:
    with begin(tmp_path) as folder:
        folder.write_checkpoint(1, b"one")
        os.rename(folder.checkpoints / "00000001.checkpoint", folder.checkpoints / "00000007.checkpoint")
        with pytest.warns(UserWarning, match="is damaged"):
            assert folder.latest_checkpoint() is None


def test_half_a_line_does_not_spoil_the_next(tmp_path: Path) -> None:
    with begin(tmp_path) as folder:
        folder.event("one", text="a\nb", odd="\ud800")
    with (folder.path / "events.jsonl").open("ab") as file:
        file.write(b'{"time": "20')
    with RunFolder.open(folder.path) as again:
        again.event("two")
    lines = (folder.path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines if line != '{"time": "20'] == ["one", "end", "two", "end"]


def test_events_of_many_threads_do_not_mix(tmp_path: Path) -> None:
    with begin(tmp_path) as folder:
        threads = [threading.Thread(target=lambda: [folder.event("x", y="z" * 500) for _ in range(50)]) for _ in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(events_of(folder)) == 201


def test_latest_is_always_whole(tmp_path: Path) -> None:
    folders = [begin(tmp_path) for _ in range(2)]
    folders[0].finish("done", 0)
    latest = tmp_path / "flights/latest"
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for folder in folders:
                run_module._point(latest, folder.path.name)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        seen = {resolve_run(latest) for _ in range(2000)}
    finally:
        stop.set()
        thread.join()
        folders[1].finish("failed", 1)
    assert seen <= {f.path for f in folders}


def test_where_links_are_not_possible_a_file_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(self: Path, target: str) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "symlink_to", no_links)
    with begin(tmp_path) as folder:
        pass
    assert (tmp_path / "flights/latest").read_text() == f"{folder.path.name}\n"
    assert resolve_run(tmp_path / "flights/latest") == folder.path


def test_a_folder_of_the_user_called_last(tmp_path: Path) -> None:
    (tmp_path / "flights/last").mkdir(parents=True)
    (tmp_path / "flights/last/mine").write_text("x")
    with pytest.raises(ConfigError, match="last cannot be written"):
        begin(tmp_path)
    assert (tmp_path / "flights/last/mine").read_text() == "x"
    assert [p.name for p in (tmp_path / "flights").iterdir()] == ["last"]


@dataclass
class Named:
    path: Path
    sizes: tuple[int, ...]


def test_everything_becomes_plain_json() -> None:
    value = {
        1: Named(Path("a"), (1, 2)),
        "array": np.array([1.5, np.nan, np.inf]),
        "set": {3},
        "big": 2**70,
        "flag": np.bool_(True),
        "none": None,
    }
    assert json.loads(to_json(value)) == {
        "1": {"path": "a", "sizes": [1, 2]},
        "array": [1.5, None, None],
        "set": [3],
        "big": 2**70,
        "flag": True,
        "none": None,
    }


def test_a_fingerprint_differs_when_the_file_does(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(bytes(100_000))
    os.utime(path, ns=(10, 10))
    first = fingerprint([path])
    assert first == fingerprint([path])
    assert (first[0]["path"], first[0]["size"], first[0]["mtime_ns"]) == (str(path), 100_000, 10)
    path.write_bytes(bytes(99_999) + b"x")
    os.utime(path, ns=(10, 10))
    second = fingerprint([path])
    assert second[0]["tail"] != first[0]["tail"]
    assert fingerprint([]) == []


def test_versions_are_found_without_importing() -> None:
    code = "import sys; from tabgpu.run_folder import versions as v; print('xgboost' in sys.modules, v()['pyarrow'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", versions()["pyarrow"]]
    assert "python" in versions()


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=n", "-c", "user.email=e@x", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_revision_that_git_would_name(tmp_path: Path) -> None:
    assert git_revision(tmp_path) is None
    repo = tmp_path / "repo"
    (repo / "deep").mkdir(parents=True)
    git(repo, "init", "-q")
    assert git_revision(repo) is None  # no commit yet
    git(repo, "commit", "-q", "--allow-empty", "-m", "one")
    head = git(repo, "rev-parse", "HEAD")
    assert git_revision(repo / "deep") == head
    git(repo, "pack-refs", "--all")
    assert git_revision(repo) == head
    git(repo, "worktree", "add", "-q", "-b", "other", str(tmp_path / "tree"))
    git(tmp_path / "tree", "commit", "-q", "--allow-empty", "-m", "two")
    assert git_revision(tmp_path / "tree") == git(tmp_path / "tree", "rev-parse", "HEAD") != head
    git(repo, "checkout", "-q", "--detach")
    assert git_revision(repo) == head
