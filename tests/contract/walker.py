"""What every name in a source is known to be: imports, parameters, assignments, loops, contexts, tests of type.

`Walker` goes through statements in their order, without running them. It knows a name by what was last assigned to it,
and an attribute of `self` by any assignment in the class that told a type. What expressions are is said by `binder`.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import typing
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from contract import values
from contract.signatures import Callee, evaluate, imported, namespace
from contract.values import ANYTHING, Instance, Thing, Value


@dataclass(frozen=True)
class Call:
    """A call that was bound: `receiver` is what the attribute was looked up on, None for a plain name."""

    where: str
    node: ast.Call
    known: Callee
    receiver: Value | None


@dataclass
class Report:
    """What a source calls.

    `bound` are calls whose callable is known, `loose` those of a method that some class of the libraries has, `opaque`
    those of a known callable that tells no parameters. `problems` are 'file:line: what'.
    """

    bound: list[Call] = field(default_factory=list)
    loose: list[str] = field(default_factory=list)
    opaque: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class Walker(ast.NodeVisitor):
    """Visits statements in order; visiting an expression returns its `Value` (see `binder`)."""

    def __init__(self, name: str, module: ModuleType) -> None:
        self.name, self.module = name, module
        self.report = Report()
        self.attributes: dict[tuple[type, str], Value] = {}
        self.scopes: list[dict[str, Value]] = []
        self.owners: list[type | None] = []

    def walk(self, tree: ast.Module) -> None:
        self.scopes, self.owners = [{}], []
        for statement in tree.body:
            self.visit(statement)

    def problem(self, node: ast.AST, what: str) -> None:
        self.report.problems.append(f"{self.name}:{getattr(node, 'lineno', 0)}: {what}")

    # ---- names

    def lookup(self, name: str) -> Value:
        for scope in reversed(self.scopes[1:]):
            if name in scope:
                return scope[name]
        if name in vars(self.module):
            return values.thing(vars(self.module)[name], self.module.__name__, name)
        if name in self.scopes[0]:
            return self.scopes[0][name]
        return Thing(getattr(builtins, name)) if hasattr(builtins, name) else ANYTHING

    def annotation(self, node: ast.expr | None) -> Value:
        if node is None:
            return ANYTHING
        known: dict[str, Any] = dict(namespace(self.module.__name__))
        for scope in self.scopes:
            known |= {name: value.object for name, value in scope.items() if isinstance(value, Thing)}
        return values.typed(evaluate(ast.unparse(node).strip("'\""), known))

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        missing: dict[str, str] = {}
        found = imported(node, self.module.__package__ or "", missing)
        self.scopes[-1] |= {name: Thing(value) for name, value in found.items()}
        for name, reason in missing.items():
            self.problem(node, f"{name} {reason}")

    visit_ImportFrom = visit_Import

    def visit_Name(self, node: ast.Name) -> Value:
        return self.lookup(node.id)

    # ---- definitions

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in (*node.decorator_list, *node.bases, *(k.value for k in node.keywords)):
            self.visit(part)
        found = self.lookup(node.name) if len(self.scopes) == 1 else ANYTHING
        self.owners.append(found.object if isinstance(found, Thing) and inspect.isclass(found.object) else None)
        self.scopes.append({})
        for statement in node.body:
            self.visit(statement)
        self.scopes.pop()
        self.owners.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for part in (*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(part)
        if len(self.scopes) > 1:
            self.scopes[-1][node.name] = self._function(node)
        self.scopes.append(self._parameters(node))
        self.owners.append(None)
        for statement in node.body:
            self.visit(statement)
        self.owners.pop()
        self.scopes.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Value:
        """A function within another: what it returns is all that is known."""
        returns = self.annotation(node.returns)
        gives = returns.types[0] if isinstance(returns, Instance) else Any
        return Instance((typing.Callable[..., gives],))

    def _parameters(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, Value]:
        spec = node.args
        found = {a.arg: self.annotation(a.annotation) for a in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)}
        found |= {a.arg: ANYTHING for a in (spec.vararg, spec.kwarg) if a is not None}
        owner = self.owners[-1] if self.owners else None
        static = any(getattr(d, "id", "") == "staticmethod" for d in node.decorator_list)
        if owner is not None and spec.args and not static:
            by_class = any(getattr(d, "id", "") == "classmethod" for d in node.decorator_list)
            found[spec.args[0].arg] = Thing(owner) if by_class else Instance((owner,))
        return found

    def visit_Lambda(self, node: ast.Lambda) -> Value:
        self.scopes.append({a.arg: ANYTHING for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)})
        self.visit(node.body)
        self.scopes.pop()
        return ANYTHING

    # ---- assignments

    def store(self, target: ast.expr, value: Value) -> None:
        """Let a name, an attribute of `self`, or each name of a tuple be `value`."""
        if isinstance(target, ast.Name):
            self.scopes[-1][target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            for index, each in enumerate(target.elts):
                self.store(each, self._nth(value, index))
        elif isinstance(target, ast.Starred):
            self.store(target.value, ANYTHING)
        elif isinstance(target, ast.Attribute):
            owner = self.visit(target.value)
            if isinstance(owner, Instance) and isinstance(owner.types[0], type):
                before = self.attributes.get((owner.types[0], target.attr), ANYTHING)
                self.attributes[owner.types[0], target.attr] = value if isinstance(value, Instance) else before
        else:
            self.visit(target)

    def _nth(self, value: Value, index: int) -> Value:
        if isinstance(value, Instance) and typing.get_origin(value.types[0]) is tuple:
            parts = typing.get_args(value.types[0])
            if Ellipsis not in parts and index < len(parts):
                return values.typed(parts[index])
        return values.item(value)

    def visit_Assign(self, node: ast.Assign) -> None:
        value = self.visit(node.value)
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                for each, part in zip(target.elts, node.value.elts, strict=False):
                    self.store(each, self.visit_quietly(part))
            else:
                self.store(target, value)

    def visit_quietly(self, node: ast.expr) -> Value:
        """The value of an expression whose calls have been looked at."""
        report, self.report = self.report, Report()
        value = self.visit(node)
        self.report = report
        return value

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        value = self.visit(node.value) if node.value is not None else ANYTHING
        told = self.annotation(node.annotation)
        self.store(node.target, told if isinstance(told, Instance) else value)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> Value:
        value = self.visit(node.value)
        self.store(node.target, value)
        return value

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.store(node.target, self.items(node.iter))
        for statement in (*node.body, *node.orelse):
            self.visit(statement)

    visit_AsyncFor = visit_For

    def items(self, node: ast.expr) -> Value:
        """What iterating over an expression gives, seeing through enumerate and zip."""
        value = self.visit(node)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("enumerate", "zip", "reversed", "sorted"):
            parts = [values.item(self.visit_quietly(a)) for a in node.args]
            kinds = [p.types[0] if isinstance(p, Instance) else Any for p in parts]
            if getattr(node.func, "id", "") in ("reversed", "sorted"):
                return parts[0] if parts else ANYTHING
            kinds = [int, *kinds[:1]] if getattr(node.func, "id", "") == "enumerate" else kinds
            return Instance((tuple[tuple(kinds)],))
        return values.item(value)

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        for each in node.items:
            value = values.entered(self.visit(each.context_expr))
            if each.optional_vars is not None:
                self.store(each.optional_vars, value)
        for statement in node.body:
            self.visit(statement)

    visit_AsyncWith = visit_With

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        kind = self.visit(node.type) if node.type is not None else ANYTHING
        if node.name:
            known = isinstance(kind, Thing) and inspect.isclass(kind.object)
            self.scopes[-1][node.name] = Instance((kind.object,)) if known else ANYTHING
        for statement in node.body:
            self.visit(statement)

    def visit_If(self, node: ast.If | ast.While) -> None:
        self.visit(node.test)
        scope = self.scopes[-1]
        told = dict(self.narrowed(node.test))
        before = {text: scope[text] for text in told if text in scope}
        scope |= told
        for statement in node.body:
            self.visit(statement)
        for text in [t for t in told if scope.get(t) is told[t]]:  # not assigned to meanwhile
            del scope[text]
            scope |= {t: value for t, value in before.items() if t == text}
        for statement in node.orelse:
            self.visit(statement)
        negated = isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not)
        if negated and isinstance(node.body[-1], ast.Raise | ast.Return | ast.Continue | ast.Break):
            scope |= dict(self.narrowed(node.test.operand))

    visit_While = visit_If

    def visit_Assert(self, node: ast.Assert) -> None:
        self.visit(node.test)
        self.scopes[-1] |= dict(self.narrowed(node.test))

    def narrowed(self, test: ast.expr) -> Iterable[tuple[str, Value]]:
        """Expressions of which a test says the type, by their text: ``isinstance(found[-1], Adaptor)``."""
        for node in test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]:
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
                kind = self.annotation(node.args[1])
                if isinstance(kind, Instance):
                    yield ast.unparse(node.args[0]), kind
