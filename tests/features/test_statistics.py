import dataclasses
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statistic_laws import any_floats, check_laws, chunk_of, nasty_ints, run, words

from tabgpu.features import statistics
from tabgpu.features.keys import local_keys
from tabgpu.features.statistics import LevelCounts, Sample
from tabgpu.hashing import MISSING_KEY, splitmix64

rows = st.lists(st.tuples(words, nasty_ints | st.none(), st.integers(0, 2), any_floats), max_size=25)


def chunk_from(rows):
    kinds = (pa.string(), pa.int64(), pa.uint8(), pa.float64())
    return chunk_of(
        **{n: pa.array([r[i] for r in rows], k) for i, (n, k) in enumerate(zip("abcd", kinds, strict=True))}
    )


@settings(deadline=None, max_examples=30)
@given(rows, st.sampled_from([("a",), ("b",), ("d",), ("a", "c"), ("b", "a", "d")]), st.integers(0, 99))
def test_level_counts_obey_the_laws_and_count(rows, columns, seed):
    chunk = chunk_from(rows)
    found = check_laws(LevelCounts(columns), chunk, seed)
    codes, keys = local_keys(chunk, columns)
    assert dict(zip(found.keys.tolist(), found.rows.tolist(), strict=True)) == Counter(keys[codes].tolist())
    assert found.levels is None


@settings(deadline=None, max_examples=30)
@given(rows, st.sampled_from("abc"), st.integers(0, 99))
def test_kept_levels_obey_the_laws_and_are_those_of_the_keys(rows, name, seed):
    found = check_laws(LevelCounts((name,), keep_levels=True), chunk_from(rows), seed)
    counted = dict(zip(found.levels.to_pylist(), found.rows.tolist(), strict=True))
    assert counted == Counter(r["abcd".index(name)] for r in rows)
    assert [v is None for v in found.levels.to_pylist()] == (found.keys == MISSING_KEY).tolist()


def test_floats_are_levels_with_one_zero_and_missing_nan():
    chunk = chunk_of(d=np.array([-0.0, 0.0, np.nan, np.nan, 2.5], np.float32))
    found = check_laws(LevelCounts(("d",), keep_levels=True), chunk)
    assert dict(zip(found.levels.to_pylist(), found.rows.tolist(), strict=True)) == {0.0: 2, 2.5: 1, None: 2}


def test_the_level_of_minus_zero_is_zero():
    (level,) = LevelCounts(("d",), keep_levels=True).observe(chunk_of(d=np.array([-0.0])), None).levels.to_pylist()
    assert str(level) == "0.0"


def test_levels_are_kept_of_single_columns_only():
    with pytest.raises(ValueError, match="single columns"):
        LevelCounts(("a", "b"), keep_levels=True)


def test_counts_grow_beyond_their_narrow_dtypes():
    chunk = chunk_of(a=np.zeros(70_000, np.int8))
    result, _ = run(LevelCounts(("a",)), [chunk, chunk])
    assert result.rows.tolist() == [140_000]
    assert result.counts.dtype == np.uint32


@settings(deadline=None, max_examples=30)
@given(rows, st.integers(0, 30), st.integers(0, 99))
def test_a_sample_obeys_the_laws_and_is_the_rows_of_smallest_hash(rows, k, seed):
    chunk = chunk_from(rows)
    with np.errstate(over="ignore"):
        found = check_laws(Sample(("b", "d"), k), chunk, seed)
        expected = np.stack([chunk["b"].floats("float32"), chunk["d"].floats("float32")], axis=1)
    hashes = splitmix64(chunk.identity)
    order = np.argsort(hashes)[:k]
    assert found.hashes.tolist() == hashes[order].tolist()
    assert found.rows.dtype == np.float32
    np.testing.assert_array_equal(found.rows, expected[order])


def test_a_threshold_only_saves_work():
    chunk = chunk_of(x=np.arange(1000, dtype=np.float32))
    whole, _ = run(Sample(("x",), 50), [chunk])
    found = check_laws(Sample(("x",), 50, threshold=2**64 // 10), chunk)
    assert found.rows.tolist() == whole.rows.tolist()
    assert len(check_laws(Sample(("x",), 50, threshold=0), chunk).hashes) == 0
    assert len(run(Sample(("x",), 1000, threshold=2**64), [chunk])[0].hashes) == 1000


def test_statistics_are_hashable_and_offered_in_one_place():
    for name in statistics.__all__:
        found = getattr(statistics, name)
        if isinstance(found, type) and issubclass(found, statistics.Statistic):
            assert dataclasses.is_dataclass(found)
            assert found.__hash__ is not None
    assert LevelCounts(("a",)) == LevelCounts(("a",), False)
    assert LevelCounts(("a",)).columns == Sample(("a",), 1).columns == ("a",)
