"""Look at features before a run: fit them on the first rows of the data and return these rows, transformed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import pyarrow as pa

from .assemble import assemble
from .columns import Chunk
from .config import load as load_pipeline
from .data.rows import Rows, Use
from .data.splits import OUTSIDE
from .design import design
from .errors import ConfigError
from .files import Part
from .fit import Fitter
from .hardware import SystemHardware
from .model import feature_array
from .place import cache_dir, this_process
from .stages import take_survey
from .workflow import Overrides, Source


@dataclass
class _FirstRows(Rows):
    """Rows that end after the first chunk of a part."""

    n_rows: int = 1000

    def open(self, part: Part, names: Iterable[str], chunk_rows: int) -> Iterator[Chunk]:
        """The first `n_rows` rows alone."""
        chunks = super().open(part, names, self.n_rows)
        yield from [chunk for chunk, _ in zip(chunks, range(1), strict=False)]


def preview(source: Source, rows: int = 1000, *, set: Overrides = ()) -> pa.Table:
    """Features of the first rows, fitted on these rows alone.

    Rows that the filter drops or that have no target are left out; the split is not applied, so every row is a training
    row: target encodings are out of fold, as the model will see them.

    Parameters
    ----------
    source, set
        As in `tabgpu.plan`.
    rows : int
        How many rows to look at.

    Returns
    -------
    pyarrow.Table
        One column a feature; ``.to_pandas()`` and ``polars.from_arrow`` show it.

    Raises
    ------
    ConfigError, DataError
        As `tabgpu.run_folder`.
    """
    if rows < 1:
        raise ConfigError(f"rows is {rows}", "Expected at least 1 row to look at", "Pass rows=1000, or leave it out")
    pipeline = load_pipeline(source, set)
    a = assemble(pipeline, this_process(SystemHardware().host(cache_dir(pipeline))), read_tables=True)
    known: dict[str, Any] = {f.name: getattr(a.rows, f.name) for f in fields(Rows)}
    first = next(t for t in a.tasks if t.side in (None, 0))
    use = Use(None, a.use.filter, a.use.target)
    a = replace(a, rows=_FirstRows(**known, n_rows=rows), tasks=(first,), use=use, fractions=None)
    a, _, grid = take_survey(a, rows)
    d = design(a, grid)
    fitter = Fitter(a.runner, a.rows, a.use, a.tasks, rows)
    fitted = fitter.fit_steps(d.passes, lambda message: None)
    _, base = d.passes.needed(d.features)
    chunk = next(a.rows.open(first.part, sorted({*base, *a.use.columns}), rows))
    used = chunk.take(a.rows.assign(chunk, a.use, first.side) != OUTSIDE)
    done = d.passes.transform(used, fitted, d.features, training=True)
    return pa.table({n: feature_array(a.engine, done, n) for n in d.features})
