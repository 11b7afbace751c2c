"""The verbs that an engine offers: everything that arithmetic on `xp` cannot do.

An engine reads chosen columns of a part, turns Arrow data into columns and back, moves arrays to and from the host, and
keeps, measures and reports its memory. All else (vocabularies, joins, dates, folds) is written once on top of `xp`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from ..columns import Array, ArrayModule, Column
from ..files import Part
from ..schema import ColumnType
from .memory import DeviceMemoryUse, MemorySettings

T = TypeVar("T")


class Engine(Protocol):
    """One kind of hardware. Implementations: `tabgpu.engine.cpu.CpuEngine`, `tabgpu.engine.gpu.GpuEngine`."""

    name: str
    device: str  # what XGBoost calls it

    @property
    def xp(self) -> ArrayModule:
        """The array module."""

    def begin(self) -> None:
        """Let go of what earlier runs of this process left: memory that is not in use, peaks and notes.

        Comes before anybody asks how much memory is free, and before `setup`.
        """

    def setup(self, settings: MemorySettings) -> None:
        """Set up the device's memory; comes before the first array, and again only to change it.

        Without it, the pool of whoever started the process is used, or the device's own where there is none.
        """

    def read(
        self, part: Part, columns: Sequence[ColumnType], chunk_rows: int, skip: int = 0
    ) -> Iterator[dict[str, Column]]:
        """Read a part as chunks of up to `chunk_rows` rows, in order, without its first `skip` rows.

        Columns come in the order asked for. One that the file lacks has the value that its folder gives, or is missing.
        Levels are distinct and not more than the chunk's rows. Values behind a mask are undefined.

        Raises
        ------
        DataError
            If the file is damaged or not the one that the part was made of, or a value does not fit the column's type:
            names file, row groups and column.
        """

    def from_arrow(self, table: pa.Table, columns: Sequence[ColumnType], where: str) -> dict[str, Column]:
        """Columns of a table in memory; `where` names it in messages. Columns that it lacks are all missing."""

    def to_arrow(self, column: Column) -> pa.Array:
        """Arrow array of a column on the host: dictionary for levels, timestamps for datetimes, null where missing."""

    def to_host(self, array: Array) -> np.ndarray:
        """Copy to, or view on, the host."""

    def to_device(self, array: np.ndarray) -> Array:
        """Copy to, or view on, the device."""

    def place(self, value: T) -> T:
        """A value that travels (see `tabgpu.wire`), its arrays on the device."""

    def matrix(self, columns: Mapping[str, Column], names: Sequence[str], n_rows: int) -> Array:
        """2-D float32 array (n_rows, len(names)), C order, NaN where missing: what XGBoost is fed.

        What float32 cannot hold becomes inf, for the caller to refuse.
        """

    def stage(self, name: str) -> AbstractContextManager[None]:
        """What runs inside is stage `name` for profilers, and its peak of device memory is noted."""

    def training(self) -> AbstractContextManager[None]:
        """XGBoost trains and predicts inside: there it shares the engine's memory pool.

        For the calling thread alone; matrices and boosters are made and let go inside.
        """

    def check_trained(self, booster: Any) -> None:
        """Raise ResourceError unless XGBoost trained on this engine's device: it falls back to the CPU quietly."""

    @property
    def memory(self) -> DeviceMemoryUse:
        """What the device's memory was used for so far."""

    @property
    def notes(self) -> Sequence[str]:
        """Sentences on what went slower than it might, for the user to read; each once."""

    def release(self) -> None:
        """Give memory that was freed back to the system: allocators keep it, and the limit counts what they keep."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether an error means that this engine's memory did not suffice."""

    def explain(self, error: BaseException) -> str:
        """Say in one sentence why the memory did not suffice: what was asked for, and what was there."""
