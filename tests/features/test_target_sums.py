from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statistic_laws import any_floats, check_laws, chunk_of, nasty_floats, words

from tabgpu import wire
from tabgpu.columns import Column
from tabgpu.features.keys import fold_of, local_keys
from tabgpu.features.moments import RangeResult
from tabgpu.features.statistics import Range, TargetGrid, TargetSums

FOLDS = 3
rows = st.lists(st.tuples(words, any_floats | st.none()), max_size=20)
integer_rows = st.lists(st.tuples(words, st.integers(-(2**26) + 1, 2**26 - 1) | st.none()), max_size=20)


def grid_of(chunk):
    found = Range("y")
    return TargetGrid.from_range(found.finish(found.observe(chunk, None), None))


def by_cell(chunk, exactly):
    """Count and exact sum of the target by key and fold, row by row."""
    codes, keys = local_keys(chunk, ("a",))
    cells = {}
    for key, fold, y in zip(keys[codes].tolist(), fold_of(chunk, FOLDS, 1).tolist(), exactly, strict=True):
        if y is not None:
            n, total = cells.get((key, fold), (0, Fraction(0)))
            cells[key, fold] = n + 1, total + y
    return cells


def check_table(table, cells, tolerance):
    keys = sorted({key for key, _ in cells})
    assert table.keys.tolist() == keys
    for fold in [None, *range(FOLDS)]:
        counts, sums = table.level_totals() if fold is None else list(table.level_others())[fold]
        counted, total = table.totals() if fold is None else list(table.others())[fold]
        picked = [[cells[c] for c in cells if c[0] == k and c[1] != fold] for k in keys]
        assert counts.tolist() == [sum(n for n, _ in p) for p in picked]
        exact = [sum((y for _, y in p), Fraction(0)) for p in picked]
        for found, expected in zip([*sums.tolist(), total], [*exact, sum(exact)], strict=True):
            assert abs(Fraction(found) - expected) <= tolerance
        assert counted == sum(counts.tolist())


@settings(deadline=None, max_examples=30)
@given(rows, st.integers(0, 99))
def test_float_targets_obey_the_laws_within_the_stated_error(rows, seed):
    target = np.array([np.nan if y is None or abs(y) > 1e307 else y for _, y in rows])
    chunk = chunk_of(a=pa.array([a for a, _ in rows], pa.string()), y=target)
    grid = grid_of(chunk)
    table = check_laws(TargetSums(("a",), "y", FOLDS, 1, grid), chunk, seed)
    exactly = [Fraction(y) if np.isfinite(y) else None for y in target.tolist()]
    largest = max((abs(y) for y in exactly if y is not None), default=Fraction(0))
    check_table(table, by_cell(chunk, exactly), len(rows) * largest / 2**52)


@settings(deadline=None, max_examples=30)
@given(integer_rows, st.integers(0, 99))
def test_integer_targets_obey_the_laws_without_error(rows, seed):
    values = np.array([0 if y is None else y for _, y in rows], np.int32)
    target = Column(values, valid=np.array([y is not None for _, y in rows], bool))
    chunk = chunk_of(a=pa.array([a for a, _ in rows], pa.string()), y=target)
    assert grid_of(chunk) == TargetGrid("integer")
    table = check_laws(TargetSums(("a",), "y", FOLDS, 1, TargetGrid("integer")), chunk, seed)
    assert table.low is None
    check_table(table, by_cell(chunk, [None if y is None else Fraction(y) for _, y in rows]), 0)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), nasty_floats.filter(lambda v: abs(v) < 1e307)), min_size=2, max_size=12),
    st.data(),
)
def test_what_is_outside_a_fold_does_not_know_what_is_in_it(rows, data):
    chunk = chunk_of(a=pa.array([a for a, _ in rows]), y=np.array([y for _, y in rows]))
    i = data.draw(st.integers(0, len(rows) - 1))
    grid = TargetGrid("float", -970)  # for any target
    statistic = TargetSums(("a",), "y", FOLDS, 1, grid)
    fold = int(fold_of(chunk, FOLDS, 1)[i])
    changed = chunk["y"].values.copy()
    changed[i] = data.draw(nasty_floats.filter(lambda v: abs(v) < 1e307))
    tables = [
        statistic.finish(statistic.observe(c, None), None) for c in (chunk, chunk.with_columns({"y": Column(changed)}))
    ]
    assert wire.pack(list(tables[0].level_others())[fold]) == wire.pack(list(tables[1].level_others())[fold])
    assert list(tables[0].others())[fold] == list(tables[1].others())[fold]


def test_groups_of_columns_and_unused_levels():
    chunk = chunk_of(a=pa.array(["x", "y", None, "x"]), b=np.array([1, 2, 1, 1]), y=np.array([1, 0, 1, 1], np.uint8))
    table = check_laws(TargetSums(("a", "b"), "y", 2, 0, TargetGrid("integer")), chunk)
    counts, sums = table.level_totals()
    assert sorted(zip(counts.tolist(), sums.tolist(), strict=True)) == [(1, 0.0), (1, 1.0), (2, 2.0)]
    assert table.counts.dtype == table.high.dtype == np.uint8


def test_no_rows_with_a_target():
    chunk = chunk_of(a=pa.array(["x", "y"]), y=np.array([np.nan, np.inf]))
    for grid in (TargetGrid("integer"), grid_of(chunk)):
        table = check_laws(TargetSums(("a",), "y", 2, 0, grid), chunk)
        assert len(table) == 0
        assert table.totals() == list(table.others())[1] == (0, 0.0)


@pytest.mark.parametrize(
    ("low", "high", "grid"),
    [
        (0, 1, TargetGrid("integer")),
        (-5, 2**26 - 1, TargetGrid("integer")),
        (0, 2**26, TargetGrid("float", 25)),
        (-1.0, 0.5, TargetGrid("float", 51)),
        (0.0, 0.0, TargetGrid("float", 0)),
        (0.0, 5e-324, TargetGrid("float", 1125)),
        (None, None, TargetGrid("integer")),
    ],
)
def test_the_grid_reaches_52_bits_below_the_largest_value(low, high, grid):
    assert TargetGrid.from_range(RangeResult(low, high, 9, 0, 0)) == grid


def test_the_smallest_floats_are_summed_too():
    chunk = chunk_of(a=pa.array(["x", "x"]), y=np.array([5e-324, 1e-323]))
    table = check_laws(TargetSums(("a",), "y", 2, 0, grid_of(chunk)), chunk)
    assert table.totals() == (2, 1.5e-323)


def test_large_integers_keep_their_exact_sums():
    chunk = chunk_of(a=pa.array(["x", "x", "y"]), y=np.array([2**51 + 1, -(2**51), 3]))
    table = check_laws(TargetSums(("a",), "y", 2, 0, grid_of(chunk)), chunk)
    assert sorted(table.level_totals()[1].tolist()) == [1.0, 3.0]
