"""Work that an engine has to be able to do: read levels, count groups, train two rounds; tried in a child process.

What goes wrong in a broken installation goes wrong badly: a crash in a library, an abort, a hang. In a child each of
them becomes an answer. The child says on standard output which step it begins, so that the last one is the culprit.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..packages import Finding
from ..units import format_seconds

if TYPE_CHECKING:
    import pyarrow as pa

    from ..columns import Column
    from ..engine import Engine

EngineName = Literal["cpu", "gpu"]

TIMEOUT_S = 300.0  # a first import of cuDF from a slow disk takes a minute
_MARK = "tabgpu-trial:"  # what the child says for its parent, among what libraries print
_PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])
_REPEATS = 50


@dataclass(frozen=True)
class Trial:
    """How a trial of one engine ended.

    Parameters
    ----------
    engine : {'cpu', 'gpu'}
        Which engine.
    passed : bool
        Whether everything came out as it should.
    seconds : float
        How long it took, start of Python and imports included.
    step : str
        What it was doing last, as "train two rounds".
    failure : str
        What happened there, in words; empty where it passed.
    imports_only : bool
        Whether nothing was tried but to import its packages, since there is no device to use them on.
    """

    engine: EngineName
    passed: bool
    seconds: float
    step: str
    failure: str = ""
    imports_only: bool = False


def run(engine: EngineName, imports_only: bool = False, timeout_s: float = TIMEOUT_S, code: str | None = None) -> Trial:
    """Try an engine in a child process. Tests give other `code` for the child.

    The child finds the same tabgpu as this process, but no module in the working folder.
    """
    code = code or f"from tabgpu.doctor import trial; trial.main({engine!r}, {imports_only})"
    # at the end of the path: what is installed beside tabgpu must not hide the standard library
    code = f"import sys; sys.path.append({_PACKAGE_ROOT!r})\n{code}"
    command = [sys.executable, "-P", "-c", code]
    environ = {**os.environ, "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "passive")}
    began = time.monotonic()
    try:
        done = subprocess.run(
            command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False
        )
        out, err, failure = done.stdout, done.stderr, _ending(done.returncode)
    except subprocess.TimeoutExpired as error:
        out, err, failure = error.stdout or b"", b"", f"it did not end within {format_seconds(timeout_s)}"
    said = [json.loads(line.removeprefix(_MARK)) for line in _lines(out) if line.startswith(_MARK)]
    step = next((record["step"] for record in reversed(said) if "step" in record), "start")
    told = next((record["failure"] for record in said if "failure" in record), "")
    passed = not failure and any("passed" in record for record in said)
    if not passed:
        failure = told or ": ".join(filter(None, [failure or "it ended too early", (_lines(err) or [""])[-1]]))
    return Trial(engine, passed, round(time.monotonic() - began, 2), step, failure, imports_only)


def judge(trial: Trial) -> Finding:
    """The finding about a trial; ok where it passed."""
    name = "GPU engine" if trial.engine == "gpu" else "CPU engine"
    took = format_seconds(trial.seconds)
    if trial.passed:
        did = "Its packages can be imported" if trial.imports_only else "Counted groups and trained two rounds"
        return Finding(name, "ok", f"{did} ({took}{'' if trial.imports_only else ', imports included'})")
    return Finding(
        name,
        "broken",
        f"A trial of the {name} failed at '{trial.step}' after {took}: {trial.failure}",
        "Expected its packages to be importable"
        if trial.imports_only
        else "Expected it to count groups and to train two rounds",
        "Make a fresh environment with the packages that tabgpu names"
        + (", and look at what nvidia-smi and dmesg say" if trial.engine == "gpu" else ""),
    )


def main(name: EngineName, imports_only: bool) -> None:
    """Be the child: try one engine, say what begins, and how it ended. Ends the process."""
    try:
        _say(step="import packages")
        for module in (f"tabgpu.engine.{name}", "xgboost"):
            import_module(module)
        if not imports_only:
            _work(name)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the trial is to find
        first = next(iter(str(error).strip().splitlines()), "")  # what follows is a trace of addresses
        _say(failure=f"{type(error).__name__}: {first[:300]}")
        sys.exit(1)
    _say(passed=True)


def _work(name: EngineName) -> None:
    from ..engine import resolve

    _say(step="set up the engine")
    engine, _ = resolve(name)
    _say(step="count groups")
    columns = _count_groups(engine)
    _say(step="train two rounds")
    _train(engine, columns)


def _table() -> pa.Table:
    import pyarrow as pa

    shops = ["north", "south", None, "north"] * _REPEATS
    return pa.table({"shop": shops, "price": [float(i % 7) for i in range(len(shops))]})


def _count_groups(engine: Engine) -> dict[str, Column]:
    """Columns that the engine read from a file, once the rows of each level were counted right."""
    import pyarrow.parquet as pq

    from ..files import find, make_parts, read_footer
    from ..schema import unify

    with tempfile.TemporaryDirectory(prefix="tabgpu-trial-") as folder:
        pq.write_table(_table(), Path(folder, "trial.parquet"), row_group_size=4 * _REPEATS)
        (footer,) = map(read_footer, find("trial.parquet", Path(folder), "the trial's file"))
        types = list(unify([footer], {}).columns.values())
        (part,) = make_parts([footer], footer.n_rows)
        (columns,) = engine.read(part, types, footer.n_rows)
    shop = columns["shop"]
    if shop.levels is None:
        raise ValueError("text has no levels")
    counts = engine.to_host(engine.xp.bincount(shop.values + 1, minlength=len(shop.levels) + 1)).tolist()
    found = dict(zip([None, *shop.levels.values.to_pylist()], counts, strict=True))
    expected = {None: _REPEATS, "north": 2 * _REPEATS, "south": _REPEATS}
    if found != expected:
        raise ValueError(f"the groups have {found} rows and not {expected}")
    return columns


def _train(engine: Engine, columns: dict[str, Column]) -> None:
    """Train two rounds on a target that one split explains, on the engine's device and nowhere else."""
    import numpy as np
    import xgboost

    n_rows = len(columns["price"].values)
    matrix = engine.matrix({"price": columns["price"]}, ["price"], n_rows)
    target = engine.to_device(np.array([float(i % 7 > 3) for i in range(n_rows)], np.float32))
    params = {"device": engine.device, "tree_method": "hist", "max_bin": 16, "eta": 1.0, "lambda": 0}
    with engine.training():
        quantiles = xgboost.QuantileDMatrix(matrix, label=target, max_bin=16)
        booster = xgboost.train(params, quantiles, num_boost_round=2)
        predicted = booster.predict(quantiles)
    engine.check_trained(booster)
    if not np.allclose(predicted, engine.to_host(target), atol=1e-3):
        raise ValueError("the model does not fit its target")


def _ending(code: int) -> str:
    """What an exit code means; empty for 0."""
    if code >= 0:
        return f"it ended with exit code {code}" if code else ""
    try:
        return f"it was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"it was ended by signal {-code}"


def _lines(output: bytes) -> list[str]:
    return [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]


def _say(**record: Any) -> None:
    print(_MARK + json.dumps(record), flush=True)
