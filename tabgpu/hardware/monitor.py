"""What processors, disks and GPUs do while a run goes on: a record each second, and a short summary at the end.

A thread of its own asks psutil for this process and its children and, where there are GPUs, NVML; it makes no CUDA
context. Each record goes to whoever was named, such as the event file of a run; the peaks of memory that a limit is
held against are `MemoryMonitor`'s to find, which looks twenty times as often.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Any, NamedTuple

import psutil

from ..errors import TabgpuError
from ..units import format_bytes
from .memory import descendants, memory_use
from .system import SystemHardware

Note = Callable[[dict[str, Any]], object]


class Taken(NamedTuple):
    """What a process tree has taken since its processes began: seconds of processor, bytes from and to disks."""

    cpu_s: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0


def taken(pids: list[int]) -> Taken:
    """Sum over processes; those that have ended are counted with the parent that waited for them.

    Bytes are those that reached a device, so that what the page cache had is not among them; zero where the system does
    not tell (macOS).
    """
    total = Taken()
    for pid in pids:
        try:
            process = psutil.Process(pid)
            times = process.cpu_times()
            counters = process.io_counters() if hasattr(process, "io_counters") else None
        except psutil.Error:  # it has ended meanwhile
            continue
        children = times.children_user + times.children_system
        total = Taken(
            total.cpu_s + times.user + times.system + children,
            total.read_bytes + (counters.read_bytes if counters else 0),
            total.written_bytes + (counters.write_bytes if counters else 0),
        )
    return total


class DeviceMonitor:
    """Context manager that takes a sample each `interval_s` seconds and passes it to `note`.

    Parameters
    ----------
    note : callable, optional
        Called with one record, in the monitor's thread: ``cpu`` (``percent`` of one processor, ``memory_bytes``,
        ``read_bytes_s``, ``written_bytes_s``) and ``gpus``, a list with ``index`` and what
        `tabgpu.hardware.nvml.sample` tells, empty where there are none. If it raises a `TabgpuError`, as on a full
        disk, that record is lost: saying so is left to the main thread, which writes to the same disk.
    interval_s : float
        Seconds between samples.
    gpus : context manager, optional
        Gives the function that samples the GPUs: `SystemHardware.gpu_sampler` by default.

    Examples
    --------
    >>> records = []
    >>> with DeviceMonitor(records.append, interval_s=0.05) as monitor:
    ...     time.sleep(0.3)
    >>> sorted(records[0]["cpu"])
    ['memory_bytes', 'percent', 'read_bytes_s', 'written_bytes_s']
    >>> monitor.summary()["samples"] == len(records)
    True
    """

    def __init__(
        self,
        note: Note | None = None,
        interval_s: float = 1.0,
        gpus: AbstractContextManager[Callable[[], list[dict[str, Any]]]] | None = None,
    ) -> None:
        self.interval_s = interval_s
        self._note = note
        self._opened = gpus or SystemHardware().gpu_sampler()
        self._stack = ExitStack()
        self._count = 0
        self._began = self._ended = self._before_s = 0.0
        self._first = self._last = Taken()
        self._cpu = _Series()
        self._gpus: dict[int, _Series] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_stopped, name="device-monitor", daemon=True)

    def __enter__(self) -> DeviceMonitor:
        self._sample_gpus = self._stack.enter_context(self._opened)
        self._began = self._before_s = self._ended = time.monotonic()
        self._first = self._last = taken(_tree())
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        with self._lock:
            self._last, self._ended = taken(_tree()), time.monotonic()
        self._stack.close()

    def summary(self) -> dict[str, Any]:
        """What was taken so far, or until the end, and what the samples amount to.

        Returns
        -------
        dict
            ``seconds``, ``samples``, ``cpu`` (``mean_percent`` of one processor, ``peak_percent``,
            ``peak_memory_bytes``, ``read_bytes``, ``written_bytes``) and ``gpus``, a list with ``index``,
            ``mean_utilisation``, ``peak_memory_used_bytes``, ``peak_temperature_c``, ``mean_power_w``,
            ``throttled_share`` (of the samples) and ``throttling`` (share by reason).
        """
        with self._lock:
            last, ended = self._last, self._ended
            if not self._stop.is_set():
                last, ended = taken(_tree()), time.monotonic()
            seconds = ended - self._began
            cpu_s = last.cpu_s - self._first.cpu_s
            return {
                "seconds": round(seconds, 3),
                "samples": self._count,
                "cpu": {
                    "mean_percent": round(100 * cpu_s / seconds, 1) if seconds else None,
                    "peak_percent": self._cpu.peak("percent"),
                    "peak_memory_bytes": self._cpu.peak("memory_bytes"),
                    "read_bytes": last.read_bytes - self._first.read_bytes,
                    "written_bytes": last.written_bytes - self._first.written_bytes,
                },
                "gpus": [{"index": index, **_gpu_summary(series)} for index, series in sorted(self._gpus.items())],
            }

    def _sample_until_stopped(self) -> None:
        while not self._stop.wait(self.interval_s):
            record = self._sample()
            if self._note is not None:
                with suppress(TabgpuError):
                    self._note(record)

    def _sample(self) -> dict[str, Any]:
        pids = _tree()
        now_s, now = time.monotonic(), taken(pids)
        gpus = self._sample_gpus()
        with self._lock:
            seconds, last = now_s - self._before_s, self._last
            cpu = {
                "percent": round(100 * max(0.0, now.cpu_s - last.cpu_s) / seconds, 1),
                "memory_bytes": sum(memory_use(pid=pid).counted for pid in pids),
                "read_bytes_s": round(max(0, now.read_bytes - last.read_bytes) / seconds),
                "written_bytes_s": round(max(0, now.written_bytes - last.written_bytes) / seconds),
            }
            self._before_s = self._ended = now_s
            self._last = now
            self._count += 1
            self._cpu.add(cpu)
            for gpu in gpus:
                self._gpus.setdefault(gpu["index"], _Series()).add(gpu)
        return {"cpu": cpu, "gpus": gpus}


class _Series:
    """Sums and peaks of the numbers in records, and how often each reason was among ``throttling``."""

    def __init__(self) -> None:
        self.count = 0
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._counts: Counter[str] = Counter()
        self._peaks: dict[str, float] = {}
        self.throttled = 0
        self.reasons: Counter[str] = Counter()

    def add(self, record: Mapping[str, Any]) -> None:
        self.count += 1
        self.throttled += bool(record.get("throttling"))
        self.reasons.update(record.get("throttling") or ())
        for name, value in record.items():
            if isinstance(value, int | float):
                self._sums[name] += value
                self._counts[name] += 1
                self._peaks[name] = max(value, self._peaks.get(name, value))

    def mean(self, name: str) -> float | None:
        return round(self._sums[name] / self._counts[name], 1) if self._counts[name] else None

    def peak(self, name: str) -> float | None:
        return self._peaks.get(name)


def _gpu_summary(series: _Series) -> dict[str, Any]:
    return {
        "mean_utilisation": series.mean("utilisation"),
        "peak_memory_used_bytes": series.peak("memory_used_bytes"),
        "peak_temperature_c": series.peak("temperature_c"),
        "mean_power_w": series.mean("power_w"),
        "throttled_share": round(series.throttled / series.count, 3),
        "throttling": {reason: round(count / series.count, 3) for reason, count in series.reasons.items()},
    }


def describe(summary: Mapping[str, Any]) -> str:
    """One line about what `DeviceMonitor.summary` found.

    Examples
    --------
    >>> cpu = {"mean_percent": 187.4, "read_bytes": 3_000_000, "written_bytes": 0}
    >>> gpu = {"index": 0, "mean_utilisation": 87.2, "peak_memory_used_bytes": 41e9, "peak_temperature_c": 71}
    >>> gpu |= {"throttled_share": 0.25, "throttling": {"power cap": 0.25}}
    >>> describe({"cpu": cpu, "gpus": [gpu]})
    'CPU 187% busy, 3 MB read, 0 B written; GPU 0 87% busy, 41 GB at the peak, 71 °C, throttled 25% (power cap)'
    """
    cpu = summary["cpu"]
    read, written = (format_bytes(cpu[f"{way}_bytes"]) for way in ("read", "written"))
    return "; ".join(
        [f"CPU {_percent(cpu['mean_percent'])} busy, {read} read, {written} written"]
        + [f"GPU {gpu['index']} {', '.join(_gpu_words(gpu))}" for gpu in summary["gpus"]]
    )


def _gpu_words(gpu: Mapping[str, Any]) -> Iterator[str]:
    if gpu["mean_utilisation"] is not None:
        yield f"{_percent(gpu['mean_utilisation'])} busy"
    if gpu["peak_memory_used_bytes"] is not None:
        yield f"{format_bytes(gpu['peak_memory_used_bytes'])} at the peak"
    if gpu["peak_temperature_c"] is not None:
        yield f"{gpu['peak_temperature_c']:.0f} °C"
    if gpu["throttled_share"]:
        yield f"throttled {_percent(100 * gpu['throttled_share'])} ({', '.join(gpu['throttling'])})"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}%"


def _tree() -> list[int]:
    return [os.getpid(), *descendants()]
