"""Rows of a chunk: they fit on host and device, and stay below what the libraries can count."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tabgpu.planning import DataShape, Device, Settings, Work, choose_chunk_rows, make
from tabgpu.planning.chunks import MIN_ROWS

GB = 10**9


@given(
    st.integers(1, 10**10), st.integers(1, 10**4), st.integers(0, 10**7), st.integers(10**8, 10**12),
    st.integers(10**8, 10**12),
)  # fmt: skip
@settings(max_examples=50, deadline=None)
def test_chunks_fit_both_limits_and_the_counters_of_cudf(
    part: int, row_bytes: int, text: int, host: int, device: int
) -> None:
    shape = DataShape(part, 1, row_bytes, part, part, text, text)
    rows, _ = choose_chunk_rows(shape, host, device)
    assert 1 <= rows < 2**31
    assert rows == 1 or rows * text < 2**31
    assert rows <= MIN_ROWS or (rows * row_bytes <= host // 16 and rows * (row_bytes + text) <= device // 32)
    assert rows <= choose_chunk_rows(shape, host, 4 * device)[0]


def test_large_groups_are_split_for_the_smaller_limit() -> None:
    shape = DataShape(10**8, 1, 1000, 10**8, 10**8, 0)
    assert choose_chunk_rows(shape, 640 * GB, 64 * GB)[0] == 2_000_000
    rows, reason = choose_chunk_rows(shape, 16 * GB, 640 * GB)
    assert rows == 1_000_000
    assert "1/16 of the limit" in reason
    assert "GPU" in choose_chunk_rows(shape, 640 * GB, 64 * GB)[1]


def test_given_rows_are_capped_by_the_bytes_of_text() -> None:
    shape = DataShape(10**8, 1, 20, 10**8, 10**8, 0, text_row_bytes=1000)
    device = Device((100 * GB, ""), 110 * GB)
    made = make(
        shape, Settings(("gpu", ""), ("serial", ""), (500 * GB, ""), 10**7, None, device=device), Work((), (), {})
    )
    assert made.chunk_rows == (2**31 - 1) // 1000
    assert any("2^31 bytes of text" in reason for reason in made.reasons)
    assert any("10,000,000 are given" in reason for reason in made.reasons)
    on_cpu = make(shape, Settings(("cpu", ""), ("serial", ""), (500 * GB, ""), 10**7, None), Work((), (), {}))
    assert on_cpu.chunk_rows == 10**7
