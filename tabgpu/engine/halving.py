"""A chunk that does not fit is dropped, the pool emptied, and the chunk taken again in halves.

What failed holds memory as long as its traceback lives, because frames keep their variables: so the error is reduced
to one sentence and let go before anything is tried again. Smaller chunks change no result (law 1 of the design): states
do not depend on where a chunk ends. That a plan was wrong is told to whoever asks (`note`), never passed over.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from ..columns import Chunk, Column
from ..errors import ResourceError
from ..files import Part
from ..schema import ColumnType
from ..units import format_rows
from .protocol import Engine

SMALLEST = 256  # rows; where not even these fit, fewer will not
T = TypeVar("T")


def _ignore(message: str) -> None:
    """Tell nobody."""


def read_halving(
    engine: Engine,
    part: Part,
    columns: Sequence[ColumnType],
    chunk_rows: int,
    *,
    smallest: int = SMALLEST,
    note: Callable[[str], None] = _ignore,
) -> Iterator[dict[str, Column]]:
    """Read a part as `Engine.read` does, in smaller chunks from where memory ran out.

    Parameters
    ----------
    engine, part, columns, chunk_rows
        As for `Engine.read`.
    smallest : int
        Fewest rows that are tried.
    note : callable
        Told in one sentence what happened and what is done.

    Raises
    ------
    ResourceError
        If a chunk of `smallest` rows does not fit.
    DataError
        As `Engine.read`.
    """
    done = 0
    while True:
        chunks = engine.read(part, columns, chunk_rows, done)
        try:
            for chunk in chunks:
                n_rows = min(chunk_rows, part.n_rows - done) if not chunk else len(next(iter(chunk.values())))
                yield chunk
                del chunk
                done += n_rows
            return
        except Exception as error:
            if not engine.is_out_of_memory(error):
                raise
            failure = engine.explain(error)
        # here the error is gone, and with it the frames below it
        del chunks
        chunk_rows = _halved(min(chunk_rows, part.n_rows - done), smallest, failure, str(part))
        _make_room(engine)
        note(f"{failure}: {part} is read on in chunks of {format_rows(chunk_rows)} rows")


def work_halving(
    engine: Engine,
    chunk: Chunk,
    work: Callable[[Chunk], T],
    *,
    smallest: int = SMALLEST,
    note: Callable[[str], None] = _ignore,
) -> Iterator[T]:
    """What `work` makes of a chunk: one answer, or, where memory runs out, one for each half, in order.

    Parameters
    ----------
    engine : Engine
        Knows its errors.
    chunk : Chunk
        The rows.
    work : callable
        Takes a chunk; begun anew for each half, so it must have changed nothing when it failed.
    smallest, note
        As in `read_halving`.

    Raises
    ------
    ResourceError
        If a chunk of `smallest` rows does not fit.
    """
    waiting = [chunk]
    del chunk
    while waiting:
        piece = waiting.pop()
        try:
            answer = work(piece)
        except Exception as error:
            if not engine.is_out_of_memory(error):
                raise
            failure = engine.explain(error)
        else:
            del piece
            yield answer
            continue
        half = _halved(piece.n_rows, smallest, failure, "a chunk")
        waiting += [piece.take(slice(half, None)), piece.take(slice(0, half))]
        del piece
        _make_room(engine)
        note(f"{failure}: the chunk is worked on in pieces of {format_rows(half)} rows")


def _halved(n_rows: int, smallest: int, failure: str, what: str) -> int:
    if n_rows <= smallest:
        raise ResourceError(
            f"{format_rows(n_rows)} rows of {what} do not fit. {failure}",
            "Expected room for at least so many rows",
            "Raise memory.device_limit (memory.limit on the CPU), use fewer columns, or free what others hold",
        )
    return (n_rows + 1) // 2


def _make_room(engine: Engine) -> None:
    gc.collect()  # a cycle through an exception or a generator keeps arrays alive
    engine.release()
