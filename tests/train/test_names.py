"""Safe names: XGBoost takes all of them, ordinary ones stay, none comes twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import xgboost
from hypothesis import given, settings
from hypothesis import strategies as st

from tabgpu.cache import Block, BlockWriter
from tabgpu.engine.cpu import CpuEngine
from tabgpu.train import cuts, matrix, metrics
from tabgpu.train.names import safe_names, with_safe_names
from tabgpu.train.run import Answers, ModelOptions, TrainSpec, fit_booster

ODD = ["age", "price [EUR]", "x<1", "f1", "f2_", "f2", "a]"]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.text(st.sampled_from("f12_[]<\0 é"), max_size=4), min_size=1, max_size=8, unique=True))
def test_xgboost_takes_them(names: list[str]) -> None:
    safe = safe_names(names)
    assert len(set(safe)) == len(names)
    assert all(given == name for given, name in zip(safe, names, strict=True) if not set("[]<\0") & set(name))
    assert xgboost.DMatrix(np.zeros((1, len(names))), feature_names=safe).feature_names == safe


def test_constraints_follow() -> None:
    monotone, groups = {"age": 1, "x<1": -1, "nosuch": 1}, [["age", "price [EUR]"], ["f1"]]
    given = {"monotone_constraints": monotone, "interaction_constraints": groups, "eta": 0.1}
    changed = with_safe_names(given, ODD)
    safe = dict(zip(ODD, safe_names(ODD), strict=True))
    assert changed == {
        "monotone_constraints": {"age": 1, safe["x<1"]: -1, "nosuch": 1},
        "interaction_constraints": [["age", safe["price [EUR]"]], ["f1"]],
        "eta": 0.1,
    }
    as_text = {"monotone_constraints": "(1,0)", "interaction_constraints": "[[0, 1]]"}
    assert with_safe_names(as_text, ODD) == as_text
    assert monotone == {"age": 1, "x<1": -1, "nosuch": 1}


def test_training_with_odd_names_is_training_with_ordinary_ones(tmp_path: Path) -> None:
    """Trees, constraints and metrics are the same, in core and external."""
    random = np.random.default_rng(0)
    features = random.standard_normal((500, len(ODD))).astype("float32")
    label = (features[:, 1] + random.standard_normal(500) > 0).astype("float32")
    made: list[Any] = []
    for names in (ODD, list("abcdefg")):
        constraints = {"monotone_constraints": {names[1]: 1, names[0]: -1}, "interaction_constraints": [names[:3]]}
        with BlockWriter(names, 200) as writer:
            writer.append(Block(features, label))
            blocks = {"train": writer.finish()}
        for kind in ("in_core", "external"):
            spec = TrainSpec("binary:logistic", 3, {"nthread": 1, **constraints})
            chosen = cuts.choose(features, 256)
            trained, matrices = fit_booster(ModelOptions(spec, "own", kind), blocks, chosen, tmp_path)
            assert matrices["train"].feature_names == safe_names(names)
            scores = metrics.finish(Answers.of_matrix(trained, matrices["train"], None).observe("binary"))
            assert scores == metrics.finish(Answers.of_blocks(trained, blocks["train"], CpuEngine()).observe("binary"))
            booster = xgboost.Booster(model_file=bytearray(trained.model))
            booster.feature_names = list("abcdefg")
            made.append((booster.get_dump(with_stats=True), scores))
    assert all(one == made[0] for one in made)
    assert cuts.matrix_of(cuts.choose(features, 16), 16, ODD).feature_names == safe_names(ODD)
    assert matrix.Builder()(blocks["train"]).num_col() == len(ODD)
