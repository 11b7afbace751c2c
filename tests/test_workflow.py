"""Whole pipelines: the laws of design over layouts, chunk sizes and row groups, and what a run leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tables import N_ROWS, STEPS, pipeline, visits, write_parts

import tabgpu

TABLE = visits()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parts(TABLE, tmp_path_factory.mktemp("data") / "in", [500, 0, 400], 130)


@pytest.fixture(scope="module")
def done(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tabgpu.Run:
    return tabgpu.run(pipeline(source, tmp_path_factory.mktemp("runs")))


@pytest.mark.parametrize(("chunk_rows", "row_group_size"), [(1, 250), (13, 5), (90, 1_000), (10_000, 50)])
def test_chunks_and_row_groups_change_nothing(
    chunk_rows: int, row_group_size: int, done: tabgpu.Run, tmp_path: Path
) -> None:
    source = write_parts(TABLE, tmp_path / "in", [500, 0, 400], row_group_size)
    again = tabgpu.run(pipeline(source, tmp_path / "runs", memory={"chunk_rows": chunk_rows}))
    assert again.metrics == done.metrics
    assert again.summary["model_digest"] == done.summary["model_digest"]


@pytest.mark.parametrize("objective", ["binary:logistic", "reg:squarederror"])
@pytest.mark.parametrize("cuts", ["own", "exact"])
def test_external_and_in_core_matrices_give_one_model(
    objective: str, cuts: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tabgpu import planning

    target = {"binary:logistic": "bought", "reg:squarederror": "age"}[objective]
    data = {"source": str(source), "target": target, "columns": {"spent": {"kind": "ignore"}}}
    model = {"objective": objective, "rounds": 8, "cuts": cuts, "early_stopping": 3}
    steps = [{"target_encode": {"columns": ["shop", "town"]}}]
    in_core = tabgpu.run(pipeline(source, tmp_path, data=data, model=model, features=steps))
    choose = planning._choose_matrix
    monkeypatch.setattr(planning, "_choose_matrix", lambda *args: ("external", choose(*args)[1]))
    monkeypatch.setattr(planning, "_MEMORY_CACHE_SHARE", 10**9)
    external = tabgpu.run(pipeline(source, tmp_path, data=data, model=model, features=steps))
    assert (in_core.plan.matrix, external.plan.matrix) == ("in_core", "external")
    assert (in_core.plan.cache, external.plan.cache) == ("memory", "disk")
    assert in_core.metrics == external.metrics
    assert in_core.summary["model_digest"] == external.summary["model_digest"]


def test_save_load_score_equals_score(done: tabgpu.Run, source: Path, tmp_path: Path) -> None:
    model = tabgpu.load(done.folder)
    by_path = model.predict_proba(str(source))
    by_frame = model.predict_proba(TABLE)
    assert by_path.shape == (N_ROWS, 2)
    assert np.array_equal(by_path, by_frame)
    written = tabgpu.score(done.folder, str(source), tmp_path / "out", keep=["id"])
    assert (written["rows"], written["files"]) == (N_ROWS, 3)
    files = sorted((tmp_path / "out").iterdir())
    assert [pq.read_metadata(f).num_rows for f in files] == [500, 0, 400]
    table = pa.concat_tables([pq.read_table(f) for f in files])
    assert table["id"].to_pylist() == TABLE["id"].to_pylist()
    assert np.array_equal(table["probability"].to_numpy(), by_path[:, 1])
    assert np.array_equal(table["prediction"].to_numpy(), model.predict(TABLE))


def test_frames_of_every_library_give_one_answer(done: tabgpu.Run) -> None:
    pl = pytest.importorskip("polars")
    model = done.model
    expected = model.predict_proba(TABLE)
    frame = TABLE.to_pandas()
    shuffled = frame[frame.columns[::-1]].set_index(np.arange(N_ROWS) * 3 + 5)
    assert np.array_equal(model.predict_proba(shuffled), expected)
    rows = pl.from_arrow(TABLE)
    assert np.array_equal(model.predict_proba(rows), expected)
    shops = pl.Enum(sorted(set(TABLE["shop"].to_pylist())))
    assert np.array_equal(model.predict_proba(rows.with_columns(pl.col("shop").cast(shops))), expected)
    assert np.array_equal(model.predict_proba(rows.with_columns(pl.col("town").cast(pl.Categorical))), expected)
    assert np.array_equal(model.predict_proba(frame.astype({"town": "category"})), expected)
    with pytest.raises(tabgpu.DataError, match="collect"):
        model.predict(rows.lazy())
    assert list(model.transform(shuffled).index) == list(shuffled.index)
    assert type(model.transform(pl.from_arrow(TABLE))).__module__.startswith("polars")


def test_every_row_is_scored_whatever_it_holds(done: tabgpu.Run) -> None:
    model = done.model
    odd = pa.table(
        {
            "town": pa.array(["never seen", None, "town 1"]),
            "shop": pa.array([None, None, None], pa.null()),
            "age": pa.array([None, np.inf, -1e30]),
            "visits": pa.array([None, 32_000, -5], pa.int16()),
            "when": pa.array([None, 0, 4_000_000_000], pa.timestamp("s", tz="UTC")),
        }
    )
    assert np.isfinite(model.predict_proba(odd.set_column(2, "age", pa.array([None, 1e5, -1e5])))).all()
    assert len(model.predict(odd.slice(0, 0))) == 0


def test_missing_columns_are_listed_all_of_them(done: tabgpu.Run) -> None:
    with pytest.raises(tabgpu.DataError, match=r"lacks 2 of 5 columns.*'town', 'age'"):
        done.model.predict(TABLE.drop(["town", "age"]))


def test_features_alone(source: Path, tmp_path: Path) -> None:
    with_features = tabgpu.run(pipeline(source, tmp_path / "runs", model=None))
    folder = with_features.folder / "features"
    table = pa.concat_tables([pq.read_table(f) for f in sorted(folder.iterdir())])
    assert table.num_rows == N_ROWS
    assert table["bought"].to_pylist() == TABLE["bought"].to_pylist()
    sides = np.array(table["split"].to_pylist())
    counts = {side: int((sides == side).sum()) for side in ("train", "valid", "test")}
    assert counts == {side: with_features.summary["rows"][side] for side in counts}
    scored = with_features.model.transform(TABLE)
    training = sides == "train"
    rate = np.array(table["rate_shop"].to_numpy())
    assert np.array_equal(rate[~training], scored["rate_shop"].to_numpy()[~training])
    assert (rate[training] != scored["rate_shop"].to_numpy()[training]).mean() > 0.5
    others = [c for c in scored.column_names if not c.startswith("rate_")]
    assert table.select(others).equals(scored.select(others))


def test_run_folder(done: tabgpu.Run) -> None:
    folder = done.folder
    status = json.loads((folder / "status.json").read_text())
    assert (status["status"], status["exit_code"]) == ("done", 0)
    assert (folder.parent / "latest").resolve() == folder.resolve()
    assert (folder.parent / "last").resolve() == folder.resolve()
    manifest = json.loads((folder / "manifest.json").read_text())
    assert len(manifest["inputs"]) == 3
    again = tabgpu.plan(folder / "pipeline.yaml")
    assert again.features == done.plan.features
    plan = json.loads((folder / "plan.json").read_text())
    assert sum(t["bytes"] for t in plan["predicted"]["terms"]) == plan["predicted"]["host_peak_bytes"]
    keys = {"run", "status", "metrics", "best_iteration", "rows", "memory", "timings_s", "resumed"}
    assert keys <= done.summary.keys()
    assert {"limit_bytes", "predicted_peak_bytes", "measured_peak_bytes"} <= done.summary["memory"].keys()


def test_the_same_run_twice_has_the_same_digest(done: tabgpu.Run, source: Path, tmp_path: Path) -> None:
    again = tabgpu.run(pipeline(source, tmp_path))
    assert again.summary["model_digest"] == done.summary["model_digest"]


def test_early_stopping_is_bound_into_the_bundle(source: Path, tmp_path: Path) -> None:
    model = {"objective": "binary:logistic", "rounds": 300, "early_stopping": 5, "params": {"eta": 0.8, "max_depth": 6}}
    stopped = tabgpu.run(pipeline(source, tmp_path, model=model))
    best = stopped.summary["best_iteration"]
    assert best < 200
    shorter = {**model, "rounds": best + 1, "early_stopping": None}
    exact = tabgpu.run(pipeline(source, tmp_path, model=shorter))
    assert np.array_equal(stopped.model.predict_proba(TABLE), exact.model.predict_proba(TABLE))


def test_a_row_never_sees_its_own_target(source: Path, tmp_path: Path) -> None:
    before = tabgpu.run(pipeline(source, tmp_path / "a", model=None)).folder / "features" / "00.parquet"
    flipped = TABLE.set_column(
        TABLE.column_names.index("bought"),
        "bought",
        pa.array([1 - v if i == 17 else v for i, v in enumerate(TABLE["bought"].to_pylist())], pa.int8()),
    )
    changed = write_parts(flipped, tmp_path / "in", [500, 0, 400], 130)
    after = tabgpu.run(pipeline(changed, tmp_path / "b", model=None)).folder / "features" / "00.parquet"
    was, now = pq.read_table(before).slice(17, 1), pq.read_table(after).slice(17, 1)
    assert was["split"].to_pylist() == ["train"]
    rates = [c for c in was.column_names if c.startswith("rate_")]
    assert was.select(rates).equals(now.select(rates))
    assert not pq.read_table(before).select(rates).equals(pq.read_table(after).select(rates))


def test_split_by_time_with_fractions_leaves_the_future_to_the_test(source: Path, tmp_path: Path) -> None:
    config = pipeline(source, tmp_path, model=None, split={"by": "time", "valid": 0.2, "test": 0.1})
    config["data"]["time"] = "when"
    config["features"] = STEPS[1:3]
    finished = tabgpu.run(config)
    rows = finished.summary["rows"]
    assert rows["outside"] == 0
    assert [rows["train"], rows["valid"], rows["test"]] == pytest.approx(
        [630, 180, 90], abs=1
    )  # shares fall between rows


def test_sources_for_each_side(source: Path, tmp_path: Path) -> None:
    config = pipeline(source, tmp_path)
    files = sorted(source.iterdir())
    config["data"] |= {"source": str(files[0]), "test": str(files[2])}
    finished = tabgpu.run(config)
    assert finished.summary["rows"] == {"train": 500, "valid": 0, "test": 400, "outside": 0}
    assert set(finished.metrics) == {"train", "test"}


def test_text_labels(source: Path, tmp_path: Path) -> None:
    text = TABLE.set_column(7, "bought", pa.array(["yes" if v else "no" for v in TABLE["bought"].to_pylist()]))
    labelled = write_parts(text, tmp_path / "in", [900], 300)
    finished = tabgpu.run(pipeline(labelled, tmp_path / "runs"))
    model = finished.model
    assert model.labels == ["no", "yes"]
    assert set(model.predict(TABLE)) <= {"no", "yes"}
    tabgpu.score(finished.folder, str(labelled), tmp_path / "out")
    assert pq.read_schema(tmp_path / "out" / "00.parquet").names == ["prediction", "probability_yes"]


def test_weights_and_regression(source: Path, tmp_path: Path) -> None:
    config = pipeline(source, tmp_path)
    config["data"] |= {"target": "spent", "weight": "id", "columns": {}}
    config["model"] = {"objective": "reg:squarederror", "rounds": 10}
    finished = tabgpu.run(config)
    assert set(finished.metrics["test"]) == {"rmse", "mae", "r2"}
    assert finished.model.predict(TABLE).dtype == np.float32


def test_sample_takes_a_share_of_the_rows(source: Path, tmp_path: Path) -> None:
    rows = tabgpu.run(pipeline(source, tmp_path), sample="50%").summary["rows"]
    assert 350 < rows["train"] + rows["valid"] + rows["test"] < 550
    assert sum(rows.values()) == N_ROWS


def test_default_features(source: Path, tmp_path: Path) -> None:
    config = pipeline(source, tmp_path, features=None)
    plan = tabgpu.plan(config)
    assert {"town", "shop", "target_encode_shop", "when_month", "age"} <= set(plan.features)
    assert tabgpu.run(config).metrics["test"]["auc"] > 0.6


def test_preview(source: Path, tmp_path: Path) -> None:
    table = tabgpu.preview(pipeline(source, tmp_path), rows=50)
    assert table.num_rows == 50
    assert "rate_shop" in table.column_names


def test_joined_table_is_kept_and_can_be_replaced(source: Path, tmp_path: Path) -> None:
    towns = pa.table({"town": [f"town {i}" for i in range(12)], "size": np.arange(12.0)})
    pq.write_table(towns, tmp_path / "towns.parquet")
    config = pipeline(source, tmp_path / "runs", features=[])
    config["data"] |= {
        "join": [{"name": "towns", "source": str(tmp_path / "towns.parquet"), "by": ["town"], "prefix": "t_"}],
        "derive": {"large": "t_size > 6"},
    }
    finished = tabgpu.run(config)
    assert {"t_size", "large"} <= set(finished.plan.features)
    (tmp_path / "towns.parquet").unlink()
    kept = finished.model.predict_proba(TABLE)
    pq.write_table(towns.set_column(1, "size", pa.array(np.arange(12.0)[::-1])), tmp_path / "other.parquet")
    replaced = tabgpu.load(finished.folder, tables={"towns": tmp_path / "other.parquet"}).predict_proba(TABLE)
    assert (kept != replaced).any()
    with pytest.raises(tabgpu.ConfigError, match="--table names 'town'"):
        tabgpu.load(finished.folder, tables={"town": tmp_path / "other.parquet"})


def test_what_tells_the_target_is_no_feature(source: Path, tmp_path: Path) -> None:
    config = pipeline(source, tmp_path, features=[])
    config["data"] = {
        "source": str(source),
        "target": "rich",
        "derive": {
            "rich": "spent > 10",
            "double": "spent * 2",
            "again": "rich + 1",
            "old": "age > 50",
            "older": "old + 1",
        },
    }
    plan = tabgpu.plan(config)
    assert {"spent", "double", "again", "rich"}.isdisjoint(plan.features)
    assert {"old", "older", "bought"} <= set(plan.features)
    assert "made of" in plan.unused["double"]


def test_a_file_that_changes_during_a_run_is_noticed(source: Path, tmp_path: Path) -> None:
    moving = write_parts(TABLE, tmp_path / "in", [500, 400], 130)

    def exchange(message: str) -> None:
        if message.startswith("train"):
            pq.write_table(TABLE.slice(0, 400), moving / "01.parquet", row_group_size=130)

    with pytest.raises(tabgpu.DataError, match=r"01\.parquet was replaced or written to during the run"):
        tabgpu.run(pipeline(moving, tmp_path / "runs"), progress=exchange)
    assert not (tmp_path / "runs" / "visits" / "latest").exists()


def test_all_rounds_count_without_early_stopping(source: Path, tmp_path: Path) -> None:
    model = {"objective": "binary:logistic", "rounds": 60, "params": {"eta": 1.0, "max_depth": 8}}
    assert tabgpu.run(pipeline(source, tmp_path, model=model)).summary["best_iteration"] == 59


def test_odd_names_of_columns(tmp_path: Path) -> None:
    """Names that XGBoost, regular expressions, shells or people would trip over; originals stand in every output."""
    odd = [
        "a[0]",
        "b<c",
        "new\nline",
        "d\u00e9j\u00e0 \u2708",
        "split",
        "prediction",
        "index",
        "label",
        "x.y",
        "'q\"",
        "_",
    ]
    rng = np.random.default_rng(0)
    columns = {name: pa.array(rng.normal(size=300)) for name in odd}
    columns["target"] = pa.array((rng.random(300) < 1 / (1 + np.exp(-3 * columns["a[0]"].to_numpy()))).astype(np.int8))
    source = write_parts(pa.table(columns), tmp_path / "in", [300], 100)
    config = {"version": 1, "data": {"source": str(source), "target": "target"}, "output": str(tmp_path / "runs")}
    finished = tabgpu.run({**config, "model": {"objective": "binary:logistic", "rounds": 5}})
    assert set(finished.plan.features) == set(odd)
    assert finished.metrics["train"]["auc"] > 0.8
    tabgpu.score(finished.folder, str(source), tmp_path / "out", keep=["a[0]", "split"])
    assert pq.read_schema(tmp_path / "out" / "00.parquet").names == ["a[0]", "split", "prediction", "probability"]
    with pytest.raises(tabgpu.ConfigError, match="also the name of an answer"):
        tabgpu.score(finished.folder, str(source), tmp_path / "other", keep=["prediction"])
    features = tabgpu.run({**config, "model": None})
    assert {*odd, "split_"} <= {*pq.read_schema(features.folder / "features" / "00.parquet").names}
