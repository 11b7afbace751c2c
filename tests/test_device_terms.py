"""The memory model of a GPU: formulas against hand-made sums, and terms that move as they should."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabgpu.device_terms import (
    PAGES,
    DeviceMatrix,
    Split,
    cached_nodes,
    cell_bits,
    construction_terms,
    divide,
    histogram_bytes,
    outputs,
    quantised_bytes,
    row_state_bytes,
    sketch_bytes,
    split_terms,
)

USUAL = DeviceMatrix(1_000_000, 100_000, 30, 256, 20_000)


def sums(matrix: DeviceMatrix) -> list[int]:
    held = matrix.quantised(matrix.n_rows + matrix.n_watched)
    training = held + row_state_bytes(matrix) + histogram_bytes(matrix)
    return [training, held + matrix.input_bytes + sum(construction_terms(matrix).values())]


_MATRICES = st.builds(
    DeviceMatrix,
    n_rows=st.integers(0, 10**9),
    n_watched=st.integers(0, 10**8),
    n_features=st.integers(1, 5000),
    max_bin=st.integers(2, 4096),
    block_rows=st.integers(1, 10**6),
    missing=st.sampled_from(["none", "some", "every row"]),
    has_weight=st.booleans(),
    cuts=st.sampled_from(["own", "exact"]),
    params=st.fixed_dictionaries(
        {},
        optional={"max_depth": st.integers(0, 20), "max_leaves": st.integers(0, 500), "num_class": st.integers(2, 9)},
    ),
)


@given(_MATRICES, st.integers(0, 10**6), st.integers(0, 10**6))
@settings(max_examples=50, deadline=None)
def test_more_rows_never_need_less(matrix: DeviceMatrix, more: int, watched: int) -> None:
    larger = replace(matrix, n_rows=matrix.n_rows + more, n_watched=matrix.n_watched + watched)
    assert all(a <= b for a, b in zip(sums(matrix), sums(larger), strict=True))


@given(_MATRICES, st.integers(-(10**9), 10**11), st.integers(10**9, 10**11))
@settings(max_examples=50, deadline=None)
def test_an_external_matrix_keeps_to_its_room(matrix: DeviceMatrix, room: int, device: int) -> None:
    split = divide(matrix, room, device)
    terms, on_host = split_terms(matrix, split)
    total = matrix.quantised(matrix.n_rows + matrix.n_watched)
    assert 0 <= split.cache_host_ratio <= 1
    assert terms["matrix"] + on_host == total
    assert on_host >= 0
    assert split.min_cache_page_bytes >= 1
    smallest = PAGES * 2 * ((1 << 20) + matrix.quantised(min(matrix.block_rows, matrix.n_rows)))
    if room >= 2 * smallest:
        assert sum(terms.values()) <= room


def test_bits_of_a_cell() -> None:
    assert [cell_bits(1, bins, "none") for bins in (2, 64, 65, 256, 257)] == [1, 6, 7, 8, 9]
    assert [cell_bits(1, bins, "some") for bins in (63, 64, 255, 256)] == [6, 7, 8, 9]
    assert cell_bits(30, 256, "every row") == 13
    assert quantised_bytes(3, 1, 256, "some") == 4  # 27 bits


def test_row_state_by_hand() -> None:
    assert row_state_bytes(replace(USUAL, n_rows=1, n_watched=0)) == 44
    assert row_state_bytes(replace(USUAL, n_rows=0, n_watched=1)) == 8
    assert row_state_bytes(replace(USUAL, n_rows=1, n_watched=0, has_weight=True)) == 48
    five = replace(USUAL, n_rows=1, n_watched=1, params={"num_class": 5})
    assert row_state_bytes(five) == 32 + 60 + 8 + 40
    sampled = replace(USUAL, n_rows=1, n_watched=0, params={"sampling_method": "gradient_based"})
    assert row_state_bytes(sampled) == 56


@pytest.mark.parametrize(
    ("params", "nodes"),
    [
        ({}, 63),
        ({"max_depth": 8}, 255),
        ({"max_depth": 20}, 4096),
        ({"max_depth": 20, "max_cached_hist_node": 100}, 100),
        ({"max_depth": 0, "max_leaves": 31}, 61),
        ({"max_depth": 0}, 4096),
        ({"max_depth": "deep"}, 63),
    ],
)
def test_nodes_whose_histograms_are_kept(params: dict[str, Any], nodes: int) -> None:
    assert cached_nodes(params) == nodes
    assert histogram_bytes(replace(USUAL, params=params)) == 2 * 16 * 30 * 256 * nodes


def test_a_report_of_a_real_failure_is_explained() -> None:
    """XGBoost issue 11684: depth 12 and 19,500 features ran out of memory on GPUs of 141 GB; 80 MB a node."""
    wide = replace(USUAL, n_features=19_500, params={"max_depth": 12})
    assert histogram_bytes(wide, growth=1) // 4095 == pytest.approx(80e6, rel=0.01)
    assert histogram_bytes(wide, growth=1) == pytest.approx(327e9, rel=0.01)


def test_only_exact_cuts_take_a_sketch() -> None:
    assert sketch_bytes(USUAL) == 0
    exact = replace(USUAL, n_rows=5_000_000, cuts="exact")
    assert sketch_bytes(exact) == 32 * 20_000 * 30 + 4 * 16 * 30 * 5121
    whole = replace(exact, n_features=1000, block_rows=10**9)
    assert 2 * 2**30 <= sketch_bytes(whole) < 2 * 2**30 + 64 * 1000 * 6000
    assert sketch_bytes(replace(exact, n_rows=0)) == 0


def test_pages_of_an_external_matrix() -> None:
    terms, on_host = split_terms(USUAL, Split(1.0, 1 << 20))
    page = (1 << 20) + USUAL.quantised(20_000)
    assert terms == {"matrix": 0, "matrix pages": PAGES * 2 * page}
    assert on_host == USUAL.quantised(1_100_000)
    alone, _ = split_terms(replace(USUAL, n_watched=0), Split(1.0, 1 << 20))
    assert alone["matrix pages"] == PAGES * page
    narrow = DeviceMatrix(2**33, 0, 1, 256, 1000, "none")
    assert divide(narrow, 10**12, 10**12).min_cache_page_bytes < 2**32


def test_outputs() -> None:
    assert outputs({"quantile_alpha": 0.5}) == 1
    assert outputs({"num_class": "3"}) == 1  # XGBoost refuses it
