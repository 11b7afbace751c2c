"""Times as the pipeline file writes them: instants and spans, read into whole numbers.

A datetime column holds int64 in its own unit (``'s'``, ``'ms'``, ``'us'`` or ``'ns'``) since 1970 in UTC, beside the
zone in which its clock is meant. An ISO text, a date or a datetime becomes such a number here, by exact integer
arithmetic; what has no offset of its own is read on the clock of that zone (of two equal clock times in autumn the
first is meant).

Comparing columns with times is the duty of `expressions.comparisons`, calendar parts that of `tabgpu.features.dates`.
"""

from __future__ import annotations

import re
import zoneinfo
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from typing import Any

from ..errors import ConfigError, nearest

TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}  # of a unit in a second
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FRACTION = re.compile(r"(?<=\d)[.,](\d+)")
_SECONDS_OF_OFFSET = re.compile(r"[+-]\d\d:?\d\d:?\d\d($|[.,])")
_FIXED_ZONE = re.compile(r"([+-])(\d\d):?(\d\d)")
_SPAN = re.compile(r"(\d{1,15})\s*(w|d|h|min|s|ms|us|ns)(?![a-z])\s*")
_SPANS = {"w": 604_800 * 10**9, "d": 86_400 * 10**9, "h": 3600 * 10**9, "min": 60 * 10**9}
_SPANS |= {unit: 10**9 // ticks for unit, ticks in TICKS.items()}


def nanoseconds(value: Any, zone: str | None = None, where: str = "split") -> int:
    """Read an instant as nanoseconds since 1970 in UTC; a Python int, of any size.

    Parameters
    ----------
    value : str, datetime.date or datetime.datetime
        ISO 8601: a date, or a date and a time with up to nine digits of a second, with or without an offset.
    zone : str, optional
        IANA name, or an offset such as ``'+01:00'``, in which a value without an offset is meant; UTC by default.
    where : str
        Key of the pipeline file, for the message.

    Raises
    ------
    ConfigError
        If the value is no such time, or the zone is unknown.

    Examples
    --------
    >>> nanoseconds("2013-10-01") // 10**9
    1380585600
    >>> nanoseconds("2013-10-01", "America/New_York") - nanoseconds("2013-10-01")
    14400000000000
    """
    moment, below_second = _moment(value, where)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=_zone(zone, where))
    try:
        span = moment - _EPOCH
    except OverflowError:
        raise _not_a_time(value, where) from None
    return ((span.days * 86_400 + span.seconds) * 10**6 + span.microseconds) * 1000 + below_second


def parse_time(value: Any, unit: str | None, zone: str | None = None, where: str = "split") -> int:
    """Read an instant in a column's unit since 1970, UTC.

    Parameters
    ----------
    value : str, datetime.date or datetime.datetime
        See `nanoseconds`; an int where the column is numeric.
    unit : {'s', 'ms', 'us', 'ns'} or None
        Unit of the column; None for a numeric column (a year, a step), whose times are plain integers.
    zone : str, optional
        Zone of the column, in which a value without an offset is meant.
    where : str
        Key of the pipeline file, for the message.

    Raises
    ------
    ConfigError
        If the value is no time, is finer than the unit, or does not fit in int64.

    Examples
    --------
    >>> parse_time("1970-01-02T00:00+01:00", "ms")
    82800000
    """
    if unit is None:
        return _whole(value, where)
    instant, rest = divmod(nanoseconds(value, zone, where) * TICKS[unit], 10**9)
    if rest or not -(2**63) <= instant < 2**63:
        raise ConfigError(
            f"{where} is {value!r}, which a column in units of {unit!r} cannot hold",
            f"Expected a whole number of {unit!r} within 64 bits",
            f"Write a time that is, under {where}",
        )
    return instant


def parse_gap(value: Any, unit: str | None, where: str = "split.gap") -> int:
    """Read a span such as ``'7d'``, ``'12h'`` or ``'1d 12h'`` in a column's unit.

    Parameters
    ----------
    value : str or None
        Whole numbers, each with one of ``w d h min s ms us ns``; None for no gap; an int where the column is numeric.
    unit : {'s', 'ms', 'us', 'ns'} or None
        Unit of the column; None for a numeric column.
    where : str
        Key of the pipeline file, for the message.

    Raises
    ------
    ConfigError
        If the value is no span, or is not a whole number of the unit.

    Examples
    --------
    >>> parse_gap("7d", "s"), parse_gap("1h 30min", "ms")
    (604800, 5400000)
    """
    if value is None:
        return 0
    if unit is None:
        return _whole(value, where)
    text = value.strip() if isinstance(value, str) else ""
    parts = _SPAN.findall(text)
    total = sum(int(number) * _SPANS[name] for number, name in parts)
    ticks, rest = divmod(total * TICKS[unit], 10**9)
    if not parts or _SPAN.sub("", text) or rest or ticks >= 2**63:
        raise ConfigError(
            f"{where} is {value!r}",
            f"Expected a span of whole units of {unit!r}: numbers with one of w, d, h, min, s, ms, us, ns each",
            f"Write one such as 7d or 12h under {where}, or pass --set {where}=7d",
        )
    return ticks


def _moment(value: Any, where: str) -> tuple[datetime, int]:
    """A datetime, and nanoseconds below its microsecond."""
    if isinstance(value, datetime):
        return value, int(getattr(value, "nanosecond", 0))  # pandas timestamps have some
    if isinstance(value, date):
        return datetime.combine(value, time()), 0
    if not isinstance(value, str):
        raise _not_a_time(value, where)
    fraction = _FRACTION.search(value)
    digits = fraction[1] if fraction else ""
    try:
        moment = datetime.fromisoformat(_FRACTION.sub("", value, count=1).strip())
    except ValueError:
        raise _not_a_time(value, where) from None
    if len(digits) > 9 or _SECONDS_OF_OFFSET.search(value[10:]):  # both would be cut without a word
        raise _not_a_time(value, where)
    return moment + timedelta(microseconds=int(digits.ljust(9, "0")[:6])), int(digits.ljust(9, "0")[6:])


def _whole(value: Any, where: str) -> int:
    try:
        if isinstance(value, int | str) and not isinstance(value, bool):
            return int(value)
    except ValueError:
        pass  # said below
    raise ConfigError(
        f"{where} is {value!r}, and the time column is numeric",
        "Expected a whole number in the terms of that column",
        f"Write one under {where}, or declare the time column's kind under data.columns",
    )


def _not_a_time(value: Any, where: str) -> ConfigError:
    return ConfigError(
        f"{where} has {value!r}, which is no time",
        "Expected ISO 8601, such as '2013-10-01' or '2013-10-01T12:00:00+00:00', with at most nine digits of a second",
        f"Write such a time under {where}",
    )


def _zone(zone: str | None, where: str) -> tzinfo:
    if zone is None:
        return UTC
    if fixed := _FIXED_ZONE.fullmatch(zone):
        offset = timedelta(hours=int(fixed[2]), minutes=int(fixed[3]))
        return timezone(-offset if fixed[1] == "-" else offset)
    try:
        return zoneinfo.ZoneInfo(zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:  # OSError: the name of a folder
        raise ConfigError(
            f"{where} is read in time zone {zone!r}, which is not known",
            f"Expected a name of the IANA database. {nearest(zone, zoneinfo.available_timezones())}",
            "Correct the zone of the time column under data.columns",
        ) from error
