"""The exception tree: one subclass of `TabgpuError` for each exit code of the command line.

    TabgpuError
    |-- ConfigError      exit 2   wrong usage or configuration         (also a ValueError)
    |-- DataError        exit 3   the data, or a damaged bundle        (also a ValueError)
    |-- ResourceError    exit 4   memory, disk or device: does not fit (also a MemoryError)
    |-- ClusterError     exit 5   the cluster was lost                 (also a ConnectionError)
    |-- GateError        exit 6   a gate failed                        (also an AssertionError)
    `-- LockedError      exit 75  another run holds the lock           (also a BlockingIOError)

A message has three sentences: what happened (with the value, column and file), what was expected (the choices, the
nearest name), and what to do (the key of the pipeline file and the flag). `TabgpuError` takes them as three arguments
so that none is forgotten. Anything else that reaches the user is a bug in tabgpu (exit 1).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TabgpuError(Exception):
    """Base of all errors that tabgpu raises for the user.

    Parameters
    ----------
    happened : str
        What happened, naming value, column and file.
    expected : str
        What was expected: the choices or the nearest name.
    remedy : str
        What to do: the key of the pipeline file and the flag.
    """

    exit_code = 1

    def __init__(self, happened: str, expected: str, remedy: str) -> None:
        self.happened, self.expected, self.remedy = (_sentence(s) for s in (happened, expected, remedy))
        super().__init__(f"{self.happened} {self.expected} {self.remedy}")

    def __reduce__(self) -> tuple[type[TabgpuError], tuple[str, str, str]]:
        return type(self), (self.happened, self.expected, self.remedy)


class ConfigError(TabgpuError, ValueError):
    """Wrong usage or configuration."""

    exit_code = 2


class DataError(TabgpuError, ValueError):
    """The data, or a bundle, is not what it has to be."""

    exit_code = 3


class ResourceError(TabgpuError, MemoryError):
    """Memory, disk or device do not suffice."""

    exit_code = 4


class ClusterError(TabgpuError, ConnectionError):
    """The cluster was lost; a retry may succeed."""

    exit_code = 5


class GateError(TabgpuError, AssertionError):
    """A gate set by the user failed."""

    exit_code = 6


class LockedError(TabgpuError, BlockingIOError):
    """Another run holds the lock."""

    exit_code = 75


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return ``"Did you mean 'x'?"`` for the nearest choice, or the list of choices when none is near.

    Examples
    --------
    >>> nearest("max_dpeth", ["max_depth", "eta"])
    "Did you mean 'max_depth'?"
    >>> nearest("q", ["max_depth", "eta"])
    "Known are 'eta', 'max_depth'."
    """
    known = sorted(set(choices))
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if not close:  # names that differ in case alone
        close = [k for k in known if k.lower() == name.lower()][:1]
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"Known are {listing(known)}." if known else "None are known."


def listing(names: Iterable[object], limit: int = 12) -> str:
    """Join quoted names with commas, cut after `limit` of them.

    Examples
    --------
    >>> listing(["a", "b", "c"], limit=2)
    "'a', 'b' and 1 more"
    """
    items = [repr(n) for n in names]
    if len(items) > limit:
        return f"{', '.join(items[:limit])} and {len(items) - limit} more"
    return ", ".join(items)


def correct(key: str, value: str) -> str:
    """Say how to correct what stands under a key: of the pipeline file, or an argument of another command.

    Examples
    --------
    >>> correct("data.source", "PATH")
    'Correct data.source in the pipeline file, or pass --set data.source=PATH'
    >>> correct("--keep", "COLUMN"), correct("DATA", "PATH")
    ('Correct --keep', 'Correct DATA')
    """
    in_file = "." in key and not key.startswith("-") and " " not in key
    return f"Correct {key} in the pipeline file, or pass --set {key}={value}" if in_file else f"Correct {key}"


def _sentence(text: str) -> str:
    text = text.strip()
    return text if not text or text[-1] in ".?!:" else text + "."
