"""An engine that reads as the CPU engine does and computes on the device: what CuPy and XGBoost alone can prove.

Where cuDF is not installed, steps, statistics and training are still looked at on the device: they compute on ``xp``
and know no engine. With NumPy as its array module it is the CPU engine, which is what a dry run takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from tabgpu import wire
from tabgpu.columns import Column, Levels
from tabgpu.engine.cpu import CpuEngine
from tabgpu.hashing import hash_levels


class MovedEngine(CpuEngine):
    """Reads on the host and moves what it has read."""

    name = "gpu"

    def __init__(self, xp: Any, device: str) -> None:
        self._module, self.device = xp, device

    @property
    def xp(self) -> Any:
        return self._module

    def read(self, part: Any, columns: Sequence[Any], chunk_rows: int, skip: int = 0) -> Iterator[dict[str, Column]]:
        for chunk in super().read(part, columns, chunk_rows, skip):
            yield {name: self._moved(column) for name, column in chunk.items()}

    def from_arrow(self, table: pa.Table, columns: Sequence[Any], where: str) -> dict[str, Column]:
        return {name: self._moved(column) for name, column in super().from_arrow(table, columns, where).items()}

    def to_arrow(self, column: Column) -> pa.Array:
        valid = None if column.valid is None else self.to_host(column.valid)
        return super().to_arrow(replace(column, values=self.to_host(column.values), valid=valid))

    def to_host(self, array: Any) -> np.ndarray:
        host: np.ndarray = array.get() if hasattr(array, "__cuda_array_interface__") else np.asarray(array)
        return host

    def to_device(self, array: Any) -> Any:
        return self._module.asarray(array)

    def place(self, value: Any) -> Any:
        return wire.join(*wire.split(value, self.to_host), self.to_device)

    def matrix(self, columns: Mapping[str, Column], names: Sequence[str], n_rows: int) -> Any:
        out = self._module.empty((n_rows, len(names)), dtype="float32")
        for j, name in enumerate(names):
            out[:, j] = columns[name].floats("float32")
        return out

    def training(self) -> AbstractContextManager[None]:
        if self.device == "cpu":
            return super().training()
        import xgboost

        shared: AbstractContextManager[None] = xgboost.config_context(use_cuda_async_pool=True)
        return shared

    def _moved(self, column: Column) -> Column:
        levels = column.levels and Levels(column.levels.values, lambda values: self.to_device(hash_levels(values)))
        valid = None if column.valid is None else self.to_device(column.valid)
        return replace(column, values=self.to_device(column.values), valid=valid, levels=levels)
