"""The one form in which states, fitted values, plans and parts travel to workers and are saved: JSON beside arrays.

`split` takes a value apart into a JSON tree and a list of arrays, `join` puts it together again. A worker gets both as
one blob (`pack`, `unpack`); a bundle writes the tree as JSON and each array as Parquet. Nothing is ever pickled: only
plain values, NumPy arrays of numbers, Arrow arrays and tables, and classes registered with `record` are known.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from .errors import DataError

_CLASSES: dict[str, type] = {}
_T = TypeVar("_T")
_DTYPES = "biuf"  # bool, int, uint, float: everything a state may hold


def record(cls: type[_T]) -> type[_T]:
    """Class decorator: register a dataclass under its name, so that it may travel."""
    if _CLASSES.setdefault(cls.__name__, cls).__module__ != cls.__module__:
        raise TypeError(f"two wire records are called {cls.__name__}")
    return cls


def split(value: Any, to_host: Callable[[Any], np.ndarray] = np.asarray) -> tuple[Any, list[pa.Array]]:
    """Take a value apart into a JSON tree and Arrow arrays.

    Parameters
    ----------
    value : object
        None, bool, int of any size, float, str, list, tuple, dict, NumPy or Arrow array, Arrow table, array of the
        device, or an instance of a registered class.
    to_host : callable
        Moves an array of the device to the host (`engine.to_host`).

    Returns
    -------
    tree : object
        Fit for ``json.dumps``; refers to arrays as ``{"$array": position, ...}``.
    arrays : list of pyarrow.Array
        Flat arrays, null-free unless they came as Arrow arrays.
    """
    splitter = _Splitter(to_host)
    return splitter.tree(value), splitter.arrays


class _Splitter:
    """Collects the arrays of a value while it is taken apart."""

    def __init__(self, to_host: Callable[[Any], np.ndarray]) -> None:
        self.arrays: list[pa.Array] = []
        self._to_host = to_host

    def tree(self, v: Any) -> Any:
        """JSON for a value; its arrays go to `arrays`."""
        if isinstance(v, np.generic):
            v = v.item()
        if v is None or isinstance(v, bool | str | int | float):
            return _scalar(v)
        if isinstance(v, list):
            return [self.tree(i) for i in v]
        if isinstance(v, tuple):
            return {"$tuple": [self.tree(i) for i in v]}
        if isinstance(v, pa.Table):
            return {"$table": self.tree(_stream_of(v))}
        if isinstance(v, dict):
            return {"$dict": [[self.tree(k), self.tree(i)] for k, i in v.items()]}
        if type(v).__name__ in _CLASSES and dataclasses.is_dataclass(v):
            fields = {f.name: self.tree(getattr(v, f.name)) for f in dataclasses.fields(v)}
            return {"$record": type(v).__name__, "fields": fields}
        return self._array(v)

    def _array(self, v: Any) -> dict[str, Any]:
        place = {"$array": len(self.arrays)}
        if isinstance(v, pa.Array):
            self.arrays.append(v)
            return place
        if hasattr(v, "dtype") and hasattr(v, "shape") and v.dtype.kind in _DTYPES:
            host = self._to_host(v)
            self.arrays.append(pa.array(np.ascontiguousarray(host).ravel()))
            return {**place, "numpy": host.dtype.str, "shape": list(host.shape)}
        raise TypeError(f"{type(v).__name__} cannot travel: register it with wire.record")


def _stream_of(table: pa.Table) -> pa.Array:
    """A table as an array of bytes: an Arrow stream, with its schema and chunks as they are."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    buffer = sink.getvalue()
    return pa.Array.from_buffers(pa.uint8(), buffer.size, [None, buffer])


def _table_of(stream: pa.Array) -> pa.Table:
    return pa.ipc.open_stream(stream.buffers()[1].slice(stream.offset, len(stream))).read_all()


def _scalar(v: bool | str | int | float | None) -> Any:
    """JSON for a plain value: readers round integers beyond 2^53, and JSON has no infinity."""
    if isinstance(v, int) and abs(v) >= 2**53:
        return {"$int": hex(v)}
    if isinstance(v, float) and not math.isfinite(v):
        return {"$float": repr(v)}
    return v


def join(tree: Any, arrays: list[pa.Array], to_device: Callable[[np.ndarray], Any] = np.asarray) -> Any:
    """Put together what `split` took apart.

    Parameters
    ----------
    tree, arrays
        As `split` returned them.
    to_device : callable
        Moves a host array to the device (`engine.to_device`).

    Raises
    ------
    DataError
        If the tree refers to a class or an array that does not exist.
    """

    def array(t: dict[str, Any]) -> Any:
        a = arrays[t["$array"]]
        if "numpy" not in t:
            return a
        dtype = np.dtype(t["numpy"])
        if dtype.kind not in _DTYPES:
            raise KeyError(dtype)
        # pyarrow hands out read-only memory of its own: states and fitted values are never written to
        return to_device(a.to_numpy(zero_copy_only=False).astype(dtype, copy=False).reshape(t["shape"]))

    makers: dict[str, Callable[[dict[str, Any]], Any]] = {
        "$array": array,
        "$record": lambda t: _CLASSES[t["$record"]](**{k: walk(v) for k, v in t["fields"].items()}),
        "$table": lambda t: _table_of(walk(t["$table"])),
        "$tuple": lambda t: tuple(walk(i) for i in t["$tuple"]),
        "$dict": lambda t: {walk(k): walk(v) for k, v in t["$dict"]},
        "$int": lambda t: int(t["$int"], 16),
        "$float": lambda t: float(t["$float"]),
    }

    def walk(t: Any) -> Any:
        if isinstance(t, list):
            return [walk(i) for i in t]
        return makers[next(iter(t), "")](t) if isinstance(t, dict) else t

    try:
        return walk(tree)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise DataError(
            f"A saved value cannot be read: {type(error).__name__} {error}",
            "Expected what this version of tabgpu writes",
            "Write it again with this version, or use the version that wrote it",
        ) from error


def pack(value: Any, to_host: Callable[[Any], np.ndarray] = np.asarray) -> bytes:
    """`split` into one blob: an Arrow IPC stream, the tree in its schema's metadata."""
    tree, arrays = split(value, to_host)
    sink = io.BytesIO()
    schema = pa.schema([("tree", pa.string())])
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.record_batch([pa.array([json.dumps(tree)])], schema=schema))
    for a in arrays:
        with pa.ipc.new_stream(sink, pa.schema([("a", a.type)])) as writer:
            writer.write_batch(pa.record_batch([a], names=["a"]))
    return sink.getvalue()


def unpack(blob: bytes, to_device: Callable[[np.ndarray], Any] = np.asarray) -> Any:
    """Put together what `pack` made."""
    source = pa.BufferReader(blob)
    tree = json.loads(pa.ipc.open_stream(source).read_all()["tree"][0].as_py())
    arrays = []
    while source.tell() < len(blob):
        arrays.append(pa.ipc.open_stream(source).read_all()["a"].combine_chunks())
    return join(tree, arrays, to_device)
