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


class _Reader(Generic[T]):
    """Runs in the thread: makes an item for each permit."""

    def __init__(self, source: Iterator[T]) -> None:
        self.source = source
        self.made: queue.SimpleQueue[tuple[bool, T | BaseException | None]] = queue.SimpleQueue()
        self.permits = threading.Semaphore(1)
        self.given_up = False

    def run(self) -> None:
        """Put ``(True, item)`` for each item, then ``(False, error or None)``."""
        try:
            with contextlib.ExitStack() as stack:
                if hasattr(self.source, "close"):  # a generator given up half way lets go of its file
                    stack.callback(self.source.close)
                while self._permitted():
                    self.made.put((True, next(self.source)))
        except StopIteration:
            self.made.put((False, None))
        except BaseException as error:  # noqa: BLE001 - it is raised again in the consumer's thread
            self.made.put((False, error))

    def _permitted(self) -> bool:
        self.permits.acquire()
        return not self.given_up


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
    reader = _Reader(source)
    thread = threading.Thread(target=reader.run, name="tabgpu-reader", daemon=True)
    thread.start()
    try:
        while True:
            reader.permits.release()
            more, item = reader.made.get()
            if isinstance(item, BaseException) and not more:
                raise item
            if not more:
                return
            yield item  # type: ignore[misc]  # with `more` it is an item
            del item
    finally:
        reader.given_up = True
        reader.permits.release()
        thread.join()
