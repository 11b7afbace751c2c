"""Schedulers and workers that somebody else started, and everything that can be wrong with them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from dask_processes import HERE, WORK, process

distributed = pytest.importorskip("distributed", reason="the extra 'cluster' is not installed")

from dask_jobs import CountJob

from tabgpu.config import Cluster
from tabgpu.errors import ClusterError, ConfigError, LockedError
from tabgpu.runners import SerialRunner, resolve
from tabgpu.runners.dask import DaskRunner, checks

pytestmark = pytest.mark.filterwarnings("default")  # of libraries that close sockets late

SCHEDULER = ("-m", "dask", "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file")
WORKER = ("-m", "dask", "worker", "--nworkers", "1", "--nthreads", "1", "--no-dashboard", "--scheduler-file")


def start(stack: ExitStack, file: Path, n_workers: int, **where: Any) -> list[subprocess.Popen[bytes]]:
    """A scheduler and workers, each a process of its own."""
    commands = [(*SCHEDULER, str(file), "--dashboard-address", "127.0.0.1:0")]
    commands += [(*WORKER, str(file), "--local-directory", str(file.parent))] * n_workers
    return [stack.enter_context(process(*command, **where)) for command in commands]


@pytest.fixture(autouse=True)
def fresh_digest() -> None:
    """Workers that start now read the source as it is now: somebody may be editing it."""
    checks.source_digest.cache_clear()


@pytest.fixture(scope="module")
def scheduler_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    file = tmp_path_factory.mktemp("cluster") / "scheduler.json"
    with ExitStack() as stack:
        start(stack, file, 2)
        yield file


@pytest.fixture
def client(scheduler_file: Path) -> Iterator[Any]:
    deadline = time.monotonic() + 30
    while not scheduler_file.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    with distributed.Client(scheduler_file=str(scheduler_file), set_as_default=False) as client:
        client.wait_for_workers(2, timeout=30)
        yield client


def test_attached_by_file_by_address_and_by_client(client: Any, scheduler_file: Path, small: Any) -> None:
    expected = SerialRunner().reduce(small.a.rows, CountJob(), small.a.tasks)
    for cluster, given, reason in (
        (Cluster(scheduler_file=str(scheduler_file), timeout=30), None, "cluster.scheduler_file is set"),
        (Cluster(address=client.scheduler.address, timeout=30), None, "cluster.address is set"),
        (None, client, "a client was given"),
    ):
        runner, said = resolve(cluster, client=given)
        assert (runner.name, runner.workers, said) == ("dask", 2, reason)
        with runner:
            assert runner.reduce(small.a.rows, CountJob(), small.a.tasks) == expected
    assert client.status == "running"
    assert len(client.nthreads()) == 2


def test_a_second_run_is_told_to_wait(client: Any, scheduler_file: Path) -> None:
    attach = Cluster(scheduler_file=str(scheduler_file), timeout=30)
    with DaskRunner(None, client=client):
        for second in (DaskRunner(attach), DaskRunner(None, client=client)):
            with pytest.raises(LockedError, match=f"process {os.getpid()} on"), second:
                pass
    with DaskRunner(attach):
        pass


def test_whoever_dies_lets_go_of_the_lock(client: Any, scheduler_file: Path) -> None:
    attach = Cluster(scheduler_file=str(scheduler_file), timeout=30)
    script = (
        "import time; from tabgpu.config import Cluster; from tabgpu.runners.dask import DaskRunner\n"
        f"with DaskRunner(Cluster(scheduler_file={str(scheduler_file)!r})): print('opened', flush=True); time.sleep(60)"
    )
    with process("-c", script) as other:
        assert other.stdout is not None
        assert any(line == b"opened\n" for line in other.stdout)
        with pytest.raises(LockedError, match=f"process {other.pid}"), DaskRunner(attach):
            pass
        other.kill()
        other.wait()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                with DaskRunner(attach):
                    return
            except LockedError:
                time.sleep(0.1)
    pytest.fail("the lock outlived its owner")


def test_other_versions_are_listed(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    here = checks.versions()
    monkeypatch.setattr(checks, "versions", lambda: {**here, "pyarrow": "1.2.3"})
    with (
        pytest.raises(ConfigError, match=r"2 of 2 workers .*tcp://.*\(pyarrow \d+.* instead of 1\.2\.3\)"),
        DaskRunner(None, client=client),
    ):
        pass


def test_files_that_workers_do_not_share(
    client: Any, small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [footer.file for footer in small.a.footers]
    with DaskRunner(None, client=client) as runner:
        runner.check_files(files, tmp_path / "out")
        assert list((tmp_path / "out").iterdir()) == []
        look = checks.fingerprint
        monkeypatch.setattr(checks, "fingerprint", lambda path, name: look(path, name) + "?")
        with pytest.raises(ConfigError, match=r"2 of 2 workers .*00.parquet: other content"):
            runner.check_files(files, tmp_path / "out")


def test_a_scheduler_that_dies(small: Any, tmp_path: Path) -> None:
    file = tmp_path / "scheduler.json"
    with ExitStack() as stack:
        scheduler, _ = start(stack, file, 1)
        with DaskRunner(Cluster(scheduler_file=str(file), timeout=30)) as runner:
            threading.Timer(1.0, scheduler.kill).start()
            began = time.monotonic()
            with pytest.raises(ClusterError, match="The cluster was lost while"):
                runner.reduce(small.a.rows, CountJob(chunk_rows=2, pause_s=0.1), small.a.tasks)
            assert time.monotonic() - began < 20
        assert time.monotonic() - began < 25  # it can still be closed


def test_workers_that_are_all_gone(small: Any, tmp_path: Path) -> None:
    file = tmp_path / "scheduler.json"
    with ExitStack() as stack:
        _, worker = start(stack, file, 1)
        with DaskRunner(Cluster(scheduler_file=str(file), timeout=5)) as runner:
            threading.Timer(1.0, os.killpg, (worker.pid, signal.SIGKILL)).start()
            with pytest.raises(ClusterError, match="has had no worker for"):
                runner.reduce(small.a.rows, CountJob(chunk_rows=2, pause_s=0.1), small.a.tasks)


def test_no_worker_comes(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.json"
    with ExitStack() as stack:
        start(stack, file, 0)
        with (
            pytest.raises(ClusterError, match=r"0 of 1 workers came within 1 s"),
            DaskRunner(_after(file, Cluster(scheduler_file=str(file), timeout=1))),
        ):
            pass


def _after(file: Path, cluster: Cluster) -> Cluster:
    deadline = time.monotonic() + 30
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    return cluster


def test_workers_without_tabgpu(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.json"
    hide = "import os, sys; sys.path[:] = [p for p in sys.path if not os.path.isdir(os.path.join(p, 'tabgpu'))]"
    (tmp_path / "sitecustomize.py").write_text(hide)  # it may be installed; Python imports this after all paths are set
    bare = {**WORK, "PYTHONPATH": str(tmp_path)}
    with ExitStack() as stack:
        start(stack, file, 1, env=bare, cwd=tmp_path)
        with (
            pytest.raises(ConfigError, match=r"cannot be used: .*no tabgpu"),
            DaskRunner(Cluster(scheduler_file=str(file), timeout=30)),
        ):
            pass


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ({"scheduler_file": "nowhere.json"}, ConfigError, "cluster.scheduler_file is .*nowhere.json: .*No such file"),
        ({"address": "tcp://127.0.0.1:9"}, ClusterError, "No scheduler answered at tcp://127.0.0.1:9 within 1 s: "),
        ({"address": "carrier-pigeon://coop"}, ConfigError, "cluster.address is 'carrier-pigeon://coop'"),
        ({"address": "localhost"}, ConfigError, "cluster.address is 'localhost': missing port"),
    ],
)
def test_nobody_there(
    keys: dict[str, str], error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if error is ConfigError:  # a client that cannot connect hangs when the interpreter ends
        monkeypatch.setattr("tabgpu.runners.dask.cluster.Client", None)
    with pytest.raises(error, match=message):
        resolve(Cluster(**keys, timeout=1))


def test_a_client_that_is_none(client: Any) -> None:
    client.close()
    for given in (client, "tcp://127.0.0.1:8786"):
        with pytest.raises(ConfigError, match=r"client is .*Expected a distributed.Client"):
            resolve(None, client=given)


_INTERRUPTED = """
import time
from tabgpu.config import Cluster
from tabgpu.runners.dask import DaskRunner
if __name__ == "__main__":
    print("starting", flush=True)
    with DaskRunner(Cluster(workers=1, timeout=20)):
        time.sleep(60)
"""


def test_ctrl_c_while_workers_start_is_one_traceback(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(_INTERRUPTED)
    with process(str(tmp_path / "script.py")) as script:
        assert script.stdout is not None
        assert any(line == b"starting\n" for line in script.stdout)
        time.sleep(1.5)
        os.killpg(script.pid, signal.SIGINT)  # as a terminal does: the workers get it too
        said = script.stdout.read().splitlines()
        script.wait(20)
    assert said.count(b"KeyboardInterrupt") == 1
    assert said[-1] == b"KeyboardInterrupt"
    assert not [line for line in said if line.startswith(b"Exception ignored")]


def test_options_are_checked_before_use() -> None:
    with (
        pytest.raises(ConfigError, match=r"n_threads is no option .*threads_per_worker"),
        DaskRunner(Cluster(workers=1), options={"n_threads": 2}),
    ):
        pass
    with (
        pytest.raises(ConfigError, match="rmm_async is no option of a cluster of CPU"),
        DaskRunner(Cluster(workers=1), options={"rmm_async": True}),
    ):
        pass


def test_a_set_up_that_fails_is_no_wait() -> None:
    with (
        pytest.raises(ClusterError, match=r"could not be started: .*no-such-card"),
        DaskRunner(Cluster(workers=1, timeout=20), options={"interface": "no-such-card"}),
    ):
        pass


SCRIPT = """
import sys
from tabgpu.config import Cluster
from tabgpu.runners.dask import DaskRunner
with DaskRunner(Cluster(workers=1, timeout=20)) as runner:
    print("workers", runner.workers, flush=True)
"""


def test_a_script_without_a_guard_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=WORK, capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    assert 'below if __name__ == "__main__":' in done.stderr.splitlines()[-1]


INTERRUPTED = """
import sys
from pathlib import Path
from dask_processes import bound
from dask_jobs import CountJob
from tabgpu.config import Cluster
from tabgpu.runners.dask import DaskRunner
if __name__ == "__main__":
    a = bound(Path(sys.argv[1]), Path("runs"))
    with DaskRunner(Cluster(workers=2, timeout=30)) as runner:
        print("begun", flush=True)
        runner.reduce(a.rows, CountJob(chunk_rows=2, pause_s=0.1), a.tasks)
"""


@pytest.mark.parametrize("to_all", [True, False])
def test_ctrl_c_ends_it_all(small: Any, tmp_path: Path, to_all: bool) -> None:
    """A terminal sends the signal to the workers too, a supervisor to the client alone."""
    (tmp_path / "script.py").write_text(INTERRUPTED)
    env = {**WORK, "PYTHONPATH": f"{WORK['PYTHONPATH']}:{HERE.parent}"}
    with process("script.py", str(small.source), env=env, cwd=tmp_path) as script:
        assert script.stdout is not None
        assert any(b"begun" in line for line in script.stdout)
        time.sleep(1.0)
        children = psutil.Process(script.pid).children(recursive=True)
        assert len(children) >= 2
        (os.killpg if to_all else os.kill)(script.pid, signal.SIGINT)
        assert script.wait(20) != 0
        assert script.stdout.read().splitlines().count(b"KeyboardInterrupt") == 1  # none of the workers has one
        _, alive = psutil.wait_procs(children, timeout=5)
        assert alive == []
