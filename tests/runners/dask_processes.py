"""Rows to work on, and processes to attach to: what the tests of the Dask runner share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tables import pipeline

from tabgpu.assemble import Assembled, assemble
from tabgpu.config import load
from tabgpu.hardware import SystemHardware
from tabgpu.place import this_process

HERE = Path(__file__).resolve().parent
WORK = {
    **os.environ,
    "PYTHONPATH": f"{HERE.parents[1]}:{HERE}",
    "OMP_WAIT_POLICY": "passive",
    "PYTHONWARNINGS": "ignore",
}


def bound(source: Path, folder: Path) -> Assembled:
    """The pipeline over some files, ready to be run."""
    place = this_process(SystemHardware().host(folder))
    return assemble(load(pipeline(source, folder / "runs")), place, read_tables=True)


@contextmanager
def process(*command: str, env: dict[str, str] = WORK, cwd: Path = HERE) -> Iterator[subprocess.Popen[bytes]]:
    """A process of Python's that ends with the block, and its children with it."""
    started = subprocess.Popen(
        [sys.executable, *command],
        env=env,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield started
    finally:
        if started.poll() is None:
            started.terminate()
            try:
                started.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(started.pid, 9)
                started.wait()
        assert started.stdout is not None
        started.stdout.close()
