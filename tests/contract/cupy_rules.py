"""What CuPy would refuse of recorded calls, or would do otherwise than NumPy did.

Its signatures, and the dtypes for which its elementwise functions have loops, come from ``cupy_signatures.json``
(scripts/contract writes it). What no signature tells stands in `RULES`, each with what CuPy's source does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from contract.recorder import Call

TAKES_HOST = {"asarray", "array", "ndarray.set"}  # what brings arrays of the host to the device
DTYPES = {"bool", "complex64", "complex128", "float16", "float32", "float64"} | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}
_KINDS = {kind.name.lower(): kind for kind in inspect._ParameterKind}
_WEAK = {"int": int, "float": float, "bool": np.dtype(bool)}


def problems(calls: Iterable[Call], signatures: Mapping[str, Any]) -> list[str]:
    """All that is wrong with these calls, as 'file:line: name: what', in order."""
    found = []
    for call in calls:
        known = signatures["ndarray"] if call.name.startswith("ndarray.") else signatures["functions"]
        name = call.name.removeprefix("ndarray.")
        loops = signatures["loops"].get(call.name)
        found += [f"{call.where}: {call.name}: {t}" for t in _troubles(call, known, name, loops)]
    return sorted(set(found))


def _troubles(call: Call, known: Mapping[str, Any], name: str, loops: Sequence[str] | None) -> Iterator[str]:
    if name not in known and name not in ("__getitem__", "__setitem__"):
        yield "CuPy has no such name"
        return
    if call.trouble:
        yield call.trouble
    if call.positional is not None and known.get(name) is not None:
        parameters = [
            inspect.Parameter(p, _KINDS[kind], default=None if has else inspect.Parameter.empty)
            for p, kind, has in known[name]
        ]
        try:
            inspect.Signature(parameters).bind(*[None] * call.positional, **dict.fromkeys(call.keywords))
        except TypeError as error:
            yield f"CuPy refuses the arguments: {error}"
    yield from _of_arguments(call, isinstance(getattr(np, name, None), np.ufunc))
    if name in RULES:
        yield from RULES[name](_by_name(call, known.get(name)))
    if loops is not None:
        yield from _without_loop(call, loops)


def _of_arguments(call: Call, is_ufunc: bool) -> Iterator[str]:
    if is_ufunc and any(a.startswith(("list", "several")) for a in call.arguments[: call.positional]):
        yield "a list in place of an array"
    for argument in call.arguments:
        kind, _, dtype = argument.removeprefix("several ").partition(" ")
        if kind == "host" and call.name not in TAKES_HOST:
            yield f"an array of the host ({dtype}) among those of the device"
        if kind in ("host", "device", "dtype") and dtype not in DTYPES:
            yield f"CuPy has no dtype {dtype}"
    named = dict(zip(call.keywords, call.arguments[len(call.arguments) - len(call.keywords) :], strict=True))
    kind, _, text = named.get("dtype", "").partition(" ")
    if kind == "text" and np.dtype(text).name not in DTYPES:
        yield f"CuPy has no dtype {text}"


def _without_loop(call: Call, loops: Sequence[str]) -> Iterator[str]:
    """Whether CuPy has the loop that NumPy took for these dtypes, or one that gives the same dtype."""
    named = dict(zip(call.keywords, call.arguments[call.positional or 0 :], strict=False))
    ufunc = getattr(np, call.name)
    operands = [_operand(a) for a in call.arguments[: call.positional][: ufunc.nin]]
    if "dtype" in named or None in operands or len(operands) != ufunc.nin:
        return
    try:
        taken = ufunc.resolve_dtypes((*operands, *[None] * ufunc.nout))
    except TypeError:
        return  # NumPy refuses it too
    inputs, outputs = taken[: ufunc.nin], taken[ufunc.nin :]
    for loop in loops:
        there, gives = ([np.dtype(c) for c in side] for side in loop.split("->"))
        if tuple(gives) == outputs and all(np.can_cast(a, b) for a, b in zip(inputs, there, strict=True)):
            return
    names = ", ".join(str(dtype) for dtype in inputs)
    yield f"CuPy has no loop that makes {outputs[0]} of {names}"


def _operand(argument: str) -> Any:
    kind, _, dtype = argument.partition(" ")
    if kind in ("device", "host") and dtype in DTYPES:
        return np.dtype(dtype)
    return _WEAK.get(argument, np.dtype(argument) if argument in DTYPES else None)


# ---- what no signature tells


def _by_name(call: Call, parameters: Sequence[tuple[str, str, bool]] | None) -> dict[str, str]:
    names = [p for p, _, _ in parameters or ()][: call.positional or 0]
    return dict(zip((*names, *call.keywords), call.arguments, strict=False))


def _dtype(argument: str) -> str:
    return argument.partition(" ")[2] if argument.startswith("device ") else ""


def _bincount(given: Mapping[str, str]) -> Iterator[str]:
    if np.dtype(_dtype(given.get("x", "")) or "int64").kind not in "iu":
        yield "CuPy counts integers only"
    if _dtype(given.get("weights", "device float64")) != "float64":
        yield "CuPy adds the weights as they are, atomically: make them float64"


def _searchsorted(given: Mapping[str, str]) -> Iterator[str]:
    sides = [given.get("a", given.get("bins", "")), given.get("v", given.get("x", ""))]
    if any(side.startswith(("list", "several")) for side in sides):
        yield "CuPy takes no list here"
    dtypes = {d for d in map(_dtype, sides) if d}
    if len(dtypes) > 1 and {np.dtype(d).kind for d in dtypes} != {"f"}:
        yield f"CuPy compares {' with '.join(sorted(dtypes))} as C does, not as NumPy does"


def _sort(given: Mapping[str, str]) -> Iterator[str]:
    if given.get("kind", "text stable") not in ("text stable", "NoneType"):
        yield "CuPy has no kind of sorting but 'stable'"


def _lexsort(given: Mapping[str, str]) -> Iterator[str]:
    if not _dtype(given.get("keys", "")):
        yield "CuPy takes one array of keys, not several"


def _at(given: Mapping[str, str]) -> Iterator[str]:
    yield "orders of addition differ; use bincount"


def _floor(given: Mapping[str, str]) -> Iterator[str]:
    if any(np.dtype(d).kind == "f" for d in map(_dtype, given.values()) if d in DTYPES):
        yield "CuPy takes floor(a / b), which is not the floor of the true quotient: take fmod"


RULES: dict[str, Callable[[Mapping[str, str]], Iterator[str]]] = {
    "bincount": _bincount,
    "searchsorted": _searchsorted,
    "digitize": _searchsorted,
    "sort": _sort,
    "argsort": _sort,
    "lexsort": _lexsort,
    "ufunc.at": _at,
    "floor_divide": _floor,
    "remainder": _floor,
}
