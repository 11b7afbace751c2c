"""Fixtures for all tests, and ``--record-xp FILE``: run behind the stand-in for CuPy and write its calls as JSON."""

from __future__ import annotations

import json
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-xp", type=Path, metavar="FILE", help="record the array calls of tabgpu (see tests/contract)"
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    """Once all modules are imported, so that every step is known."""
    if session.config.option.record_xp:
        from contract import recorder

        recorder.install()
        for item in session.items:
            _fewer_examples(item)


def _fewer_examples(item: Any) -> None:
    """A call is recorded at its first use: a handful of examples will do."""
    settings = getattr(item.obj, "_hypothesis_internal_use_settings", None)
    if settings is not None:
        item.obj._hypothesis_internal_use_settings = type(settings)(
            settings, max_examples=min(10, settings.max_examples)
        )


def pytest_sessionfinish(session: pytest.Session) -> None:
    file = session.config.option.record_xp
    if file:
        from contract.recorder import RECORDER

        file.write_text(json.dumps([astuple(call) for call in RECORDER.calls]))


@pytest.fixture
def xp(request: pytest.FixtureRequest) -> Any:
    """The array module of the engine under test: NumPy, or the stand-in for CuPy."""
    if request.config.option.record_xp:
        from contract.recorder import XP

        return XP
    import numpy

    return numpy
