from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_nvml import Nvml, gpu, pretend
from hypothesis import given, settings
from hypothesis import strategies as st

from tabgpu.errors import ResourceError
from tabgpu.hardware import DeviceMonitor, SystemHardware, describe
from tabgpu.hardware.monitor import Taken, _Series, taken


@contextmanager
def playing(*turns: list[dict[str, Any]]) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """A sampler that plays records, the last one again and again."""
    left = list(turns)
    yield lambda: left.pop(0) if len(left) > 1 else left[0]


def until(condition: Callable[[], object]) -> None:
    for _ in range(500):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come to pass within 5 s")


def test_processors_of_this_process_and_its_children() -> None:
    began = time.process_time()
    burn = "import time\nwhile time.process_time() < 0.6: pass"
    with DeviceMonitor(interval_s=0.05, gpus=playing([])) as monitor:
        while time.process_time() - began < 0.3:
            pass
        subprocess.run([sys.executable, "-c", burn], check=True)
    summary = monitor.summary()
    used_s = summary["cpu"]["mean_percent"] / 100 * summary["seconds"]
    assert 0.85 < used_s < 1.6  # the child counts although it has ended
    assert summary["cpu"]["peak_memory_bytes"] > 10_000_000


def test_a_child_that_ends_is_counted_once() -> None:
    before = taken([1 << 30])  # no such process
    assert before == Taken()
    burn = "import time\nwhile time.process_time() < 0.4: pass"
    import os

    first = taken([os.getpid()]).cpu_s
    subprocess.run([sys.executable, "-c", burn], check=True)
    assert taken([os.getpid()]).cpu_s - first >= 0.35


def test_records_are_passed_on_as_they_come() -> None:
    records: list[dict[str, Any]] = []
    with DeviceMonitor(records.append, interval_s=0.01, gpus=playing([{"index": 0, "utilisation": 5}])) as monitor:
        until(lambda: len(records) >= 3)
    count = len(records)
    assert records[0]["gpus"] == [{"index": 0, "utilisation": 5}]
    assert records[0]["cpu"]["percent"] >= 0
    assert monitor.summary()["samples"] == count
    time.sleep(0.05)
    assert len(records) == count  # it has stopped
    assert "device-monitor" not in {thread.name for thread in threading.enumerate()}


def test_a_full_disk_loses_records_and_not_the_monitor() -> None:
    calls = []

    def note(record: dict[str, Any]) -> None:
        calls.append(record)
        raise ResourceError("The disk is full", "Expected room", "Make room")

    with DeviceMonitor(note, interval_s=0.01, gpus=playing([])) as monitor:
        until(lambda: len(calls) >= 3)
    assert monitor.summary()["samples"] >= 3


def test_an_error_in_the_run_stops_it_too() -> None:
    def fail() -> None:
        with DeviceMonitor(interval_s=0.01, gpus=playing([])):
            raise KeyError("x")

    with pytest.raises(KeyError):
        fail()
    assert "device-monitor" not in {thread.name for thread in threading.enumerate()}


def test_means_peaks_and_shares() -> None:
    turns = [
        [{"index": 0, "utilisation": 80, "memory_used_bytes": 10, "temperature_c": 60, "throttling": []}],
        [{"index": 0, "utilisation": 100, "memory_used_bytes": 30, "temperature_c": 70, "throttling": ["power cap"]}],
        [{"index": 0, "utilisation": None, "memory_used_bytes": 20, "temperature_c": 65, "power_w": 50.0}],
        [{"index": 0, "lost": "GPU is lost"}],
    ]
    seen: list[dict[str, Any]] = []
    monitor = DeviceMonitor(seen.append, interval_s=0.01, gpus=playing(*turns))
    monitor._note = lambda record: (seen.append(record), monitor._stop.set() if len(seen) == 4 else None)
    with monitor:
        until(lambda: len(seen) == 4)
    assert monitor.summary()["gpus"] == [
        {
            "index": 0,
            "mean_utilisation": 90.0,
            "peak_memory_used_bytes": 30,
            "peak_temperature_c": 70,
            "mean_power_w": 50.0,
            "throttled_share": 0.25,
            "throttling": {"power cap": 0.25},
        }
    ]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.one_of(st.none(), st.integers(0, 100)), min_size=1))
def test_a_series_leaves_out_what_was_not_told(values: list[int | None]) -> None:
    series = _Series()
    for value in values:
        series.add({"x": value})
    told = [v for v in values if v is not None]
    assert series.peak("x") == (max(told) if told else None)
    assert series.mean("x") == (pytest.approx(sum(told) / len(told), abs=0.051) if told else None)


def test_a_summary_without_a_single_sample() -> None:
    with DeviceMonitor(interval_s=60, gpus=playing([])) as monitor:
        pass
    summary = monitor.summary()
    assert (summary["samples"], summary["gpus"], summary["cpu"]["peak_percent"]) == (0, [], None)
    assert describe(summary).startswith("CPU ")


def test_gpus_are_sampled_through_nvml(tmp_path: Path) -> None:
    nvml = Nvml([gpu("GPU-1", CurrentClocksThrottleReasons=0x4), gpu("GPU-2", "PcieThroughput")])
    with pretend(nvml), SystemHardware(tmp_path, {}).gpu_sampler() as take:
        assert nvml.sessions == 1
        first, second = take()
        nvml.devices[1]["PowerUsage"] = "GpuIsLost"
        lost = take()[1]
    assert nvml.sessions == 0
    assert first == {
        "index": 0,
        "utilisation": 17,
        "memory_busy": 3,
        "memory_used_bytes": 754_820_096,
        "temperature_c": 34,
        "power_w": 76.543,
        "clock_mhz": 345,
        "pcie_to_gpu_bytes_s": 7168,
        "pcie_from_gpu_bytes_s": 7168,
        "throttling": ["power cap"],
    }
    assert (second["index"], second["pcie_to_gpu_bytes_s"]) == (1, None)
    assert lost == {"index": 1, "lost": "GpuIsLost"}


@pytest.mark.parametrize("nvml", [None, Nvml([], "LibraryNotFound"), Nvml([], "Unknown"), Nvml([])])
def test_without_a_gpu_there_is_nothing_to_sample(tmp_path: Path, nvml: Nvml | None) -> None:
    with pretend(nvml), SystemHardware(tmp_path, {}).gpu_sampler() as take:
        assert take() == []


def test_what_the_monitor_costs() -> None:
    with DeviceMonitor(interval_s=60, gpus=playing([])) as monitor:
        began = time.thread_time()
        for _ in range(20):
            monitor._sample()
        assert (time.thread_time() - began) / 20 < 0.01  # of one second


def test_disks_are_those_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = iter([Taken(0, 0, 0), Taken(1, 3_000, 500), Taken(4, 6_000, 500), Taken(4, 7_000, 500)])
    monkeypatch.setattr("tabgpu.hardware.monitor.taken", lambda pids: next(counters))
    clock = SimpleNamespace(monotonic=iter([0.0, 2.0, 5.0, 6.0]).__next__)
    monkeypatch.setattr("tabgpu.hardware.monitor.time", clock)
    with DeviceMonitor(interval_s=60, gpus=playing([])) as monitor:
        records = [monitor._sample()["cpu"], monitor._sample()["cpu"]]
    names = ("percent", "read_bytes_s", "written_bytes_s")
    assert [[record[name] for name in names] for record in records] == [[50.0, 1500, 250], [100.0, 1000, 0]]
    summary = monitor.summary()
    assert (summary["seconds"], summary["cpu"]["read_bytes"], summary["cpu"]["peak_percent"]) == (6.0, 7_000, 100.0)
