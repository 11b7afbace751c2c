"""Score files as a stream: one output file for each input file, rows in order, all files or none."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from .data.rows import Rows
from .errors import ConfigError, listing
from .files import File, Footer, open_parquet, read_footer
from .model import FittedPipeline, Model
from .outputs import FileWriter, output_folder
from .runners import Runner
from .schema import unify
from .wire import record

What = Literal["predictions", "features"]
_KEPT_ROWS = 65_536  # rows of kept columns read at once


@record
@dataclass(frozen=True, eq=False)
class ScoreFile:
    """Write the answers for one input file into `folder`.

    Parameters
    ----------
    pipeline : FittedPipeline
        What was learned.
    booster : numpy.ndarray, optional
        uint8, shape (n_bytes,): the model in UBJ.
    name : str
        Of the model, for messages.
    what : {'predictions', 'features'}
        What to write.
    kept : tuple of str
        Columns of the input beside it.
    folder : str
        Where.
    """

    pipeline: FittedPipeline
    booster: np.ndarray | None
    name: str
    what: What
    kept: tuple[str, ...]
    folder: str

    @cached_property
    def models(self) -> dict[int, Model]:
        """The model on the rows that it was used with, so that it is made once for all files."""
        return {}

    def do(self, rows: Rows, file: File) -> int:
        """Write it; the number of rows."""
        if id(rows) not in self.models:
            raw = None if self.booster is None else self.booster.tobytes()
            self.models[id(rows)] = Model(self.pipeline, rows.tables, raw, rows.engine, self.name)
        path = Path(self.folder) / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        return _score_file(self.models[id(rows)], read_footer(file), path, self.kept, self.what)


@dataclass(frozen=True)
class Output:
    """Where answers go, and what stands beside them.

    Parameters
    ----------
    folder : Path
        New or empty folder, or one that `overwrite` allows to replace.
    keep : sequence of str
        Columns of the input to keep beside the answer; the key column, if there is one, is always kept.
    overwrite : bool
        Whether `folder` may be replaced.
    what : {'predictions', 'features'}
        What to write.
    """

    folder: Path
    keep: Sequence[str] = ()
    overwrite: bool = False
    what: What = "predictions"


def score_files(model: Model, runner: Runner, files: Sequence[File], output: Output) -> dict[str, int]:
    """Write one Parquet file for each input file, all of them or none.

    Parameters
    ----------
    model : Model
        Answers.
    runner : Runner
        Where.
    files : sequence of File
        To score.
    output : Output
        Where answers go.

    Returns
    -------
    dict
        'rows' and 'files' written.
    """
    key, what = model.pipeline.recipe.key, output.what
    kept = tuple(dict.fromkeys([*([key] if key else []), *output.keep]))
    answers = model.features if what == "features" else list(answer(model, np.empty(0, np.float32)))
    inputs = [*(Path(f.path) for f in files if "://" not in f.path), *([model.folder] if model.folder else [])]
    booster = None if model.booster is None else np.frombuffer(model.booster, np.uint8)
    with output_folder(output.folder, output.overwrite, inputs) as temporary:
        _check_kept(kept, answers, model.check_files(files))
        runner.check_files(files, temporary)
        work = ScoreFile(model.pipeline, booster, model.name, what, kept, str(temporary))
        work.models[id(model.rows)] = model
        rows = sum(runner.each(model.rows, work, files))
    return {"rows": rows, "files": len(files)}


def _check_kept(kept: Sequence[str], answers: Iterable[str], footers: Iterable[Footer]) -> None:
    clash = sorted(set(kept) & set(answers))
    if clash:
        raise ConfigError(
            f"--keep names {listing(clash)}, which is also the name of an answer",
            f"Expected other columns than {listing(answers)}",
            "Leave it out of --keep",
        )
    for footer in footers:
        schema = unify([footer], {})
        for name in kept:
            schema.require(name, "--keep")


def _score_file(model: Model, footer: Footer, path: Path, kept: tuple[str, ...], what: What) -> int:
    rows = 0
    with closing(_kept_rows(footer, kept)) as beside, FileWriter(path) as writer:
        next(beside)
        for chunk in model.file_chunks(footer):
            done = model.features_of(chunk)
            answers = answer(model, model.predict_chunk(done)) if what == "predictions" else model.arrays(done)
            writer.write(pa.table({**dict(beside.send(chunk.n_rows)), **answers}))
            rows += chunk.n_rows
    return rows


Arrays = dict[str, pa.Array | pa.ChunkedArray]


def _kept_rows(footer: Footer, kept: tuple[str, ...]) -> Generator[Arrays, int, None]:
    """Give the kept columns of the next so many rows, just as the file holds them; asked by `send`."""
    partition = dict(footer.file.partition)
    physical = [n for n in kept if n in footer.schema.names]
    if not physical:
        n_rows = yield {}
        while True:
            n_rows = yield {n: pa.array([partition[n]] * n_rows, pa.string()) for n in kept}
    with open_parquet(footer.file.path) as parquet:
        batches = parquet.iter_batches(_KEPT_ROWS, columns=physical)
        waiting = parquet.schema_arrow.empty_table().select(physical)
        n_rows = yield {}
        while True:
            while waiting.num_rows < n_rows and (batch := next(batches, None)) is not None:
                waiting = pa.concat_tables([waiting, pa.table(batch)])
            here, waiting = waiting.slice(0, n_rows), waiting.slice(n_rows)
            columns = {n: here[n] if n in physical else pa.array([partition[n]] * n_rows, pa.string()) for n in kept}
            n_rows = yield columns


def answer(model: Model, raw: np.ndarray) -> dict[str, pa.Array]:
    """Columns of a prediction: the value, or the likelier label and the probability of the second one.

    The probability is called `probability` where the labels are 0 and 1, else `probability_<label>`.
    """
    labels = model.labels
    if labels is None:
        return {"prediction": pa.array(raw)}
    predicted = np.asarray(labels)[(raw > 0.5).astype(np.int64)]
    name = "probability" if set(labels) == {0, 1} else f"probability_{labels[1]}"
    return {"prediction": pa.array(predicted), name: pa.array(raw)}
