"""What a run gave: where it lies, its metrics, and how it is shown on a terminal and in a notebook."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .hardware import describe
from .model import Model, load
from .planning import Plan
from .units import format_bytes, format_rows, format_seconds


@dataclass(frozen=True)
class Run:
    """A run that ended well.

    Parameters
    ----------
    folder : Path
        The run folder; its ``model`` is the bundle.
    metrics : dict
        Metrics by side and name; empty for ``model: null``.
    summary : dict
        What ``run --json`` prints.
    plan : Plan
        The plan it followed.
    """

    folder: Path
    metrics: dict[str, dict[str, float | None]]
    summary: dict[str, Any] = field(repr=False)
    plan: Plan = field(repr=False)

    @property
    def model(self) -> Model:
        """The fitted pipeline, loaded from the run folder."""
        return load(self.folder)

    def __str__(self) -> str:
        rows = ", ".join(f"{format_rows(n)} {side}" for side, n in self.summary["rows"].items() if n)
        memory = self.summary["memory"]
        lines = [f"Run {self.folder}", f"  rows     {rows}"]
        for side, values in self.metrics.items():
            shown = "  ".join(f"{name} {'-' if v is None else f'{v:.4f}'}" for name, v in values.items())
            lines.append(f"  {side:<8} {shown}")
        workers = self.plan.workers
        of = f" for each of {workers} workers" if self.plan.runner != "serial" else ""
        whose = " of all processes here" if of else ""
        lines.append(
            f"  memory   {format_bytes(memory['measured_peak_bytes'])} at the peak{whose}, "
            f"{format_bytes(memory['predicted_peak_bytes'])} predicted{of}, limit {format_bytes(memory['limit_bytes'])}"
        )
        if device := self.summary["device_memory"]:
            lines.append(
                f"  GPU      {format_bytes(device['measured_peak_bytes'] or 0)} at the peak, "
                f"{format_bytes(device['predicted_peak_bytes'] or 0)} predicted, "
                f"limit {format_bytes(device['limit_bytes'])}"
            )
        lines.append(f"  machine  {describe(self.summary['machine'])}")
        lines.append(f"  time     {format_seconds(sum(self.summary['timings_s'].values()))}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from html import escape

        names = sorted({n for values in self.metrics.values() for n in values})
        head = "".join(f"<th>{escape(n)}</th>" for n in names)
        body = "".join(
            f"<tr><th>{escape(side)}</th>"
            + "".join(f"<td>{'' if values.get(n) is None else format(values[n], '.4f')}</td>" for n in names)
            + "</tr>"
            for side, values in self.metrics.items()
        )
        return f"<table><tr><th></th>{head}</tr>{body}</table><p>{escape(str(self.folder))}</p>"
