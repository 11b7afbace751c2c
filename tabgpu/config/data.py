"""The sections `data` and `split` of the pipeline file: which rows and columns there are, and how rows are divided.

Checked here is what needs no data: that fractions leave rows to train on, that times are times and in order, that
keys which belong together come together. Columns, zones and expressions are checked once footers are read.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from ..errors import ConfigError
from .base import EnvironmentText, Names, Options
from .step_options import Seed
from .yaml12 import resolve

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Text = Annotated[str, Field(min_length=1)]
Source = Annotated[Names, Field(min_length=1)]


class ColumnOptions(Options):
    """What is declared of one column; a declaration wins over every file."""

    kind: Literal["numeric", "categorical", "datetime", "ignore"] | None = Field(
        default=None, description="kind of the column; null to infer it from its type"
    )
    zone: str | None = Field(
        default=None, description="time zone in which calendar parts of a datetime column are meant"
    )


class Join(Options):
    """A small table whose columns are added to each row; its keys are unique."""

    name: Name = Field(description="name of the table, for score --table NAME=PATH")
    source: Source = Field(description="path, glob, folder, list of these, or fsspec URL")
    by: Names = Field(min_length=1, description="key columns, with the same names in both")
    prefix: str = Field(default="", description="put before the names of the columns that are added")
    columns: Names | None = Field(default=None, description="columns to add; null for all")


class Data(Options):
    """Which rows and columns there are, and what they mean."""

    source: Source = Field(description="path, glob, folder, list of these, or fsspec URL")
    valid: Source | None = Field(default=None, description="files of the validation part, instead of a split")
    test: Source | None = Field(default=None, description="files of the test part, instead of a split")
    derive: dict[str, Text] = Field(default={}, description="new columns: name and expression over columns")
    filter: Text | None = Field(
        default=None, description="expression; training and evaluation use rows for which it is true"
    )
    target: Text | None = Field(default=None, description="column to predict")
    time: Text | None = Field(default=None, description="column with the time of the row, for split by time")
    weight: Text | None = Field(default=None, description="column with the weight of the row")
    group: Text | None = Field(default=None, description="column whose rows of equal value stay in one part")
    key: Text | None = Field(default=None, description="column that identifies the row, instead of file and row number")
    columns: dict[str, ColumnOptions] = Field(default={}, description="declared kinds and zones, by column name")
    join: Annotated[tuple[Join, ...], BeforeValidator(lambda v: tuple(v) if isinstance(v, list) else v)] = Field(
        default=(), description="small tables to join, in this order"
    )

    @model_validator(mode="after")
    def _check(self) -> Data:
        names = [join.name for join in self.join]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(
                    f"data.join has two tables called {name!r}", "Expected each name once", "Rename one under data.join"
                )
        for role in ("time", "weight", "group", "key"):
            if self.target is not None and getattr(self, role) == self.target:
                raise ConfigError(
                    f"data.target and data.{role} are both {self.target!r}",
                    "Expected the target to have no other role",
                    f"Name another column under data.{role} or leave it out",
                )
        return self


def _as_text(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime.date) else value


Boundary = Annotated[float | int | str | None, BeforeValidator(_as_text)]


class Split(Options):
    """How rows are divided into training, validation and test parts."""

    by: Literal["random", "time", "group", "column"] = Field(
        default="random", description="what decides the part of a row"
    )
    column: Text | None = Field(default=None, description="by column: the column that holds train, valid or test")
    valid: Boundary = Field(default=0.1, description="fraction of rows, or first time of the part; 0 or null for none")
    test: Boundary = Field(default=0.1, description="fraction of rows, or first time of the part; 0 or null for none")
    seed: Seed = Field(default=0, description="chooses the rows, by random and group")
    gap: (
        Annotated[str, Field(pattern=r"^([0-9]+ *(w|d|h|min|s|ms|us|ns) *)+$")] | Annotated[int, Field(ge=0)] | None
    ) = Field(default=None, description="by time: leave out rows this long before each boundary, such as 7d or 12h")

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, values: Any) -> Any:
        """A fraction makes no sense beside a time, nor beside a column: then the default is no such part."""
        if not isinstance(values, Mapping) or values.get("by") not in ("time", "column"):
            return values
        given = [resolve(v) if isinstance(v, EnvironmentText) else v for v in map(values.get, ("valid", "test"))]
        if values["by"] == "time" and all(v is None or isinstance(v, float) for v in given):
            return values
        return {"valid": None, "test": None, **values}

    @model_validator(mode="after")
    def _check(self) -> Split:
        {"time": self._check_time, "column": self._check_column}.get(self.by, self._check_fractions)()
        for key, wanted in (("gap", "time"), ("column", "column")):
            if getattr(self, key) is not None and self.by != wanted:
                raise ConfigError(
                    f"split.{key} is given with split.by {self.by!r}",
                    f"Expected split.{key} with by: {wanted} alone",
                    f"Remove split.{key}, or write by: {wanted}",
                )
        return self

    def _check_column(self) -> None:
        if self.column is None or self.valid is not None or self.test is not None:
            raise ConfigError(
                f"split.by is 'column' with column {self.column!r}, valid {self.valid!r} and test {self.test!r}",
                "Expected column alone: the column holds 'train', 'valid' or 'test'",
                "Write split: {by: column, column: NAME}",
            )

    def _check_fractions(self) -> None:
        for key in ("valid", "test"):
            value = getattr(self, key)
            if value is None or (not isinstance(value, str) and 0 <= value < 1):
                continue
            raise ConfigError(
                f"split.{key} is {value!r} with split.by {self.by!r}",
                "Expected a fraction of at least 0 and below 1",
                f"Write such a fraction, or by: time for a time, or pass --set split.{key}=0.1",
            )
        self._check_sum()

    def _check_sum(self) -> None:
        total = sum(v for v in (self.valid, self.test) if isinstance(v, int | float))
        if total >= 1:
            raise ConfigError(
                f"split.valid and split.test add up to {total:g}",
                "Expected less than 1, so that rows are left to train on",
                "Lower split.valid or split.test",
            )

    def _check_time(self) -> None:
        given = [(k, v) for k, v in (("valid", self.valid), ("test", self.test)) if v is not None]
        if all(_is_fraction(value) for _, value in given):
            self._check_sum()
            return
        for key, value in given:
            if isinstance(value, float) or (isinstance(value, str) and _parse_time(value) is None):
                raise ConfigError(
                    f"split.{key} is {value!r} with split.by 'time'",
                    "Expected a time such as 2013-10-01 or 2013-10-01T06:00:00+02:00, a whole number for a numeric "
                    "column, or fractions for both valid and test",
                    f"Correct it, or pass --set split.{key}=2013-10-01",
                )
        if len(given) == 2 and not _before(self.valid, self.test):
            raise ConfigError(
                f"split.valid is {self.valid!r} and split.test is {self.test!r}",
                "Expected two times, the validation part before the test part",
                "Correct split.valid and split.test: each is the first time of its part",
            )


def _is_fraction(value: Any) -> bool:
    return (isinstance(value, float) and 0 <= value < 1) or value == 0


def _parse_time(text: str) -> datetime.datetime | None:
    try:
        return datetime.datetime.fromisoformat(text.strip())
    except ValueError:
        return None


def _before(left: Any, right: Any) -> bool:
    if isinstance(left, int) and isinstance(right, int):
        return left < right
    if not (isinstance(left, str) and isinstance(right, str)):
        return False
    first, second = _parse_time(left), _parse_time(right)
    if first is None or second is None:
        return False
    if (first.tzinfo is None) != (second.tzinfo is None):
        return True  # comparable only once the zone of the column is known
    return first < second
