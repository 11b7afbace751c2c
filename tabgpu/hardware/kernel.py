"""Small files of the kernel, read so that a missing one is an empty answer and never an error."""

from __future__ import annotations

from pathlib import Path


def read_text(path: Path | str) -> str:
    """Read a small file; empty where there is none: another kind of system, or a process has ended."""
    try:
        with open(path, "rb", buffering=0) as file:
            return (file.read(1 << 16) or b"").decode(errors="replace")
    except OSError:
        return ""


def whole_number(text: str) -> int:
    """A whole number as the kernel and SLURM write it; 0 for "max", -1 and all else."""
    return int(text) if text.strip().isdecimal() else 0
