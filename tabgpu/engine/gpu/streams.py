"""Two streams: libcudf reads and hashes on the reader's, CuPy works on the device's default stream.

Why no array is read before it is there, and none overwritten while it is read:

- All arrays of chunks are made, used and freed on the one default stream, by whatever thread. The default stream runs
  in the order in which the host hands work over, so memory that one thread frees and another gets is written after the
  last use. (Streams for each thread, which break this, are refused: see `memory.refuse_stream_switches`.)
- All tables of libcudf are made, used and freed on the stream of the reader that owns them, and never leave it: what
  goes into a chunk is a copy, made by CuPy.
- A copy is made between two events: `to_arrays` lets the default stream wait for all that the reader has done,
  `to_tables` lets the reader wait for all copies, before it frees or overwrites what was copied.

So the next piece of a file is decoded while the rest of the program works on the last chunk, and nobody waits on the
host. XGBoost works on the default stream of its thread, which waits for the one default stream, and that for it, by
CUDA's own rule. Streams are kept for the next reader and not destroyed, because memory remembers the stream that it is
to be freed on.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import cupy


class Streams:
    """The stream of one reader, and the way to the default stream and back.

    Parameters
    ----------
    reader : cupy.cuda.Stream
        On which libcudf works.
    """

    def __init__(self, reader: cupy.cuda.Stream) -> None:
        self.reader = reader

    def to_arrays(self) -> None:
        """CuPy may read what libcudf has made so far."""
        cupy.cuda.Stream.null.wait_event(self.reader.record())

    def to_tables(self) -> None:
        """The reader goes on when CuPy has done what it was told so far."""
        self.reader.wait_event(cupy.cuda.Stream.null.record())


class StreamStore:
    """Streams of readers, used again by the next ones."""

    def __init__(self) -> None:
        self._idle: list[cupy.cuda.Stream] = []
        self._lock = threading.Lock()

    @contextmanager
    def borrow(self) -> Iterator[Streams]:
        """A reader's stream. It does not wait for the default stream, else nothing would overlap."""
        with self._lock:
            stream = self._idle.pop() if self._idle else cupy.cuda.Stream(non_blocking=True)
        try:
            yield Streams(stream)
        finally:
            with self._lock:
                self._idle.append(stream)
