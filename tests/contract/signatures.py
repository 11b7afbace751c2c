"""What a library says about its own callables: parameters, types, refusals. Needs the library, not a GPU.

A signature comes from `inspect`; where a compiled class tells none, from the stub file beside it, else from the first
line of its docstring. Annotations that `inspect` lacks are filled in from the stub. Everything is evaluated to real
objects where it can be. `refusals` then says what a callable would not take of a call as it stands in a source: too
many arguments, unknown keywords (also those that would vanish in ``**kwargs``), a literal outside of a `Literal` type,
and values on which the function begins with a refusal of its own (``if inplace: raise NotImplementedError``).
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import importlib.util
import inspect
import sys
import textwrap
import types
import typing
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EMPTY = inspect.Parameter.empty
OPEN = object()  # a value that the source does not tell
SCRIPT = Path(__file__).resolve().parent.parent.parent / "scripts" / "cupy_signatures.py"


@dataclass(frozen=True)
class Callee:
    """A callable with what is known of it; `overloads` is empty where nothing tells its parameters."""

    name: str
    overloads: tuple[inspect.Signature, ...]
    functions: tuple[Callable[..., Any], ...] = ()
    returns: Any = EMPTY


def callee(value: Callable[..., Any]) -> Callee:
    """What is known of a class or function, taken from a module or a class."""
    name = f"{getattr(value, '__module__', None) or 'builtins'}.{getattr(value, '__qualname__', value)}"
    if inspect.isclass(value):
        overloads = _inspected(value) or _stubbed(value, "__init__", True) or _documented(value)
        return Callee(name, overloads, returns=value)
    overloads = _inspected(value)
    stubs = _stubbed(value, getattr(value, "__name__", ""), False)
    overloads = _filled(overloads, stubs) or stubs or _documented(value)
    returns = [s.return_annotation for s in (*overloads, *stubs) if s.return_annotation is not EMPTY]
    if returns and returns[0] is typing.Self:  # of a class method
        returns = [getattr(value, "__self__", EMPTY)]
    return Callee(name, overloads, (value,), returns[0] if returns else EMPTY)


@functools.cache
def method(owner: type, name: str) -> Callee:
    """What is known of a method as called on an instance."""
    raw = inspect.getattr_static(owner, name)
    value = getattr(owner, name)
    bound = isinstance(raw, staticmethod | classmethod) or getattr(value, "__self__", None) is owner
    stubs = _stubbed(owner, name, not isinstance(raw, staticmethod))
    own = _inspected(value) if bound else tuple(_without_first(s) for s in _inspected(value))
    if not own and not stubs:  # a docstring may name `self` or leave it out
        own = tuple(_without_first(s) if "self" in s.parameters else s for s in _documented(value))
    overloads = _filled(own, stubs) or stubs
    returns = [s.return_annotation for s in (*overloads, *stubs) if s.return_annotation is not EMPTY]
    full = f"{owner.__module__}.{owner.__qualname__}.{name}"
    found = owner if returns and returns[0] is typing.Self else (returns[0] if returns else EMPTY)
    return Callee(full, overloads, tuple(_calling_up(owner, name)), found)


def _calling_up(owner: type, name: str) -> Iterator[Callable[..., Any]]:
    """The function and those of the base classes that it calls by ``super()``."""
    for base in owner.__mro__:
        if name in vars(base):
            function = getattr(base, name)
            yield function
            if f"super().{name}(" not in _source(function):
                return


def _source(function: Any) -> str:
    try:
        return textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
    except (TypeError, OSError, ValueError):
        return ""


def _without_first(signature: inspect.Signature) -> inspect.Signature:
    first, *rest = signature.parameters.values() or [None]
    if first is None or first.kind is first.VAR_POSITIONAL:
        return signature
    return signature.replace(parameters=rest)


def _inspected(value: Any) -> tuple[inspect.Signature, ...]:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ()
    if list(signature.parameters) == ["self", "args", "kwargs"] or list(signature.parameters) == ["args", "kwargs"]:
        return ()  # of a slot, or of a wrapper that says nothing
    annotations = [signature.return_annotation, *(p.annotation for p in signature.parameters.values())]
    if not any(isinstance(each, str) for each in annotations):
        return (signature,)
    function = inspect.unwrap(value.__init__ if inspect.isclass(value) else value)
    names = namespace(getattr(function, "__module__", None) or "builtins")
    parameters = [p.replace(annotation=evaluate(p.annotation, names)) for p in signature.parameters.values()]
    returns = evaluate(signature.return_annotation, names)
    return (signature.replace(parameters=parameters, return_annotation=returns),)


@functools.cache
def _reader() -> Callable[[Any], inspect.Signature | None]:
    """The reader of docstrings that scripts/cupy_signatures.py uses."""
    spec = importlib.util.spec_from_file_location("cupy_signatures", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.signature_of


def _documented(value: Any) -> tuple[inspect.Signature, ...]:
    found = _reader()(value)
    return () if found is None else (found,)


def _filled(
    overloads: tuple[inspect.Signature, ...], stubs: tuple[inspect.Signature, ...]
) -> tuple[inspect.Signature, ...]:
    """Signatures with the annotations that only the stub has."""
    if len(stubs) != 1:
        return overloads
    known = stubs[0].parameters

    def fill(parameter: inspect.Parameter) -> inspect.Parameter:
        told = parameter.annotation is not EMPTY or parameter.name not in known
        return parameter if told else parameter.replace(annotation=known[parameter.name].annotation)

    return tuple(s.replace(parameters=[fill(p) for p in s.parameters.values()]) for s in overloads)


# ---- stub files and annotations


@functools.cache
def namespace(module: str) -> Mapping[str, Any]:
    """Names in which a module's annotations are read: its own, and what it imports for type checkers alone."""
    real = sys.modules.get(module)
    if real is None:
        return vars(builtins)
    extra: dict[str, Any] = {}
    file = Path(getattr(real, "__file__", None) or "")
    for tree in filter(None, [_tree(str(file)) if file.suffix == ".py" else None, stub(module)]):
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                extra |= imported(node, getattr(real, "__package__", "") or "", {})
    return ChainMap(vars(real), extra, vars(builtins))


@functools.cache
def _tree(file: str) -> ast.Module | None:
    path = Path(file)
    return ast.parse(path.read_text()) if path.is_file() else None


@functools.cache
def stub(module: str) -> ast.Module | None:
    """The parsed stub file of a module, None where there is none."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if not file:
        return None
    return _tree(str(Path(file).parent / (Path(file).name.partition(".")[0] + ".pyi")))


def imported(node: ast.Import | ast.ImportFrom, package: str, missing: dict[str, str]) -> dict[str, Any]:
    """Names that an import statement binds; `missing` takes those that are not there, with the reason."""
    found: dict[str, Any] = {}
    for alias in node.names:
        try:
            if isinstance(node, ast.Import):
                module = importlib.import_module(alias.name)
                top = alias.name.partition(".")[0]
                found[alias.asname or top] = module if alias.asname else sys.modules[top]
                continue
            base = "." * node.level + (node.module or "")
            name = importlib.util.resolve_name(base, package) if node.level else base
            module = importlib.import_module(name)
            if not hasattr(module, alias.name):
                importlib.import_module(f"{name}.{alias.name}")
            found[alias.asname or alias.name] = getattr(module, alias.name)
        except (ImportError, AttributeError, RuntimeError) as error:
            missing[alias.name] = f"cannot be imported: {error}"
    return found


def evaluate(annotation: Any, names: Mapping[str, Any]) -> Any:
    """The object that an annotation means; EMPTY where that cannot be told."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, {}, names)  # annotations of installed libraries and of the package itself
    except Exception:  # noqa: BLE001  whatever it is, the annotation then tells nothing
        return EMPTY


def _definitions(owner: Any, name: str) -> Iterator[tuple[ast.FunctionDef, str]]:
    """Definitions of a function, or of a class's method along its bases, in stub files."""
    places = owner.__mro__ if inspect.isclass(owner) else (owner,)
    for place in places:
        body = (
            in_stub(place)
            if inspect.isclass(place)
            else getattr(stub(getattr(place, "__module__", None) or ""), "body", [])
        )
        found = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == name]
        yield from ((node, place.__module__) for node in found)
        if found:
            return


def in_stub(owner: type) -> list[ast.stmt]:
    """What a stub file says about a class: the body of its definition."""
    for node in getattr(stub(owner.__module__), "body", []):
        if isinstance(node, ast.ClassDef) and node.name == owner.__name__:
            return node.body
    return []


def _stubbed(owner: Any, name: str, drop_first: bool) -> tuple[inspect.Signature, ...]:
    return tuple(_signature(node, namespace(module), drop_first) for node, module in _definitions(owner, name))


def _signature(node: ast.FunctionDef, names: Mapping[str, Any], drop_first: bool) -> inspect.Signature:
    def read(annotation: ast.expr | None) -> Any:
        return EMPTY if annotation is None else evaluate(ast.unparse(annotation), names)

    def default(value: ast.expr | None) -> Any:
        try:
            return EMPTY if value is None else ast.literal_eval(value)
        except ValueError:
            return OPEN

    kind, spec = inspect.Parameter, node.args
    plain = [(a, kind.POSITIONAL_ONLY) for a in spec.posonlyargs] + [(a, kind.POSITIONAL_OR_KEYWORD) for a in spec.args]
    defaults = [None] * (len(plain) - len(spec.defaults)) + list(spec.defaults)
    rows = [(a, k, d) for (a, k), d in zip(plain, defaults, strict=True)][1 if drop_first and plain else 0 :]
    rows += [(spec.vararg, kind.VAR_POSITIONAL, None)] if spec.vararg else []
    rows += [(a, kind.KEYWORD_ONLY, d) for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True)]
    rows += [(spec.kwarg, kind.VAR_KEYWORD, None)] if spec.kwarg else []
    parameters = [kind(a.arg, k, default=default(d), annotation=read(a.annotation)) for a, k, d in rows]
    return inspect.Signature(parameters, return_annotation=read(node.returns))


# ---- what a callable refuses


def refusals(known: Callee, call: ast.Call, forwards: Callable[[str], Iterable[str] | None]) -> list[str]:
    """What a callable would refuse of a call; [] where an overload takes it, or nothing is known.

    Parameters
    ----------
    known
        The callable.
    call
        The call as it stands in a source.
    forwards
        Names that a callable's ``**kwargs`` reach, None where they may be any.
    """
    found: list[str] = []
    for signature in known.overloads:
        troubles = list(_troubles(known, signature, call, forwards))
        if not troubles:
            return []
        found = found or troubles
    return found


def _troubles(
    known: Callee, signature: inspect.Signature, call: ast.Call, forwards: Callable[[str], Iterable[str] | None]
) -> Iterator[str]:
    starred = any(isinstance(a, ast.Starred) for a in call.args)
    doubled = any(k.arg is None for k in call.keywords)
    args = [_literal(a) for a in call.args if not isinstance(a, ast.Starred)]
    keywords = {k.arg: _literal(k.value) for k in call.keywords if k.arg is not None}
    try:
        bind = signature.bind_partial if starred or doubled else signature.bind
        bound = bind(*args, **keywords)
    except TypeError as error:
        yield f"{known.name} refuses the arguments: {error}"
        return
    values = dict(bound.arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            reached = forwards(known.name)
            for name in values.pop(parameter.name, {}):
                if reached is not None and name not in reached:
                    yield f"{known.name} has no keyword {name}; its **{parameter.name} would swallow it"
        elif parameter.kind is not parameter.VAR_POSITIONAL and parameter.name in values:
            value = values[parameter.name]
            if value is not OPEN and value is not parameter.default and not _fits(value, parameter.annotation):
                text = inspect.formatannotation(parameter.annotation)
                yield f"{known.name} takes {text} as {parameter.name}, not {value!r}"
    defaults = {n: p.default for n, p in signature.parameters.items() if p.default is not EMPTY}
    unknown = dict.fromkeys(signature.parameters, OPEN) if starred or doubled else {}
    for function in known.functions:
        yield from _guarded(known.name, function, {**defaults, **unknown, **values})


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return OPEN


def _fits(value: Any, annotation: Any) -> bool:
    """Whether a literal can be of a type; True where the type says too little."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return any(_fits(value, each) for each in typing.get_args(annotation))
    if typing.get_origin(annotation) is typing.Literal:
        return value in typing.get_args(annotation)
    plain = typing.get_origin(annotation) or annotation
    if plain is None or plain is types.NoneType:
        return value is None
    if plain is float:
        return isinstance(value, int | float)
    if plain in (int, str, bool, bytes, list, dict, tuple, set):
        return isinstance(value, plain)
    return True


def _guarded(name: str, function: Any, values: Mapping[str, Any]) -> Iterator[str]:
    """Refusals with which a function's own body begins, evaluated on the values that are known."""
    source = _source(function)
    body = ast.parse(source).body[0] if source.startswith(("def", "@")) else None
    if not isinstance(body, ast.FunctionDef):
        return
    scope = ChainMap(dict(values), getattr(inspect.unwrap(function), "__globals__", {}), vars(builtins))
    names = {a.arg for a in (*body.args.posonlyargs, *body.args.args, *body.args.kwonlyargs)}
    changed = {n for n in names if values.get(n, OPEN) is OPEN}
    for statement in body.body:
        if isinstance(statement, ast.If):
            reason = _raised(statement, scope, changed)
            if reason is not None:
                yield f"{name} would raise {reason}"
                return
        changed |= {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _raised(statement: ast.If, scope: Mapping[str, Any], changed: set[str]) -> str | None:
    if {n.id for n in ast.walk(statement.test) if isinstance(n, ast.Name)} & changed:
        return None
    try:
        holds = eval(compile(ast.Expression(statement.test), "guard", "eval"), {}, scope)
    except Exception:  # noqa: BLE001  a test that needs more than the arguments tells nothing
        return None
    branch = statement.body if holds else statement.orelse
    for first in branch[:1]:
        if isinstance(first, ast.Raise) and first.exc is not None:
            return ast.unparse(first.exc)
        if isinstance(first, ast.If):
            return _raised(first, scope, changed)
    return None
