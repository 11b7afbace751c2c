"""Benchmark startup: the time of ``import tabgpu`` and of ``tabgpu --help``, each in a fresh process.

python scripts/bench/startup.py [--repeats 10] [--json FILE]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from measure import TABGPU, interleave, report, save


def main() -> int:
    parser = argparse.ArgumentParser(description="Start-up times of tabgpu.")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--json", type=Path, help="write all that was measured to this file")
    args = parser.parse_args()
    contenders = {
        "bare python": [sys.executable, "-c", "pass"],
        "import tabgpu": [sys.executable, "-c", "import tabgpu"],
        "tabgpu --help": [*TABGPU, "--help"],
    }
    with tempfile.TemporaryDirectory() as folder:
        samples = interleave(contenders, args.repeats, Path(folder))
    save(report("startup", samples, "bare python", {}), args.json)
    return max(s.exit_code != 0 for runs in samples.values() for s in runs)


if __name__ == "__main__":
    sys.exit(main())
