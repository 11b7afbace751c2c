"""Read one chunk ahead in a thread, so that decoding overlaps with work on the chunk before.

Reading releases Python's lock while Arrow decodes; a thread is therefore enough. What is read, and how large a chunk
is, is decided by whoever makes the iterator.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Reader(Generic[T]):
    """Makes the items of `source` in a thread, which begins with the first one at once; give it up with `close`."""

    def __init__(self, source: Iterator[T]) -> None:
        self._source = source
        self._made: queue.SimpleQueue[tuple[bool, T | BaseException | None]] = queue.SimpleQueue()
        self._permits = threading.Semaphore(1)
        self._given_up = False
        self._thread = threading.Thread(target=self._run, name="tabgpu-reader", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        """Put ``(True, item)`` for each permit, then ``(False, error or None)``."""
        try:
            with contextlib.ExitStack() as stack:
                if hasattr(self._source, "close"):  # a generator given up half way lets go of its file
                    stack.callback(self._source.close)
                while self._permitted():
                    self._made.put((True, next(self._source)))
        except StopIteration:
            self._made.put((False, None))
        except BaseException as error:  # noqa: BLE001 - it is raised again in the consumer's thread
            self._made.put((False, error))

    def _permitted(self) -> bool:
        self._permits.acquire()
        return not self._given_up

    def items(self) -> Iterator[T]:
        """The items, in order; see `prefetch`. Once only."""
        try:
            while True:
                self._permits.release()
                more, item = self._made.get()
                if isinstance(item, BaseException) and not more:
                    raise item
                if not more:
                    return
                yield item  # type: ignore[misc]  # with `more` it is an item
                del item
        finally:
            self.close()

    def close(self) -> None:
        """End the thread. May be called twice."""
        self._given_up = True
        self._permits.release()
        self._thread.join()


def prefetch(source: Iterator[T]) -> Iterator[T]:
    """Iterate over `source` with one item made ahead in a thread.

    Two items exist while the consumer works on one, and never more than three: item k + 1 is begun when item k is asked
    for, while the consumer may still hold item k - 1. The thread starts with the first item and has ended when the
    iteration is over, fails, or is given up (the generator is closed or forgotten); then `source` is closed too.

    Raises
    ------
    BaseException
        Whatever `source` raises, with its traceback, after the items before it.

    Examples
    --------
    >>> list(prefetch(iter("abc")))
    ['a', 'b', 'c']
    """
    yield from Reader(source).items()
