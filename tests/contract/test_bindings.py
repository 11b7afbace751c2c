"""Every call that the package makes of RAPIDS, CUDA, Dask, XGBoost, NVTX and NVML is one that the library takes.

Runs where these libraries are (scripts/contract); no GPU is needed. docs/contract.md says what this proves.
"""

from __future__ import annotations

import ast
import copy
import importlib
import importlib.util
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

if importlib.util.find_spec("cudf") is None or importlib.util.find_spec("dask_cuda") is None:
    pytest.skip("needs the RAPIDS wheels: scripts/contract", allow_module_level=True)

from contract import binder, forwarding, values
from contract.signatures import refusals
from contract.walker import Call, Report

ROOT = Path(__file__).resolve().parent.parent.parent
ROOMS = ("tabgpu/engine/gpu", "tabgpu/runners/dask")  # a method of something unknown has to be some library's here
# Where modules lie, below the folder from which they are imported. The last two run where a GPU is, and nowhere else.
PLACES = [
    *(("", f"tabgpu/{part}") for part in ("engine", "runners", "hardware", "train", "doctor")),
    ("scripts", "gpu_check"),
    ("tests", "gpu"),
]

# Callables that tell no parameters, or problems that are none; each with the reason.
OPAQUE = {"cuda.bindings.driver.cuuint64_t": "an integer type of C, made of one integer"}
ALLOWED: dict[str, str] = {
    "runner.loop.asyncio_loop": "tornado gives its loop this attribute as it makes one; Ctrl-C tests go through it",
}


def sources() -> Iterator[tuple[Path, str]]:
    """Files and the names of their modules."""
    for base, folder in PLACES:
        for path in sorted((ROOT / base / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / base).with_suffix("").parts
            yield path, ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.fixture(scope="module")
def report() -> Report:
    whole = Report()
    with pytest.MonkeyPatch.context() as patch:
        for base in ("scripts", "tests"):
            patch.syspath_prepend(ROOT / base)
        for path, module in sources():
            name = path.relative_to(ROOT).as_posix()
            found = binder.bind(path, importlib.import_module(module), name, name.startswith(ROOMS))
            whole.bound += found.bound
            whole.loose += found.loose
            whole.opaque += found.opaque
            whole.problems += found.problems
    return whole


def test_all_files_that_import_these_libraries_are_read() -> None:
    read = {path for path, _ in sources()}
    for path in (ROOT / "tabgpu").rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        found |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
        assert path in read or not {name.partition(".")[0] for name in found} & set(values.LIBRARIES), path


def test_every_call_is_one_that_its_library_takes(report: Report) -> None:
    assert [p for p in report.problems if not any(text in p for text in ALLOWED)] == []


def test_calls_that_cannot_be_bound_have_a_reason(report: Report) -> None:
    assert [o for o in report.opaque if o.partition(": ")[2] not in OPAQUE] == []


def test_most_calls_are_bound_to_the_very_callable(report: Report) -> None:
    """Else types have been lost: annotate what the listed receivers are."""
    rooms = [call for call in report.bound if call.where.startswith(ROOMS)]
    assert len(rooms) > 100
    assert len([call for call in report.loose if call.startswith(ROOMS)]) < len(rooms) / 5, report.loose
    assert {values.LIBRARIES[0], "rmm", "cupy", "pylibcudf", "distributed", "pynvml", "xgboost"} <= {
        call.known.name.partition(".")[0] for call in report.bound
    }


def misuses(call: Call) -> Iterator[tuple[str, list[str]]]:
    """One misuse after the other of a call, each with what is found of it."""
    signatures = call.known.overloads
    if forwarding.reached(call.known.name) is not None:
        node = copy.deepcopy(call.node)
        node.keywords.append(ast.keyword("no_such_keyword", ast.Constant(0)))
        yield "an unknown keyword", refusals(call.known, node, forwarding.reached)
    kinds = inspect.Parameter
    if not any(p.kind is kinds.VAR_POSITIONAL for s in signatures for p in s.parameters.values()):
        most = max(len(s.parameters) for s in signatures)
        node = copy.deepcopy(call.node)
        node.args += [ast.Name("x", ast.Load())] * (most + 1 - len(node.args))
        yield "one argument too many", refusals(call.known, node, forwarding.reached)
    if call.receiver is not None:
        found = values.attribute(call.receiver, "no_such_name")
        yield "an unknown name", [found.what] if isinstance(found, values.Missing) else []


def test_a_misuse_of_each_call_is_caught(report: Report) -> None:
    uncaught = [
        f"{call.where}: {call.known.name}: {what}"
        for call in report.bound
        for what, found in misuses(call)
        if not found
    ]
    assert uncaught == []
