"""Options of steps: defaults, names, refusals; and how column patterns choose."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabgpu.config import load
from tabgpu.config.step_options import STEP_KINDS, StepOptions, select_columns, step_mapping, step_names, steps
from tabgpu.errors import ConfigError

AVAILABLE = {
    "id": ("numeric", "int64"),
    "w_temp": ("numeric", "float32"),
    "w_visib": ("numeric", "float64"),
    "carrier": ("categorical", "int32"),
    "time_hour": ("datetime", "int64"),
    "a*": ("numeric", "int8"),
    "!odd": ("numeric", "int8"),
}
PARSED = {"dates": {"parts": ["hour"]}, "clip": {"lower": 0}, "cross": {"columns": [["a", "b"]]}}


def of_file(mapping: dict[str, Any]) -> StepOptions:
    features = load({"version": 1, "data": {"source": "x", "target": "y"}, "features": [mapping]}).features
    assert features is not None
    return features[0]


@pytest.mark.parametrize("kind", STEP_KINDS)
def test_builders_and_files_agree(kind: str) -> None:
    options = {"columns": ["a"], "name": "n", **PARSED.get(kind, {})}
    built = getattr(steps, kind)(**options)
    assert built.kind == kind
    assert of_file({kind: options}) == built
    assert of_file(step_mapping(built)) == built
    assert isinstance(hash(built), int)


def test_a_bare_name_is_a_list_of_one() -> None:
    assert steps.fill(columns="a").columns == ("a",)
    assert steps.target_encode(columns=["a", ["b", "c"]]).columns == ("a", ("b", "c"))
    assert steps.dates(columns="t", parts="hour").parts == ("hour",)


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ({"fill": {"columns": []}}, ["fill.columns is []", "at least 1"]),
        ({"fill": {"columns": "a", "value": None}}, ["value is None"]),
        ({"fill": {"columns": "a", "value": True}}, ["value is True"]),
        ({"fill": {"columns": "a", "indicator": "yes"}}, ["indicator is 'yes'", "true or false"]),
        ({"fill": {"columns": ["a", ["b", "c"]]}}, ["columns[1]", "text"]),
        ({"clip": {"columns": "a"}}, ["no bounds"]),
        ({"clip": {"columns": "a", "lower": 2, "upper": 1}}, ["lower 2 above upper 1"]),
        ({"clip": {"columns": "a", "lower": float("-inf")}}, ["lower is -inf", "finite"]),
        ({"quantile_bins": {"columns": "a", "bins": 1}}, ["bins is 1", "at least 2"]),
        ({"categorify": {"columns": "a", "max_levels": 0}}, ["max_levels is 0"]),
        ({"target_encode": {"columns": "a", "folds": 1}}, ["folds is 1"]),
        ({"target_encode": {"columns": "a", "smooth": -1}}, ["smooth is -1"]),
        ({"target_encode": {"columns": [["a", 3]]}}, ["columns[0][1] is 3"]),
        ({"cross": {"columns": ["a", "b"]}}, ["[[a, b]]"]),
        ({"cross": {"columns": [["a"]]}}, ["two or more"]),
        ({"dates": {"columns": "t"}}, ["parts is missing"]),
        ({"dates": {"columns": "t", "parts": ["hours"]}}, ["parts[0] is 'hours'", "Did you mean 'hour'?"]),
        ({"fill": None}, ["fill"]),
        ({}, ["one key"]),
        ({"fill": {"columns": "a"}, "name": "x"}, ["one key"]),
    ],
)
def test_wrong_options(mapping: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        of_file(mapping)
    for word in words:
        assert word in str(caught.value)


def test_builders_raise_configuration_errors() -> None:
    with pytest.raises(ConfigError, match=r"fill has no key 'colums'.*'columns'"):
        steps.fill(colums=["a"])  # type: ignore[call-arg]  # the mistake


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(["fill", "log"]), st.sampled_from(["", "", "fill", "fill_2", "x"]))))
def test_names_are_unique_and_given_ones_kept(pairs: list[tuple[str, str]]) -> None:
    given = [name for _, name in pairs if name]
    if len(given) > len(set(given)):
        with pytest.raises(ConfigError):
            step_names(pairs)
        return
    names = step_names(pairs)
    assert len(set(names)) == len(pairs)
    for name, (kind, wanted) in zip(names, pairs, strict=True):
        assert name == wanted or (not wanted and name.startswith(kind))


@pytest.mark.parametrize(
    ("patterns", "chosen"),
    [
        (["w_*"], ("w_temp", "w_visib")),
        (["w_visib", "w_*"], ("w_visib", "w_temp")),
        (["a*"], ("a*",)),
        (["a**"], ("a*",)),
        (["!odd"], ("!odd",)),
        (["!!odd", "!a*", "!w_*", "!kind:categorical", "!type:int64"], None),
        (["!w_*"], ("id", "carrier", "time_hour", "a*", "!odd")),
        (["kind:numeric", "!id", "!type:int8"], ("w_temp", "w_visib")),
        (["!id", "id", "carrier"], ("carrier",)),
        (["type:float*"], ("w_temp", "w_visib")),
        (["type:int64"], ("id", "time_hour")),
        (["carrier", ["carrier", "id"], ["id"], "id"], ("carrier", ("carrier", "id"), "id")),
        (["[ic]*"], ("id", "carrier")),
        ([("id", "carrier"), "!id"], (("id", "carrier"),)),
    ],
)
def test_patterns_choose(patterns: list[Any], chosen: tuple[Any, ...] | None) -> None:
    if chosen is None:
        with pytest.raises(ConfigError, match="leaves no column"):
            select_columns(patterns, AVAILABLE, "columns")
    else:
        assert select_columns(patterns, AVAILABLE, "columns") == chosen


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("w_tmp", ["'w_tmp'", "Did you mean 'w_temp'?"]),
        ("x_*", ["'x_*'", "Known are"]),
        ("!x_*", ["'x_*'"]),
        ("kind:numric", ["'kind:numric'", "Did you mean 'numeric'?"]),
        ("kind:num*", ["'kind:num*'"]),
        ("type:float16", ["'type:float16'", "'float32'"]),
        (["id", "w_*"], ["group", "'w_*'"]),
        (["id", "carier"], ["'carier'", "Did you mean 'carrier'?"]),
        (["id", "id"], ["different"]),
        ([], ["different"]),
    ],
)
def test_patterns_that_match_nothing(pattern: Any, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        select_columns([pattern], AVAILABLE, "features[0].fill.columns")
    for word in [*words, "features[0].fill.columns"]:
        assert word in str(caught.value)


def test_a_kind_that_no_column_has() -> None:
    with pytest.raises(ConfigError, match=re.escape("'kind:datetime'")):
        select_columns(["kind:datetime"], {"a": ("numeric", "int8")}, "columns")


@settings(deadline=None, max_examples=50)
@given(st.lists(st.text(max_size=4), min_size=1, unique=True), st.data())
def test_every_name_chooses_itself(names: list[str], data: st.DataObject) -> None:
    """Whatever a column is called, its name means it."""
    available = dict.fromkeys(names, ("numeric", "float32"))
    wanted = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    assert select_columns(wanted, available, "columns") == tuple(wanted)
