"""Arrays of a device that is not there: they compute as NumPy's do, and refuse what CuPy's refuse.

An array of the host is never taken for one of the device: not in arithmetic, not as an index, not by NumPy silently
converting one. So a pipeline that runs on `DeviceEngine` moves every array by `to_host`, `to_device` or `place`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa

from tabgpu import wire
from tabgpu.columns import Column, Levels
from tabgpu.engine.cpu import CpuEngine


class Device(np.lib.mixins.NDArrayOperatorsMixin):
    """An array of the device. `inner` is what nobody but this file may look at."""

    __cuda_array_interface__: Mapping[str, Any] = {}

    def __init__(self, inner: np.ndarray) -> None:
        self.inner = np.asarray(inner)

    def __array__(self, *args: Any, **keywords: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        if keywords.get("out"):
            getattr(ufunc, method)(*opened(inputs), **opened(keywords))
            return keywords["out"][0]
        return wrapped(getattr(ufunc, method)(*opened(inputs), **opened(keywords)))

    def __array_function__(self, function: Any, types: Any, args: Any, keywords: Any) -> Any:
        return wrapped(function(*opened(args), **opened(keywords)))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = getattr(self.inner, name)
        if not callable(value) or name == "dtype":
            return wrapped(value)
        plain = name in ("item", "tolist")
        return lambda *args, **keywords: (lambda r: r if plain else wrapped(r))(
            value(*opened(args), **opened(keywords))
        )

    def get(self) -> np.ndarray:
        """Copy to the host."""
        return self.inner.copy()

    def __getitem__(self, key: Any) -> Any:
        return wrapped(self.inner[opened(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        self.inner[opened(key)] = opened(value)

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Iterator[Any]:
        return (wrapped(v) for v in self.inner)

    def __bool__(self) -> bool:
        return bool(self.inner)

    def __int__(self) -> int:
        return int(self.inner)

    def __float__(self) -> float:
        return float(self.inner)

    def __index__(self) -> int:
        return int(self.inner)


def opened(value: Any) -> Any:
    """Arguments as NumPy takes them; arrays of the host are refused."""
    if isinstance(value, Device):
        return value.inner
    if isinstance(value, np.ndarray):
        raise TypeError("Unsupported type <class 'numpy.ndarray'>")
    if isinstance(value, tuple | list):
        return type(value)(opened(v) for v in value)
    return {k: opened(v) for k, v in value.items()} if isinstance(value, dict) else value


def wrapped(value: Any) -> Any:
    """Results: on a device even a single number is an array."""
    if isinstance(value, np.ndarray | np.generic):
        return Device(np.asarray(value))
    if isinstance(value, tuple | list):
        parts = [wrapped(v) for v in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


class DeviceModule(ModuleType):
    """The array module of the device."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(np, name)
        if isinstance(value, type) or not callable(value):
            return value
        if name in ("asarray", "array"):
            return lambda a, *args, **keywords: Device(
                value(a.inner if isinstance(a, Device) else a, *args, **keywords)
            )
        if isinstance(value, np.ufunc):
            return _Ufunc(value)
        return lambda *args, **keywords: wrapped(value(*opened(args), **opened(keywords)))


class _Ufunc:
    def __init__(self, ufunc: np.ufunc) -> None:
        self._ufunc = ufunc

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return wrapped(self._ufunc(*opened(args), **opened(keywords)))

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._ufunc, name)
        return lambda *args, **keywords: wrapped(value(*opened(args), **opened(keywords)))


XP = DeviceModule("cupy")


class DeviceEngine(CpuEngine):
    """Reads as the CPU engine does; what it returns lies on the device."""

    name = "gpu"
    device = "cpu"  # for XGBoost, which has no device here

    @property
    def xp(self) -> Any:
        return XP

    def read(self, part: Any, columns: Sequence[Any], chunk_rows: int, skip: int = 0) -> Iterator[dict[str, Column]]:
        for columns_read in super().read(part, columns, chunk_rows, skip):
            yield {name: on_device(column) for name, column in columns_read.items()}

    def from_arrow(self, table: pa.Table, columns: Sequence[Any], where: str) -> dict[str, Column]:
        return {name: on_device(column) for name, column in super().from_arrow(table, columns, where).items()}

    def to_arrow(self, column: Column) -> pa.Array:
        valid = None if column.valid is None else column.valid.get()
        return super().to_arrow(replace(column, values=column.values.get(), valid=valid))

    def to_host(self, array: Any) -> np.ndarray:
        return array.get() if isinstance(array, Device) else np.asarray(array)

    def to_device(self, array: Any) -> Any:
        return array if isinstance(array, Device) else Device(array)

    def place(self, value: Any) -> Any:
        return wire.join(*wire.split(value, self.to_host), self.to_device)

    def matrix(self, columns: Mapping[str, Column], names: Sequence[str], n_rows: int) -> Any:
        out = XP.empty((n_rows, len(names)), dtype="float32")
        for j, name in enumerate(names):
            with np.errstate(over="ignore"):
                out[:, j] = columns[name].floats("float32")
        return out


def on_device(column: Column) -> Column:
    """A column whose arrays lie on the device."""
    levels = column.levels
    if levels is not None:
        hashed = levels.keys
        levels = Levels(levels.values, lambda values: Device(hashed))
    valid = None if column.valid is None else Device(column.valid)
    return replace(column, values=Device(column.values), valid=valid, levels=levels)
