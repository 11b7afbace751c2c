"""The public names, and that asking for one does not hide another."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import tabgpu

NAMES = [
    "ClusterError",
    "ConfigError",
    "DataError",
    "GateError",
    "LockedError",
    "Model",
    "Pipeline",
    "ResourceError",
    "Run",
    "TabgpuError",
    "inspect",
    "load",
    "plan",
    "preview",
    "run",
    "score",
    "steps",
    "transform",
]


def test_public_names() -> None:
    assert sorted(tabgpu.__all__) == sorted(NAMES)
    assert {*NAMES} <= {*dir(tabgpu)}
    assert tabgpu.__version__ == version("tabgpu")


def test_importing_costs_nothing_and_verbs_are_no_modules() -> None:
    code = (
        "import sys, tabgpu\n"
        "heavy = {'numpy', 'pyarrow', 'pydantic', 'xgboost', 'yaml', 'click'} & {*sys.modules}\n"
        "assert not heavy, heavy\n"
        "import tabgpu.workflow, tabgpu.cli\n"
        "assert not {'xgboost', 'pandas', 'polars', 'scipy'} & {*sys.modules}\n"
        "assert all(callable(getattr(tabgpu, n)) for n in 'inspect load plan preview run score transform'.split())\n"
        "assert tabgpu.steps.fill(columns=['a']).value == 'median'\n"
        "try:\n    tabgpu.rnu\nexcept AttributeError:\n    pass\nelse:\n    raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_errors_are_builtins_too() -> None:
    codes = {e: e.exit_code for e in tabgpu.TabgpuError.__subclasses__()}
    assert sorted(codes.values()) == [2, 3, 4, 5, 6, 75]
    assert all(len(e.__mro__) > 4 and Exception in e.__mro__ for e in codes)
    error = tabgpu.DataError("It broke", "Expected whole", "Mend it.")
    assert str(error) == "It broke. Expected whole. Mend it."
    assert isinstance(error, ValueError)
