"""Jobs that the tests send to workers: they import this module, as they import tabgpu."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tabgpu.data.rows import Rows, Task
from tabgpu.errors import DataError
from tabgpu.wire import record


@record
@dataclass(frozen=True)
class Ages:
    """How many rows there are of each age in whole years."""

    counts: dict[str, int]


@record
@dataclass(frozen=True)
class CountJob:
    """Counts rows by age, slowly; kills the worker that reads `deadly`, once if it can leave a mark in `marks`."""

    chunk_rows: int = 100
    pause_s: float = 0.0
    deadly: str = ""
    marks: str = ""

    def observe(self, rows: Rows, task: Task) -> Iterator[Ages]:
        for chunk in rows.open(task.part, ["age"], self.chunk_rows):
            time.sleep(self.pause_s)
            if task.part.file.name == self.deadly and self._may_kill():
                os.kill(os.getpid(), signal.SIGKILL)
            whole = [str(int(a)) for a in chunk["age"].values if a == a]
            yield Ages({a: whole.count(a) for a in sorted(set(whole))})

    def _may_kill(self) -> bool:
        if not self.marks:
            return True
        mark = Path(self.marks) / "killed"
        there = mark.exists()
        mark.touch()
        return not there

    def merge(self, states: Sequence[Ages]) -> Ages:
        ages = sorted({a for s in states for a in s.counts})
        return Ages({a: sum(s.counts.get(a, 0) for s in states) for a in ages})


@record
@dataclass(frozen=True)
class Say:
    """Answers with what it is asked for, or raises; leaves a file for each task that began."""

    what: str
    folder: str = ""
    pause_s: float = 0.0

    def do(self, rows: Rows | None, task: int) -> Any:
        if self.folder:
            (Path(self.folder) / str(task)).touch()
        time.sleep(self.pause_s * (2 - task % 3))
        if self.what == "data error":
            raise DataError("The part is rotten", "Expected a fresh one", "Wash it")
        if self.what == "bug":
            raise ZeroDivisionError("a bug on a worker")
        if self.what == "threads":
            return {"arrow": pa.cpu_count(), "omp": os.environ.get("OMP_NUM_THREADS"), "pid": os.getpid()}
        return task * task
