from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

from machines import machine

from tabgpu.hardware import MemoryMonitor, MemoryUse, high_water_bytes, memory_use


def test_the_monitor_sees_what_came_and_went() -> None:
    with MemoryMonitor(interval_s=0.005) as monitor:
        before = monitor.current().counted
        block = bytearray(b"x") * 50_000_000
        time.sleep(0.05)
        del block
        time.sleep(0.05)
        after = monitor.current().counted
    assert monitor.peak_bytes - before >= 49_000_000
    assert after - before < 25_000_000
    assert monitor.peak.counted <= high_water_bytes()


def test_stages_have_peaks_of_their_own() -> None:
    with MemoryMonitor(interval_s=10) as monitor:
        monitor.stage("big")
        block = bytearray(b"x") * 50_000_000
        monitor.stage("small")  # samples both before and after: the block belongs to the stage that made it
        del block
        monitor.stage("big")
        monitor.stage("end")
    peaks = monitor.stage_peaks
    assert list(peaks) == ["start", "big", "small", "end"]
    assert peaks["big"] - peaks["start"] >= 49_000_000
    assert peaks["big"] - peaks["end"] >= 25_000_000
    assert monitor.peak_bytes == max(peaks.values())


def test_file_backed_pages_are_told_apart_and_shared_ones_count(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(30_000_000))
    with MemoryMonitor(interval_s=10) as monitor, path.open("rb") as file:
        before = monitor.current()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            assert sum(mapped[:: mmap.PAGESIZE]) == 0
            read = monitor.current()
        with mmap.mmap(-1, 30_000_000) as shared:
            shared.write(bytes(30_000_000))
            written = monitor.current()
    assert read.file_backed - before.file_backed >= 29_000_000
    assert read.counted - before.counted < 10_000_000
    assert written.shared - before.shared >= 29_000_000
    assert monitor.file_backed_peak_bytes >= read.file_backed


def test_children_and_their_children_count() -> None:
    hold = "b = bytearray(b'x') * 30_000_000; print('ready', flush=True); input()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {hold!r}])"
    with MemoryMonitor(interval_s=10) as monitor:
        before = monitor.current().counted
        with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            during = monitor.current().counted
            child.communicate(b"\n")
        after = monitor.current().counted
    assert during - before >= 30_000_000
    assert after - before < 10_000_000


def test_a_process_that_has_ended_takes_nothing(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
        assert memory_use(pid=child.pid) == MemoryUse()
    assert memory_use(pid=child.pid) == MemoryUse()
    assert memory_use(machine(tmp_path, {})) == MemoryUse(90 * 2**20, 10 * 2**20, 7 * 2**10)


def test_the_monitor_costs_little() -> None:
    with MemoryMonitor() as monitor:
        began = time.thread_time()
        for _ in range(100):
            monitor._sample()
        cost_s = (time.thread_time() - began) / 100
    assert cost_s / monitor.interval_s < 0.005
