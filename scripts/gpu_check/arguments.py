"""What every part is told on its command line, and how it begins."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

from .rows import Report


@dataclass(frozen=True)
class Task:
    """What a part is to do.

    Parameters
    ----------
    report : Report
        Where rows go.
    folder : Path
        For files of its own; removed at the end.
    dry : bool
        Whether the CPU stands in for the device, at tiny sizes.
    budget_s : float
        Seconds after which the part is killed.
    """

    report: Report
    folder: Path
    dry: bool
    budget_s: float

    @property
    def shared(self) -> Path:
        """For files that several parts read."""
        return self.folder.parent


def task_of(part: str) -> Task:
    """Read the command line of a part."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    parser = argparse.ArgumentParser(description=f"The part '{part}' of scripts/gpu-check.")
    parser.add_argument("--rows", type=Path, required=True, help="file that rows are written to")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=60.0)
    parser.add_argument("--dry", action="store_true")
    given = parser.parse_args()
    return Task(Report(given.rows, part), given.folder, given.dry, given.budget)
