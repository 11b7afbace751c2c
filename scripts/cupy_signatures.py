"""Print the signatures of CuPy's array functions as JSON; run by scripts/contract in an environment that has CuPy.

Importing CuPy needs no GPU. Python functions tell their signature; ufuncs and the compiled methods of `cupy.ndarray`
carry it in the first line of their docstring. Written as data, so that tests need no CuPy:

    {"cupy": version, "functions": {"where": [["condition", "positional_or_keyword", false], ...]}, "ndarray": {...},
     "loops": {"add": ["??->?", "bb->b", ...]}}

A parameter is its name, its kind and whether it has a default. null: it is there, and tells no signature. Loops are the
dtypes that a ufunc takes and gives, in NumPy's letters.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable
from typing import Any

import cupy  # noqa: TID251  this script runs in the environment that scripts/contract makes for it

Parameters = list[tuple[str, str, bool]] | None
_C_TYPES = re.compile(r"(?<=[(,])\s*(?:[A-Za-z_]\w*)\s+(?=[A-Za-z_]\w*\s*[,=)])")  # as in `take(self, int axis=-1)`


def main() -> None:
    functions = collect(cupy)
    # ufunc's methods are methods of one class, the same for all ufuncs
    functions |= {f"ufunc.{name}": parameters for name, parameters in collect(cupy.ufunc, skip_self=True).items()}
    ufuncs = {name: getattr(cupy, name) for name in dir(cupy) if isinstance(getattr(cupy, name), cupy.ufunc)}
    known = {
        "cupy": cupy.__version__,
        "functions": functions,
        "loops": {name: ufunc.types for name, ufunc in ufuncs.items()},
        "ndarray": collect(cupy.ndarray, skip_self=True),
    }
    json.dump(known, sys.stdout, indent=None, separators=(",", ":"), sort_keys=True)
    print()


def collect(owner: Any, skip_self: bool = False) -> dict[str, Parameters]:
    """Signatures of all public names of a module or class, None for those that tell none."""
    found: dict[str, Parameters] = {}
    for name in sorted(n for n in dir(owner) if not n.startswith("_")):
        value = getattr(owner, name)
        signature = signature_of(value) if callable(value) else None
        if signature is None:
            found[name] = None
        else:
            parameters = list(signature.parameters.values())[1 if skip_self else 0 :]
            found[name] = [(p.name, p.kind.name.lower(), p.default is not p.empty) for p in parameters]
    return found


def signature_of(value: Callable[..., Any]) -> inspect.Signature | None:
    """Signature by inspection, else from the docstring's first line, else None."""
    try:
        return inspect.signature(value)
    except (TypeError, ValueError):
        line = (value.__doc__ or "").splitlines()[:1]
    match = re.match(r"(?:\w+\.)?\w+(\(.*\))", line[0]) if line else None
    if match is None:
        return None
    text = match[1].replace("\\", "").replace("[, out1, out2]", "").replace("/ [, out=(None, None)]", "/, out=None")
    text = _C_TYPES.sub(" ", text)
    scope: dict[str, Any] = {}
    try:
        exec(
            f"def stand_in{text}: ...", {"float": float}, scope
        )  # text of CuPy's own docstrings, in its own environment
    except (SyntaxError, NameError):
        return None
    return inspect.signature(scope["stand_in"])


if __name__ == "__main__":
    main()
