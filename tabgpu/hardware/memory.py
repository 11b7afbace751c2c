"""Memory that a process tree takes: of one process now, its high-water mark, and the peak of every stage.

Anonymous and shared memory count against the limit; file-backed pages are told apart, since the kernel drops them when
it needs room. Where `/proc` does not tell, psutil does.
"""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path
from typing import NamedTuple

import psutil

from .kernel import read_text

_CHILDREN_EVERY = 20  # samples: finding the children costs more than reading them


class MemoryUse(NamedTuple):
    """Memory of some processes in bytes.

    `anonymous` and `shared` count against the limit; `file_backed` pages can be dropped by the kernel at any time.
    Pages that processes share are counted once for each of them: an upper bound.
    """

    anonymous: int = 0
    shared: int = 0
    file_backed: int = 0

    @property
    def counted(self) -> int:
        """What counts against the limit: `anonymous` + `shared`."""
        return self.anonymous + self.shared


def memory_use(root: Path = Path("/"), pid: int | str = "self") -> MemoryUse:
    """Memory of one process now; zeros when it has ended.

    Where the system does not tell anonymous from file-backed pages (macOS), all resident memory counts as anonymous.
    """
    status = read_text(f"{root}/proc/{pid}/status")
    if status:  # read at every sample, so only the three lines are looked at; a process that ends has none of them
        _, found, rest = status.partition("RssAnon:")
        words = rest.split(None, 7)
        return MemoryUse(*(1024 * int(words[i]) for i in (0, 6, 3))) if found else MemoryUse()
    try:
        return MemoryUse(psutil.Process(None if pid == "self" else int(pid)).memory_info().rss)
    except psutil.Error:
        return MemoryUse()


def high_water_bytes() -> int:
    """Largest resident memory of this process since its start, file-backed pages included (VmHWM); 0 if unknown."""
    _, _, rest = read_text("/proc/self/status").partition("VmHWM:")
    return 1024 * int(rest.split(None, 1)[0]) if rest else 0


class MemoryMonitor:
    """Context manager that samples the memory of this process and its children in a thread of its own.

    What rises and falls between two samples, `interval_s` seconds apart, is not seen.

    Attributes
    ----------
    peak : MemoryUse
        The sample with the largest `counted`.
    file_backed_peak_bytes : int
        Largest file-backed memory, which no limit counts.
    stage_peaks : dict of str to int
        Largest `counted` in bytes while each stage ran, in the order in which the stages began.

    Examples
    --------
    >>> with MemoryMonitor() as monitor:
    ...     monitor.stage("fill")
    ...     block = bytearray(b"x") * 20_000_000
    >>> monitor.peak_bytes >= 20_000_000, list(monitor.stage_peaks)
    (True, ['start', 'fill'])
    """

    def __init__(self, interval_s: float = 0.05) -> None:
        self.interval_s = interval_s
        self.peak = MemoryUse()
        self.file_backed_peak_bytes = 0
        self.stage_peaks: dict[str, int] = {}
        self._stage = "start"
        self._children: list[int] = []
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._sample_until_stopped, name="memory-monitor", daemon=True)

    @property
    def peak_bytes(self) -> int:
        """Largest anonymous + shared memory of the process tree so far."""
        return self.peak.counted

    def current(self) -> MemoryUse:
        """Take a sample now: memory of this process and its children."""
        with self._lock:
            self._children = descendants()
            return self._sample()

    def stage(self, name: str) -> None:
        """End the running stage and begin another; a name that returns goes on where it was."""
        self.current()
        self._stage = name
        self.current()

    def __enter__(self) -> MemoryMonitor:
        self.current()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self.current()

    def _sample_until_stopped(self) -> None:
        for count in itertools.count(1):
            if self._stop.wait(self.interval_s):
                return
            with self._lock:
                if count % _CHILDREN_EVERY == 0:
                    self._children = descendants()
                self._sample()

    def _sample(self) -> MemoryUse:
        use = MemoryUse(*map(sum, zip(memory_use(), *(memory_use(pid=pid) for pid in self._children), strict=True)))
        if use.counted >= self.peak.counted:
            self.peak = use
        self.file_backed_peak_bytes = max(self.file_backed_peak_bytes, use.file_backed)
        self.stage_peaks[self._stage] = max(self.stage_peaks.get(self._stage, 0), use.counted)
        return use


def descendants() -> list[int]:
    """Process ids of the children of this process and of their children."""
    found, todo = [], [os.getpid()]
    if not Path(f"/proc/self/task/{threading.get_native_id()}/children").exists():
        return [child.pid for child in psutil.Process().children(recursive=True)]
    while todo:
        for task in Path(f"/proc/{todo.pop()}/task").glob("*/children"):
            children = [int(word) for word in read_text(task).split()]
            found += children
            todo += children
    return found
