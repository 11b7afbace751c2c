import functools
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabgpu import wire
from tabgpu.features.counts import Counts, counts_of, empty, merge, merge_all

key = st.integers(0, 12) | st.sampled_from([2**64 - 1, 2**63])
numbers = st.integers(1, 300) | st.sampled_from([2**16, 2**32 - 1, 2**32])
content = st.dictionaries(key, st.tuples(numbers, st.integers(-5, 5) | st.just(0)), max_size=12)


def table(rows, with_levels=True):
    keys = sorted(rows)
    columns = [np.array([rows[k][i] for k in keys], np.int64) for i in range(2)]
    levels = pa.array([None if k == 2**64 - 1 else f"level {k}" for k in keys], pa.string())
    return counts_of(np.array(keys, np.uint64), columns, levels if with_levels else None)


@settings(deadline=None, max_examples=30)
@given(st.lists(content, min_size=1, max_size=5), st.randoms(), st.booleans())
def test_merged_tables_are_the_table_of_the_sum_in_any_order(contents, random, with_levels):
    expected = Counter()
    second = Counter()
    for rows in contents:
        for k, (a, b) in rows.items():
            expected[k] += a
            second[k] += b
    whole = wire.pack(table({k: (expected[k], second[k]) for k in expected}, with_levels))
    tables = [table(rows, with_levels) for rows in contents]
    assert wire.pack(functools.reduce(merge, tables)) == whole
    while len(tables) > 1:
        random.shuffle(tables)
        tables.append(
            merge_all(
                [wire.unpack(wire.pack(tables.pop())), *(tables.pop() for _ in range(random.randint(1, len(tables))))]
            )
        )
    assert wire.pack(tables[0]) == whole


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [(0, 255, "uint8"), (0, 256, "uint16"), (0, 2**16, "uint32"), (0, 2**32, "int64"), (-1, 3, "int64")],
)
def test_numbers_have_the_narrowest_dtype_that_holds_them(low, high, dtype):
    made = counts_of(np.array([1, 2], np.uint64), [np.array([1, high]), np.array([low, 0])])
    assert made.counts.dtype == dtype
    one = counts_of(np.array([2], np.uint64), [np.array([1]), np.array([0])])
    two = counts_of(np.array([1, 2], np.uint64), [np.array([1, high - 1]), np.array([low, 0])])
    assert merge(one, two).counts.dtype == dtype


def test_numbers_that_are_not_added_keep_the_narrow_dtype():
    a, b = (counts_of(np.array([k], np.uint64), [np.array([200])]) for k in (1, 2))
    assert merge(a, b).counts.dtype == "uint8"


def test_negative_numbers_that_cancel_out_leave_the_narrow_dtype():
    def one(b):
        return counts_of(np.array([1], np.uint64), [np.array([1]), np.array([b])])

    assert merge(one(-4), one(4)).counts.dtype == "uint8"


def test_negative_numbers_of_one_table_alone_stay_negative():
    a = counts_of(np.array([1], np.uint64), [np.array([1]), np.array([-1])])
    b = counts_of(np.array([2], np.uint64), [np.array([7]), np.array([7])])
    assert merge(a, b).counts.tolist() == merge(b, a).counts.tolist() == [[1, -1], [7, 7]]


def test_merging_with_nothing_changes_nothing():
    a = table({3: (1, 1)})
    nothing = empty(np, 2, pa.nulls(0, pa.large_string()))
    assert wire.pack(merge(a, nothing)) == wire.pack(merge(nothing, a)) == wire.pack(a)
    assert len(merge(nothing, nothing)) == 0


def test_merging_leaves_both_tables_as_they_are():
    a, b = table({3: (1, 0), 5: (1, 0)}), table({3: (250, 0), 4: (1, 0)})
    before = wire.pack((a, b))
    merge(a, b)
    assert wire.pack((a, b)) == before


def test_string_levels_are_wide_so_that_merging_cannot_overflow():
    for kind, wide in (
        (pa.string(), pa.large_string()),
        (pa.string_view(), pa.large_string()),
        (pa.binary(), pa.large_binary()),
    ):
        made = counts_of(np.array([1], np.uint64), [np.array([1])], pa.array(["a"]).cast(kind))
        assert made.levels.type == wide


def test_tables_of_the_same_keys_are_united_once():
    keys = [np.array(k, np.uint64) for k in ([1, 5], [5, 9], [1, 5, 7])]
    first, second = ([counts_of(k, [np.full(len(k), n)]) for k in keys] for n in (1, 100))
    memory = {}
    one, other = merge_all(first, memory), merge_all(second, memory)
    assert one.keys is other.keys
    assert (one.keys.tolist(), one.rows.tolist()) == ([1, 5, 7, 9], [2, 3, 1, 1])
    assert other.rows.tolist() == [200, 300, 100, 100]
    assert merge_all(first[::-1], memory).rows.tolist() == [2, 3, 1, 1]


def test_rows_are_the_first_column():
    made = Counts(np.array([1, 2], np.uint64), np.array([[200, 1], [100, 2]], np.uint8))
    assert made.rows.tolist() == [200, 100]
    assert made.rows.dtype == np.int64
