"""One schema over all footers: names, types, kinds, and where files differ (drift).

Every file of a source is looked at before a row is read, and all types of a column at once, so that the order of files
changes nothing: integers widen, int and float become float64, a column of type null takes the type that other files
give it, a column that some files lack is missing there, timestamps take the finest unit. A declared kind wins over all
files: text declared numeric or datetime is parsed. What cannot be one column (text and number, `X` and `x`) is refused,
naming both files. Nested and binary columns are kept aside with the reason: naming one of them is an error, having one
is not. Nothing is read here but footers; values are converted by an engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from .columns import Kind
from .errors import ConfigError, DataError, correct, listing, nearest
from .files import File, Footer
from .wire import record

_UNITS = ("s", "ms", "us", "ns")
_UTC = ("UTC", "Etc/UTC", "Z", "+00:00")


@record
@dataclass(frozen=True)
class ColumnType:
    """The one type of a column over all files.

    Parameters
    ----------
    name : str
        Name of the column.
    kind : {'numeric', 'categorical', 'datetime'}
        How it is held in a chunk.
    dtype : str
        NumPy dtype of the values in a chunk ('int32' codes for categories, 'int64' for datetimes).
    levels : str, optional
        For categories: 'text' or the NumPy dtype of their levels.
    unit, zone : str, optional
        For datetimes. Times of day and durations are numbers, counted in `unit`.
    partition : bool
        Whether the values come from the names of folders.
    """

    name: str
    kind: Kind
    dtype: str
    levels: str | None = None
    unit: str | None = None
    zone: str | None = None
    partition: bool = False


class Declared(Protocol):
    """What the pipeline file says of a column (`tabgpu.config.ColumnOptions`)."""

    @property
    def kind(self) -> str | None:
        """Kind, or None where it is left to the files."""

    @property
    def zone(self) -> str | None:
        """Time zone in which calendar parts are meant."""


@dataclass(frozen=True)
class _Undeclared:
    kind: None = None
    zone: None = None


@dataclass(frozen=True)
class Schema:
    """One schema over all files.

    Parameters
    ----------
    columns : dict of str to ColumnType
        In the order of the first file that has each.
    refused : dict of str to str
        Columns that cannot be used, with the reason.
    drift : tuple of str
        Sentences on how files differ, for the user to read.
    """

    columns: Mapping[str, ColumnType]
    refused: Mapping[str, str] = field(default_factory=dict)
    drift: tuple[str, ...] = ()

    def require(self, name: str, key: str) -> ColumnType:
        """Return a column that the pipeline names.

        Raises
        ------
        ConfigError
            If it does not exist, or cannot be used: says why and how.
        """
        if name in self.columns:
            return self.columns[name]
        if name in self.refused:
            raise ConfigError(
                f"{key} names the column {name!r}, which {self.refused[name]}",
                "Expected a column of numbers, text, dates or times",
                "Flatten or convert it when writing the files, or leave it out",
            )
        raise ConfigError(
            f"{key} names the column {name!r}, which is in none of the files",
            nearest(name, self.columns),
            f"{correct(key, 'COLUMN')}; tabgpu inspect DATA lists the columns",
        )


def unify(footers: Sequence[Footer], declared: Mapping[str, Declared]) -> Schema:
    """Make one schema of all footers.

    Parameters
    ----------
    footers : sequence of Footer
        Of every file of the source.
    declared : mapping of str to Declared
        Kinds and zones from ``data.columns``; a declaration wins over every file.

    Raises
    ------
    DataError
        If files cannot be one table.
    ConfigError
        If a declared column does not exist.
    """
    types: dict[str, dict[pa.DataType, File]] = {}  # of each column, with the first file that has it so
    folders: dict[str, dict[str | None, File]] = {}  # the values that folders give to a column, likewise
    names = [set(f.schema.names) for f in footers]
    for footer, own in zip(footers, names, strict=True):
        _refuse_duplicates(footer)
        for arrow in footer.schema:
            types.setdefault(arrow.name, {}).setdefault(arrow.type, footer.file)
        for name, value in footer.file.partition:
            if name not in own:
                folders.setdefault(name, {}).setdefault(value, footer.file)
    ignored = {n for n, d in declared.items() if d.kind == "ignore"}
    _refuse_two_places({n: t for n, t in types.items() if n not in ignored}, folders)
    columns: dict[str, ColumnType] = {}
    refused: dict[str, str] = {}
    drift: list[str] = []
    for name in [n for n in [*types, *folders] if n not in ignored]:
        said = declared.get(name, _Undeclared())
        if name in folders:
            columns[name] = _folder_type(name, folders[name], said)
        elif reason := next(filter(None, (_refusal(t, said) for t in types[name])), None):
            refused[name] = reason
        else:
            columns[name] = _unified(name, types[name], said, drift)
    for name in declared:
        if name not in columns and name not in ignored:
            Schema(columns, refused).require(name, f"data.columns.{name}")
    _refuse_case_twins(footers, columns)
    drift += _absences(footers, names, columns)
    return Schema(columns, refused, tuple(drift))


def _refusal(arrow: pa.DataType, said: Declared) -> str | None:
    """Say why a type cannot be a column, or None."""
    value = _plain(arrow)
    if pat.is_nested(value):
        return f"is nested ({arrow})"
    binary = (pat.is_binary, pat.is_large_binary, pat.is_fixed_size_binary, pat.is_binary_view)
    if any(test(value) for test in binary):
        if said.kind == "categorical":
            return None
        return "holds bytes (binary); declare kind: categorical to use them as levels"
    return None if pat.is_null(value) or _dtype(value) or _is_moment(value) else f"is of the type {arrow}"


def _plain(arrow: pa.DataType) -> pa.DataType:
    """Type of the values, below dictionaries and extension types."""
    if isinstance(arrow, pa.BaseExtensionType):
        arrow = arrow.storage_type
    return arrow.value_type if pat.is_dictionary(arrow) else arrow


def _is_moment(value: pa.DataType) -> bool:
    return bool(pat.is_timestamp(value) or pat.is_date(value))


def _dtype(value: pa.DataType) -> str | None:
    """'text', the NumPy dtype of a type that becomes numbers, or None for dates, timestamps and all else."""
    if pat.is_boolean(value):
        return "uint8"
    if pat.is_integer(value) or pat.is_floating(value):
        return str(np.dtype(value.to_pandas_dtype()).name)
    if pat.is_decimal(value):
        return "float64"
    if pat.is_time(value) or pat.is_duration(value):
        return "int64"
    text = (pat.is_string, pat.is_large_string, pat.is_string_view)
    return "text" if any(test(value) for test in text) else None


def _kind(arrow: pa.DataType, said: Declared) -> Kind:
    value = _plain(arrow)
    if said.kind in ("numeric", "categorical", "datetime"):
        return said.kind  # type: ignore[return-value]  # mypy does not narrow str by `in`
    if _is_moment(value):
        return "datetime"
    return "categorical" if _dtype(value) == "text" or pat.is_dictionary(arrow) else "numeric"


def _unified(name: str, types: Mapping[pa.DataType, File], said: Declared, drift: list[str]) -> ColumnType:
    """Smallest type that holds all types of a column; says in `drift` where they differ."""
    types = {t: f for t, f in types.items() if not pat.is_null(_plain(t))}
    if not types:
        return _empty_type(name, said)
    _refuse_declaration(name, types, said)
    kinds = {_kind(t, said): t for t in types}
    if len(kinds) > 1:
        one, other, *_ = kinds.values()
        raise _conflict(name, one, other, types)
    kind = next(iter(kinds))
    column = _datetime_type(name, types, said) if kind == "datetime" else _number_type(name, kind, types)
    seen = {_dtype(_plain(t)) or str(_plain(t)): f for t, f in types.items()}
    if len(seen) > 1:
        spoken = " and ".join(f"{t} in {f.name}" for t, f in seen.items())
        shape = f"UTC in {column.unit}" if kind == "datetime" else column.levels or column.dtype
        drift.append(f"{name!r} is {spoken}: read as {shape}")
    return column


def _empty_type(name: str, said: Declared) -> ColumnType:
    """Type of a column that has no value anywhere."""
    if said.kind == "categorical":
        return ColumnType(name, "categorical", "int32", levels="text")
    if said.kind == "datetime":
        return ColumnType(name, "datetime", "int64", unit="s", zone=said.zone)
    return ColumnType(name, "numeric", "float32")


def _refuse_declaration(name: str, types: Mapping[pa.DataType, File], said: Declared) -> None:
    """Refuse a declared kind that cannot be made of what a file holds: numbers are no times, times no numbers."""
    for arrow, file in types.items():
        value = _plain(arrow)
        text = _dtype(value) == "text"
        wrong = not (_is_moment(value) or text) if said.kind == "datetime" else _is_moment(value)
        if wrong and said.kind is not None:
            raise ConfigError(
                f"data.columns.{name}.kind is {said.kind!r}, but {file.name} holds {arrow}",
                "Expected 'numeric' or 'categorical' for numbers, 'datetime' for dates and timestamps",
                f"Declare another kind under data.columns.{name}, or write {name} with another type",
            )


def _datetime_type(name: str, types: Mapping[pa.DataType, File], said: Declared) -> ColumnType:
    """Finest unit; the zone where all files agree on one."""
    units, zones = set(), set()
    for value in map(_plain, types):
        if pat.is_timestamp(value):
            units.add(value.unit)
            zones.add(None if value.tz in _UTC else value.tz)
        else:  # text may hold fractions of a second
            units.add("s" if pat.is_date32(value) else "ms" if pat.is_date64(value) else "us")
            zones.add(None)
    zone = said.zone or (next(iter(zones)) if len(zones) == 1 else None)
    return ColumnType(name, "datetime", "int64", unit=max(units, key=_UNITS.index), zone=zone)


def _number_type(name: str, kind: Kind, types: Mapping[pa.DataType, File]) -> ColumnType:
    """Numbers, or categories whose levels are text or numbers."""
    dtypes: dict[str, pa.DataType] = {}
    for arrow in types:
        dtypes.setdefault(_dtype(_plain(arrow)) or "text", arrow)  # bytes that are declared categorical count as text
    units = {getattr(t, "unit", None) for t in map(_plain, types)}
    if None in units and len(units) > 1:
        timed = next(t for t in types if hasattr(_plain(t), "unit"))
        raise _conflict(name, timed, next(t for t in types if not hasattr(_plain(t), "unit")), types)
    unit = max((u for u in units if u), key=_UNITS.index, default=None)
    if kind == "categorical" and "text" in dtypes:
        floats = [t for d, t in dtypes.items() if d.startswith("float")]
        if floats:  # '1' and '1.0' would be two levels
            raise _conflict(name, dtypes["text"], floats[0], types)
        return ColumnType(name, "categorical", "int32", levels="text")
    wide = _common(d if d != "text" else "float64" for d in dtypes)
    if wide is None:
        signed = next(d for d in dtypes if d.startswith("int"))
        raise _conflict(name, dtypes[signed], dtypes["uint64"], types)
    if kind == "categorical":  # Arrow cannot encode float16
        return ColumnType(name, kind, "int32", levels="float32" if wide == "float16" else wide, unit=unit)
    return ColumnType(name, kind, wide, unit=unit)


def _common(dtypes: Iterable[str]) -> str | None:
    known = [np.dtype(d) for d in dtypes]
    if {d.kind for d in known} > {"f"}:
        return "float64"
    wide = np.result_type(*known)
    if wide.kind == "f" and known[0].kind != "f":
        return None  # int64 beside uint64 has no common integer type
    return str(wide.name)


def _folder_type(name: str, values: Mapping[str | None, File], said: Declared) -> ColumnType:
    """Type of a column that the names of folders give: text, since numbers would lose their zeros, or as declared."""
    if said.kind == "datetime":
        return ColumnType(name, "datetime", "int64", unit="us", zone=said.zone, partition=True)
    if said.kind == "numeric":
        whole = all(v is None or v.lstrip("-").isdecimal() for v in values)
        return ColumnType(name, "numeric", "int64" if whole else "float64", partition=True)
    return ColumnType(name, "categorical", "int32", levels="text", partition=True)


def _conflict(name: str, one: pa.DataType, other: pa.DataType, types: Mapping[pa.DataType, File]) -> DataError:
    one, other = sorted((one, other), key=lambda t: types[t].name)
    return DataError(
        f"The column {name!r} is {_spoken(one)} in {types[one].name} and {_spoken(other)} in {types[other].name}",
        "Expected one kind of column in all files of a source",
        f"Write the files again with one type, or set data.columns.{name}.kind to a kind that fits both, or to ignore",
    )


def _spoken(arrow: pa.DataType) -> str:
    value = _plain(arrow)
    dtype = _dtype(value)
    if pat.is_dictionary(arrow):
        return "a category of " + ("text" if dtype == "text" else str(value))
    if dtype == "text":
        return "text"
    return f"a number ({value})" if dtype else f"a date or time ({value})" if _is_moment(value) else f"{value}"


def _refuse_duplicates(footer: Footer) -> None:
    names = footer.schema.names
    if len(set(names)) < len(names):
        raise DataError(
            f"The file {footer.file.path} has more than one column called "
            + listing(sorted({n for n in names if names.count(n) > 1})),
            "Expected each column name once",
            "Rename the columns when writing the file",
        )


def _refuse_two_places(types: Mapping[str, Mapping[pa.DataType, File]], folders: Mapping[str, object]) -> None:
    """Refuse a column that is in some files and that folders give to others: one of them would be ignored."""
    for name in folders:
        if name in types:
            file = next(iter(types[name].values()))
            raise DataError(
                f"The column {name!r} is in {file.name}, and given by the names of folders to files that lack it",
                "Expected it in all files, or in the names of folders alone",
                f"Write the files again without {name}, or set data.columns.{name}.kind=ignore",
            )


def _refuse_case_twins(footers: Sequence[Footer], names: Iterable[str]) -> None:
    """Refuse `X` in one file and `x` in another: reading both would leave each half missing without a word."""
    by_lower: dict[str, list[str]] = {}
    for name in names:
        by_lower.setdefault(name.lower(), []).append(name)
    for twins in (t for t in by_lower.values() if len(t) > 1):
        holders = {t: {f.file.name for f in footers if t in _names(f)} for t in twins}
        if not any(holders[a] & holders[b] for a in twins for b in twins if a != b):
            one, other = sorted((min(holders[t]), t) for t in twins)[:2]
            raise DataError(
                f"A column is called {one[1]!r} in {one[0]} and {other[1]!r} in {other[0]}",
                "Expected one spelling in all files of a source",
                f"Rename it when writing the files, or set data.columns.{other[1]}.kind=ignore",
            )


def _names(footer: Footer) -> list[str]:
    return [*footer.schema.names, *(n for n, _ in footer.file.partition)]


def _absences(footers: Sequence[Footer], names: Sequence[set[str]], columns: Mapping[str, ColumnType]) -> list[str]:
    sentences = []
    for name in columns:
        lacking = [
            f.file.name for f, own in zip(footers, names, strict=True) if name not in own and name not in _names(f)
        ]
        if lacking:
            sentences.append(f"{name!r} is not in {listing(lacking, 3)}: missing there")
    return sentences
