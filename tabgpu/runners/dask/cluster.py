"""Start workers on this machine, or attach to those that stand, and make sure that they can be used.

Everything that would leave a cluster without workers and without a word (an option that Dask does not know, a pool that
does not fit, a script that starts itself again) becomes an error here, within a time limit. What is started here ends
with the runner; what is somebody else's is left as it was.
"""

from __future__ import annotations

import getpass
import json
import logging
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import dask
from distributed import Client, LocalCluster, Status
from distributed.comm import get_address_host_port
from distributed.deploy import SpecCluster
from distributed.utils import LoopRunner
from tornado.ioloop import IOLoop

from ...config import Cluster
from ...errors import ClusterError, ConfigError, LockedError, ResourceError, TabgpuError, nearest
from ...files import first_line
from . import checks, lock
from .workers import Workers

_OPTIONS = (
    *("n_workers", "threads_per_worker", "memory_limit", "local_directory", "protocol", "interface", "processes"),
)
_DEVICE_OPTIONS = (
    *("device_memory_limit", "enable_cudf_spill", "CUDA_VISIBLE_DEVICES", "rmm_pool_size", "rmm_maximum_pool_size"),
    *("rmm_async", "rmm_release_threshold", "rmm_managed_memory"),
)
_SETTINGS = {
    "distributed.scheduler.work-stealing": False,  # tasks go to workers that are free already
    "distributed.scheduler.allowed-failures": 2,  # a task that three workers died with is given up
    "distributed.scheduler.worker-ttl": "25s",  # a worker that hangs is given up within a minute
    "distributed.deploy.lost-worker-timeout": "10 minutes",  # a worker that restarts slowly is not ended for it
    "distributed.worker.memory.target": False,  # memory is planned: nothing is to be spilled or paused,
    "distributed.worker.memory.spill": False,  # and Dask counts mapped files as memory
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "distributed.worker.profile.enabled": False,  # it would look at every thread a hundred times a second
    "distributed.admin.tick.limit": "60s",  # libraries that hold the interpreter are no news
}
_CLOSE_S = 30.0  # a cluster that takes longer to end is left to the end of the process
TIMEOUT_S = 120.0  # for a client that comes without the key of the pipeline file

Engine = Literal["cpu", "gpu"]


@contextmanager
def connected(
    cluster: Cluster | None,
    engine: Engine = "cpu",
    options: Mapping[str, object] | None = None,
    client: Client | None = None,
) -> Iterator[tuple[Workers, dict[str, checks.Facts]]]:
    """Workers that were found fit for use, locked for this run.

    Parameters
    ----------
    cluster : Cluster, optional
        As in the pipeline file; None beside `client`.
    engine : {'cpu', 'gpu'}
        Which kind of worker to start.
    options : mapping of str to object, optional
        Keywords of `LocalCluster` or `LocalCUDACluster`, for workers that are started.
    client : distributed.Client, optional
        Use the caller's, which is left open, in place of `cluster`.

    Raises
    ------
    ConfigError
        If an option is unknown, or workers have other versions.
    ResourceError
        If workers may take more memory than there is, or have not the pool that was asked for.
    ClusterError
        If there are no workers in time.
    LockedError
        If another run uses the scheduler.
    """
    options, wanted, timeout_s = dict(options or {}), 1, TIMEOUT_S
    with ExitStack() as stack:
        if cluster is not None and client is None:
            wanted, timeout_s = cluster.workers or 1, cluster.timeout
        starts = cluster is not None and cluster.workers is not None and client is None
        if cluster is not None and starts:
            there, revive = stack.enter_context(_started(cluster, engine, options))
        else:
            there, revive = stack.enter_context(reached(cluster, client)), None
        workers = Workers(there, timeout_s, engine, revive)
        wait_for(there, wanted, timeout_s)
        found = checks.gather(workers, look_at_pools=checks.expected_pool(options) is not None)
        if not starts:  # what is started here has what is installed here
            checks.check_versions(checks.versions(), found)
        checks.check_memory(found, options)
        stack.enter_context(_locked(workers))
        yield workers, found


def count_workers(cluster: Cluster | None, client: Client | None) -> int:
    """How many workers a run would have, without starting any; at least 1."""
    if client is None and cluster is not None and cluster.workers:
        return cluster.workers
    with reached(cluster, client) as there:
        return max(1, len(Workers(there).addresses(fresh=True)))


@contextmanager
def reached(cluster: Cluster | None, client: Client | None) -> Iterator[Client]:
    """A client of workers that stand: the caller's, or one of the scheduler that `cluster` names."""
    if client is not None:
        if not isinstance(client, Client) or client.asynchronous or client.status != "running":
            raise ConfigError(
                f"client is {client!r}",
                "Expected a distributed.Client that is connected and not asynchronous",
                "Pass client=Client(address), or leave it out",
            )
        yield client
        return
    assert cluster is not None, "resolve asks for a cluster or gives a client"
    with _attached(cluster) as own:
        yield own


@contextmanager
def _started(cluster: Cluster, engine: Engine, options: dict[str, Any]) -> Iterator[tuple[Client, Callable[[], None]]]:
    """A cluster on this machine, that ends with the block: its client, and what starts lost workers again."""
    _refuse_restart()
    options.setdefault("n_workers", cluster.workers)
    options.setdefault("threads_per_worker", 1)
    known = _OPTIONS if engine == "cpu" else (*_OPTIONS, *_DEVICE_OPTIONS)
    for name in options:
        if name not in known:
            raise ConfigError(
                f"{name} is no option of a cluster of {engine.upper()} workers",
                nearest(name, known),
                f"Correct or remove cluster.{name}",
            )
    threads = str(options["threads_per_worker"])
    inherited = dask.config.get("distributed.nanny.pre-spawn-environ", {})
    pools = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
    environment = {**inherited, **pools, "OMP_WAIT_POLICY": "passive"}
    environment.pop("MALLOC_TRIM_THRESHOLD_", None)  # see `work.prepare`
    with ExitStack() as stack:
        stack.enter_context(_same_environment(environment))
        loop = stack.enter_context(_loop_without_interrupts())
        with dask.config.set({**_SETTINGS, "distributed.nanny.pre-spawn-environ": environment}):
            make = LocalCluster if engine == "cpu" else _cuda_cluster()
            try:
                running = make(
                    loop=loop,
                    scheduler_kwargs={"dashboard": False, "dashboard_address": ":0"},  # a port that is free
                    silence_logs=logging.CRITICAL,
                    death_timeout=cluster.timeout,
                    **options,
                )
            except (OSError, RuntimeError, ValueError, TypeError, MemoryError) as error:
                raise _not_started(error) from error
            except BaseException:
                _end_half_started(loop)
                raise
            stack.callback(_end, running.close, _CLOSE_S)
            client = Client(running, timeout=cluster.timeout, set_as_default=False)
            stack.callback(_end, client.close, _CLOSE_S)
        yield client, lambda: running.loop.add_callback(_revive, running)


@contextmanager
def _same_environment(names: Iterable[str]) -> Iterator[None]:
    """Undo what Dask does to the environment of this process so that its workers inherit it."""
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _loop_without_interrupts() -> Iterator[IOLoop]:
    """Event loop whose threads, and the workers that they start, do not get Ctrl-C.

    A terminal interrupts all processes of a command. Workers have to wait for what this one makes of it: those that end
    by themselves are taken for lost, and print where they were.
    """
    resource_tracker.ensure_running()  # multiprocessing unblocks signals in the thread that starts it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    runner = LoopRunner()
    try:
        runner.start()  # its thread inherits the mask, and hands it on
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    runner.loop.asyncio_loop.set_exception_handler(_note)
    try:
        yield runner.loop
    finally:
        _end(runner.stop)


def _note(_: object, context: Mapping[str, Any]) -> None:
    """Keep what nobody waits for off the screen: Dask's scheduler trips over tasks cancelled as their client leaves."""
    logging.getLogger(__name__).debug("in the event loop of the workers: %s", context.get("exception", context))


def _end_half_started(loop: IOLoop) -> None:
    """End a cluster whose start was interrupted; Dask leaves that to the exit, and to a traceback there."""
    for half in list(getattr(SpecCluster, "_instances", ())):
        if half.loop is loop:
            half.shutdown_on_close = False  # nothing is left to do at exit
            _end(half.close, _CLOSE_S)


def _revive(running: LocalCluster) -> None:
    """Replace workers that will not come back: Dask gives up one that dies just when it has started."""
    for name, nanny in list(running.workers.items()):
        if nanny.status in (Status.closed, Status.failed):
            del running.workers[name]
    running.scale(len(running.worker_spec))


def _cuda_cluster() -> Callable[..., Any]:
    try:
        from dask_cuda import LocalCUDACluster
    except ImportError as error:
        raise ResourceError(
            f"Workers with a GPU need dask-cuda, which is not installed: {first_line(error)}",
            "Expected the packages of the extra cu12 or cu13",
            "Run: pip install 'tabgpu[cu12]', or --set engine=cpu",
        ) from error
    make: Callable[..., Any] = LocalCUDACluster
    return make


def _not_started(error: BaseException) -> TabgpuError:
    return ClusterError(
        f"The workers could not be started: {first_line(error)}",
        "Expected them to start with the options under cluster",
        "Look at cluster in the pipeline file; a Python script has to be a file, not standard input, and to start its "
        'run below if __name__ == "__main__":',
    )


def _refuse_restart() -> None:
    """Raise ConfigError in a worker that is about to run the script that started it."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # as multiprocessing itself asks
        raise ConfigError(
            "The script that starts a run with workers was started again by its own worker",
            'Expected what it does to stand below if __name__ == "__main__":',
            'Put the call of tabgpu.run below if __name__ == "__main__":, or use the command line',
        )


@contextmanager
def _attached(cluster: Cluster) -> Iterator[Client]:
    """A client of a scheduler that somebody else runs."""
    began = time.monotonic()
    address = cluster.address or _address_in(Path(str(cluster.scheduler_file)), cluster.timeout)
    left = max(1.0, cluster.timeout - (time.monotonic() - began))
    try:
        get_address_host_port(address)  # a client that finds out by itself hangs for twice its timeout when it goes
        client = Client(address, timeout=left, set_as_default=False)
    except ValueError as error:
        raise ConfigError(
            f"cluster.address is {address!r}: {first_line(error)}",
            "Expected an address such as tcp://host:8786",
            "Correct cluster.address, or pass --set cluster.address=ADDRESS",
        ) from error
    except (OSError, RuntimeError) as error:
        raise ClusterError(
            f"No scheduler answered at {address} within {cluster.timeout:g} s: {first_line(_cause(error))}",
            "Expected a Dask scheduler of the same version there",
            "Start it, or correct cluster.address or cluster.scheduler_file",
        ) from error
    try:
        yield client
    finally:
        _end(client.close, _CLOSE_S)


def _cause(error: BaseException) -> BaseException:
    """What the operating system said, such as 'connection refused', which Dask wraps twice; else the error itself."""
    inner: BaseException | None = error
    while inner is not None and not (isinstance(inner, OSError) and inner.errno):
        inner = inner.__cause__
    return inner or error


def _address_in(file: Path, timeout_s: float) -> str:
    """The address in a scheduler file, which may still be to come."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return str(json.loads(file.read_text())["address"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"cluster.scheduler_file is {file}: {first_line(error)}",
                    "Expected the file that 'dask scheduler --scheduler-file' writes",
                    "Start the scheduler, or correct cluster.scheduler_file",
                ) from error
        time.sleep(0.2)


def wait_for(client: Client, wanted: int, timeout_s: float) -> None:
    """Raise ClusterError unless so many workers come in time."""
    try:
        client.wait_for_workers(wanted, timeout=timeout_s)
    except (OSError, RuntimeError) as error:  # TimeoutError among them
        there = len(client.scheduler_info()["workers"]) if client.status == "running" else 0
        raise ClusterError(
            f"{there} of {wanted} workers came within {timeout_s:g} s",
            "Expected all of them",
            "Look at the workers' logs, or raise cluster.timeout (--set cluster.timeout=SECONDS)",
        ) from error


@contextmanager
def _locked(workers: Workers) -> Iterator[None]:
    """The scheduler is this run's alone."""
    token = uuid4().hex
    me = f"{_user()}, process {os.getpid()} on {socket.gethostname()}"
    holder = workers.ask_scheduler(lock.claim, token, me, workers.client.id)
    if holder is not None:
        raise LockedError(
            f"Another run works on this scheduler: {holder}",
            "Expected one run at a time, since each needs all workers at once to train",
            "Try again when it has ended, or use another scheduler",
        )
    try:
        yield
    finally:
        if workers.client.status == "running":  # else it has let go of it
            _end(lambda: workers.ask_scheduler(lock.let_go, token))


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without an entry for its user
        return str(os.getuid())


def _end(close: Callable[..., Any], *timeout: float) -> None:
    """End something, or find that it has ended: a lost cluster cannot be closed in good order."""
    try:
        close(*timeout)
    except (OSError, RuntimeError, AttributeError, AssertionError, ClusterError) as error:
        logging.getLogger(__name__).debug("while closing: %s", error)
