"""The pipeline file: what loads, what is refused and how, overrides, variables, paths, and the way back to YAML."""

from __future__ import annotations

import contextlib
import datetime
import glob
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabgpu.config import Cluster, Data, Model, Pipeline, Split, json_schema, load
from tabgpu.config.step_options import STEP_KINDS, steps
from tabgpu.config.yaml12 import dump, parse
from tabgpu.errors import ConfigError

DESIGN = """\
version: 1
name: flights
data:
  source: ../data/flights/*.parquet  # path, glob, folder, list, or fsspec URL; valid: and test: may be given too
  derive: {late: arr_delay >= 15}    # small safe expressions over columns
  filter: not missing(arr_delay)     # rows that training uses; never drops a row that is scored
  target: late
  time: time_hour                    # also: weight, group, key
  columns: {flight: {kind: categorical}}
  join:
    - {name: weather, source: ../data/weather.parquet, by: [origin, time_hour], prefix: w_}
split: {by: time, valid: 2013-10-01, test: 2013-11-01}    # by: random | time | group | column; a fraction or a value
features:
  - fill: {columns: [w_temp, w_visib], value: median}
  - dates: {columns: [time_hour], parts: [month, weekday, hour]}
  - categorify: {columns: [carrier, origin, dest], min_count: 10}
  - target_encode: {name: rates, columns: [tailnum, [origin, dest]], folds: 5, smooth: 20}
model: {kind: xgboost, objective: binary:logistic, rounds: 400, early_stopping: 30, params: {max_depth: 8, eta: 0.1}}
precision: full                      # full | mixed | half
memory: {limit: auto, device_limit: auto, chunk_rows: auto, pool: async, spill: auto}    # "8GB", 0.8, or auto
cache: {dir: auto, limit: auto}
engine: auto                         # auto | cpu | gpu
cluster: null                        # {workers: 2} | {address: "tcp://..."} | {scheduler_file: path}
output: ../runs
"""
BASE: dict[str, Any] = {"version": 1, "data": {"source": "x.parquet", "target": "y", "time": "t", "group": "g"}}
RATES = [{"fill": {"columns": "a"}}, {"target_encode": {"name": "rates", "columns": ["a", ["a", "b"]]}}]


def refusal(source: Any, overrides: Any = ()) -> str:
    with pytest.raises(ConfigError) as caught:
        load(source, overrides)
    error = caught.value
    assert error.happened
    assert error.expected
    assert error.remedy
    return str(error)


@pytest.fixture
def flights(tmp_path: Path) -> Path:
    path = tmp_path / "pipelines" / "flights.yaml"
    path.parent.mkdir()
    path.write_text(DESIGN)
    return path


# --- laws ------------------------------------------------------------------------------------------------------------

_KEYS = [
    "version",
    "data",
    "source",
    "split",
    "by",
    "valid",
    "test",
    "features",
    "fill",
    "columns",
    "model",
    "objective",
]
_WORDS = [
    "time",
    "auto",
    "x",
    "1",
    "8GB",
    "2013-10-01",
    "gpu_hist",
    "${HOME}",
    "${",
    "$${A}",
    "a[0]",
    "*",
    "!a",
    "\ud800",
    "",
]
_LEAVES = (
    st.none() | st.booleans() | st.integers(-3, 10**20) | st.floats() | st.sampled_from(_WORDS) | st.text(max_size=4)
    | st.dates() | st.binary(max_size=2)
)  # fmt: skip
_ANY = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=10,
)
_SECTIONS = dict.fromkeys(Pipeline.model_fields, _ANY)


@settings(deadline=None, max_examples=50)
@given(st.fixed_dictionaries({}, optional=_SECTIONS) | _ANY, st.lists(st.text(max_size=12), max_size=2))
def test_random_configurations_are_read_or_refused(tree: Any, overrides: list[str]) -> None:
    for change in ((), overrides):
        with contextlib.suppress(ConfigError):
            load(tree if isinstance(tree, dict) else {**BASE, "features": tree, "model": tree}, change)


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_one_wrong_value_anywhere_is_read_or_refused(data: st.DataObject) -> None:
    """Mutations of a good file come further than random trees."""
    tree = parse(DESIGN, "x").tree
    node: Any = tree
    while True:
        key = data.draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
        inner = node[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.integers(0, 3)) == 0:
            node[key] = data.draw(_ANY)
            break
        node = inner
    pipeline = None
    with contextlib.suppress(ConfigError):
        pipeline = load(tree)
    if pipeline is not None:
        assert load(parse(pipeline.to_yaml(), "x").tree) == pipeline


_STEPS = st.lists(
    st.one_of(
        st.builds(lambda c, v, i: {"fill": {"columns": c, "value": v, "indicator": i}},
                  st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=3),
                  st.sampled_from(["mean", "1e-3", 3, 0.5, "no"]), st.booleans()),
        st.builds(lambda c, s: {"target_encode": {"columns": [c, [c, "b"]], "smooth": s}},
                  st.text(min_size=1, max_size=5), st.floats(0, 1e6)),
        st.builds(lambda s: {"clip": {"columns": ["*"], "lower": s}}, st.floats(-1e300, 1e300)),
    ),
    max_size=4,
)  # fmt: skip


@settings(deadline=None, max_examples=50)
@given(
    _STEPS,
    st.sampled_from(["auto", 0.5, "8GB", 10**9]),
    st.sampled_from([{"by": "time", "valid": "2013-10-01"}, {"valid": 0.25, "seed": 3}, {"by": "group"}]),
    st.dictionaries(
        st.text(min_size=1, max_size=6), st.floats(-9, 9) | st.booleans() | st.sampled_from(["1e-3", "x"]), max_size=3
    ),
)
def test_written_and_loaded_again_is_equal(features: Any, limit: Any, split: Any, params: Any) -> None:
    model = {"objective": "binary:logistic", "params": params}
    pipeline = load({**BASE, "features": features, "memory": {"limit": limit}, "split": split, "model": model})
    again = load(parse(pipeline.to_yaml(), "x").tree)
    assert again == pipeline
    assert again.to_yaml() == pipeline.to_yaml()
    assert again.digest == pipeline.digest
    assert load(pipeline) == pipeline


# --- what loads ------------------------------------------------------------------------------------------------------


def test_the_file_of_the_design_loads(flights: Path) -> None:
    pipeline = load(flights)
    root = flights.parent.parent
    assert pipeline.base_dir == flights.parent
    assert pipeline.data.source == (str(root / "data/flights/*.parquet"),)
    assert pipeline.data.join[0].by == ("origin", "time_hour")
    assert pipeline.output == str(root / "runs")
    assert (pipeline.split.valid, pipeline.split.test) == ("2013-10-01", "2013-11-01")
    assert pipeline.features is not None
    assert [step.name for step in pipeline.features] == ["fill", "dates", "categorify", "rates"]
    assert pipeline.features[3].columns == ("tailnum", ("origin", "dest"))
    assert pipeline.model is not None
    assert pipeline.model.params == {"max_depth": 8, "eta": 0.1}


def test_defaults(tmp_path: Path) -> None:
    path = tmp_path / "small one.yaml"
    path.write_text("version: 1\ndata: {source: x}\n")
    pipeline = load(path)
    assert (pipeline.name, pipeline.features, pipeline.model, pipeline.cluster) == ("pipeline", None, None, None)
    assert (pipeline.split.by, pipeline.split.valid, pipeline.split.test) == ("random", 0.1, 0.1)
    assert (pipeline.memory.pool.kind, pipeline.output) == ("async", str(tmp_path / "runs"))
    path = path.rename(tmp_path / "small-one.yaml")
    assert load(path).name == "small-one"


def test_python_and_yaml_are_the_same(flights: Path) -> None:
    pipeline = Pipeline(
        version=1,
        name="flights",
        data=Data(source="x", target="y", time="t"),
        split=Split(by="time", valid=datetime.date(2013, 10, 1)),
        features=[steps.fill(columns=["a"], value="mean"), {"log": {"columns": "a"}}, steps.fill(columns="b")],
        model=Model(objective="reg:squarederror"),
        cluster=Cluster(workers=2),
    )
    assert load(pipeline).split.valid == "2013-10-01"
    assert load(parse(pipeline.to_yaml(), "x").tree) == load(pipeline)
    assert [s.name for s in pipeline.features or ()] == ["fill", "log", "fill_2"]
    assert load(dict(BASE, features=[steps.log(columns="a")])) == load(dict(BASE, features=[{"log": {"columns": "a"}}]))
    assert "objective: reg:squarederror" in repr(pipeline)


@pytest.mark.parametrize("cluster", [{"workers": 2}, {"address": "tcp://h:8786"}, {"scheduler_file": "s.json"}])
def test_clusters(cluster: dict[str, Any]) -> None:
    pipeline = load({**BASE, "cluster": cluster})
    tree = pipeline.to_tree()["cluster"]
    assert {key: tree[key] for key in ("workers", "address", "scheduler_file") if tree[key] is not None} == cluster


def test_times_have_no_fraction_beside_them() -> None:
    assert load({**BASE, "split": {"by": "time", "valid": "2013-10-01"}}).split.test is None
    assert load({**BASE, "split": {"by": "time", "test": 2013}}).split.valid is None
    assert load({**BASE, "split": {"by": "time", "test": 0.2}}).split.valid == 0.1
    assert load({**BASE, "split": {"by": "time", "valid": "2013-10-01T00:00", "test": "2013-10-01T00:00:01+02:00"}})


def test_gpu_hist_is_understood() -> None:
    model = {"objective": "binary:logistic", "params": {"tree_method": "gpu_hist"}}
    pipeline = load({**BASE, "model": model})
    assert pipeline.engine == "gpu"
    assert pipeline.model is not None
    assert pipeline.model.params == {"tree_method": "hist"}
    assert "gpu_hist" in refusal({**BASE, "model": model, "engine": "cpu"})
    assert model["params"] == {"tree_method": "gpu_hist"}


# --- paths and variables ---------------------------------------------------------------------------------------------


def test_paths_are_relative_to_the_file_and_shown_so(flights: Path) -> None:
    pipeline = load(flights)
    tree = pipeline.to_tree()
    assert (tree["data"]["source"], tree["output"]) == (["../data/flights/*.parquet"], "../runs")
    deeper = flights.parent.parent / "runs" / "a" / "b"
    deeper.mkdir(parents=True)
    (deeper / "pipeline.yaml").write_text(pipeline.to_yaml(folder=deeper))
    assert load(deeper / "pipeline.yaml") == pipeline
    assert "../../../data/weather.parquet" in (deeper / "pipeline.yaml").read_text()


def test_urls_and_absolute_paths_stay(tmp_path: Path) -> None:
    sources = ["s3://bucket/x", "simplecache::s3://b/x", "/abs/x", "~/x", "../x"]
    path = tmp_path / "a" / "f.yaml"
    path.parent.mkdir()
    path.write_text(dump({"version": 1, "data": {"source": sources}, "cache": {"dir": "c"}}))
    pipeline = load(path)
    expected = ["s3://bucket/x", "simplecache::s3://b/x", "/abs/x", str(Path.home() / "x"), str(tmp_path / "x")]
    assert list(pipeline.data.source) == expected
    assert pipeline.to_tree()["data"]["source"] == sources
    assert pipeline.cache.dir == str(tmp_path / "a" / "c")


def test_a_folder_with_brackets_is_no_glob(tmp_path: Path) -> None:
    folder = tmp_path / "a[1]"
    folder.mkdir()
    (folder / "f.yaml").write_text("version: 1\ndata: {source: '*.parquet'}\noutput: runs\n")
    pipeline = load(folder / "f.yaml")
    (folder / "x.parquet").touch()
    assert glob.glob(pipeline.data.source[0]) == [str(folder / "x.parquet")]
    assert pipeline.output == str(folder / "runs")


def test_variables_are_read_but_never_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"PASS": "hunter22", "DATA": "/mnt/hunter22", "N": "3", "RUN": "2024", "LIMIT": "0.5", "ETA": "0.25"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "f.yaml"
    path.write_text(
        "version: 1\nname: ${RUN}\ndata:\n  source: ['s3://u:${PASS}@h/x', '${DATA}/y']\n  target: ${PASS}\n"
        "  filter: a == '$${PASS}'\nmemory: {limit: '${LIMIT}'}\ncluster: {workers: '${N}'}\n"
        "features: [fill: {columns: '${PASS}'}]\n"
        "model: {objective: 'x:${PASS}', params: {eta: '${ETA}', list: ['${PASS}']}}\n"
    )
    pipeline = load(path)
    assert pipeline.name == "2024"
    assert pipeline.data.source == ("s3://u:hunter22@h/x", "/mnt/hunter22/y")
    assert pipeline.data.filter == "a == '${PASS}'"
    assert pipeline.memory.limit == 0.5
    assert pipeline.cluster is not None
    assert pipeline.cluster.workers == 3
    assert pipeline.model is not None
    assert pipeline.model.params["eta"] == 0.25
    for hidden in (True, False):
        text = pipeline.to_yaml(secrets_hidden=hidden)
        assert "hunter22" not in text
        assert "${RUN}" in text
    path.write_text(pipeline.to_yaml(secrets_hidden=False))
    assert load(path) == pipeline
    assert "hunter22" not in repr(pipeline)
    digest = pipeline.digest
    monkeypatch.setenv("PASS", "other")
    assert load(path).digest == digest


def test_values_of_variables_are_not_in_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASS", "hunter22")
    for change in (
        {"engine": "${PASS}"}, {"split": {"by": "time", "valid": "${PASS}"}}, {"memory": {"limit": "${PASS}"}},
        {"split": {"valid": "x${PASS}"}}, {"version": "${PASS}"}, {"split": "${PASS}"}, {"features": ["${PASS}"]},
        {"features": [{"cross": {"columns": ["${PASS}"]}}]}, {"name": "a ${PASS}"},
        {"data": {"source": "x", "target": "${PASS}", "time": "${PASS}"}},
    ):  # fmt: skip
        message = refusal({**BASE, **change})
        assert "hunter22" not in message
        assert "${PASS}" in message


def test_a_variable_that_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLIGHTS_DATA", "x")
    assert "Did you mean 'FLIGHTS_DATA'?" in refusal({**BASE, "output": "${FLIGHT_DATA}/x"})


def test_passwords_in_urls_are_hidden() -> None:
    sources = ["s3://user:hunter22@host/x", "https://h/x?sig=hunter22&a=1", "abfs://c@account.net/x"]
    pipeline = load({**BASE, "data": {"source": sources}})
    assert "hunter22" not in pipeline.to_yaml() + repr(pipeline)
    shown = ["s3://user:***@host/x", "https://h/x?sig=***&a=1", "abfs://c@account.net/x"]
    assert pipeline.to_tree()["data"]["source"] == shown
    assert pipeline.to_tree(secrets_hidden=False)["data"]["source"] == sources


# --- overrides -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "read"),
    [
        ("memory.limit=8GB", lambda p: p.memory.limit == "8GB"),
        ("memory.limit=0.5", lambda p: p.memory.limit == 0.5),
        ("split.seed = 7", lambda p: p.split.seed == 7),
        ("features.rates.smooth=50", lambda p: p.features[1].smooth == 50),
        ("features.1.smooth=50", lambda p: p.features[1].smooth == 50),
        ("features[1].smooth=50", lambda p: p.features[1].smooth == 50),
        ("features[1].target_encode.smooth=50", lambda p: p.features[1].smooth == 50),
        ("features.fill.value=most_frequent", lambda p: p.features[0].value == "most_frequent"),
        ("features.rates={log: {columns: a}}", lambda p: p.features[1].kind == "log"),
        ("features=[]", lambda p: p.features == ()),
        ("model=null", lambda p: p.model is None),
        ("model.params.eta=0.3", lambda p: p.model.params == {"eta": 0.3}),
        ('data.columns."a.b".kind=categorical', lambda p: p.data.columns["a.b"].kind == "categorical"),
        ("data.source=*.csv", lambda p: p.data.source[0].endswith("/*.csv")),
        ("data.join.w.prefix=q_", lambda p: p.data.join[0].prefix == "q_"),
        ("data.filter=`my col` > 1", lambda p: p.data.filter == "`my col` > 1"),
        ("cluster={workers: 2}", lambda p: p.cluster.workers == 2),
    ],
)
def test_any_key_can_be_set(override: str, read: Any) -> None:
    tree = {**BASE, "features": RATES, "model": {"objective": "binary:logistic"}}
    tree["data"] = {**BASE["data"], "join": [{"name": "w", "source": "w.parquet", "by": "k"}]}
    before = json.dumps(tree)
    assert read(load(tree, [override]))
    assert json.dumps(tree) == before
    key, _, value = override.partition("=")
    assert read(load(tree, {key.strip(): parse(f"'{value}'" if value[0] in "*`" else value, "x").tree}))
    assert read(load(load(tree), [override]))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("memory.limt=8GB", ["memory has no key 'limt'", "--set memory.limt=8GB", "Did you mean 'limit'?"]),
        ("memroy.limit=8GB", ["'memroy'", "Did you mean 'memory'?"]),
        ("features.rtes.smooth=1", ["'rtes'", "Did you mean 'rates'?"]),
        ("features.rates.smoth=1", ["'smoth'", "Did you mean 'smooth'?"]),
        ("features[9].smooth=1", ["'9'"]),
        ("features.rates.smooth=x", ["features[1].target_encode.smooth is 'x'", "a number"]),
        ("data.target.x=1", ["data.target", "no keys"]),
        ("target=y", ["Did you mean data.target?"]),
        ("nonsense", ["no value"]),
        ("=1", ["the key ''"]),
        ("a..b=1", ["'a..b'"]),
        ("memory.limit=[1", ["--set memory.limit, line 2"]),
        ("data.join.w.prefix=q", ["data.join", "'w'"]),
    ],
)
def test_wrong_overrides(override: str, words: list[str]) -> None:
    message = refusal({**BASE, "features": RATES}, [override])
    for word in words:
        assert word in message


def test_steps_cannot_be_set_where_there_are_none() -> None:
    assert "features has no 'rates'" in refusal(BASE, ["features.rates.smooth=1"])


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("memory: {limt: 3GB}", ["memory has no key 'limt'", "f.yaml, line 3", "Did you mean 'limit'?"]),
        ("memroy: 1\nengine: gup", ["pipeline has no key 'memroy'", "1 more mistake", "Did you mean 'memory'?"]),
        ("engine: gup", ["engine is 'gup'", "Did you mean 'gpu'?", "--set engine="]),
        ("features: {fill: {columns: a}}", ["features is a mapping", "line 3", "- fill"]),
        ("features:\n- fil: {columns: a}", ["'fil'", "line 4", "Did you mean 'fill'?"]),
        ("features:\n- fill: {colums: a}", ["features[0].fill has no key 'colums'", "Did you mean 'columns'?"]),
        ("features:\n- fill: {kind: fill, columns: a}", ["kind"]),
        ("features:\n- fill:\n  columns: [a]", ["one key"]),
        ("features:\n- log: {columns: a}\n- categorify: {columns: a, min_count: ten}",
         ["features[1].categorify.min_count is 'ten'", "line 5", "whole number"]),
        ("features:\n- log: {columns: a, name: x}\n- log: {columns: a, name: x}", ["'x'", "once"]),
        ("memory: {limit: 8XB}", ["memory.limit is '8XB'", "'8GB'"]),
        ("memory: {limit: 1.5}", ["memory.limit is 1.5", "fraction"]),
        ("memory: {limit: true}", ["memory.limit is True"]),
        ("cache: {limit: 0.5}", ["cache.limit is 0.5"]),
        ("memory: {pool: asinc}", ["memory.pool is 'asinc'", "Did you mean 'async'?"]),
        ("memory: {spill: no}", ["memory.spill is 'no'"]),
        ("memory: {chunk_rows: 0}", ["memory.chunk_rows is 0", "at least 1"]),
        ("model: {rounds: 3}", ["model.objective is missing", "binary:logistic"]),
        ("model: {objective: x, rounds: 1e3}", ["model.rounds is 1000.0", "whole number"]),
        ("model: {objective: x, params: {a: {b: .nan}}}", ["model.params.a is {'b': nan}"]),
        ("model: {objective: x, early_stopping: 3}\nsplit: {valid: 0}", ["early_stopping", "split.valid"]),
        ("split: {by: tim}", ["split.by is 'tim'", "Did you mean 'time'?"]),
        ("split: {by: time, valid: 2013-9-1}", ["split.valid is '2013-9-1'", "2013-10-01"]),
        ("split: {by: time, valid: 2013-10-01, test: 2013-09-01}", ["before the test part"]),
        ("split: {by: time, valid: 2013-10-01, test: 0.1}", ["split.test is 0.1"]),
        ("split: {by: time, valid: 2013, test: 2013-01-01}", ["two times"]),
        ("split: {by: time, valid: 0.6, test: 0.4}", ["add up to 1"]),
        ("split: {valid: 0.6, test: 0.4}", ["add up to 1"]),
        ("split: {valid: 2013-10-01}", ["split.valid is '2013-10-01' with split.by 'random'"]),
        ("split: {valid: -0.1}", ["split.valid is -0.1"]),
        ("split: {gap: 7d}", ["split.gap", "by: time"]),
        ("split: {by: time, gap: 7 days}", ["split.gap is '7 days'", "7d or 12h"]),
        ("split: {by: column}", ["column: NAME"]),
        ("split: 0.2", ["split is 0.2", "mapping"]),
        ("cluster: {}", ["workers, address and scheduler_file"]),
        ("cluster: {workers: 2, address: x}", ["workers, address"]),
        ("name: ../x", ["name is '../x'", "letters, digits"]),
        ("name: 'a\nb'", ["name is"]),
        ("version: 1", ["'version'", "line 1"]),
    ],
)  # fmt: skip
def test_refusals(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(f"version: 1\ndata: {{source: x, target: y, time: t}}\n{text}\n")
    message = refusal(path)
    for word in [*words, "f.yaml"]:
        assert word in message


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({}, ["version is missing", "1 more mistake"]),
        ({"version": 2, "data": {"source": "x"}}, ["version is 2", "Expected 1"]),
        ({"version": True, "data": {"source": "x"}}, ["version is True"]),
        ({"version": 1.0, "data": {"source": "x"}}, ["version is 1.0"]),
        ({"version": 1}, ["data is missing"]),
        ({"version": 1, "data": {"source": []}}, ["data.source is []", "at least 1"]),
        ({"version": 1, "data": {"source": "x"}, "model": {"objective": "x"}}, ["data.target"]),
        ({"version": 1, "data": {"source": "x"}, "features": [{"target_encode": {"columns": "a"}}]}, ["data.target"]),
        ({"version": 1, "data": {"source": "x"}, "split": {"by": "time"}}, ["data.time"]),
        ({"version": 1, "data": {"source": "x"}, "split": {"by": "group"}}, ["data.group"]),
        ({"version": 1, "data": {"source": "x", "target": "y", "weight": "y"}}, ["data.weight", "'y'"]),
        ({"version": 1, "data": {"source": "x", "columns": {"a.b": {"kind": "text"}}}}, ['data.columns."a.b".kind']),
        (
            {"version": 1, "data": {"source": "x", "join": [{"name": "a", "source": "b"}]}},
            ["data.join[0].by is missing"],
        ),
        ({"version": 1, "data": {"source": "x", "join": [{"name": "a", "source": "b", "by": "k"}] * 2}}, ["'a'"]),
        ({1: 2}, ["the key 1"]),
    ],
)
def test_refusals_of_dictionaries(tree: Any, words: list[str]) -> None:
    message = refusal(tree)
    for word in words:
        assert word in message


@pytest.mark.parametrize("text", ["", "# nothing", "- 1", "text", "null"])
def test_a_file_holds_a_mapping(tmp_path: Path, text: str) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(text)
    assert "Expected a mapping" in refusal(path)


def test_a_missing_file_names_the_nearest(flights: Path) -> None:
    assert "Did you mean 'flights.yaml'?" in refusal(flights.with_name("flight.yaml"))


def test_models_built_in_python_raise_the_same_errors() -> None:
    with pytest.raises(ConfigError, match=r"pipeline has no key 'spilt'.* Did you mean 'split'"):
        Pipeline(version=1, data=Data(source="x"), spilt=Split())  # type: ignore[call-arg]  # the mistake
    with pytest.raises(ConfigError, match="cluster"):
        Cluster()
    with pytest.raises(ConfigError) as caught:
        Split(seed=-1)
    assert pickle.loads(pickle.dumps(caught.value)).remedy == "Correct seed."


def test_pipelines_are_frozen() -> None:
    pipeline = load(BASE)
    with pytest.raises(ValueError, match="frozen"):
        pipeline.engine = "gpu"


# --- what others build on --------------------------------------------------------------------------------------------


def test_the_schema_covers_every_key() -> None:
    schema = json_schema()
    json.dumps(schema)
    (features,) = [b for b in schema["properties"]["features"]["anyOf"] if "items" in b]
    kinds = {kind: item for item in features["items"]["anyOf"] for kind in item["properties"]}
    assert kinds.keys() == STEP_KINDS.keys()
    assert {"$ref": "#/$defs/Pool"} in schema["$defs"]["Memory"]["properties"]["pool"]["anyOf"]
    assert "kind" not in schema["$defs"]["FillOptions"]["properties"]
    for definition in [schema, *schema["$defs"].values()]:
        assert definition["additionalProperties"] is False
        for name, field in definition["properties"].items():
            assert field.get("description"), name


def test_importing_it_is_cheap() -> None:
    code = (
        "import sys, tabgpu.config; print([m for m in ('pyarrow', 'numpy', 'xgboost', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
