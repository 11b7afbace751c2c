"""Parse and print bytes, row counts and seconds, the same way in files, flags and messages."""

from __future__ import annotations

import re

from .errors import ConfigError

_BYTES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", re.IGNORECASE)


def parse_bytes(value: str | int | float, key: str) -> int:
    """Read a size: ``8_000_000_000``, ``"8GB"`` (10^9) or ``"8GiB"`` (2^30).

    Parameters
    ----------
    value : str, int or float
        The size as written.
    key : str
        The key it stands under, for the error message.

    Raises
    ------
    ConfigError
        If `value` is not a positive size.

    Examples
    --------
    >>> parse_bytes("1.5 GB", "memory.limit")
    1500000000
    >>> parse_bytes("2GiB", "memory.limit")
    2147483648
    """
    match = _SIZE.fullmatch(str(value)) if not isinstance(value, bool) else None
    size = int(float(match[1]) * _BYTES[(match[2] or "").lower()]) if match else 0
    if size <= 0:
        raise ConfigError(
            f"{key} is {value!r}",
            "Expected a positive size in bytes such as 8000000000, '8GB' or '8GiB'",
            f"Write such a size under {key}, or pass --set {key}=8GB",
        )
    return size


def parse_share(value: str | float, key: str) -> float:
    """Read a share: ``0.02`` or ``"2%"``.

    Raises
    ------
    ConfigError
        If it is not above 0 and below 1.

    Examples
    --------
    >>> parse_share("2%", "--sample"), parse_share(0.5, "--sample")
    (0.02, 0.5)
    """
    text = str(value).strip()
    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise ConfigError(
            f"{key} is {value!r}",
            "Expected a share above 0 and below 1, such as 0.02 or 2%",
            f"Pass {key} 2%, or leave it out",
        )
    return share


def format_bytes(n_bytes: float) -> str:
    """Print a size with three digits, in powers of ten.

    Examples
    --------
    >>> format_bytes(1_234_567_890), format_bytes(512), format_bytes(0)
    ('1.23 GB', '512 B', '0 B')
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(n_bytes) < 999.5 or unit == "TB":
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return ""  # not reached: the loop returns at TB


def format_rows(n_rows: int) -> str:
    """Print a row count with separators.

    Examples
    --------
    >>> format_rows(336776)
    '336,776'
    """
    return f"{n_rows:,}"


def format_seconds(seconds: float) -> str:
    """Print a duration.

    Examples
    --------
    >>> format_seconds(0.034), format_seconds(12.34), format_seconds(3723)
    ('0.03 s', '12.3 s', '1 h 02 min')
    """
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    return f"{hours} h {minutes % 60:02d} min" if hours else f"{minutes} min {int(seconds % 60):02d} s"
