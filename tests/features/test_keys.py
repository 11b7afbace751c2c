import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statistic_laws import any_floats, categorical, chunk_of, nasty_ints, piece, words

from tabgpu.columns import Column, Levels
from tabgpu.features import keys as keys_module
from tabgpu.features.keys import distinct_groups, fold_of, local_groups, local_keys
from tabgpu.hashing import MISSING_KEY, combine, hash_levels, splitmix64, value_keys


def expected_keys(values):
    """Key of each value of an Arrow array, without any grouping."""
    if pa.types.is_string(values.type):
        return hash_levels(values)
    keys = value_keys(values.fill_null(0).to_numpy(zero_copy_only=False))
    keys[values.is_null().to_numpy(zero_copy_only=False)] = MISSING_KEY
    return keys


def key_of_each_row(chunk, columns):
    codes, keys = local_keys(chunk, columns)
    assert codes.dtype == np.int32
    assert keys.dtype == np.uint64
    assert (keys[1:] > keys[:-1]).all()
    return keys[codes]


rows = st.lists(
    st.tuples(words, nasty_ints | st.none(), st.integers(-3, 3) | st.none(), any_floats | st.none()), max_size=25
)


def arrays_of(rows):
    kinds = (pa.string(), pa.int64(), pa.int8(), pa.float64())
    return {n: pa.array([r[i] for r in rows], k) for i, (n, k) in enumerate(zip("abcd", kinds, strict=True))}


@settings(deadline=None, max_examples=30)
@given(rows)
def test_rows_have_the_key_of_their_value(rows):
    arrays = arrays_of(rows)
    chunk = chunk_of(**arrays)
    for name, values in arrays.items():
        assert key_of_each_row(chunk, (name,)).tolist() == expected_keys(values).tolist()
    pair = combine(expected_keys(arrays["a"]), expected_keys(arrays["c"]))
    assert key_of_each_row(chunk, ("a", "c")).tolist() == pair.tolist()
    triple = combine(combine(expected_keys(arrays["d"]), expected_keys(arrays["b"])), expected_keys(arrays["a"]))
    assert key_of_each_row(chunk, ("d", "b", "a")).tolist() == triple.tolist()


@settings(deadline=None, max_examples=30)
@given(rows, st.randoms())
def test_the_values_of_groups_are_theirs(rows, random):
    arrays = arrays_of(rows)
    some = np.array(sorted(random.sample(range(len(rows)), len(rows) // 5)), np.int64)
    whole = chunk_of(**arrays)
    for chunk in (whole, whole.take(some)):  # taken rows keep all levels: many more than rows
        for name in "abc":
            groups = local_groups(chunk, (name,))
            found = groups.levels(np.arange(len(groups.keys)))
            taken = arrays[name].take(pa.array(some)) if chunk is not whole else arrays[name]
            assert found.take(pa.array(groups.codes)).to_pylist() == taken.to_pylist()
            present = groups.keys != MISSING_KEY
            assert expected_keys(found)[present].tolist() == groups.keys[present].tolist()


def test_pairs_too_many_for_a_table_are_grouped_all_the_same(monkeypatch):
    rng = np.random.default_rng(0)
    chunk = chunk_of(a=rng.integers(0, 60, 100), b=rng.integers(0, 60, 100))
    by_table = local_keys(chunk, ("a", "b"))
    monkeypatch.setattr(keys_module, "_FLAGS", 0)
    by_sorting = local_keys(chunk.select("ab"), ("a", "b"))
    assert all((x == y).all() for x, y in zip(by_table, by_sorting, strict=True))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int64", "uint64"])
def test_integers_near_the_ends_of_their_range_are_not_mixed_up(dtype):
    bounds = np.iinfo(dtype)
    for start in (bounds.min, bounds.max - 200 if bounds.max > 300 else bounds.min):
        values = (np.arange(200).astype(object) + start).astype(dtype)[::-1]
        assert key_of_each_row(chunk_of(a=values), ("a",)).tolist() == value_keys(values).tolist()


def test_zero_has_one_key_and_nan_is_missing():
    keys = key_of_each_row(chunk_of(a=np.array([0.0, -0.0, np.nan, 1.0], np.float32)), ("a",))
    assert keys[0] == keys[1] == splitmix64(0)
    assert keys[2] == MISSING_KEY


def test_missing_rows_are_one_group_whatever_lies_under_the_mask():
    column = Column(np.array([5, 7, 9]), valid=np.array([True, False, False]))
    assert key_of_each_row(chunk_of(a=column), ("a",)).tolist() == [splitmix64(5), MISSING_KEY, MISSING_KEY]


def test_few_rows_of_many_levels_missing_ones_among_them():
    levels = pa.array([f"level {i}" for i in range(100)])
    for codes in ([7, -1, 99, 7], [5], [-1, -1], []):
        column = Column(np.array(codes, np.int32), "categorical", levels=Levels(levels, hash_levels))
        chunk = chunk_of(a=column)
        expected = [MISSING_KEY if c < 0 else hash_levels(levels)[c] for c in codes]
        assert key_of_each_row(chunk, ("a",)).tolist() == expected
        groups = local_groups(chunk, ("a",))
        assert len(groups.keys) <= len(codes) + 1
        named = groups.levels(groups.codes).to_pylist()
        assert named == [None if c < 0 else f"level {c}" for c in codes]


def test_an_encoded_column_may_bring_its_own_missing_level_and_colliding_keys():
    levels = Levels(pa.array([None, "x", "y", "z"]), lambda _: np.array([MISSING_KEY, 7, 7, 3], np.uint64))
    column = Column(np.array([0, 1, 2, 3, -1], np.int32), "categorical", levels=levels)
    chunk = chunk_of(a=column)
    assert key_of_each_row(chunk, ("a",)).tolist() == [MISSING_KEY, 7, 7, 3, MISSING_KEY]
    groups = distinct_groups(chunk, ("a",))
    assert groups.keys[groups.codes].tolist() == [MISSING_KEY, 7, 7, 3, MISSING_KEY]
    assert (groups.seen_keys.tolist(), groups.rows[groups.seen].tolist()) == ([3, 7, MISSING_KEY], [1, 2, 2])
    assert groups.levels(groups.seen).to_pylist() == ["z", "x", None]


def test_a_chunk_remembers_its_groups_and_a_new_chunk_does_not():
    chunk = chunk_of(a=pa.array(["x", "y"]), b=np.arange(2))
    assert local_groups(chunk, ("a",)) is local_groups(chunk, ("a",))
    assert fold_of(chunk, 3, 0) is fold_of(chunk, 3, 0)
    other = chunk.with_columns({"a": categorical(pa.array(["z", "z"]))})
    assert local_keys(other, ("a",))[0].tolist() == [0, 0]
    assert fold_of(chunk, 2, 0) is not fold_of(chunk, 3, 0)


def test_folds_are_a_function_of_identity_and_seed():
    chunk = chunk_of(a=np.arange(3000))
    folds = fold_of(chunk, 5, 1)
    assert folds.tolist() == [splitmix64(i ^ splitmix64(1)) % 5 for i in chunk.identity.tolist()]
    assert np.bincount(folds).min() > 500
    assert (folds != fold_of(chunk, 5, 2)).any()
    assert fold_of(piece(chunk, slice(10, 20)), 5, 1).tolist() == folds[10:20].tolist()
