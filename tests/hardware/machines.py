"""Machines that are not there: trees with /proc and /sys in them."""

from __future__ import annotations

from pathlib import Path


def machine(root: Path, files: dict[str, str]) -> Path:
    """A tree with /proc and /sys in it: 64 GiB, 60 free, this process holding 100 MiB."""
    usual = {
        "proc/meminfo": f"MemTotal: {64 * 2**20} kB\nMemAvailable: {60 * 2**20} kB\nHugePages_Total: 0\n",
        "proc/self/status": "Name:\tx\nRssAnon:\t  92160 kB\nRssFile:\t 7 kB\nRssShmem:\t 10240 kB\nVmData:\t 1 kB\n",
    }
    for name, text in (usual | files).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root
