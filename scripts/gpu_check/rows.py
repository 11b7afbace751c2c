"""A row of the table: something measured, what it is held against, and the bar. Rows go to a file as they are found."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tabgpu.units import format_bytes

_HEAD = ("", "measured", "peer or bound", "ratio", "bar", "ok?")


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Parameters
    ----------
    part, name : str
        What was measured, unique within its part.
    measured, against : float, optional
        The number, and the peer's, the bound or the prediction; in `unit`. None where there is none.
    unit : str
        Of both.
    of : str
        What `against` is.
    low, high : float, optional
        The bar: least and greatest ratio of the two.
    failed : bool, optional
        Says directly whether the row is good; else the bar decides.
    note : str
        What else is to be known.
    group : str
        Heading that rows of the same kind share.
    median : float, optional
        Of the repetitions, of which `measured` is the best.
    """

    part: str
    name: str
    measured: float | None = None
    against: float | None = None
    unit: str = ""
    of: str = ""
    low: float | None = None
    high: float | None = None
    failed: bool | None = None
    note: str = ""
    group: str = ""
    median: float | None = None

    @property
    def ratio(self) -> float | None:
        """Measured over what it is held against."""
        return self.measured / self.against if self.against and self.measured is not None else None

    @property
    def ok(self) -> bool | None:
        """Whether it keeps to its bar; None where it has none, or nothing was measured."""
        if self.failed is not None:
            return not self.failed
        if self.ratio is None or (self.low is None and self.high is None):
            return None
        return (self.low is None or self.ratio >= self.low) and (self.high is None or self.ratio <= self.high)

    @property
    def bar(self) -> str:
        """The bar in words."""
        if self.low is not None and self.high is not None:
            return f"{self.low:g} to {self.high:g}"
        return f">= {self.low:g}" if self.low is not None else f"<= {self.high:g}" if self.high is not None else ""

    def to_json(self) -> dict[str, Any]:
        """All fields, and what follows from them."""
        return {**asdict(self), "ratio": self.ratio, "ok": self.ok}


class Report:
    """Writes rows to a file, one JSON object a line, so that what was found stays when the process is killed."""

    def __init__(self, path: Path, part: str) -> None:
        self._path, self._part = path, part

    def add(self, name: str, measured: float | None = None, against: float | None = None, **fields: Any) -> None:
        """Write one row."""
        row = Row(self._part, name, measured, against, **fields)
        with self._path.open("a", encoding="utf-8") as file:
            file.write("\n" * _cut_off(self._path) + json.dumps(asdict(row)) + "\n")

    def failed(self, name: str, error: Exception) -> None:
        """Say that something could not be looked at, in the first line of an error."""
        said = (str(error).strip().splitlines() or [""])[0]
        self.add(name, failed=True, note=f"{type(error).__name__}: {said[:400]}")

    def left_out(self, name: str, why: str) -> None:
        """Say that something was not looked at."""
        self.add(name, note=f"left out: {why}")


def _cut_off(path: Path) -> bool:
    """Whether the last line has no end, because its writer was killed."""
    text = path.read_bytes()
    return bool(text) and not text.endswith(b"\n")


def read_rows(path: Path) -> list[Row]:
    """Rows of a file; a line that was cut off is passed over."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        with suppress(json.JSONDecodeError):
            rows.append(Row(**json.loads(line)))
    return rows


def table(rows: Sequence[Row]) -> str:
    """All rows, aligned, by part."""
    lines: list[tuple[str, ...]] = [_HEAD]
    notes = []
    part = group = ""
    for row in rows:
        if row.part != part:
            part, group = row.part, ""
            lines.append(_heading(part.upper()))
        if row.group != group:
            group = row.group
            lines.append(_heading(f"  {group}"))
        lines.append(_cells(row))
        if row.note:
            notes.append(f"{' / '.join(filter(None, (part, group, row.name)))}: {row.note}")
    widths = [max(len(line[i]) for line in lines) for i in range(len(_HEAD))]
    shown = ["  ".join(_padded(line, widths)).rstrip() for line in lines]
    return "\n".join([*shown, "", *notes] if notes else shown)


def _heading(text: str) -> tuple[str, ...]:
    return (text, *[""] * (len(_HEAD) - 1))


def _padded(line: Iterable[str], widths: Sequence[int]) -> list[str]:
    return [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))]


def _cells(row: Row) -> tuple[str, ...]:
    against = f"{_number(row.against, row.unit)} {row.of}".strip()
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    ok = "" if row.ok is None else "yes" if row.ok else "NO"
    return (f"{'    ' if row.group else '  '}{row.name}", _number(row.measured, row.unit), against, ratio, row.bar, ok)


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    if unit == "B":
        return format_bytes(int(value))
    shown = f"{value:,.0f}" if value == int(value) or abs(value) >= 1_000 else f"{value:.4g}"
    return f"{shown} {unit}".strip()
