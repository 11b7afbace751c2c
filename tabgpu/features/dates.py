"""Calendar parts of datetime columns: `Dates`.

A datetime is an int64 count of seconds (or ms, us, ns) since 1970 in UTC. All parts are integer arithmetic on it, with
floor division, so that times before 1970 are right and every engine gives the same integers; no float and no calendar
library takes part. Days become year, month and day in the proleptic Gregorian calendar by the algorithm of [1]_.

A time zone is a table of the instants at which its offset changes, scanned once from `zoneinfo` (`zone_table`), and
looked up with `searchsorted`. Clock changes are thereby right in both directions: the table goes from UTC to local
time, which is always unique.

References
----------
.. [1] H. Hinnant, "chrono-Compatible Low-Level Date Algorithms", section civil_from_days.
"""

from __future__ import annotations

import functools
import re
import zoneinfo
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, get_args

import numpy as np

from ..columns import Array, ArrayModule, Chunk, Column
from ..errors import ConfigError, listing, nearest
from .contract import Field, Fields, Fitted, Step
from .fields import add, require

Part = Literal[
    "year",
    "month",
    "day",
    "weekday",
    "hour",
    "minute",
    "second",
    "dayofyear",
    "week",
    "quarter",
    "is_weekend",
]
PARTS: tuple[Part, ...] = get_args(Part)
_TICKS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_FIXED_ZONE = re.compile(r"([+-])(\d\d):(\d\d)")
_FIRST_YEAR, _LAST_YEAR = 1900, 2100


@dataclass(frozen=True)
class Dates(Step):
    """Add calendar parts of datetime columns, as ``<column>_<part>``.

    ``year``, ``month`` 1-12, ``day`` 1-31, ``weekday`` 0-6 from Monday, ``hour``, ``minute``, ``second``, ``dayofyear``
    1-366, ``week`` 1-53 of ISO 8601, ``quarter`` 1-4, ``is_weekend`` 1 on Saturdays and Sundays.

    Missing values stay missing (mask). Parts are int16, years int32. Learns nothing from the data.

    Parameters
    ----------
    name : str
        Name of the step.
    columns : tuple of str
        Datetime columns.
    parts : tuple of str
        The parts to add.
    zone : str, optional
        Time zone in which the parts are meant, such as ``'Europe/Berlin'``. By default the zone that the column
        declares, else UTC (or the clock of the file, if its times are naive).

    Examples
    --------
    >>> import numpy as np
    >>> hours = Column(np.array([0, -1, 1_382_832_000]), "datetime", unit="s")  # the last: 2013-10-27 00:00 UTC
    >>> chunk = Chunk({"t": hours}, np.arange(3, dtype="u8"), np)
    >>> made = Dates("dates", ("t",), ("year", "hour", "weekday"), zone="Europe/Berlin").transform(chunk, None, False)
    >>> {name: column.values.tolist() for name, column in made.items()}
    {'t_year': [1970, 1970, 2013], 't_hour': [1, 0, 2], 't_weekday': [3, 3, 6]}
    """

    name: str
    columns: tuple[str, ...]
    parts: tuple[Part, ...]
    zone: str | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the columns that `transform` reads."""
        return self.columns

    def outputs(self, fields: Fields) -> dict[str, Field]:
        """Fields of the parts.

        Raises
        ------
        ConfigError
            If a column is not a datetime, or a part or the zone is unknown.
        """
        require(self.name, fields, self.columns, ("datetime",))
        for part in self.parts:
            if part not in PARTS:
                raise ConfigError(
                    f"Step {self.name!r} asks for part {part!r}",
                    f"Expected one of {listing(PARTS)}. {nearest(part, PARTS)}",
                    f"Correct parts of step {self.name!r} under features (--set features.{self.name}.parts=[...])",
                )
        for zone in {self.zone or fields[column].zone for column in self.columns} - {None}:
            zone_table(str(zone))
        return add(
            self.name,
            fields,
            ((f"{c}_{p}", Field("numeric", _part_dtype(p))) for c in self.columns for p in self.parts),
        )

    def transform(self, chunk: Chunk, fitted: Fitted, training: bool) -> dict[str, Column]:
        """The parts of every column: numeric columns of shape (n_rows,) with the mask of their column."""
        made: dict[str, Column] = {}
        for name in self.columns:
            column = chunk[name]
            clock = _Clock(chunk.xp, local_seconds(chunk.xp, column, self.zone or column.zone))
            for part in self.parts:
                values = getattr(clock, part).astype(_part_dtype(part))
                made[f"{name}_{part}"] = Column(values, "numeric", valid=column.valid)
        return made


def _part_dtype(part: Part) -> str:
    return "int32" if part == "year" else "int16"


def local_seconds(xp: ArrayModule, column: Column, zone: str | None) -> Array:
    """Seconds since 1970-01-01 00:00 on the clock of a zone, rounded down; int64, shape (n_rows,).

    Parameters
    ----------
    xp : module
        The array module.
    column : Column
        A datetime column. Where it is missing the result means nothing.
    zone : str or None
        Name of the zone; None leaves the clock as it is.

    Raises
    ------
    ConfigError
        If the zone is unknown.
    """
    ticks = _TICKS[column.unit or "s"]
    seconds = column.values if ticks == 1 else column.values // ticks
    if zone is None or zone == "UTC":
        return seconds
    changes, offsets = zone_table(zone)
    return seconds + xp.asarray(offsets).take(xp.searchsorted(xp.asarray(changes), seconds, side="right"))


@functools.lru_cache(maxsize=64)
def zone_table(zone: str) -> tuple[np.ndarray, np.ndarray]:
    """The offsets of a time zone between 1900 and 2100; its first and last offset hold before and after.

    Parameters
    ----------
    zone : str
        Name in the IANA database, such as ``'America/New_York'``, or a fixed offset as Arrow writes it, ``'+02:00'``.

    Returns
    -------
    changes : numpy.ndarray
        int64, shape (n,), ascending: the instants, in seconds since 1970 UTC, from which a new offset holds.
    offsets : numpy.ndarray
        int64, shape (n + 1,): seconds that local time is ahead of UTC before, between and after them.

    Raises
    ------
    ConfigError
        If no such zone is known.

    Examples
    --------
    >>> changes, offsets = zone_table("Asia/Kolkata")
    >>> offsets[-1].item() / 3600
    5.5
    """
    if fixed := _FIXED_ZONE.fullmatch(zone):
        ahead = (int(fixed[2]) * 60 + int(fixed[3])) * (-60 if fixed[1] == "-" else 60)
        return np.empty(0, dtype=np.int64), np.array([ahead], dtype=np.int64)
    return _scan(_find_zone(zone))


def _scan(clock: zoneinfo.ZoneInfo) -> tuple[np.ndarray, np.ndarray]:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)

    def offset_at(second: int) -> int:
        ahead = (epoch + timedelta(seconds=second)).astimezone(clock).utcoffset()
        return int((ahead or timedelta(0)).total_seconds())

    day = 86_400
    first = int((datetime(_FIRST_YEAR, 1, 1, tzinfo=UTC) - epoch).total_seconds())
    last = int((datetime(_LAST_YEAR, 1, 1, tzinfo=UTC) - epoch).total_seconds())
    changes, offsets = [], [offset_at(first)]
    for end in range(first + day, last + day, day):  # no zone changes twice within a day
        after = offset_at(end)
        if after != offsets[-1]:
            low, high = end - day, end
            while high - low > 1:  # the offset is the old one at `low`, the new one at `high`
                middle = (low + high) // 2
                low, high = (low, middle) if offset_at(middle) == after else (middle, high)
            changes.append(high)
            offsets.append(after)
    return np.array(changes, dtype=np.int64), np.array(offsets, dtype=np.int64)


def _find_zone(zone: str) -> zoneinfo.ZoneInfo:
    try:
        return zoneinfo.ZoneInfo(zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:  # OSError: the name of a folder
        raise ConfigError(
            f"Time zone {zone!r} is not known",
            f"Expected a name of the IANA database such as 'Europe/Berlin'. {_nearest_zone(zone)}",
            "Correct zone of the dates step under features, or the zone of the column under data.columns",
        ) from error


def _nearest_zone(zone: str) -> str:
    known = zoneinfo.available_timezones()
    cities = {name.rsplit("/", 1)[-1]: name for name in sorted(known)}
    return f"Did you mean {cities[zone]!r}?" if zone in cities else nearest(zone, known)


class _Clock:
    """Calendar parts of local seconds; what several parts share is computed once."""

    def __init__(self, xp: ArrayModule, seconds: Array) -> None:
        self._xp = xp
        self._days = seconds // 86_400
        self._second_of_day = _remainder(xp, seconds, self._days, 86_400)

    @functools.cached_property
    def _civil(self) -> tuple[Array, Array, Array, Array]:
        """Year, month, day and day of the year; the year starts in March until the last lines."""
        xp = self._xp
        shifted = self._days + 719_468  # days since 0000-03-01
        era = shifted // 146_097
        day_of_era = _remainder(xp, shifted, era, 146_097)
        year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
        day_of_march_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
        month = (5 * day_of_march_year + 2) // 153
        day = day_of_march_year - (153 * month + 2) // 5 + 1
        late = month >= 10  # January and February
        year = year_of_era + era.astype(xp.int32) * 400 + late
        fourth = (year_of_era & 3) == 0
        leap = (fourth & (year_of_era // 100 * 100 != year_of_era)) | (year_of_era == 0)  # of the year before `late`
        day_of_year = day_of_march_year + xp.where(late, xp.int32(-305), leap + xp.int32(60))
        return year, xp.where(late, month - 9, month + 3), day, day_of_year

    @property
    def year(self) -> Array:
        return self._civil[0]

    @property
    def month(self) -> Array:
        return self._civil[1]

    @property
    def day(self) -> Array:
        return self._civil[2]

    @property
    def dayofyear(self) -> Array:
        return self._civil[3]

    @property
    def quarter(self) -> Array:
        return (self.month + 2) // 3

    @functools.cached_property
    def weekday(self) -> Array:
        from_monday = self._days + 3  # 1970-01-01 was a Thursday
        return _remainder(self._xp, from_monday, from_monday // 7, 7)

    @property
    def is_weekend(self) -> Array:
        return self.weekday >= 5

    @property
    def week(self) -> Array:
        """ISO 8601: the week belongs to the year of its Thursday."""
        thursday = _Clock(self._xp, (self._days - self.weekday + 3) * 86_400)
        return (thursday.dayofyear - 1) // 7 + 1

    @property
    def hour(self) -> Array:
        return self._second_of_day // 3600

    @property
    def minute(self) -> Array:
        return self._second_of_day // 60 - self.hour * 60

    @property
    def second(self) -> Array:
        return self._second_of_day - self._second_of_day // 60 * 60


def _remainder(xp: ArrayModule, values: Array, quotient: Array, divisor: int) -> Array:
    """``values - quotient * divisor`` as int32, for a result below 2^31.

    Computed modulo 2^32, where it is exact whatever the size of its parts: NumPy multiplies 32-bit integers ten times
    as fast as 64-bit ones.
    """
    product = quotient.astype(xp.uint32) * xp.uint32(divisor)
    return (values.astype(xp.uint32) - product).astype(xp.int32)
