"""All array code of the package, run once behind a stand-in for CuPy, makes only calls that CuPy takes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract.cupy_rules import problems
from contract.recorder import PACKAGE, RECORDER, XP, Call, DeviceArray, to_device

TESTS = Path(__file__).resolve().parent.parent
SUITES = ["features", "data", "test_hashing.py", "test_columns.py"]  # what computes on `xp`


@pytest.fixture(scope="module")
def signatures() -> dict[str, Any]:
    known: dict[str, Any] = json.loads((TESTS / "contract" / "cupy_signatures.json").read_text())
    return known


def record(folder: Path, *arguments: str) -> list[Call]:
    """Run pytest behind the stand-in, in a process of its own; the calls that it recorded."""
    file = folder / "calls.json"
    options = ["-q", "-p", "no:cacheprovider", "--record-xp", str(file)]
    command = [sys.executable, "-m", "pytest", *options, *arguments]
    result = subprocess.run(command, cwd=TESTS.parent, env=os.environ, capture_output=True, text=True, check=False)
    output = result.stdout + result.stderr
    assert result.returncode == 0, output[-6000:]
    rows = json.loads(file.read_text())
    return [Call(n, p, tuple(k), tuple(a), w, trouble) for n, p, k, a, w, trouble in rows]


def run_as_package(code: str, scope: dict[str, Any]) -> None:
    """Run code as if it stood in line 2 of a module of the package."""
    exec(compile(f"\n{code}", f"{PACKAGE}/features/misuse.py", "exec"), scope)


def test_every_array_call_is_one_that_cupy_takes(tmp_path: Path, signatures: dict[str, Any]) -> None:
    calls = record(tmp_path, *(str(TESTS / s) for s in SUITES if (TESTS / s).exists()))
    assert len({c.where for c in calls}) > 50  # else nothing was recorded
    assert problems(calls, signatures) == []


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("xp.take(x, x, mode='clip')", "take: CuPy refuses the arguments: got an unexpected keyword argument 'mode'"),
        ("xp.cumsum(x, 0, None, None, None)", "cumsum: CuPy refuses the arguments: too many positional arguments"),
        ("xp.char.add", "char: CuPy has no such name"),
        (
            "x.sort(axis=0, order=None)",
            "ndarray.sort: CuPy refuses the arguments: got an unexpected keyword argument 'order'",
        ),
        ("x + np.arange(3)", "add: an array of the host (int64) among those of the device"),
        ("np.where(x > 1, x, np.zeros(3))", "where: an array of the host (float64) among those of the device"),
        ("xp.minimum(x, [1, 2, 3])", "minimum: a list in place of an array"),
        ("xp.add.at(x, x, 1)", "ufunc.at: orders of addition differ; use bincount"),
        ("x.__setitem__(slice(3), np.zeros(3))", "ndarray.__setitem__: an array of the host (float64) among those"),
        ("xp.asarray(x.astype(object))", "CuPy has no dtype object"),
        ("xp.zeros(3, dtype='datetime64[s]')", "zeros: CuPy has no dtype datetime64[s]"),
        ("xp.zeros(3, dtype=np.longdouble)", "zeros: CuPy has no dtype float128"),
        ("x.astype(np.longdouble)", "CuPy has no dtype float128"),
        ("xp.take(x, xp.asarray([7]))", "take: out of bounds, which CuPy does not tell"),
        ("x.take(xp.asarray([0, 3]))", "ndarray.take: out of bounds, which CuPy does not tell"),
        ("x[xp.asarray([3])]", "ndarray.__getitem__: out of bounds, which CuPy does not tell"),
        ("x[xp.asarray([3])] = 0", "ndarray.__setitem__: out of bounds, which CuPy does not tell"),
        ("x[np.asarray([1])]", "ndarray.__getitem__: an array of the host (int64) among those of the device"),
        ("xp.bincount(x, weights=x)", "bincount: CuPy adds the weights as they are, atomically: make them float64"),
        ("xp.bincount(x > 1)", "bincount: CuPy counts integers only"),
        ("xp.searchsorted(x, x.astype('uint64'))", "searchsorted: CuPy compares int64 with uint64 as C does"),
        ("xp.argsort(x, kind='mergesort')", "argsort: CuPy has no kind of sorting but 'stable'"),
        ("x.sort(kind='quicksort')", "ndarray.sort: CuPy has no kind of sorting but 'stable'"),
        ("xp.lexsort((x, x))", "lexsort: CuPy takes one array of keys, not several"),
        ("(x / 0.0).astype('int64')", "ndarray.astype: NaN or out of range, which a device turns otherwise"),
        ("(x / 2.0) // 0.5", "floor_divide: CuPy takes floor(a / b)"),
        ("(x / 2.0) % 0.5", "remainder: CuPy takes floor(a / b)"),
        ("x // 2 + x % 2", None),
        ("xp.power(x > 1, x > 1)", None),
        ("xp.logical_not(x.astype('complex64'))", "CuPy has no loop that makes bool of complex64"),
        ("xp.where(x > 1, x, 0).sum() + xp.bincount(x, minlength=4)[0]", None),
        ("{int(x.max()): xp.searchsorted(x, x, side='right')}", None),
    ],
)
def test_a_misuse_is_named(code: str, complaint: str | None, signatures: dict[str, Any]) -> None:
    before = len(RECORDER.calls)
    # NumPy refuses some of them itself, after they were recorded
    with contextlib.suppress(TypeError, IndexError, ValueError), np.errstate(all="ignore"):
        run_as_package(code, {"xp": XP, "np": np, "x": to_device(np.arange(3))})
    found = problems(list(RECORDER.calls)[before:], signatures)
    if complaint is None:
        assert not found
    else:
        assert any(complaint in f for f in found)
        assert all(f.startswith("features/misuse.py:2: ") for f in found)


def test_the_device_behaves_as_cupy_does() -> None:
    x = to_device(np.arange(3))
    run_as_package("t = x.max(); y = x[1]; x += y; h = x.get()", scope := {"x": x, "np": np})
    assert all(isinstance(scope[name], DeviceArray) and scope[name].shape == () for name in "ty")
    assert type(scope["h"]) is np.ndarray
    assert scope["x"] is x
    assert x.tolist() == [1, 2, 3]
    assert hasattr(x, "__cuda_array_interface__")
    with pytest.raises(TypeError, match="unhashable"):
        run_as_package("{t}", scope)
