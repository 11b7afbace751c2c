"""Names of features as XGBoost takes them.

XGBoost refuses a name with ``[``, ``]`` or ``<``, and ends one at a NUL. Such a name is replaced by one made of its
position, wherever names go in: the iterator, the matrix of cuts, the probe, and constraints that are given by name. All
that tabgpu writes shows the names as they are; in the model itself, which is XGBoost's, the safe ones stand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_UNSAFE = frozenset("[]<\0")


def safe_names(names: Sequence[str]) -> list[str]:
    """Give XGBoost's name of each feature: its own, or ``f`` and its position where that would be refused.

    Examples
    --------
    >>> safe_names(["age", "price [EUR]", "f1"])
    ['age', 'f1_', 'f1']
    """
    taken = set(names)
    safe = []
    for position, name in enumerate(names):
        if not _UNSAFE.isdisjoint(name):
            name = f"f{position}"
            while name in taken:
                name += "_"
            taken.add(name)
        safe.append(name)
    return safe


def with_safe_names(params: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Parameters of XGBoost, constraints by name under the names that it knows.

    Examples
    --------
    >>> with_safe_names({"monotone_constraints": {"x<1": 1, "age": -1}, "eta": 0.1}, ["age", "x<1"])
    {'monotone_constraints': {'f1': 1, 'age': -1}, 'eta': 0.1}
    """
    known = dict(zip(names, safe_names(names), strict=True))
    changed = dict(params)
    monotone = params.get("monotone_constraints")
    if isinstance(monotone, Mapping):
        changed["monotone_constraints"] = {known.get(name, name): sign for name, sign in monotone.items()}
    groups = params.get("interaction_constraints")
    if isinstance(groups, list | tuple):
        changed["interaction_constraints"] = [
            [known.get(name, name) for name in group] if isinstance(group, list | tuple) else group for group in groups
        ]
    return changed
