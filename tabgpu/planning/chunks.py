"""How many rows a chunk has: as many as fit on host and device, and never more than the libraries can count."""

from __future__ import annotations

from ..units import format_bytes, format_rows
from .facts import DataShape

MIN_ROWS, _MAX_ROWS = 1_000, 500_000
_MAX_DEVICE_ROWS = 4_000_000  # a kernel takes microseconds to start, so that a GPU wants more rows at once
_SMALL_GROUP_ROWS = 50_000  # smaller row groups are read several at a time: a chunk has a price of its own
_SHARE = 16  # a chunk takes at most 1/16 of the limit
_DEVICE_SHARE = 32  # of a GPU's: each reader holds three times the chunk that it decodes
_MOST = 2**31 - 1  # rows of a cuDF column, and bytes of its text: beyond, offsets are wider and some kernels refuse


def choose_chunk_rows(shape: DataShape, limit: int, device_limit: int | None = None) -> tuple[int, str]:
    """Rows a chunk: as many as 1/16 of the limit (1/32 of the GPU's) holds, but row groups where these are not larger.

    Parameters
    ----------
    shape : DataShape
        Sizes from footers.
    limit, device_limit : int
        Bytes of the host and of the GPU that may be taken; None for the CPU engine.

    Examples
    --------
    >>> choose_chunk_rows(DataShape(10_000_000, 10, 120, 1_000_000, 1_000_000, 0), 2_000_000_000)[0]
    500000
    >>> choose_chunk_rows(DataShape(10_000_000, 10, 1_000, 100_000, 500_000, 0), 2_000_000_000)[0]
    100000
    """
    most = limit // _SHARE // max(1, shape.row_bytes)
    share = f"1/{_SHARE} of the limit"
    row_bytes = shape.row_bytes
    if device_limit is not None:
        row_bytes += shape.text_row_bytes
        on_device = device_limit // _DEVICE_SHARE // max(1, row_bytes)
        share = f"1/{_DEVICE_SHARE} of the limit of the GPU" if on_device < most else share
        most = min(most, on_device)
    most = max(MIN_ROWS, min(_MAX_ROWS if device_limit is None else _MAX_DEVICE_ROWS, most))
    if device_limit is not None:
        most = min(most, device_cap(shape))
    if _SMALL_GROUP_ROWS <= shape.group_rows <= most:
        rows, why = shape.group_rows, "a row group"
    elif shape.part_rows <= most:
        rows, why = max(1, shape.part_rows), "a whole part"
    else:
        rows, why = most, f"at most {share}"
    return rows, f"chunks of {format_rows(rows)} rows: {why}, {format_bytes(rows * row_bytes)} once read"


def device_cap(shape: DataShape) -> int:
    """Most rows of a chunk on a GPU: fewer than 2^31, with less than 2^31 bytes of text.

    cuDF counts the rows of a column in 32 bits. Text may be longer since offsets can have 64, but a chunk below the
    border keeps the fast path, and joined text has been wrong beyond it (cuDF issue 12087).

    Examples
    --------
    >>> device_cap(DataShape(10, 1, 8, 10, 10, 0)), device_cap(DataShape(10, 1, 8, 10, 10, 9, text_row_bytes=2_000))
    (2147483647, 1073741)
    """
    return max(1, _MOST // max(1, shape.text_row_bytes))


def cap_reason(shape: DataShape) -> str:
    """Why no chunk on a GPU has more rows than `device_cap`."""
    text = f" and 2^31 bytes of text, up to {format_bytes(shape.text_row_bytes)} a row" if shape.text_row_bytes else ""
    return f"no chunk above {format_rows(device_cap(shape))} rows: cuDF has fewer than 2^31 rows{text}"
