"""The form in which values travel, and a whole pipeline whose every task, wish and state goes through it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import pipeline, visits, write_parts

import tabgpu
from tabgpu import runners, wire
from tabgpu.assemble import assemble
from tabgpu.config import load
from tabgpu.design import design
from tabgpu.errors import DataError
from tabgpu.hardware import SystemHardware
from tabgpu.merging import merge_tree
from tabgpu.place import this_process
from tabgpu.runners import SerialRunner

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner), max_leaves=8
)


@given(value=values)
@settings(max_examples=50, deadline=None)
def test_plain_values_come_back(value: Any) -> None:
    assert repr(wire.unpack(wire.pack(value))) == repr(value)  # tells 1 from 1.0 and True, -0.0 from 0.0


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(0,), (7,), (3, 2), (0, 4)])
def test_arrays_come_back(dtype: str, shape: tuple[int, ...]) -> None:
    array = (np.arange(int(np.prod(shape))).reshape(shape) * 37 % 5).astype(dtype)
    back = wire.unpack(wire.pack(array))
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert np.array_equal(back, array)
    text = pa.array(["a", None, "ä"])
    assert wire.unpack(wire.pack((text, array)))[0].equals(text)


@pytest.mark.parametrize("n_rows", [0, 3])
def test_tables_come_back(n_rows: int) -> None:
    table = pa.table({"a": pa.array(range(n_rows), pa.int8()), "b": pa.array(["x"] * n_rows).dictionary_encode()})
    table = pa.concat_tables([table, table.slice(1)]).replace_schema_metadata({"k": "v"})
    back, beside = sent((table, 7))
    assert back.equals(table, check_metadata=True)
    assert beside == 7


def test_strangers_do_not_travel() -> None:
    @dataclass
    class Stranger:
        value: int

    for stranger in (Stranger(1), object(), np.array([object()]), {1, 2}, b"bytes"):
        with pytest.raises(TypeError, match="cannot travel"):
            wire.pack(stranger)
    for tree in ({"$record": "Stranger", "fields": {}}, {"$array": 3}, {"$int": "x"}, {"$what": 1}, {}):
        with pytest.raises(DataError):
            wire.join(tree, [])


def sent(value: Any) -> Any:
    return wire.unpack(wire.pack(value))


class WireRunner(SerialRunner):
    """Runs here, but whatever a worker would be sent or send goes through `wire`."""

    name = "wire"

    def reduce(self, rows: Any, job: Any, tasks: Any) -> Any:
        job = sent(job)
        states = (sent(state) for task in tasks for state in job.observe(rows, sent(task)))
        return merge_tree(states, lambda some: sent(job.merge(some)))

    def each(self, rows: Any, work: Any, tasks: Any) -> Iterator[Any]:
        return (sent(answer) for answer in super().each(rows, sent(work), [sent(t) for t in tasks]))

    @contextmanager
    def group(self, rows: Any, job: Any, tasks: Any, loads: Any) -> Iterator[Any]:
        assert sum(loads) == job.n_rows["train"]
        with super().group(rows, sent(job), [sent(t) for t in tasks], loads) as group:
            group.make_blocks = lambda make=group.make_blocks: sent(make())  # type: ignore[method-assign]
            yield group


def test_a_pipeline_over_the_wire_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_parts(visits(400), tmp_path / "in", [250, 150], 60)
    here = tabgpu.run(pipeline(source, tmp_path / "runs"))
    monkeypatch.setattr(runners, "resolve", lambda *how: (WireRunner(), "a test"))
    there = tabgpu.run(pipeline(source, tmp_path / "runs"))
    assert there.plan.runner == "wire"
    assert there.metrics == here.metrics
    assert there.summary["model_digest"] == here.summary["model_digest"]


def test_plans_wishes_and_recipes_travel(tmp_path: Path) -> None:
    source = write_parts(visits(100), tmp_path / "in", [100], 60)
    config = pipeline(source, tmp_path / "runs")
    plan = tabgpu.plan(config)
    assert wire.unpack(wire.pack(plan)) == plan
    assembled = assemble(load(config), this_process(SystemHardware().host(tmp_path)), read_tables=True)
    passes = design(assembled).passes
    assert wire.unpack(wire.pack(passes.steps)) == passes.steps
    wishes = passes._wishes({i: None for i, s in enumerate(passes.steps) if not s.statistics()}, {}, {})
    assert wishes
    assert wire.unpack(wire.pack(wishes)) == wishes
    assert wire.unpack(wire.pack(assembled.tasks)) == assembled.tasks
