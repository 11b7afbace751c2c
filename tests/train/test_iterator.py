"""The iterator: passes counted, and a pass that differs from the first is an error."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import xgboost

from tabgpu.cache import Block
from tabgpu.errors import DataError
from tabgpu.train.iterator import BlockIterator


def block(n_rows: int) -> Block:
    random = np.random.default_rng(n_rows)
    return Block(random.standard_normal((n_rows, 2)).astype("float32"), np.zeros(n_rows, "float32"))


class Changing:
    """Blocks of other sizes from some pass on."""

    def __init__(self, first: list[int], later: list[int], change_at: int) -> None:
        self.first, self.later, self.change_at, self.passes = first, later, change_at, 0

    def __iter__(self) -> Iterator[Block]:
        self.passes += 1
        yield from map(block, self.first if self.passes < self.change_at else self.later)


def test_passes_are_those_documented() -> None:
    iterator = BlockIterator([block(5), block(3)], ["a", "b"])
    matrix = xgboost.QuantileDMatrix(iterator)
    assert iterator.passes == 4
    assert iterator.n_rows == matrix.num_row() == 8
    assert matrix.feature_names == ["a", "b"]
    iterator = BlockIterator([block(5), block(3)], ["a", "b"])
    xgboost.QuantileDMatrix(iterator, ref=matrix)
    assert iterator.passes == 3


@pytest.mark.parametrize("change_at", [2, 3, 4])
@pytest.mark.parametrize("later", [[5, 4], [5], [5, 3, 1], [3, 5]])
def test_a_changed_pass_is_refused(later: list[int], change_at: int) -> None:
    with pytest.raises(DataError, match="the input changed"):
        xgboost.QuantileDMatrix(BlockIterator(Changing([5, 3], later, change_at), ["a", "b"]))


def test_weights_and_labels_go_through() -> None:
    known = block(6)
    weight = np.arange(6, dtype="float32")
    given = Block(known.features, np.ones(6, "float32"), weight)
    matrix = xgboost.QuantileDMatrix(BlockIterator([given], ["a", "b"]))
    assert matrix.get_label().tolist() == [1.0] * 6
    assert matrix.get_weight().tolist() == weight.tolist()
    assert matrix.num_nonmissing() == 12


def test_an_interrupt_is_no_end_of_data() -> None:
    class Interrupting:
        def __iter__(self) -> Iterator[Block]:
            yield block(5)
            raise KeyboardInterrupt

    iterator = BlockIterator(Interrupting(), ["a", "b"])
    with pytest.raises(RuntimeError, match="interrupted"):
        xgboost.QuantileDMatrix(iterator)
    assert isinstance(iterator.interrupted, KeyboardInterrupt)
