"""What an expression in a source is known to be, and what its attributes, calls and items are then.

A `Thing` is an object that can be had without running anything: a module, class, function. An `Instance` is an object
of a known type. `Unknown` came from the named library in a way that tells no type; `Unknown("")` is anything at
all. Classes of the package's own are known like those of libraries; only libraries are held to their word.
"""

from __future__ import annotations

import ast
import collections.abc
import enum
import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract.signatures import EMPTY, Callee, callee, evaluate, in_stub, method, namespace

LIBRARIES = (
    "cudf",
    "cuda",
    "cupy",
    "cupy_backends",
    "cupyx",
    "dask",
    "dask_cuda",
    "dask_cudf",
    "distributed",
    "nvtx",
    "pylibcudf",
    "pynvml",
    "rmm",
    "xgboost",
)


@dataclass(frozen=True)
class Thing:
    """The very object."""

    object: Any


@dataclass(frozen=True)
class Instance:
    """An object of one of these types (classes, generic aliases)."""

    types: tuple[Any, ...]


@dataclass(frozen=True)
class Bound:
    """A method of an instance."""

    owner: type
    name: str


@dataclass(frozen=True)
class Unknown:
    """Something that came from a library, or from anywhere ('')."""

    library: str = ""


@dataclass(frozen=True)
class Missing:
    """Nothing: there is no such name."""

    what: str


Value = Thing | Instance | Bound | Unknown | Missing
ANYTHING = Unknown()


def library_of(value: Any) -> str:
    """The library that defines a module, class or function, '' where it is none of those watched."""
    module = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None)
    top = str(module or "").partition(".")[0]
    return top if top in LIBRARIES else ""


def typed(annotation: Any, library: str = "") -> Value:
    """A value of an annotated type; of a library where the annotation says nothing."""
    if annotation is EMPTY or annotation is Any or isinstance(annotation, typing.TypeVar | str):
        return Unknown(library)
    origin = typing.get_origin(annotation)
    if origin in (typing.Annotated, typing.Final, typing.ClassVar):
        return typed(typing.get_args(annotation)[0], library)
    members = [annotation]
    if origin is typing.Union or isinstance(annotation, types.UnionType):
        members = [m for m in typing.get_args(annotation) if m is not types.NoneType]
    known = [m for m in members if isinstance(m, type) or isinstance(typing.get_origin(m), type)]
    known = [m for m in known if m not in (object, typing.Any)]
    return Instance(tuple(known)) if known and len(known) == len(members) else Unknown(library)


def _plain(annotation: Any) -> type:
    return typing.get_origin(annotation) or annotation


# ---- attributes


def attribute(value: Value, name: str) -> Value:
    """What ``value.name`` is; Missing where a library has no such name."""
    match value:
        case Thing(owner):
            return _of_thing(owner, name)
        case Instance(members):
            found = [_of_instance(member, name) for member in members]
            good = [f for f in found if not isinstance(f, Missing)]
            return good[0] if good else found[0]
        case Unknown(library) if library and name not in names(library):
            return Missing(f"nothing in {library} has a name {name}")
        case Unknown(library):
            return Unknown(library)
    return ANYTHING


def _of_thing(owner: Any, name: str) -> Value:
    if not hasattr(owner, name):
        library = library_of(owner)
        return Missing(f"{owner.__name__} has no name {name}") if library else ANYTHING
    found = getattr(owner, name)
    if inspect.ismodule(owner):
        return thing(found, owner.__name__, name)
    if inspect.isclass(owner) and (inspect.isdatadescriptor(found) or isinstance(found, functools.cached_property)):
        return Unknown(library_of(owner))
    return thing(found, "", "")


def thing(found: Any, module: str, name: str) -> Value:
    """The value of a name in a module: the object itself, or for data what its annotation or type says."""
    if inspect.ismodule(found) or callable(found):
        return Thing(found)
    annotation = getattr(sys.modules.get(module), "__annotations__", {}).get(name, EMPTY)
    annotation = evaluate(annotation, namespace(module))
    if annotation is not EMPTY:
        return typed(annotation)
    return ANYTHING if found is None else Instance((type(found),))


def _of_instance(member: Any, name: str) -> Value:
    owner = _plain(member)
    library = library_of(owner)
    if name in ("__class__", "__dict__") or (issubclass(owner, enum.Enum) and name == "value"):
        return ANYTHING
    if issubclass(owner, enum.Enum) and name == "name":
        return Instance((str,))
    raw = inspect.getattr_static(owner, name, EMPTY)
    if raw is not EMPTY and callable(getattr(owner, name, None)) and not inspect.isdatadescriptor(raw):
        return Thing(raw) if inspect.isclass(raw) else Bound(owner, name)
    annotation = annotated(owner, name)
    if annotation is not EMPTY:
        return typed(annotation, library)
    getter = getattr(raw, "fget", None) or getattr(raw, "func", None)  # property, cached_property
    if getter is not None:
        return typed(callee(getter).returns, library)
    if raw is not EMPTY:
        data = inspect.isdatadescriptor(raw) or raw is None
        return Unknown(library) if data else Instance((type(raw),))
    if not library or any(name in assigned(base) for base in owner.__mro__):
        return Unknown(library)
    return Missing(f"{owner.__module__}.{owner.__qualname__} has no name {name}")


def annotated(owner: type, name: str) -> Any:
    """The annotation of a class's attribute, by itself or its stub; EMPTY where there is none."""
    for base in owner.__mro__:
        here = namespace(base.__module__)
        if name in inspect.get_annotations(base):
            return evaluate(inspect.get_annotations(base)[name], here)
        for node in in_stub(base):
            if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", None) == name:
                return evaluate(ast.unparse(node.annotation), here)
            is_property = isinstance(node, ast.FunctionDef) and any(
                getattr(d, "id", None) == "property" for d in node.decorator_list
            )
            if is_property and node.name == name and node.returns is not None:
                return evaluate(ast.unparse(node.returns), here)
    return EMPTY


_ASSIGNED = re.compile(r"\bself\.(\w+)\s*(?::[^=\n]+)?(?:=(?!=)|,\s*self\.)")


@functools.cache
def assigned(owner: type) -> frozenset[str]:
    """Names that a class's own methods give to an instance."""
    try:
        return frozenset(_ASSIGNED.findall(inspect.getsource(owner)))
    except (TypeError, OSError):
        return frozenset()


# ---- calls, items


def called(value: Value) -> Callee | None:
    """The callable that a call of `value` calls; None where that cannot be told."""
    if isinstance(value, Thing) and callable(value.object):
        return callee(value.object)
    return method(value.owner, value.name) if isinstance(value, Bound) else None


_LEAVING = (
    "get",
    "item",
    "tolist",
    "tobytes",
    "dump",
    "dumps",
    "toDlpack",
    "sort",
    "fill",
    "set",
)  # no array comes back


def result(value: Value) -> Value:
    """What a call of `value` gives."""
    if isinstance(value, Instance):  # of a Callable[..., R], or of a class with __call__
        member = value.types[0]
        if _plain(member) is collections.abc.Callable:
            return typed(typing.get_args(member)[-1])
        return result(Bound(_plain(member), "__call__")) if hasattr(_plain(member), "__call__") else ANYTHING  # noqa: B004  a name, not a test
    if isinstance(value, Unknown):
        return value
    known = called(value)
    source = value.object if isinstance(value, Thing) else getattr(value, "owner", None)
    library = library_of(source)
    if known is None:
        return Unknown(library)
    if known.returns is EMPTY and known.name.startswith("cupy._") and not isinstance(source, type):
        return Instance((sys.modules["cupy"].ndarray,))  # CuPy's array functions: few tell it
    if isinstance(value, Bound) and known.returns is EMPTY and known.name.startswith("cupy.ndarray."):
        return ANYTHING if value.name in _LEAVING else Instance((value.owner,))
    if inspect.isclass(known.returns) and known.returns is source:
        return Instance((source,))
    return typed(known.returns, library)


def entered(value: Value) -> Value:
    """What ``with value as name`` gives."""
    if not isinstance(value, Instance):
        return value
    owner = _plain(value.types[0])
    if issubclass(owner, collections.abc.Iterator):  # of @contextmanager, whose annotation is the generator's
        return item(value)
    if not hasattr(owner, "__enter__"):
        return ANYTHING
    found = method(owner, "__enter__").returns
    return value if found in (EMPTY, typing.Self) or isinstance(found, typing.TypeVar) else typed(found)


def item(value: Value) -> Value:
    """What iterating over `value` gives."""
    if not isinstance(value, Instance):
        return value if isinstance(value, Unknown) else ANYTHING
    owner, arguments = _plain(value.types[0]), typing.get_args(value.types[0])
    if arguments and issubclass(owner, collections.abc.Iterable):
        return typed(arguments[0], library_of(owner))
    return Unknown(library_of(owner))


def subscripted(value: Value) -> Value:
    """What ``value[...]`` gives."""
    if not isinstance(value, Instance):
        return value if isinstance(value, Unknown) else ANYTHING
    owner, arguments = _plain(value.types[0]), typing.get_args(value.types[0])
    if issubclass(owner, collections.abc.Mapping) and len(arguments) == 2:
        return typed(arguments[1])
    if issubclass(owner, list | tuple | collections.abc.Sequence) and arguments:
        return typed(arguments[0])
    if owner is getattr(sys.modules.get("cupy"), "ndarray", None):
        return value
    if hasattr(owner, "__getitem__") and library_of(owner):
        return typed(method(owner, "__getitem__").returns, library_of(owner))
    return Unknown(library_of(owner))


# ---- what is known of a library where no type is


@functools.cache
def classes(library: str) -> tuple[type, ...]:
    """All classes that a library's loaded modules hold."""
    found: dict[type, None] = {}
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] == library:
            for value in list(vars(module).values()):
                if isinstance(value, type) and library_of(value) == library:
                    found[value] = None
    return tuple(found)


@functools.cache
def names(library: str) -> frozenset[str]:
    """All names that objects of a library's classes have."""
    found: set[str] = set()
    for name, module in sorted(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or "")
        if name.partition(".")[0] == library and file.suffix == ".py":
            found |= set(_ASSIGNED.findall(file.read_text()))
    for owner in classes(library):
        found |= {*dir(owner), *inspect.get_annotations(owner)}
        found |= {getattr(getattr(node, "target", None), "id", "") for node in in_stub(owner)}
    return frozenset(found)


def owners(library: str, name: str) -> Iterator[type]:
    """Classes of a library (of all libraries: '') with a method of that name."""
    for each in [library] if library else LIBRARIES:
        for owner in classes(each):
            if inspect.getattr_static(owner, name, None) is not None and callable(getattr(owner, name, None)):
                yield owner
