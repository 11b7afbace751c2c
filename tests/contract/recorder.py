"""A stand-in for CuPy on NumPy: it computes as NumPy does, minds what CuPy would mind, and lists every call.

`install` makes every `Chunk` one of this device: its `xp` is a `RecordedModule`, its arrays are `DeviceArray`. As on a
real device, reductions and picked elements stay arrays of no dimension, `.get()` brings an array to the host, and code
finds the array module under ``sys.modules["cupy"]``. Each call that code of the package makes (of `xp`, of an array's
method, by an operator or by NumPy's own function on a device array) is kept as a `Call` with file and line.

`contract.cupy_rules` says what CuPy would refuse of these calls, or would do in another way.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import numpy as np

from tabgpu import columns, wire
from tabgpu.features import contract, keys

PACKAGE = str(Path(columns.__file__).resolve().parent)


@dataclass(frozen=True)
class Call:
    """One way in which the package calls an array function.

    `name` is that in CuPy: 'where', 'ndarray.astype', 'ufunc.reduce'. `positional` is the number of positional
    arguments, None where something was only looked up. `arguments` describes all, those by keyword last, as `keywords`
    are ordered: 'device int64', 'host int64', 'several device int64', 'dtype int64', 'text stable', 'list', 'int'.
    `trouble` says what a device would make of the values, where that is not what NumPy makes of them.
    """

    name: str
    positional: int | None
    keywords: tuple[str, ...]
    arguments: tuple[str, ...]
    where: str
    trouble: str = ""


class Recorder:
    """The calls so far, each once."""

    def __init__(self) -> None:
        self.calls: dict[Call, None] = {}

    def note(
        self, frame: FrameType, name: str, args: tuple[Any, ...] | None, keywords: Mapping[str, Any], trouble: str = ""
    ) -> bool:
        """Keep a call if `frame`, which makes it, is code of the package; return whether it is."""
        file = frame.f_code.co_filename
        if not file.startswith(PACKAGE):
            return False
        names = tuple(sorted(keywords))
        described = tuple(_describe(a) for a in (*(args or ()), *(keywords[n] for n in names)))
        positional = None if args is None else len(args)
        where = f"{file[len(PACKAGE) + 1 :]}:{frame.f_lineno}"
        self.calls[Call(name, positional, names, described, where, trouble)] = None
        return True

    def run(
        self, frame: FrameType, name: str, args: Any, keywords: Any, compute: Callable[[], Any]
    ) -> tuple[Any, bool]:
        """Note a call and make it; return its result and whether the package called.

        An index out of bounds is noted before it is raised: CuPy wraps it around on the quiet.
        """
        ours = self.note(frame, name, args, keywords)
        try:
            return compute(), ours
        except IndexError as error:
            if any(isinstance(a, np.ndarray | list) for a in args):
                self.note(frame, name, args, keywords, f"out of bounds, which CuPy does not tell ({error})")
            raise


RECORDER = Recorder()


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{'device' if isinstance(value, DeviceArray) else 'host'} {value.dtype}"
    if isinstance(value, list | tuple):
        parts = sorted({_describe(v) for v in value})
        return f"several {parts[0]}" if len(parts) == 1 and parts[0].startswith(("host", "device")) else "list"
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return f"dtype {np.dtype(value)}"
    return f"text {value}" if isinstance(value, str) else type(value).__name__


def to_device(value: Any) -> Any:
    """Arrays, also inside of tuples, lists and dicts, as arrays of the device."""
    if isinstance(value, np.ndarray):
        return value if isinstance(value, DeviceArray) else value.view(DeviceArray)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(to_device(v) for v in value))
    return type(value)(to_device(v) for v in value) if isinstance(value, tuple | list) else value


def to_host(value: Any) -> Any:
    """Device arrays, also inside of tuples, lists and dicts, as arrays of the host."""
    if isinstance(value, DeviceArray):
        return value.view(np.ndarray)
    if isinstance(value, dict):
        return {k: to_host(v) for k, v in value.items()}
    return type(value)(to_host(v) for v in value) if type(value) in (tuple, list) else value


def _result(value: Any, for_package: bool) -> Any:
    """What a call returns: on the device, and for the package never a scalar of the host."""
    if for_package and isinstance(value, np.generic):
        return np.asarray(value).view(DeviceArray)
    return to_device(value)


class DeviceArray(np.ndarray):
    """An array that behaves as one of CuPy's where the two kinds differ."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {}  # by which code tells arrays of the device; nothing here reads it

    def get(self) -> np.ndarray:
        """Copy to the host."""
        return np.array(self.view(np.ndarray))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        name = ufunc.__name__ if method == "__call__" else f"ufunc.{method}"
        ours = RECORDER.note(sys._getframe(1), name, inputs, keywords)
        result = getattr(ufunc, method)(*to_host(inputs), **to_host(keywords))
        if keywords.get("out"):  # as in `a += b`
            return keywords["out"][0]
        return _result(result, True) if ours else result

    def __array_function__(self, function: Any, types: Any, args: Any, keywords: Any) -> Any:
        ours = RECORDER.note(sys._getframe(1), function.__name__, args, keywords)
        result = function(*to_host(args), **to_host(keywords))
        return _result(result, True) if ours else result

    def __iter__(self) -> Iterator[Any]:
        for each in self.view(np.ndarray):  # else Python would go on to the first index out of bounds
            yield _result(each, sys._getframe(1).f_code.co_filename.startswith(PACKAGE))

    def __getitem__(self, key: Any) -> Any:
        indices = key if isinstance(key, tuple) else (key,)
        plain, frame = self.view(np.ndarray), sys._getframe(1)
        result, ours = RECORDER.run(frame, "ndarray.__getitem__", indices, {}, lambda: plain[to_host(key)])
        return _result(result, ours)

    def __setitem__(self, key: Any, value: Any) -> None:
        indices = key if isinstance(key, tuple) else (key,)
        plain, frame = self.view(np.ndarray), sys._getframe(1)
        RECORDER.run(
            frame, "ndarray.__setitem__", (*indices, value), {}, lambda: plain.__setitem__(to_host(key), to_host(value))
        )


def _method(name: str) -> Callable[..., Any]:
    inner = getattr(np.ndarray, name)

    def method(self: DeviceArray, *args: Any, **keywords: Any) -> Any:
        frame, plain = sys._getframe(1), self.view(np.ndarray)
        compute = functools.partial(inner, plain, *to_host(args), **to_host(keywords))
        result, ours = RECORDER.run(frame, f"ndarray.{name}", args, keywords, compute)
        if name == "astype" and _out_of_range(plain, result):
            RECORDER.note(
                frame, "ndarray.astype", args, keywords, "NaN or out of range, which a device turns otherwise"
            )
        return _result(result, ours)

    return method


def _out_of_range(before: np.ndarray, after: np.ndarray) -> bool:
    """Whether floats became integers that cannot hold them: undefined, and another number on each device."""
    if before.dtype.kind != "f" or after.dtype.kind not in "iu":
        return False
    limits, whole = np.iinfo(after.dtype), np.trunc(before.astype("float64"))
    return not bool(((whole >= float(limits.min)) & (whole < float(int(limits.max) + 1))).all())  # powers of two: exact


for _name in dir(np.ndarray):
    if not _name.startswith("_") and _name not in ("view",) and callable(getattr(np.ndarray, _name)):
        setattr(DeviceArray, _name, _method(_name))


def _view(self: DeviceArray, *args: Any, **keywords: Any) -> Any:
    """`view` is how host and device are told apart here, so it is recorded only where the package calls it."""
    ours = RECORDER.note(sys._getframe(1), "ndarray.view", args, keywords)
    return to_device(np.ndarray.view(self, *args, **keywords)) if ours else np.ndarray.view(self, *args, **keywords)


DeviceArray.view = _view  # type: ignore[method-assign, assignment]  # after the loop, which uses NumPy's own


class RecordedFunction:
    """A function, ufunc or ufunc's method of `xp`."""

    def __init__(self, name: str, inner: Callable[..., Any]) -> None:
        self.__name__, self._inner = name, inner

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        compute = functools.partial(self._inner, *to_host(args), **to_host(keywords))
        result, ours = RECORDER.run(sys._getframe(1), self.__name__, args, keywords, compute)
        return _result(result, ours)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        return RecordedFunction(f"ufunc.{name}", value) if callable(value) else value


class RecordedModule(ModuleType):
    """`xp`: NumPy's names, recorded."""

    ndarray = np.ndarray

    def __getattr__(self, name: str) -> Any:
        value = getattr(np, name)
        if callable(value) and not isinstance(value, type):
            return RecordedFunction(name, value)
        RECORDER.note(sys._getframe(1), name, None, {})
        return value


XP = RecordedModule("cupy")


def install() -> None:
    """Put every chunk on this device, for the rest of the process."""
    sys.modules["cupy"] = XP
    init = columns.Chunk.__init__

    def init_on_device(self: columns.Chunk, columns: Mapping[str, Any], identity: Any, xp: Any, **more: Any) -> None:
        init(self, {name: _moved(column) for name, column in columns.items()}, to_device(identity), XP, **more)

    columns.Chunk.__init__ = init_on_device  # type: ignore[method-assign]  # the one door by which rows come in
    for kind, methods in ((contract.Step, ["transform"]), (contract.Statistic, ["observe", "merge", "finish"])):
        for owner in _subclasses(kind):
            for name in set(methods) & vars(owner).keys():
                setattr(owner, name, _after_travel(vars(owner)[name]))
    for owner, name in ((columns.Chunk, "take"), (keys.Groups, "levels")):
        setattr(owner, name, _from_outside(vars(owner)[name]))
    for name in ("asarray", "array", "ascontiguousarray"):
        setattr(np, name, _refusing(getattr(np, name)))


def _moved(column: columns.Column) -> columns.Column:
    if column.levels is not None:
        vars(column.levels)["keys"] = to_device(column.levels.keys)  # where `cached_property` keeps it
    moved = {"values": to_device(column.values), "valid": to_device(column.valid)}
    same = moved["values"] is column.values and moved["valid"] is column.valid
    return column if same else replace(column, **moved)  # a chunk remembers by the column's identity


def _subclasses(owner: type) -> set[type]:
    return {found for sub in owner.__subclasses__() for found in (sub, *_subclasses(sub))}


def _after_travel(method: Callable[..., Any]) -> Callable[..., Any]:
    """States, requests and fitted values come to a method as they come to a worker: through `wire`, on its device."""

    def travelled(value: Any) -> Any:
        return value if isinstance(value, columns.Chunk) else wire.join(*wire.split(value), to_device)

    @functools.wraps(method)
    def call(self: Any, *args: Any, **keywords: Any) -> Any:
        return method(self, *map(travelled, args), **{k: travelled(v) for k, v in keywords.items()})

    return call


def _from_outside(method: Callable[..., Any]) -> Callable[..., Any]:
    """Tests pick rows by arrays of NumPy; the package has to have them on the device."""

    @functools.wraps(method)
    def call(self: Any, rows: Any) -> Any:
        ours = sys._getframe(1).f_code.co_filename.startswith(PACKAGE)
        return method(self, rows if ours else to_device(rows))

    return call


def _refusing(function: Callable[..., Any]) -> Callable[..., Any]:
    """CuPy does not turn into an array of the host on the quiet; NumPy cannot refuse it for a subclass."""

    def call(value: Any, *args: Any, **keywords: Any) -> Any:
        file = sys._getframe(1).f_code.co_filename
        if isinstance(value, DeviceArray) and file.startswith(PACKAGE) and not file.endswith("wire.py"):
            raise TypeError("Implicit conversion to a NumPy array is not allowed: use .get()")
        return function(value, *args, **keywords)

    return call
