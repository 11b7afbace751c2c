"""A pytest plugin that writes the outcome of each test as it ends, so that a run that is killed still has told.

Loaded by `gpu_check.laws` with ``-p gpu_check.plugin``; GPU_CHECK_OUTCOMES names the file.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

FILE = "GPU_CHECK_OUTCOMES"


def pytest_runtest_logreport(report: Any) -> None:
    """One JSON line for each test that passed, failed or was skipped; errors in fixtures are failures."""
    if report.when != "call" and report.outcome == "passed":
        return
    why = ""
    if report.outcome == "skipped":
        why = str(report.longrepr[-1]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
    elif report.outcome == "failed":
        why = str(getattr(getattr(report.longrepr, "reprcrash", None), "message", report.longrepr)).strip()[:400]
    line = {"test": report.nodeid, "outcome": report.outcome, "seconds": report.duration, "why": why}
    with Path(os.environ[FILE]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
