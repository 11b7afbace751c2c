"""The one `xgboost.DataIter` of tabgpu: blocks in, passes counted and compared.

XGBoost reads its input several times (on a CPU four passes for a matrix in core, three for an external one, one less
where cuts are given) and believes every pass to be the same. This iterator holds it to that: the row counts of the
blocks of each pass are compared with those of the first. It holds no block between calls, and hands over whatever array
has the array interface, so that NumPy and device arrays go the same way. Signals have to wait while XGBoost reads
(`tabgpu.interrupts`); the iterator ends the pass as soon as one waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import xgboost

from ..cache import Block
from ..columns import Array
from ..errors import DataError
from .names import safe_names


class BlockIterator(xgboost.DataIter):
    """Feed blocks to XGBoost.

    Parameters
    ----------
    blocks : iterable of Block
        Iterable any number of times, with the same blocks each time (`tabgpu.cache.Blocks`, or a list).
    feature_names : sequence of str
        Names of the features; XGBoost is given the safe ones (`names.safe_names`).
    cache_prefix : str, optional
        Where XGBoost puts the files of an external matrix. None for one in core.
    waiting : sequence
        What `tabgpu.interrupts.deferred` yields; the pass ends in an error as soon as anything is in it.
    to_device : callable
        Moves an array of a block to where the matrix is made.
    page_bytes : int, optional
        Smallest page of an external matrix on a GPU; XGBoost's own by default.

    Attributes
    ----------
    passes : int
        Number of passes that were read to their end.
    interrupted : BaseException or None
        What ended a pass and is no Exception, such as SystemExit: XGBoost would take it for the end of the blocks.
    """

    def __init__(
        self,
        blocks: Iterable[Block],
        feature_names: Sequence[str],
        cache_prefix: str | None = None,
        waiting: Sequence[int] = (),
        to_device: Callable[[Array], Array] = np.asarray,
        page_bytes: int | None = None,
    ) -> None:
        self.passes = 0
        self.interrupted: BaseException | None = None
        self._blocks = blocks
        self._names = safe_names(feature_names)
        self._waiting, self._to_device = waiting, to_device
        self._first: list[int] = []
        self._position = 0
        self._current: Iterator[Block] | None = None
        super().__init__(cache_prefix=cache_prefix, min_cache_page_bytes=page_bytes)

    @property
    def n_rows(self) -> int:
        """Rows of the first pass."""
        return sum(self._first)

    def reset(self) -> None:
        """Go back to the first block; what the last pass held is let go."""
        self._current = None
        self._position = 0

    def next(self, input_data: Callable[..., None]) -> bool:
        """Hand the next block to XGBoost.

        Returns
        -------
        bool
            False after the last block.

        Raises
        ------
        DataError
            If a pass differs from the first in the rows of a block or the number of blocks. XGBoost keeps it and
            raises it once the pass has ended.
        InterruptedError
            If a signal waits.
        """
        if self._waiting:
            self._current = None
            raise InterruptedError("a signal waits")
        try:
            return self._feed(input_data)
        except Exception:
            raise
        except BaseException as error:
            self.interrupted = error
            raise RuntimeError("interrupted") from error

    def _feed(self, input_data: Callable[..., None]) -> bool:
        if self._current is None:
            self._current = iter(self._blocks)
        block = next(self._current, None)
        if block is None:
            self._end()
            return False
        self._compare(block.n_rows)
        move = self._to_device
        optional: dict[str, Any] = {} if block.weight is None else {"weight": move(block.weight)}
        # a new array object for each call: XGBoost takes the same object for the same data
        input_data(data=move(block.features)[:], label=move(block.label), feature_names=self._names, **optional)
        return True

    def _compare(self, n_rows: int) -> None:
        if self.passes == 0:
            self._first.append(n_rows)
        elif self._position >= len(self._first) or self._first[self._position] != n_rows:
            expected = self._first[self._position] if self._position < len(self._first) else 0
            raise _changed(f"Block {self._position} has {n_rows:,} rows in pass {self.passes + 1}", expected)
        self._position += 1

    def _end(self) -> None:
        self._current = None
        if self._position != len(self._first):
            missing = self._first[self._position]
            raise _changed(f"Pass {self.passes + 1} ended after {self._position} blocks", missing)
        self.passes += 1


def _changed(happened: str, expected: int) -> DataError:
    return DataError(
        happened,
        f"Expected the {expected:,} rows that the first pass had there: the input changed while it was read",
        "Run again when nothing writes to data.source any more",
    )
