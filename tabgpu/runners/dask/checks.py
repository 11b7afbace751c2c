"""What has to be true of all workers before work is given to them: versions, memory, files.

Facts are gathered on the workers (`facts`, `look_at`) and judged by functions that need no cluster. A worker that lacks
tabgpu, or has another Python, cannot even be asked for them: that is found out first, with functions of Python's own
library.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import secrets
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ...engine import obstacle
from ...errors import ConfigError, ResourceError
from ...files import File, first_line, read_footer
from ...hardware import GpuFacts, HostFacts, SystemHardware
from ...packages import installed
from ...units import format_bytes
from .workers import Workers

# What decides numbers, or how work travels; the build of a package (cpu, cu12) does not.
_MUST_AGREE = ("tabgpu", "xgboost", "pyarrow", "numpy", "dask", "distributed", "cudf", "rmm", "cupy")
_LOOKED_AT = 16  # input files that each worker opens
_TAIL_BYTES = 65_536  # holds the footer of nearly all Parquet files, and the offsets of all pages with it
_SHOWN = 6  # workers named in a message


@dataclass(frozen=True)
class Facts:
    """What a worker, or the client, says of itself.

    Parameters
    ----------
    versions : dict of str to str
        By name of package; tabgpu's also tells its source.
    host : str
        Name of the machine.
    threads : int
        Threads of the worker.
    memory_limit : int, optional
        Bytes of host memory that Dask gives it; None for no limit.
    machine : HostFacts
        Processors, memory, disk.
    gpus : tuple of GpuFacts
        Those that it sees.
    without_gpu : tuple of str
        Why it cannot have the GPU engine, in three sentences; empty where it can.
    pools : tuple of str
        RMM's memory resources that were set up, the topmost first; empty unless asked for.
    """

    versions: dict[str, str]
    host: str
    threads: int
    memory_limit: int | None
    machine: HostFacts
    gpus: tuple[GpuFacts, ...]
    without_gpu: tuple[str, ...]
    pools: tuple[str, ...]


def facts(look_at_pools: bool, dask_worker: Any = None) -> Facts:
    """Facts of this process; Dask gives the worker where there is one."""
    folder = Path(dask_worker.local_directory) if dask_worker else Path.cwd()
    status = SystemHardware().gpu_status()
    found = obstacle(installed(), status, (sys.version_info[0], sys.version_info[1]))
    return Facts(
        versions(),
        socket.gethostname(),
        dask_worker.state.nthreads if dask_worker else 0,
        dask_worker.memory_manager.memory_limit if dask_worker else None,
        SystemHardware().host(folder),
        status.gpus,
        (found.happened, found.expected, found.remedy) if found else (),
        _pools() if look_at_pools else (),
    )


def versions() -> dict[str, str]:
    """Versions of what has to agree, by name of package without its build."""
    found = {"tabgpu": f"source {source_digest()}"}
    for name, number in installed().items():
        stem = next((n for n in _MUST_AGREE if name == n or name.startswith((f"{n}-c", f"{n}-cuda"))), None)
        if stem == "tabgpu":
            found[stem] = f"{number} ({found[stem]})"
        elif stem is not None:
            found[stem] = number
    return found


@cache
def source_digest() -> str:
    """Eight hexadecimal digits that tell one state of this package's source from another."""
    package = Path(__file__).parents[2]
    digest = hashlib.blake2b(digest_size=4)
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _pools() -> tuple[str, ...]:
    """RMM's resources in this process; empty where nothing has imported it, so that nothing can have set one up."""
    rmm = sys.modules.get("rmm")
    if rmm is None or not hasattr(rmm, "mr"):
        return ()
    try:
        resource = rmm.mr.get_current_device_resource()
    except Exception as error:  # noqa: BLE001  # without a driver CUDA's bindings raise errors of their own
        return (f"none: {first_line(error)}",)
    found = []
    while resource is not None:
        found.append(type(resource).__name__)
        resource = getattr(resource, "upstream_mr", None)
    return tuple(found)


def gather(workers: Workers, look_at_pools: bool) -> dict[str, Facts]:
    """Facts of every worker, by address.

    Raises
    ------
    ConfigError
        If workers or the scheduler have another Python, no tabgpu, or one that cannot answer.
    """
    pythons = workers.ask(platform.python_version)
    here = platform.python_version().rpartition(".")[0]
    _refuse(
        {a: f"Python {v}" for a, v in pythons.items() if str(v).rpartition(".")[0] != here},
        len(pythons),
        f"Expected Python {here} on all, as here",
    )
    missing = {a: "no tabgpu" for a, v in workers.ask(importlib.util.find_spec, "tabgpu").items() if v is None}
    if workers.ask_scheduler(importlib.util.find_spec, "tabgpu") is None:
        missing["the scheduler"] = "no tabgpu"
    _refuse(missing, len(pythons), "Expected tabgpu to be installed there as here")
    answers = workers.ask(facts, look_at_pools)
    failed = {a: f"{type(v).__name__}: {first_line(v)}" for a, v in answers.items() if isinstance(v, BaseException)}
    _refuse(failed, len(answers), "Expected workers that can say what is installed")
    return answers


def check_versions(here: Mapping[str, str], found: Mapping[str, Facts]) -> None:
    """Raise ConfigError where versions differ from the client's, or workers' from one another's."""
    wanted = dict(here)
    for one in found.values():  # what the client has no use for, such as cuDF, has to agree among workers
        wanted = {**one.versions, **wanted}
    wrong = {}
    for address, one in found.items():
        differ = [
            f"{name} {one.versions.get(name, 'missing')} instead of {version}"
            for name, version in wanted.items()
            if one.versions.get(name) != version
        ]
        if differ:
            wrong[address] = ", ".join(differ)
    _refuse(wrong, len(found), "Expected the same versions on all workers as here, or models would not be the same")


def _refuse(wrong: Mapping[str, str], n_workers: int, expected: str) -> None:
    if not wrong:
        return
    lines = [f"{address} ({what})" for address, what in list(wrong.items())[:_SHOWN]]
    more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    raise ConfigError(
        f"{len(wrong)} of {n_workers} workers cannot be used: {'; '.join(lines)}{more}",
        expected,
        "Install the same environment on all machines, and start scheduler and workers again",
    )


def check_memory(found: Mapping[str, Facts], options: Mapping[str, object]) -> None:
    """Raise ResourceError where workers may take more than their machine has, or lack the pool that was asked for.

    Parameters
    ----------
    found : mapping of str to Facts
        By address.
    options : mapping of str to object
        Those the workers were started with; empty for workers of somebody else.
    """
    by_host: dict[str, list[Facts]] = {}
    for one in found.values():
        by_host.setdefault(one.host, []).append(one)
    for host, there in by_host.items():
        limits = [one.memory_limit or 0 for one in there]
        machine = there[0].machine
        used = machine.memory_total - machine.memory_available  # bounds are what is left beside others, workers too
        most = min([machine.memory_total, *(limit.n_bytes + used for limit in machine.limits)])
        if sum(limits) > most:
            raise ResourceError(
                f"{len(there)} workers on {host} may take {format_bytes(sum(limits))} of host memory together: "
                f"{', '.join(format_bytes(n) for n in limits[:_SHOWN])}",
                f"Expected no more than the {format_bytes(most)} there",
                "Lower cluster.memory_limit (--set cluster.memory_limit=SIZE), or start fewer workers",
            )
    wanted = expected_pool(options)
    without = [address for address, one in found.items() if wanted is not None and wanted not in one.pools]
    if without:
        raise ResourceError(
            f"{len(without)} of {len(found)} workers have not set up their pool: {without[0]} has "
            f"{', '.join(found[without[0]].pools) or 'none'}",
            f"Expected {wanted}, as the options of cluster ask for",
            "Lower cluster.rmm_pool_size, and look at what else uses these GPUs (tabgpu doctor)",
        )


def expected_pool(options: Mapping[str, object]) -> str | None:
    """RMM's class for the options of `LocalCUDACluster`; None where they ask for none.

    Examples
    --------
    >>> expected_pool({"rmm_async": True}), expected_pool({"rmm_pool_size": 10**9}), expected_pool({})
    ('CudaAsyncMemoryResource', 'PoolMemoryResource', None)
    """
    if options.get("rmm_async"):
        return "CudaAsyncMemoryResource"
    if options.get("rmm_pool_size") is not None:
        return "PoolMemoryResource"
    return "ManagedMemoryResource" if options.get("rmm_managed_memory") else None


def check_files(workers: Workers, files: Sequence[File], output: Path) -> None:
    """Have every worker look at some input files, and read and write in the output folder.

    Raises
    ------
    ConfigError
        If a worker cannot, or sees something else under the same path.
    """
    step = max(1, -(-len(files) // _LOOKED_AT))
    looked_at = [(f.path, f.name) for f in files[::step]]
    here = [fingerprint(path, name) for path, name in looked_at]
    token = secrets.token_hex(16)
    note = output / f".tmp-{token}"
    output.mkdir(parents=True, exist_ok=True)
    try:
        note.write_text(token)
        answers = workers.ask(look_at, looked_at, str(note))
    finally:
        replies = list(output.glob(f"{note.name}*"))
        for path in replies:
            path.unlink(missing_ok=True)
    wrong = {address: _difference(answer, here, token, looked_at, output) for address, answer in answers.items()}
    for address, answer in answers.items():
        if not wrong[address] and note.with_name(answer["reply"]) not in replies:
            wrong[address] = f"what it writes to {output} does not arrive"
    wrong = {address: what for address, what in wrong.items() if what}
    if wrong:
        lines = [f"{address} ({what})" for address, what in list(wrong.items())[:_SHOWN]]
        raise ConfigError(
            f"{len(wrong)} of {len(answers)} workers do not share these files: {'; '.join(lines)}",
            "Expected data.source and output under the same paths on all machines, with the same content",
            "Put them on a shared file system or an object store, and use absolute paths",
        )


def _difference(answer: Any, here: Sequence[str], token: str, files: Iterable[tuple[str, str]], output: Path) -> str:
    """What a worker sees otherwise; empty if nothing."""
    if isinstance(answer, BaseException):
        return first_line(answer)
    if answer["token"] != token:
        return f"{output}: {answer['token']}"
    for (path, _), mine, its in zip(files, here, answer["files"], strict=True):
        if mine != its:
            return f"{path}: {its if 'no such' in its else 'other content'}"
    return ""


def look_at(files: Sequence[tuple[str, str]], note: str) -> dict[str, Any]:
    """On a worker: what it sees of the files, and its reply beside the note."""
    path = Path(note)
    try:
        token = path.read_text()
        reply = path.with_name(f"{path.name}-{secrets.token_hex(8)}")
        reply.write_text(token)
    except OSError as error:
        return {"token": f"{os.strerror(error.errno or 0)}", "files": [], "reply": ""}
    return {"token": token, "files": [fingerprint(p, name) for p, name in files], "reply": reply.name}


def fingerprint(path: str, name: str) -> str:
    """Tell one file from another by its size and its end, or by what its footer says where it is not a local one."""
    try:
        if "://" in path:
            footer = read_footer(File(path, name))
            return repr((footer.group_rows, footer.group_bytes))
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            return f"{size} {hashlib.blake2b(file.read(), digest_size=16).hexdigest()}"
    except (OSError, ValueError) as error:
        return f"no such file here: {first_line(error)}"
