"""What the commands print for people: plans, inspections, and what was written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .units import format_bytes, format_rows, format_seconds


def plan(value: dict[str, Any]) -> str:
    """A plan (`Plan.to_json`) as text."""
    predicted = value["predicted"]
    passes = [(p["name"], ", ".join(p["steps"]) or "-", _wrapped(p["columns"])) for p in value["passes"]]
    workers = f" with {value['workers']} workers" if value["runner"] != "serial" else ""
    lines = [
        f"{format_rows(value['rows'])} rows, {value['engine']} engine, {value['runner']} runner{workers}",
        "",
        "Passes over the data (a later pass may turn out not to be needed)",
        *_table(passes),
        "",
        f"Features ({len(value['features'])}): {_wrapped(value['features'])}",
    ]
    if value["unused"]:
        lines.append(f"Not used: {', '.join(f'{name} ({why})' for name, why in value['unused'].items())}")
    whose = " of each worker" if workers else ""
    lines += ["", f"Memory{whose}", *_terms(predicted["terms"], value["memory_limit_bytes"])]
    if predicted["device_terms"]:
        lines += ["", f"GPU memory{whose}", *_terms(predicted["device_terms"], value["device_memory_limit_bytes"])]
    lines += ["", "Why", *(f"  {reason}" for reason in value["reasons"])]
    return "\n".join(lines)


def inspection(value: dict[str, Any]) -> str:
    """An inspection (`workflow.inspect`) as text."""
    columns = [(c["name"], c["kind"], c["type"], c["zone"] or "") for c in value["columns"]]
    lines = [
        f"{format_rows(value['rows'])} rows in {value['files']} files, {value['row_groups']} row groups, "
        f"{format_bytes(value['uncompressed_bytes'])} uncompressed",
        *_table(columns),
    ]
    lines += [f"  {name} cannot be used: it {why}" for name, why in value["refused"].items()]
    lines += [f"  note: {sentence}" for sentence in value["drift"]]
    return "\n".join(lines)


def written(value: dict[str, Any]) -> str:
    """What `score` and `transform` wrote, as text."""
    took = format_seconds(sum(value["timings_s"].values()))
    return (
        f"{format_rows(value['rows'])} rows in {value['files']} files written to {value['out']} in {took}, "
        f"{format_bytes(value['memory']['measured_peak_bytes'])} of memory at the peak"
    )


def _terms(terms: Sequence[dict[str, Any]], limit: int) -> list[str]:
    rows = [(t["name"], format_bytes(t["bytes"]), _most(t)) for t in terms]
    rows.append(("sum", format_bytes(sum(t["bytes"] for t in terms)), f"limit {format_bytes(limit)}"))
    return _table(rows)


def _most(term: dict[str, Any]) -> str:
    return "" if term["high_bytes"] == term["bytes"] else f"up to {format_bytes(term['high_bytes'])}"


def _table(rows: Iterable[Sequence[str]]) -> list[str]:
    rows = [[_printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _wrapped(names: Sequence[str], limit: int = 12) -> str:
    shown = [_printable(n) for n in names[:limit]]
    return ", ".join(shown) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def _printable(text: str) -> str:
    """Column names may hold anything; a terminal gets no control characters and no endless lines."""
    plain = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return plain if len(plain) <= 200 else f"{plain[:197]}..."
