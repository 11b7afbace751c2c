"""The locks of tested versions are those of the extras that pyproject.toml names now."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
LOCKS = {
    "cu12": ["cu12", "cluster"],
    "cu13": ["cu13", "cluster"],
    "contract": ["cu12", "cluster", "dev"],
}
WHERE = {"python_version": "3.12", "python_full_version": "3.12.1", "sys_platform": "linux", "extra": ""}


def lock(name: str) -> dict[str, str]:
    lines = (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(distribution): version for distribution, version in pairs}


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_holds_all_that_its_extras_ask_for(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [Requirement(r) for r in project["dependencies"]]
    wanted += [Requirement(r) for extra in LOCKS[name] for r in project["optional-dependencies"][extra]]
    found = lock(name)
    unmet = [
        f"{requirement}: {found.get(canonicalize_name(requirement.name), 'not locked')}"
        for requirement in wanted
        if requirement.marker is None or requirement.marker.evaluate(WHERE)
        if not requirement.specifier.contains(found.get(canonicalize_name(requirement.name), "0"))
    ]
    assert unmet == [], "run scripts/lock"


def test_what_is_tested_is_what_users_get() -> None:
    tested, given = lock("contract"), lock("cu12")
    assert {name: tested.get(name) for name in given} == given


@pytest.mark.parametrize(("name", "other"), [("cu12", "13"), ("contract", "13"), ("cu13", "12")])
def test_a_lock_is_of_one_cuda(name: str, other: str) -> None:
    assert [d for d in lock(name) if d.endswith((f"cu{other}", f"cuda{other}x"))] == []
