"""Imports point down only, form no ring, and each foreign library has one room. The table is that of the design."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "tabgpu"

# The longest name that fits decides: a folder's layer is that of all its modules.
LAYERS = {
    **dict.fromkeys(["errors", "interrupts", "merging", "units"], 1),
    **dict.fromkeys(["config", "files", "hardware", "packages", "wire"], 2),
    **dict.fromkeys(["columns", "schema", "hashing", "xxhash64", "engine", "planning", "terms", "device_terms"], 3),
    **dict.fromkeys(["data", "features"], 4),
    **dict.fromkeys(["train", "cache", "runners", "survey", "fit"], 5),
    **dict.fromkeys(
        [
            "bundle",
            "frames",
            "run_folder",
            "supervise",
            "place",
            "assemble",
            "design",
            "model",
            "outputs",
            "scoring",
            "stages",
            "doctor",
        ],
        6,
    ),
    **dict.fromkeys(["workflow", "preview", "report", "result"], 7),
    **dict.fromkeys(["cli", "__main__", ""], 8),  # "" is tabgpu/__init__.py
}
ROOMS = {
    **dict.fromkeys(["cudf", "cupy", "rmm", "pylibcudf", "nvtx", "cuda"], "engine.gpu"),
    **dict.fromkeys(["dask", "distributed", "dask_cuda", "dask_cudf"], "runners.dask"),
    **dict.fromkeys(["psutil", "pynvml"], "hardware"),
}


def modules(package: Path) -> dict[str, Path]:
    """Dotted name below the package ('features.dates', '' for the package itself) of each file."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(tree: ast.AST, name: str, is_package: bool) -> Iterator[tuple[str, str, ast.AST]]:
    """(absolute module, name taken from it or '', node) of every import, inside functions too."""
    here = ["tabgpu", *name.split(".")] if name else ["tabgpu"]
    if not is_package:
        here = here[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, "", node
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield module, alias.name, node
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield ast.unparse(node.args[0]).strip("'"), "", node


def layer(name: str) -> int | None:
    """Layer of a module; None where the table knows none."""
    while name not in LAYERS and "." in name:
        name = name.rpartition(".")[0]
    return LAYERS.get(name)


def own_module(module: str, taken: str, known: dict[str, Path]) -> str | None:
    """The module of the package that an import reaches; None for foreign ones."""
    top, _, name = module.partition(".")
    if top != "tabgpu":
        return None
    longer = f"{name}.{taken}".strip(".")
    return longer if longer in known else name


def violations(package: Path) -> list[str]:
    """All breaches, as 'file:line: what'."""
    known = modules(package)
    found, edges = [], {}
    for name, path in known.items():
        where = path.relative_to(package).as_posix()
        mine = layer(name)
        if mine is None:
            found.append(f"{where}:1: in no layer; add it to LAYERS")
            continue
        edges[name] = set()
        for module, taken, node in imports(ast.parse(path.read_text()), name, path.name == "__init__.py"):
            target = own_module(module, taken, known)
            if target is None:
                room = ROOMS.get(module.partition(".")[0], name)
                if name != room and not name.startswith(f"{room}."):
                    found.append(f"{where}:{node.lineno}: {module} is imported in {room} alone")
                continue
            if layer(target) == mine:
                edges[name].add(target)
            elif (layer(target) or 0) > mine:
                owner = target or "tabgpu"
                found.append(f"{where}:{node.lineno}: layer {mine} imports {owner} of layer {layer(target)}")
    return found + [f"ring: {' -> '.join(ring)}" for ring in rings(edges)]


def rings(edges: dict[str, set[str]]) -> list[list[str]]:
    """Rings of imports, each once. `edges` lists what each module imports of its own layer."""
    found: list[list[str]] = []
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            found.append([*path[path.index(name) :], name])
        elif name not in done:
            for target in sorted(edges.get(name, ())):
                if target != name:
                    visit(target, [*path, name])
            done.add(name)

    for name in sorted(edges):
        visit(name, [])
    return found


def test_imports_point_down_and_each_library_has_one_room() -> None:
    assert violations(PACKAGE) == []


@pytest.mark.parametrize(
    ("file", "text", "complaint"),
    [
        ("units.py", "from .planning import Plan", "units.py:1: layer 1 imports planning of layer 3"),
        ("units.py", "from . import planning", "units.py:1: layer 1 imports planning of layer 3"),
        ("units.py", "import tabgpu.planning", "units.py:1: layer 1 imports planning of layer 3"),
        ("units.py", "from tabgpu import run", "units.py:1: layer 1 imports tabgpu of layer 8"),
        ("features/dates.py", "def f():\n    from ..train import fit", "dates.py:2: layer 4 imports train of layer 5"),
        ("features/dates.py", "import cupy as cp", "dates.py:1: cupy is imported in engine.gpu alone"),
        ("features/dates.py", "import importlib\nimportlib.import_module('cudf')", "dates.py:2: cudf is imported in"),
        ("train/fit.py", "from distributed.client import Client", "fit.py:1: distributed.client is imported in"),
        ("surprise.py", "", "surprise.py:1: in no layer"),
        ("features/dates.py", "from . import numeric", "ring: features.dates -> features.numeric -> features.dates"),
    ],
)
def test_a_breach_is_named(tmp_path: Path, file: str, text: str, complaint: str) -> None:
    tree = {
        "__init__.py": "from .planning import Plan",
        "units.py": "",
        "planning.py": "from .units import parse\nfrom .engine.gpu import facts",
        "engine/gpu.py": "import cupy\nimport numpy",
        "features/__init__.py": "",
        "features/numeric.py": "from .dates import Dates\nfrom ..planning import Plan",
        "features/dates.py": "",
        "train/__init__.py": "",
    }
    for name, content in tree.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    assert violations(tmp_path) == []
    (tmp_path / file).write_text(text)
    found = violations(tmp_path)
    assert len(found) == 1
    assert complaint in found[0]
