"""The fitted pipeline: features and predictions of frames in memory and of files, chunk by chunk.

`Model` is what `tabgpu.load` returns. Every row that comes in gets an answer, in order: unseen levels, missing values
and rows that training filtered out included. Extra columns are ignored; missing ones are listed, all of them, before a
row is read. Output files are written by `tabgpu.scoring`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from . import bundle as bundles
from . import engine as engines
from .columns import Chunk
from .data.rows import Recipe, Rows, read_join_table
from .data.target import Target
from .engine import Engine
from .errors import ConfigError, DataError, listing
from .features.contract import Fitted, Step
from .features.passes import Passes
from .files import File, Footer, find, make_parts, read_footer
from .frames import by_pieces, frame_like, library_of, table_of
from .schema import unify
from .wire import pack, record, unpack

_CHUNK_BYTES = 64_000_000  # of the columns read and the features made; a bundle says nothing of memory


@record
@dataclass(frozen=True)
class FittedPipeline:
    """What a bundle holds beside the model and the tables.

    Parameters
    ----------
    recipe : Recipe
        How rows are made.
    steps : tuple of Step
        In order.
    fitted : tuple
        What each step learned.
    features : tuple of str
        Columns of the matrix, in order.
    target : Target or None
        What is predicted.
    best_iteration : int
        Of the model; predictions use the rounds up to it.
    """

    recipe: Recipe
    steps: tuple[Step, ...]
    fitted: tuple[Fitted, ...]
    features: tuple[str, ...]
    target: Target | None
    best_iteration: int


class Model:
    """A fitted pipeline, ready to score. Made by `tabgpu.load`.

    Examples
    --------
    >>> import tabgpu
    >>> model = tabgpu.load("runs/flights/latest")  # doctest: +SKIP
    >>> model.predict_proba("data/flights/2013-12.parquet")  # doctest: +SKIP
    """

    def __init__(
        self, pipeline: FittedPipeline, tables: Mapping[str, pa.Table], model: bytes | None, engine: Engine, name: str
    ) -> None:
        self.pipeline, self.name = pipeline, name
        self.folder: Path | None = None  # where it was loaded from
        self.booster, self._tables, self.engine = model, dict(tables), engine  # the model in UBJ
        self.rows = Rows(engine, pipeline.recipe, self._tables)  # how rows are made of data to score
        self._passes = Passes(tuple(pipeline.steps), self.rows.with_target(pipeline.target))
        self._fitted = dict(enumerate(pipeline.fitted))
        self._base = self._passes.needed(pipeline.features)[1]
        row_bytes = 8 * (len(self.columns) + len(self.features))
        self._chunk_rows = max(1_000, min(100_000, _CHUNK_BYTES // row_bytes))

    @property
    def features(self) -> tuple[str, ...]:
        """Columns of the matrix, in order."""
        return self.pipeline.features

    @property
    def target(self) -> str | None:
        """Name of the column that is predicted."""
        return self.pipeline.target.column if self.pipeline.target else None

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that data to score must have."""
        return tuple(c.name for c in self.rows.sources(self._base)[0])

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as the wire has it: what pickle sees is bytes alone."""
        blob = pack((self.pipeline, self._tables, self.name), self.engine.to_host)
        return _revive, (blob, self.booster, self.engine.name)

    def __repr__(self) -> str:
        what = "features" if self.booster is None else f"predicts {self.target!r}"
        return f"<tabgpu model {self.name!r}: {what}, {len(self.features)} features of {len(self.columns)} columns>"

    def predict(self, data: Any) -> Any:
        """Predict every row.

        Parameters
        ----------
        data : frame, path or list of paths
            Anything that speaks Arrow (pandas, Polars, cuDF, pyarrow, DuckDB), a Dask data frame, or Parquet files.

        Returns
        -------
        numpy.ndarray
            Shape (n_rows,): the likelier label for two classes (in the type of the labels), the value for regression.
            A Dask data frame is answered by one with a single column, named as the target, nothing of it computed yet.

        Raises
        ------
        DataError
            If a column is missing or has another kind than in training.
        """
        if library_of(data) == "dask":
            return by_pieces(data, self.predict, [self.target or "prediction"])
        raw = self._raw(data)
        labels = self._labels()
        return raw if labels is None else labels[(raw > 0.5).astype(np.int64)]

    def predict_proba(self, data: Any) -> Any:
        """Probability of each label, float32, shape (n_rows, 2), in the order of `labels`; see `predict`.

        A Dask data frame is answered by one with a column for each label, named as the label is written.

        Raises
        ------
        ConfigError
            If the model does not predict classes.
        """
        if self._labels() is None:
            raise ConfigError(
                f"predict_proba is asked of the model {self.name!r}, which predicts numbers",
                "Expected a model for two classes",
                "Use predict",
            )
        if library_of(data) == "dask":
            return by_pieces(data, self.predict_proba, [str(label) for label in self.labels or ()])
        raw = self._raw(data)
        return np.stack([1 - raw, raw], axis=1)

    @property
    def labels(self) -> list[Any] | None:
        """The two labels, or None for regression."""
        labels = self._labels()
        return None if labels is None else labels.tolist()

    def _labels(self) -> np.ndarray | None:
        target = self.pipeline.target
        if target is None or target.labels is None:
            return None
        return np.asarray(target.labels.to_pylist())

    def transform(self, data: Any) -> Any:
        """Features of every row, as the model sees them.

        Returns
        -------
        frame
            Of the kind that came in (pandas, Polars, cuDF, Dask), else a pyarrow.Table.
        """
        if library_of(data) == "dask":
            return by_pieces(data, self._table, [])
        return frame_like(data, self._table(data))

    def _table(self, data: Any) -> pa.Table:
        chunks = [self.features_of(c) for c in self._chunks(data)]
        return pa.concat_tables([pa.table(self.arrays(c)) for c in chunks])

    def _raw(self, data: Any) -> np.ndarray:
        parts = [self.predict_chunk(self.features_of(c)) for c in self._chunks(data)]
        return np.concatenate(parts) if parts else np.empty(0, np.float32)

    def _chunks(self, data: Any) -> Iterator[Chunk]:
        if isinstance(data, str | Path | list | tuple):
            sources = [str(s) for s in data] if isinstance(data, list | tuple) else str(data)
            for footer in self.check_files(find(sources, Path.cwd(), "data")):
                yield from self.file_chunks(footer)
        else:
            table = table_of(data)
            self._require(table.column_names, "The frame")
            for start in range(0, max(table.num_rows, 1), self._chunk_rows):
                yield self.rows.from_table(table.slice(start, self._chunk_rows), self._base, "the frame")

    def _require(self, names: Iterable[str], what: str) -> None:
        have = set(names)
        lacking = [c.name for c in self.rows.sources(self._base)[0] if c.name not in have]
        if lacking:
            raise DataError(
                f"{what} lacks {len(lacking)} of {len(self.columns)} columns that the model needs: {listing(lacking)}",
                f"Expected {listing(self.columns, 40)}",
                "Add them, as missing values if need be; extra columns do no harm",
            )

    def features_of(self, chunk: Chunk) -> Chunk:
        """Features of a chunk of `file_chunks`."""
        return self._passes.transform(chunk, self._fitted, self.features, training=False)

    @cached_property
    def _booster(self) -> Any:
        from .train import booster

        if self.booster is None:
            raise ConfigError(
                f"The bundle {self.name!r} holds features alone (model: null), no model",
                "Expected a bundle with a model",
                "Use transform, or run the pipeline with a model",
            )
        return booster.load(self.booster, device=self.engine.device)

    def predict_chunk(self, done: Chunk) -> np.ndarray:
        """Raw predictions, float32, of a chunk of features."""
        from .train import booster

        loaded = self._booster
        if not done.n_rows:
            return np.empty(0, np.float32)
        matrix = self.engine.matrix(done.columns, self.features, done.n_rows)
        with self.engine.training():  # else XGBoost asks the driver for memory, and keeps it
            return self.engine.to_host(booster.predict(loaded, matrix, self.pipeline.best_iteration))

    def arrays(self, done: Chunk) -> dict[str, pa.Array]:
        """Features of a transformed chunk as Arrow arrays, codes as numbers."""
        return {n: feature_array(self.engine, done, n) for n in self.features}

    def check_files(self, files: Sequence[File]) -> list[Footer]:
        """Read the footers of files to score.

        Raises
        ------
        DataError
            If a file is damaged or lacks columns: lists all of them.
        """
        footers = [read_footer(f) for f in files]
        for footer in footers:
            names = [*unify([footer], {}).columns, *(n for n, _ in footer.file.partition)]
            self._require(names, f"The file {footer.file.path}")
        return footers

    def file_chunks(self, footer: Footer) -> Iterator[Chunk]:
        """All rows of a file, with what the model needs; one empty chunk if there is no row."""
        empty = True
        for part in make_parts([footer], self._chunk_rows):
            for chunk in self.rows.open(part, self._base, self._chunk_rows):
                empty = False
                yield chunk
        if empty:
            yield self.rows.from_table(pa.table({}), self._base, footer.file.name)


def feature_array(engine: Engine, chunk: Chunk, name: str) -> pa.Array:
    """A feature as the model sees it: codes as numbers."""
    column = chunk[name]
    return engine.to_arrow(replace(column, kind="numeric", levels=None) if column.kind == "categorical" else column)


def load(path: str | Path, tables: Mapping[str, str | Path] | None = None, engine: str = "auto") -> Model:
    """Load a fitted pipeline.

    Parameters
    ----------
    path : str or Path
        A bundle, a run folder, or ``runs/NAME/latest``.
    tables : mapping of str to path, optional
        Parquet files that replace joined tables, by the name of the join.
    engine : {'auto', 'cpu', 'gpu'}
        Where to score.

    Raises
    ------
    DataError
        If the bundle is damaged: found by its digests before anything of it is used.
    ConfigError
        If there is no bundle at `path`, or no such table.
    """
    chosen, _ = engines.resolve(engine)
    from .features import build  # noqa: F401 - registers the steps that a bundle may hold

    saved = bundles.load(Path(path))
    fitted: FittedPipeline = saved.part("pipeline", chosen.to_device)
    held = {join.name: join for join in fitted.recipe.joins}
    new = {}
    for name, source in (tables or {}).items():
        if name not in held:
            raise ConfigError(
                f"--table names {name!r}, which the pipeline does not join",
                f"Expected one of {listing(held) or 'none'}",
                "Correct the name in --table NAME=PATH",
            )
        new[name] = _replacement(name, str(source), [c.name for c in held[name].columns])
    merged = {name: new[name] if name in new else saved.table(name) for name in held}
    model = Model(fitted, merged, saved.model, chosen, str(saved.about.get("name", "model")))
    model.folder = saved.folder
    return model


def _replacement(name: str, source: str, needed: Sequence[str]) -> pa.Table:
    footers = [read_footer(f) for f in find(source, Path.cwd(), f"--table {name}")]
    schema = unify(footers, {})
    for column in needed:
        schema.require(column, f"--table {name}")
    return read_join_table(schema, [f.file.path for f in footers], name).select(list(needed))


def _revive(blob: bytes, model: bytes | None, engine: str) -> Model:
    from .features import build  # noqa: F401 - registers the steps that a pipeline may hold

    chosen, _ = engines.resolve(engine)
    pipeline, tables, name = unpack(blob, chosen.to_device)
    return Model(pipeline, tables, model, chosen, name)
