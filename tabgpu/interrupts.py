"""Keep SIGINT and SIGTERM waiting while foreign code runs that an exception must not cut through.

Python runs a signal's handler between any two steps of Python code. Where C code has called back into Python, the
exception that the handler raises is lost in ctypes, and the C code goes on with an answer that was never given (XGBoost
then ends the process); where it comes through the making of a class, Python itself remembers it for good. Within
`deferred` signals are only noted. Once it ends they are raised again, so that what was to happen happens: a
KeyboardInterrupt, the command line's handler, or the end of the process.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def deferred() -> Iterator[Sequence[int]]:
    """Let SIGINT and SIGTERM wait until the block has ended.

    Nested blocks hand on to the outer one. Outside of the main thread, where no handler runs, nothing is done; a signal
    that is ignored, or whose handler is not Python's, is left alone.

    Yields
    ------
    sequence of int
        The signals that wait, in their order; it grows as they come. Long work looks at it and ends early.

    Examples
    --------
    >>> with deferred() as waiting:
    ...     len(waiting)
    0
    """
    waiting: list[int] = []
    handlers = _replaceable()

    def note(number: int, frame: FrameType | None) -> None:
        waiting.append(number)

    try:
        for number in handlers:
            signal.signal(number, note)
        yield waiting
    finally:
        try:
            _restore(handlers)
        finally:
            _restore(handlers)  # a signal may have come when one of the two handlers was back
            for number in sorted(set(waiting), reverse=True):  # SIGTERM first: whoever sent it means the process
                signal.raise_signal(number)


def _replaceable() -> dict[int, Any]:
    """Handlers that can be put back: of no signal outside of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    return {number: handler for number, handler in handlers.items() if handler not in (None, signal.SIG_IGN)}


def _restore(handlers: dict[int, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
