"""Print what pip resolves for extras of tabgpu, one ``name==version`` a line; run by scripts/lock.

    python scripts/lock.py cu12,cluster

Only metadata is fetched and nothing is installed: the CUDA 13 set resolves where it could not run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

OURS = "tabgpu"


def main(extras: str) -> None:
    versions = resolve(extras)
    version = ".".join(map(str, sys.version_info[:2]))
    print(f"# What pip resolves for tabgpu[{extras}] on Python {version}, Linux x86-64.")
    print("# Written by scripts/lock; change pyproject.toml, then run that script.")
    for name in sorted(versions, key=str.lower):
        print(f"{name}=={versions[name]}")


def resolve(extras: str) -> dict[str, str]:
    """Version by distribution, without tabgpu itself."""
    project = Path(__file__).resolve().parent.parent
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ["-qq", "--dry-run", "--ignore-installed", "--report", str(report)]
        subprocess.run([sys.executable, "-m", "pip", "install", *options, f"{project}[{extras}]"], check=True)
        installs = json.loads(report.read_text())["install"]
    found = {each["metadata"]["name"]: each["metadata"]["version"] for each in installs}
    found.pop(OURS)
    return found


if __name__ == "__main__":
    main(sys.argv[1])
