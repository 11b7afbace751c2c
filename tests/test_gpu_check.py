"""scripts/gpu-check: its dry run reaches the end, rows and bars mean what they say, and what is missing is named."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "gpu-check"


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))


def module(name: str) -> types.ModuleType:
    return importlib.import_module(f"gpu_check.{name}")


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(SCRIPT), *arguments]
    told = {**os.environ, "PYTHON": sys.executable, **environment}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=told)


def test_a_dry_run_reaches_the_end_of_every_part(tmp_path: Path) -> None:
    done = run("--dry", "--json", str(tmp_path / "found.json"), "--folder", str(tmp_path), "--scale-budget", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    rows = found["rows"]
    assert {row["part"] for row in rows} == {"laws", "memory", "ratios", "whole"}
    assert [row for row in rows if row["ok"] is False] == []
    laws = {row["name"]: row for row in rows if row["part"] == "laws"}
    assert set(laws) == {f"gpu/{p.stem}" for p in (ROOT / "tests" / "gpu").glob("test_*.py")}
    assert sum(row["measured"] for row in laws.values()) >= 20
    names = {row["name"] for row in rows}
    assert {"matrix", "row state", "histograms", "peak of training", "train on the same matrix"} <= names
    assert {"read numbers", "target_encode: observe", "difference of the test AUC"} <= names
    assert found["versions"]["numpy"]
    assert "No law failed" in done.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["found.json"]  # scratch files are gone


def test_where_nothing_can_be_proven_it_says_what_is_missing(tmp_path: Path) -> None:
    if importlib.util.find_spec("cupy"):
        pytest.skip("CuPy is installed here")
    done = run("--parts", "memory")
    assert done.returncode == 4
    assert "cupy" in done.stderr
    empty = run("--parts", "memory", PYTHON="", PATH=f"{tmp_path}:/usr/bin:/bin")
    assert empty.returncode == 4


def test_the_script_is_strict_and_explains_itself() -> None:
    lines = SCRIPT.read_text().splitlines()
    assert os.access(SCRIPT, os.X_OK)
    assert lines[0] == "#!/usr/bin/env bash"
    assert lines[1].startswith("# ")
    assert "set -euo pipefail" in lines
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)


def test_the_parts_together_keep_to_five_minutes() -> None:
    assert sum(module("__main__").BUDGETS.values()) <= 300


@settings(deadline=None, max_examples=50)
@given(st.floats(1e-3, 1e12), st.floats(1e-3, 1e12), st.none() | st.floats(1e-3, 1e3), st.none() | st.floats(1e-3, 1e3))
def test_a_row_is_good_where_its_ratio_keeps_to_the_bar(
    measured: float, against: float, low: float | None, high: float | None
) -> None:
    row = module("rows").Row("p", "n", measured, against, low=low, high=high)
    if low is None and high is None:
        assert row.ok is None
    else:
        assert row.ok == ((low or 0) <= measured / against <= (high or np.inf))
    assert module("rows").Row("p", "n", measured, against, failed=True, high=1e12).ok is False
    assert module("rows").Row("p", "n", None, against, high=1.0).ok is None


def test_rows_survive_a_writer_that_is_killed(tmp_path: Path) -> None:
    rows = module("rows")
    report = rows.Report(tmp_path / "r.jsonl", "memory")
    report.add("matrix", 10, 20, unit="B", high=1.0, group="a shape")
    report.left_out("the rest", "no time is left")
    with (tmp_path / "r.jsonl").open("a") as file:
        file.write('{"part": "memory", "na')
    report.add("the part itself", failed=True)  # written by who has ended the part
    found = rows.read_rows(tmp_path / "r.jsonl")
    assert [row.name for row in found] == ["matrix", "the rest", "the part itself"]
    shown = rows.table(found)
    assert "MEMORY" in shown
    assert "a shape" in shown
    assert "10 B           20 B   0.50  <= 1  yes" in shown
    assert "memory / the rest: left out: no time is left" in shown
    assert rows.read_rows(tmp_path / "none") == []


def test_a_part_that_hangs_fails_or_finds_nothing_becomes_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = module("__main__")
    arguments = types.SimpleNamespace(scale_budget=1.0, dry=True)
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\nexec /bin/sh "$0.body"\n')
    program.chmod(0o755)
    monkeypatch.setattr(main.sys, "executable", str(program))
    monkeypatch.setitem(main.BUDGETS, "laws", 0.5)
    seen = {}
    for body, folder in (("sleep 60 & sleep 60", "hang"), ("echo broken; exit 3", "fail"), ("exit 0", "nothing")):
        (tmp_path / "python.body").write_text(body)
        (tmp_path / folder).mkdir()
        (row,) = main.run("laws", tmp_path / folder, arguments)
        assert row.ok is False
        seen[folder] = row.note
    assert "ran out" in seen["hang"]
    assert "ended with 3: broken" in seen["fail"]
    assert "found nothing" in seen["nothing"]


class FakeRuntime:
    """CUDA's runtime as CuPy shows it, over numbers that a test sets."""

    cudaMemPoolAttrReleaseThreshold, cudaMemPoolAttrUsedMemCurrent = 4, 7
    cudaMemPoolAttrUsedMemHigh, cudaMemPoolAttrReservedMemCurrent = 8, 5

    def __init__(self) -> None:
        self.total, self.used, self.high, self.reserved, self.beside = 10_000, 100, 100, 500, 40
        self.threshold = 0

    def take(self, n_bytes: int) -> None:
        self.used += n_bytes
        self.high, self.reserved = max(self.high, self.used), max(self.reserved, self.used)

    def deviceGetDefaultMemPool(self, device: int) -> int:
        return 1

    def memGetInfo(self) -> tuple[int, int]:
        return self.total - self.reserved - self.beside, self.total

    def memPoolGetAttribute(self, pool: int, which: int) -> int:
        return {7: self.used, 8: self.high, 5: self.reserved}[which]

    def memPoolSetAttribute(self, pool: int, which: int, value: int) -> None:
        if which == self.cudaMemPoolAttrUsedMemHigh:
            assert value == 0
            self.high = self.used
        else:
            self.threshold = value

    def memPoolTrimTo(self, pool: int, n_bytes: int) -> None:
        self.reserved = max(self.used, n_bytes)

    def deviceSynchronize(self) -> None:
        pass


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> FakeRuntime:
    fake = FakeRuntime()
    cuda = types.SimpleNamespace(
        runtime=fake,
        Device=lambda: types.SimpleNamespace(id=0),
        MemoryAsyncPool=lambda handle: types.SimpleNamespace(malloc=None),
        set_allocator=lambda allocator: None,
    )
    device = module("device")
    fetch = device.import_module
    cupy = types.SimpleNamespace(cuda=cuda)
    monkeypatch.setattr(device, "import_module", lambda name: cupy if name == "cupy" else fetch(name))
    return fake


def test_peaks_are_those_of_the_pool_and_of_what_lies_beside_it(runtime: FakeRuntime) -> None:
    device = module("device").Device(dry=False)
    assert runtime.threshold == runtime.total
    runtime.take(50)
    runtime.used -= 50  # a peak from before
    with device.peak() as found:
        runtime.take(900)
        runtime.used -= 700
        runtime.beside += 30
    assert (found.high, found.kept, found.outside) == (930, 230, 30)
    device.trim()
    assert device.reserved() == runtime.used


def test_terms_are_written_against_what_was_measured(tmp_path: Path) -> None:
    """With the peaks that the formulas say, every row keeps to its bar; with a matrix twice as large, not all do."""
    memory, rows, arguments = module("memory"), module("rows"), module("arguments")
    from tabgpu import device_terms as terms

    for shape in memory.SHAPES:
        described = terms.DeviceMatrix(
            shape.n_rows,
            shape.n_rows // 5,
            shape.n_features,
            256,
            shape.n_rows // 8,
            shape.missing,
            cuts=shape.cuts,
            params={"max_depth": shape.depth},
        )
        split = terms.Split(0.5, 1 << 22)
        held, pages = described.quantised(shape.n_rows + shape.n_rows // 5), 0
        if shape.kind == "external":
            parts, _ = terms.split_terms(described, split)
            held, pages = parts["matrix"], parts["matrix pages"]
        extra = described.input_bytes + sum(terms.construction_terms(described).values()) + pages
        state = terms.row_state_bytes(described) + pages
        flat = terms.DeviceMatrix(
            shape.n_rows, 0, shape.n_features, 256, 1, shape.missing, cuts=shape.cuts, params={"max_depth": 1}
        )
        for factor, good in ((1, True), (2, False)):
            file = tmp_path / f"{shape}-{factor}".replace(" ", "-")
            task = arguments.Task(rows.Report(file, "memory"), tmp_path, False, 60.0)
            peaks = {
                "construction": memory.Peak(factor * held + extra, factor * held),
                "one level": memory.Peak(state + terms.histogram_bytes(flat), 0),
                "training": memory.Peak(state + terms.histogram_bytes(described), 0),
            }
            memory._write(shape, task, described, split, peaks)
            by_name = {row.name: row for row in rows.read_rows(file)}
            assert all(row.ok is not False for row in by_name.values()) == good, shape
            if good:
                assert by_name["matrix"].ratio == 1
                assert by_name["row state"].ratio == pytest.approx(1)
                assert by_name["histograms"].ratio == pytest.approx(1)
                assert by_name["construction beyond it"].ratio == pytest.approx(1)
