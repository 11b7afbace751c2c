"""Rows to work on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from dask_processes import bound
from tables import visits, write_parts


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The pipeline over 12 small files, assembled."""
    folder = tmp_path_factory.mktemp("visits")
    source = write_parts(visits(1_200), folder / "in", [100] * 12, 40)
    return SimpleNamespace(folder=folder, source=source, a=bound(source, folder))
