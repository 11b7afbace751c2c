"""The pass scheduler: what is fitted when, in how many passes, over which columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tabgpu.columns import Chunk, Column
from tabgpu.features.contract import Field
from tabgpu.features.fill import Fill
from tabgpu.features.numeric import Log, QuantileBins, Standardize
from tabgpu.features.passes import Key, Passes, Wish
from tabgpu.merging import merge_tree

FIELDS = {name: Field("numeric", "float32") for name in ("a", "b", "c")}


def chunk(seed: int = 0, n: int = 40) -> Chunk:
    rng = np.random.default_rng(seed)
    columns = {n_: Column(rng.normal(size=n).astype("float32")) for n_ in FIELDS}
    columns["a"].values[::5] = np.nan
    return Chunk(columns, np.arange(n, dtype=np.uint64) + np.uint64(seed * 1000), np)


class Observer:
    """Makes passes over chunks and notes what each was asked."""

    def __init__(self, passes: Passes, chunks: list[Chunk]) -> None:
        self.passes, self.chunks = passes, chunks
        self.asked: list[list[str]] = []
        self.columns: list[tuple[str, ...]] = []

    def __call__(self, wishes: list[Wish], fitted: Mapping[int, Any]) -> Mapping[Key, Any]:
        self.asked.append([type(w.statistic).__name__ for w in wishes])
        self.columns.append(self.passes.base_columns(wishes))
        selected = [c.select(self.columns[-1]) for c in self.chunks]
        states = merge_tree((self.passes.observe_chunk(c, wishes, fitted) for c in selected), self.passes.merge_all)
        assert states is not None
        return states


def test_what_is_ready_together_is_observed_together() -> None:
    steps = [Fill("fill", ("a",), "mean"), Standardize("scale", ("b",)), Standardize("later", ("a",))]
    passes = Passes(tuple(steps), FIELDS)
    observer = Observer(passes, [chunk(0), chunk(1)])
    passes.fit(observer)
    assert observer.columns == [("a", "b"), ("a",)]  # `later` has to wait for `fill`
    planned = passes.plan()
    assert [p.columns for p in planned] == observer.columns
    assert [p.steps for p in planned] == [("fill", "scale"), ("later",)]


def test_equal_statistics_are_observed_once() -> None:
    steps = [Fill("fill", ("a",), "mean", indicator=True), Standardize("one", ("b",)), Fill("two", ("b",), "mean")]
    passes = Passes(
        (
            steps[0],
            steps[2],
        ),
        FIELDS,
    )
    observer = Observer(passes, [chunk()])
    passes.fit(observer)
    assert len(observer.asked[0]) == 2
    again = Passes(
        (
            Standardize("one", ("b",)),
            Standardize("two", ("b",)),
        ),
        FIELDS,
    )
    observer = Observer(again, [chunk()])
    again.fit(observer)
    assert observer.asked == [["Moments"], ["Moments"]], "the second looks at the column as the first left it"


def test_a_statistic_sees_the_column_as_the_steps_before_it_left_it() -> None:
    passes = Passes(
        (
            Log("log", ("c",), 10.0),
            Standardize("scale", ("c",)),
        ),
        FIELDS,
    )
    one = chunk()
    fitted = passes.fit(Observer(passes, [one]))
    done = passes.transform(one, fitted, ["c"], training=True)["c"].values
    logged = np.log(one["c"].values + 10)
    assert done == pytest.approx((logged - logged.mean()) / logged.std(), abs=1e-5)


def test_only_what_is_needed_is_transformed() -> None:
    passes = Passes(
        (
            Fill("fill", ("a",), 0.0),
            QuantileBins("bins", ("b",), 4),
            Log("log", ("c",), 9.0),
        ),
        FIELDS,
    )
    assert passes.needed(["b_bin"]) == ((1,), ("b",))
    assert passes.needed(["c", "a"]) == ((0, 2), ("a", "c"))
    fitted = passes.fit(Observer(passes, [chunk()]))
    done = passes.transform(chunk().select(["b"]), fitted, ["b_bin"], training=False)
    assert list(done.columns) == ["b_bin"]


def test_quantiles_ask_again_until_they_know() -> None:
    passes = Passes((QuantileBins("bins", ("b",), 3),), FIELDS)
    observer = Observer(passes, [chunk(s) for s in range(5)])
    fitted = passes.fit(observer)
    assert 1 < len(observer.asked) <= len(passes.plan())
    whole = np.concatenate([chunk(s)["b"].values for s in range(5)])
    cuts = np.quantile(whole.astype(np.float64), [1 / 3, 2 / 3], method="inverted_cdf")
    done = passes.transform(chunk(2), fitted, ["b_bin"], training=False)["b_bin"].values
    assert np.array_equal(done, np.searchsorted(cuts, chunk(2)["b"].values))


def test_merging_as_a_tree_keeps_the_order() -> None:
    def join(found: Sequence[list[int]]) -> list[int]:
        return [i for some in found for i in some]

    assert merge_tree([], join) is None
    for n in range(1, 80):
        assert merge_tree([[i] for i in range(n)], join) == list(range(n))
