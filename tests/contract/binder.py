"""Bind the calls of libraries that a source makes to those libraries' signatures, without running the source.

`bind` walks a module's syntax tree, keeps for every name what it is known to be (see `values` and `walker`), and looks
at each call and each attribute of a library's object. It gives the calls it bound and the problems it found, each with
file and line: a name that is not there, arguments that are refused, a keyword that would vanish, a value that is not
taken. Where a source has the room of these libraries (`strict`), a method of something of unknown type must at least be
one that some class of theirs has and that takes these arguments.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import sys
import typing
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from contract import forwarding, values
from contract.signatures import Callee, method, refusals
from contract.values import ANYTHING, Bound, Instance, Missing, Thing, Unknown, Value
from contract.walker import Call, Report, Walker


def bind(path: Path, module: ModuleType, name: str = "", strict: bool = True) -> Report:
    """All calls of libraries in a file.

    Parameters
    ----------
    path
        The source.
    module
        The module that it makes, imported.
    name
        How messages call the file.
    strict
        Whether methods of what is unknown are looked at.
    """
    walker = Binder(name or path.name, module)
    walker.strict = strict
    tree = ast.parse(path.read_text())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of libraries whose modules are looked through
        for library in values.LIBRARIES:
            importlib.import_module(library)
        walker.walk(tree)  # to learn what attributes of `self` hold, wherever they are set
        walker.report = Report()
        walker.walk(tree)
    walker.report.problems = sorted(set(walker.report.problems), key=_by_line)
    return walker.report


def _by_line(problem: str) -> tuple[str, int]:
    file, line, _ = problem.split(":", 2)
    return file, int(line)


class Binder(Walker):
    """Says what an expression is, and looks at each call and attribute of a library's object."""

    strict = True

    def visit_Attribute(self, node: ast.Attribute) -> Value:
        found = self.attribute(node, self.visit(node.value))
        return self.tested(node) or found

    def tested(self, node: ast.expr) -> Value | None:
        """What a test around this place says about an expression."""
        text = ast.unparse(node)
        return next((scope[text] for scope in reversed(self.scopes) if text in scope), None)

    def attribute(self, node: ast.Attribute, owner: Value) -> Value:
        if isinstance(owner, Instance) and (owner.types[0], node.attr) in self.attributes:
            return self.attributes[owner.types[0], node.attr]
        found = values.attribute(owner, node.attr)
        if isinstance(found, Missing) and not isinstance(node.ctx, ast.Store):
            self.problem(node, f"{ast.unparse(node)}: {found.what}")
        return found

    def visit_Call(self, node: ast.Call) -> Value:
        receiver = None
        if isinstance(node.func, ast.Attribute):
            receiver = self.visit(node.func.value)
            function = self.attribute(node.func, receiver)
        else:
            function = self.visit(node.func)
        arguments = [self.visit(a) for a in (*node.args, *(k.value for k in node.keywords))]
        special = self.special(node, function, arguments)
        if special is not None:
            return special
        if isinstance(function, Missing):
            return ANYTHING
        ours = isinstance(receiver, Instance) and not values.library_of(receiver.types[0])
        if isinstance(function, Unknown) and isinstance(node.func, ast.Attribute) and not ours:
            return self.loosely(node, node.func.attr, function)
        known = values.called(function)
        if known is not None and known.name.partition(".")[0] in values.LIBRARIES:
            self.check(node, known, receiver)
        return values.result(function)

    def special(self, node: ast.Call, function: Value, arguments: list[Value]) -> Value | None:
        """Calls of Python's own whose result says more than their annotation."""
        match function:
            case Thing(found) if found is super and self.enclosing() is not None:
                return Instance(self.enclosing().__bases__)
            case Thing(found) if found is typing.cast:
                return self.annotation(node.args[0])
            case Thing(found) if found is importlib.import_module and isinstance(node.args[0], ast.Constant):
                try:
                    return Thing(importlib.import_module(node.args[0].value, self.module.__package__))
                except ImportError as error:
                    self.problem(node, f"{node.args[0].value} cannot be imported: {error}")
            case Bound(owner, name) if isinstance(node.func, ast.Attribute):
                if ast.unparse(node.func) == "sys.modules.get" and isinstance(node.args[0], ast.Constant):
                    return Thing(sys.modules[node.args[0].value])
                if issubclass(owner, Mapping | list):
                    return self.contents(self.visit_quietly(node.func.value), name)
        return None

    def contents(self, container: Value, name: str) -> Value | None:
        """What a method of a list or mapping with known items gives."""
        parts = typing.get_args(container.types[0]) if isinstance(container, Instance) else ()
        if name == "pop" and len(parts) == 1:
            return values.typed(parts[0])
        if len(parts) != 2:
            return None
        if name == "items":
            return Instance((list[tuple[parts[0], parts[1]]],))
        if name == "values":
            return Instance((list[parts[1]],))
        return values.typed(parts[1]) if name in ("get", "pop", "setdefault") else None

    def enclosing(self) -> type | None:
        return next((owner for owner in reversed(self.owners) if owner is not None), None)

    def check(self, node: ast.Call, known: Callee, receiver: Value | None) -> None:
        where = f"{self.name}:{node.lineno}"
        if not known.overloads:
            self.report.opaque.append(f"{where}: {known.name}")
            return
        self.report.bound.append(Call(where, node, known, receiver))
        for trouble in [*refusals(known, node, forwarding.reached), *forwarding.misused(known.name, node)]:
            self.problem(node, f"{ast.unparse(node.func)}: {trouble}")

    def loosely(self, node: ast.Call, name: str, owner: Unknown) -> Value:
        """A method of something unknown: some class has it and takes these arguments."""
        text = ast.unparse(node.func)
        if not owner.library and (not self.strict or name in elsewhere()):
            return ANYTHING
        found = list(values.owners(owner.library, name))
        if not found:
            self.problem(node, f"{text}: no class of {owner.library or 'the libraries'} has a method {name}")
            return ANYTHING
        self.report.loose.append(f"{self.name}:{node.lineno}: {text}")
        known = [method(each, name) for each in found]
        refused = [refusals(each, node, forwarding.reached) for each in known]
        if all(refused):
            self.problem(node, f"{text}: no class takes these arguments; {refused[0][0]}")
        kinds = {values.library_of(each) for each in found}
        return Unknown(owner.library or (kinds.pop() if len(kinds) == 1 else ""))

    def visit_Subscript(self, node: ast.Subscript) -> Value:
        owner = self.visit(node.value)
        self.visit(node.slice)
        told = self.tested(node)
        if told is not None:
            return told
        if isinstance(owner, Instance) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int):
            return self._nth(owner, node.slice.value)
        return values.subscripted(owner)

    def visit_BinOp(self, node: ast.BinOp) -> Value:
        sides = [self.visit(node.left), self.visit(node.right)]
        return next((s for s in sides if isinstance(s, Instance) and values.library_of(s.types[0])), ANYTHING)

    def visit_Compare(self, node: ast.Compare) -> Value:
        sides = [self.visit(each) for each in (node.left, *node.comparators)]
        return next((s for s in sides if isinstance(s, Instance) and values.library_of(s.types[0])), ANYTHING)

    def visit_IfExp(self, node: ast.IfExp) -> Value:
        self.visit(node.test)
        sides = [self.visit(node.body), self.visit(node.orelse)]
        return next((s for s in sides if isinstance(s, Instance | Thing) and s != Thing(None)), ANYTHING)

    def visit_Constant(self, node: ast.Constant) -> Value:
        return ANYTHING if node.value is None else Instance((type(node.value),))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> Value:
        self.generic_visit(node)
        return Instance((str,))

    def visit_Await(self, node: ast.Await) -> Value:
        return self.visit(node.value)

    def visit_comprehension_like(self, node: Any) -> Value:
        self.scopes.append({})
        for each in node.generators:
            self.store(each.target, self.items(each.iter))
            for test in each.ifs:
                self.visit(test)
                self.scopes[-1] |= dict(self.narrowed(test))
        if isinstance(node, ast.DictComp):
            kinds = [self.visit(node.key), self.visit(node.value)]
        else:
            kinds = [self.visit(node.elt)]
        self.scopes.pop()
        parts = tuple(k.types[0] if isinstance(k, Instance) else Any for k in kinds)
        outer = {ast.DictComp: dict, ast.ListComp: list, ast.SetComp: set}.get(type(node), list)
        return Instance((outer[parts],))

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_comprehension_like

    def _display(self, node: ast.List | ast.Tuple | ast.Set) -> Value:
        kinds = [self.visit(each) for each in node.elts]
        parts = [k.types[0] if isinstance(k, Instance) else Any for k in kinds]
        if isinstance(node, ast.Tuple):
            return Instance((tuple[tuple(parts)],)) if parts else Instance((tuple,))
        outer = list if isinstance(node, ast.List) else set
        return Instance((outer[parts[0]] if parts and len(set(parts)) == 1 else outer,))

    visit_List = visit_Tuple = visit_Set = _display

    def visit_Dict(self, node: ast.Dict) -> Value:
        self.generic_visit(node)
        return Instance((dict,))

    def generic_visit(self, node: ast.AST) -> Value:
        super().generic_visit(node)
        return ANYTHING


_ELSEWHERE: set[str] = set()
_OTHERS = (
    "builtins",
    "pathlib",
    "threading",
    "queue",
    "numpy",
    "pyarrow",
    "pyarrow.parquet",
    "concurrent.futures",
    "io",
)


def elsewhere() -> set[str]:
    """Names of methods that something of unknown type may have without being a library's."""
    if not _ELSEWHERE:
        ours = importlib.import_module("tabgpu")
        found = [each.name for each in pkgutil.walk_packages(ours.__path__, "tabgpu.") if "__main__" not in each.name]
        for name in (*_OTHERS, "logging", *found):
            for value in vars(importlib.import_module(name)).values():
                if isinstance(value, type) and not values.library_of(value):
                    _ELSEWHERE.update({*dir(value), *inspect.get_annotations(value)})
    return _ELSEWHERE
