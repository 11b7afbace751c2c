"""Reading ahead: order, errors, how many items exist, and that no thread is left."""

from __future__ import annotations

import gc
import threading
import time
import traceback
import weakref
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabgpu.data.prefetch import prefetch


def readers() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "tabgpu-reader"]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert readers() == []


class Item:
    """Something that can be weakly referred to."""

    def __init__(self, number: int) -> None:
        self.number = number


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers()))
def test_items_come_in_order(items: list[int]) -> None:
    assert list(prefetch(iter(items))) == items


def test_the_next_item_is_made_while_one_is_in_use() -> None:
    made = threading.Event()

    def source() -> Iterator[int]:
        yield 0
        made.set()
        yield 1

    items = prefetch(source())
    assert next(items) == 0
    assert made.wait(5)
    assert list(items) == [1]


@pytest.mark.parametrize("pause", [0.0, 0.002])
def test_at_most_three_items_exist(pause: float) -> None:
    alive: weakref.WeakSet[Item] = weakref.WeakSet()
    counts = []

    def source() -> Iterator[Item]:
        for i in range(50):
            item = Item(i)
            alive.add(item)
            counts.append(len(alive))
            yield item
            del item

    for item in prefetch(source()):
        time.sleep(pause)
        assert item in alive
    del item
    gc.collect()
    assert max(counts) <= 3
    assert len(alive) == 0


def test_an_error_of_the_reader_comes_after_the_items_before_it_with_its_traceback() -> None:
    def read_the_broken_page() -> None:
        raise OSError("checksum")

    def source() -> Iterator[int]:
        yield 1
        read_the_broken_page()

    seen: list[int] = []
    with pytest.raises(OSError, match="checksum") as caught:
        seen.extend(prefetch(source()))
    assert seen == [1]
    assert "read_the_broken_page" in "".join(traceback.format_tb(caught.value.__traceback__))


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_consumer_that_fails_ends_the_thread_and_closes_the_source(error: type[BaseException]) -> None:
    closed = []

    def source() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.append(threading.current_thread().name)

    def consume() -> None:
        for _ in prefetch(source()):
            raise error

    with pytest.raises(error):
        consume()
    gc.collect()
    assert closed == ["tabgpu-reader"]


def test_an_interrupt_while_waiting_ends_the_thread() -> None:
    import _thread

    def source() -> Iterator[int]:
        yield 1
        threading.Timer(0.05, _thread.interrupt_main).start()
        time.sleep(0.3)
        yield 2

    items = prefetch(source())
    assert next(items) == 1
    with pytest.raises(KeyboardInterrupt):
        next(items)


def test_closing_and_forgetting_end_the_thread() -> None:
    items = prefetch(iter(range(10)))
    assert next(items) == 0
    assert len(readers()) == 1
    items.close()
    assert readers() == []
    forgotten = prefetch(iter(range(10)))
    next(forgotten)
    del forgotten
    gc.collect()
    assert readers() == []
    prefetch(iter(range(10)))  # never begun: no thread
    assert readers() == []
