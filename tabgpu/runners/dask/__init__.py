"""Work on the workers of a Dask cluster: one that is started here, or one that stands.

`cluster` starts or attaches, `standing` and `checks` say what workers can do and whether they can be used, `runner`
does passes over the data and scoring, `training` trains; `workers` is the way to the workers, and `work` what runs on
them. The only place where Dask is imported.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from distributed import Client

from . import frames
from .runner import DaskRunner
from .standing import Standing, look
from .workers import Workers

__all__ = ["DaskRunner", "Standing", "look", "write_frame"]


def write_frame(client: Client, frame: Any, folder: Path) -> None:
    """Have workers write the partitions of a data frame; see `frames.write_frame`."""
    frames.write_frame(Workers(client), frame, folder)
