"""The command line: exit codes, JSON on standard output, and what bad input is answered with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tables import pipeline, visits, write_parts

from tabgpu import cli
from tabgpu.config.yaml12 import dump

TABLE = visits(300)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_parts(TABLE, tmp_path / "in", [150, 150], 70)
    return tmp_path


def write(place: Path, **changes: Any) -> Path:
    file = place / "visits.yaml"
    file.write_text(dump(pipeline(place / "in", place / "runs", **changes)))
    return file


def call(capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[int, str, str]:
    code = cli._guarded([str(w) for w in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_run_score_transform_plan_inspect(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(place)
    code, out, err = call(capsys, "inspect", place / "in", "--json")
    assert (code, json.loads(out)["rows"]) == (0, 300)
    code, out, err = call(capsys, "plan", file, "--json")
    plan = json.loads(out)
    assert code == 0
    keys = {"engine", "runner", "workers", "chunk_rows", "passes", "matrix", "cache", "predicted", "reasons"}
    assert keys <= plan.keys()
    assert sum(t["bytes"] for t in plan["predicted"]["terms"]) == plan["predicted"]["host_peak_bytes"]
    code, out, err = call(capsys, "run", file, "--json", "--set", "model.rounds=5")
    assert code == 0
    assert "survey" in err
    result = json.loads(out)
    assert result["status"] == "done"
    assert 0.5 < result["metrics"]["test"]["auc"] <= 1
    latest = place / "runs" / "visits" / "latest"
    code, out, err = call(capsys, "score", latest, place / "in", "--out", place / "scored", "--keep", "id", "--json")
    assert (code, json.loads(out)["rows"]) == (0, 300)
    assert sorted(p.name for p in (place / "scored").iterdir()) == ["00.parquet", "01.parquet"]
    code, out, err = call(capsys, "transform", latest, place / "in" / "00.parquet", "--out", place / "features")
    assert code == 0
    assert "150 rows in 1 file" in out
    for command in (("plan", file), ("inspect", place / "in")):
        code, out, err = call(capsys, *command)
        assert (code, err) == (0, "")
        assert out.strip()


def change_data(**changes: Any) -> Callable[[Path], dict[str, Any]]:
    def change(place: Path) -> dict[str, Any]:
        data = pipeline(place / "in", place / "runs")["data"]
        return {"data": {**data, **changes}}

    return change


def with_column(name: str, values: Any) -> Callable[[Path], dict[str, Any]]:
    def change(place: Path) -> dict[str, Any]:
        table = TABLE.drop([name]) if name in TABLE.column_names else TABLE
        write_parts(table.append_column(name, values), place / "in", [150, 150], 70)
        return {}

    return change


def duplicate_names(place: Path) -> dict[str, Any]:
    table = TABLE.append_column("age", TABLE["age"])
    pq.write_table(table, place / "in" / "02.parquet")
    return {}


def nested(place: Path) -> dict[str, Any]:
    with_column("tags", pa.array([[1]] * 300))(place)
    return {"features": [{"fill": {"columns": ["tags"]}}]}


def duplicate_keys(place: Path) -> dict[str, Any]:
    pq.write_table(pa.table({"town": ["town 1", "town 1"], "size": [1, 2]}), place / "towns.parquet")
    join = {"name": "towns", "source": str(place / "towns.parquet"), "by": ["town"]}
    return change_data(join=[join])(place)


def constant_features(place: Path) -> dict[str, Any]:
    with_column("same", pa.array([1] * 300))(place)
    columns = {n: {"kind": "ignore"} for n in TABLE.column_names if n != "bought"}
    return {**change_data(columns=columns)(place), "features": []}


def file_as_output(place: Path) -> dict[str, Any]:
    (place / "runs").write_text("")
    return {}


def damaged_file(place: Path) -> dict[str, Any]:
    content = (place / "in" / "01.parquet").read_bytes()
    (place / "in" / "01.parquet").write_bytes(content[: len(content) // 2])
    return {}


def empty_file(place: Path) -> dict[str, Any]:
    (place / "in" / "02.parquet").write_bytes(b"")
    return {}


def text_later(place: Path) -> dict[str, Any]:
    pq.write_table(pa.table({"age": ["old"]}), place / "in" / "02.parquet")
    return {}


def nested_target(place: Path) -> dict[str, Any]:
    nested(place)
    return change_data(target="tags")(place)


def valid_without_target(place: Path) -> dict[str, Any]:
    write_parts(TABLE.drop(["bought"]), place / "valid", [300], 100)
    return change_data(valid=str(place / "valid"))(place)


def one_class_in_valid(place: Path) -> dict[str, Any]:
    ones = TABLE.set_column(TABLE.column_names.index("bought"), "bought", pa.array([1] * 300, pa.int8()))
    write_parts(ones, place / "valid", [300], 100)
    model = {"objective": "binary:logistic", "rounds": 9, "early_stopping": 2, "params": {"eval_metric": "auc"}}
    return {**change_data(valid=str(place / "valid"))(place), "model": model}


BAD: dict[str, tuple[Callable[[Path], dict[str, Any]], int, str]] = {
    "unknown key": (lambda p: {"modle": {}}, 2, "Did you mean 'model'"),
    "unknown step": (lambda p: {"features": [{"fil": {"columns": ["age"]}}]}, 2, "Did you mean 'fill'"),
    "unknown column": (lambda p: {"features": [{"fill": {"columns": ["aeg"]}}]}, 2, "Did you mean 'age'"),
    "unknown option": (lambda p: {"features": [{"fill": {"column": ["age"]}}]}, 2, "Did you mean 'columns'"),
    "unknown parameter": (
        lambda p: {"model": {"objective": "binary:logistic", "params": {"max_dpeth": 3}}},
        2,
        "Did you mean 'max_depth'",
    ),
    "unknown name in an expression": (change_data(filter="aeg > 3"), 2, "Did you mean 'age'"),
    "missing source": (change_data(source="nowhere/*.parquet"), 2, "no Parquet file"),
    "missing target": (change_data(target="bougth"), 2, "Did you mean 'bought'"),
    "no target": (change_data(target=None), 2, "data.target"),
    "target as feature": (lambda p: {"features": [{"fill": {"columns": ["bought"]}}]}, 2, "which is the target"),
    "objective unknown to the metrics": (lambda p: {"model": {"objective": "rank:ndcg"}}, 2, "model.objective"),
    "null target": (with_column("bought", pa.nulls(300, pa.int8())), 3, "300 of them have no 'bought'"),
    "target of one class": (with_column("bought", pa.array([1] * 300)), 3, "has 1 labels"),
    "target of three classes": (with_column("bought", pa.array([0, 1, 2] * 100)), 3, "has 3 labels"),
    "nothing left by the filter": (change_data(filter="age > 1000"), 3, "No row is left"),
    "negative weight": (
        lambda p: with_column("w", pa.array([-1.0] * 300))(p) | change_data(weight="w")(p),
        3,
        "negative values",
    ),
    "weights all zero": (
        lambda p: with_column("w", pa.array([0.0] * 300))(p) | change_data(weight="w")(p),
        3,
        "is 0 in every",
    ),
    "constant features": (constant_features, 3, "No feature differs"),
    "infinite feature": (with_column("visits", pa.array([np.inf] * 300)), 3, "nfinite"),
    "duplicate names": (duplicate_names, 3, "more than one column called 'age'"),
    "nested column as a feature": (nested, 2, "is nested"),
    "text in a later file": (text_later, 3, "'age' is a number (float) in 00.parquet and text in 02.parquet"),
    "duplicate join keys": (duplicate_keys, 3, "towns"),
    "damaged file": (damaged_file, 3, "01.parquet"),
    "empty file": (empty_file, 3, "0 bytes"),
    "output is a file": (file_as_output, 2, "runs"),
    "too little memory": (lambda p: {"memory": {"limit": "50MB"}}, 4, "libraries 150 MB"),
    "gpu": (lambda p: {"engine": "gpu"}, 4, "engine"),
    "precision that is not there yet": (lambda p: {"precision": "half"}, 2, "precision is 'half'"),
    "group without its split": (change_data(group="town"), 2, "would tear groups apart"),
    "empty source": (change_data(source=""), 2, "data.source"),
    "margins taken for probabilities": (lambda p: {"model": {"objective": "binary:logitraw"}}, 2, "binary:logitraw"),
    "nested target": (nested_target, 2, "is nested"),
    "valid without the target": (valid_without_target, 3, "data.valid lack the column 'bought'"),
    "parameter that is no number": (
        lambda p: {"model": {"objective": "binary:logistic", "params": {"max_depth": "six"}}},
        2,
        "max_depth",
    ),
    "labels that the objective cannot have": (
        lambda p: {**change_data(target="bought")(p), "model": {"objective": "reg:gamma", "rounds": 3}},
        3,
        "reg:gamma",
    ),
    "stopping metric without a value": (one_class_in_valid, 3, "auc"),
    "wrong fraction": (lambda p: {"split": {"valid": 0.7, "test": 0.7}}, 2, "less than 1"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, expected, words = BAD[name]
    file = write(place, **change(place))
    code, out, err = call(capsys, "run", file, "--json", "--quiet")
    assert code == expected, err
    message = json.loads(out)["message"]
    assert words in message
    assert "Traceback" not in err
    assert err == f"tabgpu: {message}\n"
    assert message.count(". ") >= 2 or message.count("? ") >= 1, "three sentences"
    assert not (place / "runs" / "visits" / "latest").exists()
    assert not list(place.glob("runs/visits/*/model"))
    assert not list(place.rglob("*.tmp"))


def test_failed_run_says_so_in_its_status(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(place, **change_data(filter="age > 1000")(place))
    code, _, _ = call(capsys, "run", file, "--quiet")
    status = json.loads((place / "runs" / "visits" / "last" / "status.json").read_text())
    assert (code, status["status"], status["exit_code"]) == (3, "failed", 3)
    assert "No row is left" in status["error"]


def test_output_folder_of_score(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "run", write(place), "--quiet")[0] == 0
    latest, out = place / "runs" / "visits" / "latest", place / "out"
    score = ("score", latest, place / "in", "--out", out)
    assert call(capsys, *score)[0] == 0
    code, _, err = call(capsys, *score)
    assert (code, "--overwrite" in err) == (2, True)
    before = (out / "00.parquet").stat().st_ino
    assert call(capsys, *score, "--overwrite")[0] == 0
    assert (out / "00.parquet").stat().st_ino != before
    assert pq.read_metadata(out / "00.parquet").num_rows == 150
    assert call(capsys, "score", latest, place / "in", "--out", place / "new", "--keep", "nothing")[0] == 2
    assert call(capsys, "score", latest, place / "nowhere", "--out", place / "new")[0] == 2
    assert call(capsys, "score", place / "in", place / "in", "--out", place / "new")[0] in (2, 3)
    assert not (place / "new").exists()
    assert sorted(p.name for p in place.iterdir()) == ["in", "out", "runs", "visits.yaml"]


@pytest.mark.parametrize("what", ["the input", "above the input", "the bundle", "strangers", "a link", "here"])
def test_overwrite_never_destroys_what_it_did_not_write(
    what: str, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(capsys, "run", write(place), "--quiet")[0] == 0
    latest = place / "runs" / "visits" / "latest"
    strangers = place / "mine"
    strangers.mkdir()
    (strangers / "notes.txt").write_text("precious")
    pq.write_table(TABLE, strangers / "table.parquet")
    (place / "link").symlink_to(strangers)
    monkeypatch.chdir(strangers)
    out = {
        "the input": place / "in",
        "above the input": place,
        "the bundle": latest / "model",
        "strangers": strangers,
        "a link": place / "link",
        "here": ".",
    }[what]
    before = {p: p.read_bytes() for p in sorted(place.rglob("*")) if p.is_file()}
    code, _, err = call(capsys, "score", latest, place / "in", "--out", out, "--overwrite")
    assert (code, "Traceback" in err) == (2, False), err
    assert {p: p.read_bytes() for p in sorted(place.rglob("*")) if p.is_file()} == before


def test_kept_columns_are_as_the_file_holds_them(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import datetime
    from decimal import Decimal

    assert call(capsys, "run", write(place), "--quiet")[0] == 0
    odd = {
        "price": pa.array([Decimal("12345678901234567.89")] * 300, pa.decimal128(22, 2)),
        "at": pa.array([datetime.time(1, 2, i % 60) for i in range(300)], pa.time32("s")),
        "day": pa.array([datetime.date(2020, 1, 1 + i % 28) for i in range(300)]),
        "flag": pa.array([i % 2 == 0 for i in range(300)]),
        "ratio": pa.array([float("nan"), None, 1.0] * 100),
    }
    table = TABLE
    for name, values in odd.items():
        table = table.append_column(name, values)
    write_parts(table, place / "new" / "year=2020", [130, 0, 170], 40)
    keep = [w for name in (*odd, "shop", "year") for w in ("--keep", name)]
    latest = place / "runs" / "visits" / "latest"
    code, _, err = call(capsys, "score", latest, place / "new", "--out", place / "out", *keep)
    assert code == 0, err
    back = pa.concat_tables([pq.read_table(f, partitioning=None) for f in sorted((place / "out").rglob("*.parquet"))])
    for name in (*odd, "shop"):
        assert repr(back[name].to_pylist()) == repr(table[name].to_pylist())  # repr tells NaN from null
    assert set(back["year"].to_pylist()) == {"2020"}


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "rnu")
    assert (code, "Did you mean 'run'?" in err) == (2, True)
    assert call(capsys, "run")[0] == 2
    assert call(capsys, "--help")[0] == 0
    assert call(capsys, "run", "nowhere.yaml")[0] == 2


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted(number: signal.Signals, expected: int, place: Path) -> None:
    model = {"objective": "binary:logistic", "rounds": 100_000}
    file = write(place, model=model)
    process = subprocess.Popen(
        [sys.executable, "-m", "tabgpu", "run", str(file)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_WAIT_POLICY": "passive"},
    )
    status = place / "runs" / "visits" / "last" / "status.json"
    for _ in range(600):
        if status.exists() and json.loads(status.read_text())["stage"] == "train":
            break
        time.sleep(0.05)
    time.sleep(0.2)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == expected, err
    assert "Traceback" not in err
    assert json.loads(status.read_text())["status"] == "interrupted"
    assert not (place / "runs" / "visits" / "latest").exists()
