"""``tabgpu doctor``: is this machine fit for tabgpu, and if not, what to do about it.

Facts are gathered once (`facts`), judged by pure functions (`gpus`, `machine`, `tabgpu.packages`), and put into words
(`words`); then each engine that can be there is tried in a child process (`trial`). A machine without a GPU is healthy:
the CPU engine serves it. One whose driver, device or packages are broken is not.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from .. import packages
from ..errors import ResourceError
from ..hardware import Hardware, SystemHardware
from ..packages import Finding
from . import gpus, machine, trial
from .facts import Facts, gather
from .trial import EngineName, Trial
from .words import page, sentences

Attempt = Callable[[EngineName, bool], Trial]

__all__ = ["Examination", "Facts", "Finding", "Trial", "examine", "judge", "rapids_check"]


@dataclass(frozen=True)
class Examination:
    """What was found.

    Parameters
    ----------
    facts : Facts
        What was looked at.
    trials : tuple of Trial
        The engines that were tried.
    findings : tuple of Finding
        What was found, the broken first and what is well last.
    """

    facts: Facts
    trials: tuple[Trial, ...]
    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """Whether nothing is broken; warnings are allowed."""
        return all(f.severity != "broken" for f in self.findings)

    @property
    def engine(self) -> str:
        """What ``engine: auto`` will find to work with: 'gpu' where its trial passed, else 'cpu'."""
        return "gpu" if any(t.engine == "gpu" and t.passed and not t.imports_only for t in self.trials) else "cpu"

    def to_json(self) -> dict[str, Any]:
        """What ``doctor --json`` prints."""
        return {
            "status": "healthy" if self.healthy else "broken",
            "exit_code": 0 if self.healthy else ResourceError.exit_code,
            "engine": self.engine,
            "findings": [asdict(f) for f in self.findings],
            "trials": [asdict(t) for t in self.trials],
            "facts": asdict(self.facts),
        }

    def __str__(self) -> str:
        return page(self.facts, self.findings)


def examine(hardware: Hardware | None = None, attempt: Attempt = trial.run) -> Examination:
    """Gather the facts, judge them, and try the engines that may work.

    Parameters
    ----------
    hardware : Hardware, optional
        This machine by default.
    attempt : callable
        Tries one engine, or only to import its packages; in a child process by default.
    """
    return conclude(gather(hardware or SystemHardware()), attempt)


def conclude(facts: Facts, attempt: Attempt) -> Examination:
    """Judge facts and try the engines of which nothing is known yet to be broken."""
    findings = judge(facts)
    trials = tuple(attempt(*what) for what in what_to_try(facts, findings))
    return Examination(facts, trials, tuple(_sorted([*findings, *map(trial.judge, trials)])))


def judge(facts: Facts) -> list[Finding]:
    """All findings about facts, the broken first. A pure function."""
    found = packages.problems(facts.packages, facts.python)
    if len(facts.gpu.gpus) > 1:  # then NCCL is needed
        found = [replace(f, severity="broken") if f.name == "NCCL" else f for f in found]
    return _sorted([*found, *gpus.judge(facts), *machine.judge(facts)])


def what_to_try(facts: Facts, findings: Sequence[Finding]) -> list[tuple[EngineName, bool]]:
    """Engines of which `findings` do not say yet that they are broken, and whether to import their packages alone."""
    if packages.xgboost_build(facts.packages) is None:
        return []
    broken = {f.name for f in findings if f.severity == "broken"} - {"NCCL"}
    if broken or packages.missing_for_gpu(facts.packages):
        return [("cpu", False)]
    return [("cpu", False), ("gpu", facts.gpu.state != "there")]


def rapids_check(verbose: bool = False, **kwargs: Any) -> None:
    """The check of tabgpu in ``rapids doctor``: warns of what may go wrong.

    Raises
    ------
    ResourceError
        If something is broken: the first finding, with the others as notes.
    """
    found = examine()
    for finding in found.findings:
        if finding.severity == "warning":
            warnings.warn(sentences(finding), stacklevel=2)
    broken = [f for f in found.findings if f.severity == "broken"]
    if broken:
        error = ResourceError(broken[0].happened, broken[0].expected, broken[0].remedy)
        for other in broken[1:]:
            error.add_note(sentences(other))
        raise error
    if verbose:
        print(found)


def _sorted(findings: Sequence[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda f: ("broken", "warning", "ok").index(f.severity))
