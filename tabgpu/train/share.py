"""One process's share of the rows of a training: it makes their features once, keeps them, and trains on them.

Alone it is all the rows there are (`Alone`, the group of the serial runner). On a cluster every worker has one, and
`Share.fit` is called on all of them inside XGBoost's communicator; who has which parts, and what happens when one is
lost, is the runner's concern.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path
from typing import Any, Self

import numpy as np

from ..cache import Block, Blocks, BlockWriter
from ..columns import Array, Chunk
from ..data.rows import Rows, Task, Use
from ..data.splits import SIDES
from ..features.contract import Fitted
from ..features.passes import Passes
from ..features.statistics import Sample, SampleResult
from ..merging import merge_tree
from ..wire import record
from . import cuts, metrics
from .booster import Trained
from .intercept import LabelSums, intercept
from .matrix import Matrix
from .run import Answers, Hooks, ModelOptions, fit_booster
from .sampling import RowSampler, row_hashes, share_of
from .varying import Varying


@record
@dataclass(frozen=True)
class BlockJob:
    """What the blocks of a training are made of, and where they are kept.

    Parameters
    ----------
    passes, fitted
        The steps and what they learned.
    features : tuple of str
        Columns of the matrix, in order.
    use : Use
        Which rows are used, and on which side.
    weight : str, optional
        Column of weights.
    sample : Sample, optional
        Training rows that own cuts are made of.
    sides : tuple of str
        Sides that have rows anywhere.
    chunk_rows, block_rows : int
        Rows that are read at once, and that are kept together.
    cache : str
        'device', 'memory' or 'disk': where blocks are kept.
    directory : str
        Where the files of blocks and of external matrices lie.
    n_rows : dict of str to int
        Rows of each side where known, so that space is reserved for all at once.
    draws_rows : bool
        Whether the rows of each round are drawn by their identity (`sampling`).
    """

    passes: Passes
    fitted: dict[int, Fitted]
    features: tuple[str, ...]
    use: Use
    weight: str | None
    sample: Sample | None
    sides: tuple[str, ...]
    chunk_rows: int
    block_rows: int
    cache: str
    directory: str
    n_rows: dict[str, int]
    draws_rows: bool = False


@record
@dataclass(frozen=True)
class BlocksFound:
    """What was found while blocks were made; mergeable.

    Parameters
    ----------
    rows : dict of str to int
        Rows of each side.
    has_missing, has_complete_row : bool
        Whether any feature is missing anywhere; whether any row has all of them.
    varying : Varying
        Whether features differ between training rows.
    labels : LabelSums
        Of the training rows.
    sampled : SampleResult, optional
        The sample that own cuts are made of.
    """

    rows: dict[str, int]
    has_missing: bool
    has_complete_row: bool
    varying: Varying
    labels: LabelSums
    sampled: SampleResult | None

    @staticmethod
    def merge_all(found: Sequence[BlocksFound], sample: Sample | None) -> BlocksFound:
        """What all together found."""
        rows: dict[str, int] = {}
        for one in found:
            for side, n in one.rows.items():
                rows[side] = rows.get(side, 0) + n
        states = [f.sampled for f in found if f.sampled is not None]
        return BlocksFound(
            rows,
            any(f.has_missing for f in found),
            any(f.has_complete_row for f in found),
            reduce(Varying.merge, (f.varying for f in found)),
            reduce(LabelSums.merge, (f.labels for f in found)),
            sample.merge_all(states, {}) if sample and states else None,
        )


def with_intercept(options: ModelOptions, labels: LabelSums) -> ModelOptions:
    """Where cuts are ours, so is the intercept: neither depends on how rows are split (see `intercept`)."""
    spec = options.spec
    if spec.base_score is not None:
        return options
    return replace(options, spec=replace(spec, base_score=intercept(labels, spec.objective, spec.params)))


class Share:
    """Rows of one process, their blocks, and the model while it is made. A context manager.

    Parameters
    ----------
    rows : Rows
        Opens parts.
    job : BlockJob
        What to make of them.
    tasks : sequence of Task
        The parts of this share.
    """

    def __init__(self, rows: Rows, job: BlockJob, tasks: Sequence[Task]) -> None:
        self._rows, self._job, self._tasks = rows, job, tasks
        self._blocks: dict[str, Blocks] = {}
        self._matrices: dict[str, Matrix] = {}
        self._trained: Trained | None = None
        self._hashes: list[Array] = []  # of the training rows, where the draw of rows is ours
        self._drawn: RowSampler | None = None

    def make_blocks(self) -> BlocksFound:
        """Transform every used row once, into the blocks of its side.

        Raises
        ------
        DataError
            If a feature or label cannot be trained on.
        """
        job, engine = self._job, self._rows.engine
        varying, labels = Varying.of_none(len(job.features)), LabelSums()
        with ExitStack() as stack:
            writers = {side: stack.enter_context(self._writer(side)) for side in job.sides}

            def sampled() -> Iterator[SampleResult]:
                nonlocal varying, labels
                for side, chunk, block in self._transformed():
                    writers[side].append(block)
                    if side == SIDES[0]:
                        varying = varying.with_block(block.features)
                        labels = labels.with_rows(chunk.xp, block.label, block.weight)
                        if job.draws_rows:
                            self._hashes.append(row_hashes(chunk.xp, chunk.identity))
                        if job.sample is not None:
                            yield job.sample.observe(chunk, None)

            state = merge_tree(sampled(), self._merge_samples)
            self._blocks = {side: writer.finish() for side, writer in writers.items()}
        engine.release()
        if state is not None:
            state = SampleResult(engine.to_host(state.hashes), engine.to_host(state.rows))
        return BlocksFound(
            {side: blocks.n_rows for side, blocks in self._blocks.items()},
            any(blocks.has_missing for blocks in self._blocks.values()),
            any(blocks.has_complete_row for blocks in self._blocks.values()),
            varying,
            labels,
            state,
        )

    def _merge_samples(self, states: Sequence[SampleResult]) -> SampleResult:
        assert self._job.sample is not None, "only a sample makes states"
        merged: SampleResult = self._job.sample.merge_all(states, {})
        return merged

    def _writer(self, side: str) -> BlockWriter:
        job, engine = self._job, self._rows.engine
        return BlockWriter(
            job.features,
            job.block_rows,
            has_weight=job.weight is not None,
            directory=job.directory if job.cache == "disk" else None,
            n_rows=job.n_rows.get(side),
            xp=engine.xp if job.cache == "device" else np,
            move=(lambda array: array) if job.cache == "device" else engine.to_host,
        )

    def _transformed(self) -> Iterator[tuple[str, Chunk, Block]]:
        """Side and features of the used rows, as columns and as what XGBoost is fed."""
        job = self._job
        wanted = dict.fromkeys([*job.features, str(job.use.target), *([job.weight] if job.weight else [])])
        _, base = job.passes.needed(wanted)
        columns = sorted({*base, *job.use.columns})

        def made(rows: Chunk, number: int) -> tuple[str, Chunk, Block]:
            done = job.passes.transform(rows, job.fitted, wanted, training=number == 0)
            return SIDES[number], done, self._block(done)

        with self._rows.expecting(self._tasks):
            for task in self._tasks:
                for chunk in self._rows.open(task.part, columns, job.chunk_rows):
                    for number, side in enumerate(SIDES):
                        rows = self._rows.pick(chunk, job.use, task, number) if side in job.sides else None
                        if rows is not None:
                            yield from self._rows.in_pieces(rows, partial(made, number=number))

    def _block(self, chunk: Chunk) -> Block:
        job = self._job
        matrix = self._rows.engine.matrix(chunk.columns, job.features, chunk.n_rows)
        label = chunk[str(job.use.target)].values.astype("float32")
        return Block(matrix, label, chunk[job.weight].floats("float32") if job.weight else None)

    def fit(self, options: ModelOptions, chosen: np.ndarray | None, hooks: Hooks) -> Trained:
        """Train on the blocks of this share, with all others that are in the same communicator.

        Parameters
        ----------
        options : ModelOptions
            What to train, on which kind of matrix.
        chosen : numpy.ndarray, optional
            Own cuts, as `cuts.choose` made them; None leaves them to XGBoost.
        hooks : Hooks
            Where to go on, and who is told.
        """
        self._matrices.clear()
        engine = self._rows.engine
        self._drawn = self._sampler(options)
        with engine.training():
            self._trained, self._matrices = fit_booster(
                options,
                self._blocks,
                chosen,
                Path(self._job.directory),
                hooks,
                engine.to_device,
                self._drawn,
            )
            engine.check_trained(self._trained.booster)
        return replace(self._trained, booster=None)

    def _sampler(self, options: ModelOptions) -> RowSampler | None:
        share = share_of(options.spec.params)
        if not self._job.draws_rows or share is None:
            return None
        xp, blocks = self._rows.engine.xp, self._blocks[SIDES[0]]
        if len(self._hashes) != 1:
            self._hashes = [xp.concatenate([xp.empty(0, dtype="uint32"), *self._hashes])]
        weight = None
        if blocks.has_weight:  # copied: a block of a file is gone with the next one
            held = (block.weight for block in blocks if block.weight is not None)
            weight = xp.concatenate([xp.array(self._rows.engine.to_device(of_block)) for of_block in held])
        return RowSampler(xp, self._hashes[0], weight, share, options.spec.seed)

    def _weight_of(self, side: str, made: Matrix) -> np.ndarray | None:
        """Weights that rows have, float32 on the host; those of the matrix may be of a round."""
        if self._drawn is None or side != SIDES[0]:
            weight: np.ndarray = made.get_weight()
            return weight if len(weight) else None
        return None if self._drawn.weight is None else self._rows.engine.to_host(self._drawn.weight)

    def observe(self, task: metrics.Task) -> dict[str, metrics.State]:
        """States of the metrics of every side, with the rounds up to the best.

        Training rows are seen with the features they were trained on: out-of-fold encodings. Matrices are let go once
        they have been asked, so that their memory is free for what comes.
        """
        assert self._trained is not None, "fit comes before observe"
        engine, states = self._rows.engine, {}
        with engine.training():
            known = {
                side: Answers.of_matrix(self._trained, made, self._weight_of(side, made))
                for side, made in self._matrices.items()
            }
            self._matrices.clear()
            self._drawn = None
            self._trained = replace(self._trained, booster=None)  # it holds on to the matrices
            for side, blocks in self._blocks.items():
                answers = known.pop(side, None) or Answers.of_blocks(self._trained, blocks, engine)
                states[side] = answers.observe(task)
        return states

    def close(self) -> None:
        """Free memory and disk. May be called twice."""
        with self._rows.engine.training():  # where their memory came from
            self._matrices.clear()
            self._trained = None
        for blocks in self._blocks.values():
            blocks.close()
        self._blocks = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()


class Alone:
    """The group of one: a share of all rows. See `tabgpu.runners.protocol.Group`."""

    def __init__(self, rows: Rows, job: BlockJob, tasks: Sequence[Task]) -> None:
        self._share = Share(rows, job, tasks)
        self._found: BlocksFound | None = None

    def make_blocks(self) -> BlocksFound:
        """See `Group.make_blocks`."""
        self._found = self._share.make_blocks()
        return replace(self._found, sampled=None)

    def fit(self, options: ModelOptions, hooks: Hooks) -> Trained:
        """See `Group.fit`."""
        assert self._found is not None, "make_blocks comes before fit"
        chosen = None
        if options.cuts == "own":
            if self._found.sampled is not None:
                chosen = cuts.choose(self._found.sampled.rows, options.spec.max_bin)
            self._found = replace(self._found, sampled=None)  # what was chosen from it is a thousandth of its size
            options = with_intercept(options, self._found.labels)
        return self._share.fit(options, chosen, hooks)

    def evaluate(self, task: metrics.Task) -> dict[str, dict[str, float | None]]:
        """See `Group.evaluate`."""
        return {side: metrics.finish(state).values for side, state in self._share.observe(task).items()}

    def report(self) -> dict[str, Any]:
        """See `Group.report`."""
        return {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self._share.close()
