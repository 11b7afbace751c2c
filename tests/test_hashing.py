import datetime
import decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabgpu import wire
from tabgpu.hashing import (
    MISSING_KEY,
    UNSEEN_KEY,
    KeyTable,
    _reserve,
    argsort_keys,
    array_module,
    combine,
    hash_levels,
    splitmix64,
    value_keys,
)

keys64 = st.lists(st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**63, MISSING_KEY, UNSEEN_KEY]), max_size=60)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.text(max_size=40), max_size=30),
    st.integers(0, 5),
    st.sampled_from(["string", "large_string", "string_view"]),
)
def test_strings_hash_as_xxhash64_says(texts, start, kind):
    xxhash = pytest.importorskip("xxhash")
    values = pa.array(texts, pa.string()).cast(kind)[start:]
    assert hash_levels(values).tolist() == [xxhash.xxh64_intdigest(t.encode()) for t in texts[start:]]


def test_every_length_to_100_and_far_beyond_hashes_as_xxhash64_says():
    xxhash = pytest.importorskip("xxhash")
    rng = np.random.default_rng(0)
    levels = [rng.bytes(n) for n in [*range(101), 1000, 4096, 100_003] for _ in range(2)]
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        values = pa.array(levels, pa.binary()).cast(kind)
        for part in (values, values[3:-2], values[-1:], values[5:5]):
            assert hash_levels(part).tolist() == [xxhash.xxh64_intdigest(b) for b in part.to_pylist()]


@pytest.mark.parametrize("length", range(36))
def test_levels_of_equal_length_hash_as_among_others(length):
    rng = np.random.default_rng(length)
    levels = [rng.bytes(length) for _ in range(5)]
    among_others = hash_levels(pa.array([b"another length" * 3, *levels], pa.binary()))
    assert hash_levels(pa.array([b"xx", *levels], pa.binary())[1:]).tolist() == among_others[1:].tolist()


def test_more_levels_than_a_block_hash_as_one_by_one():
    values = pa.array([f"level {i}" * (i % 7) for i in range(20_000)])
    keys = hash_levels(values)
    for i in (0, 8191, 8192, 19_999):
        assert hash_levels(values[i : i + 1])[0] == keys[i]


def test_strings_that_end_with_their_buffer_are_read_within_it():
    data = np.frombuffer(b"abcdefgh12345", np.uint8)
    values = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(np.array([0, 8, 13], np.int32)), pa.py_buffer(data)]
    )
    assert hash_levels(values).tolist() == hash_levels(pa.array(["abcdefgh", "12345"])).tolist()


def bytes_of(value, dtype):
    return np.array([value], dtype).tobytes()


@pytest.mark.parametrize(
    ("values", "raw"),
    [
        (pa.array([5], pa.int8()), bytes_of(5, "<i8")),
        (pa.array([-5], pa.int64()), bytes_of(-5, "<i8")),
        (pa.array([2**64 - 5], pa.uint64()), bytes_of(2**64 - 5, "<u8")),
        (pa.array([True]), bytes_of(1, "<i8")),
        (pa.array([1.5], pa.float32()), bytes_of(1.5, "<f8")),
        (pa.array([np.float16(1.5)], pa.float16()), bytes_of(1.5, "<f8")),
        (pa.array([-0.0]), bytes_of(0.0, "<f8")),
        (pa.array([datetime.date(1970, 1, 3)]), bytes_of(2, "<i8")),
        (pa.array([3], pa.timestamp("us", tz="UTC")), bytes_of(3, "<i8")),
        (pa.array([3], pa.time32("s")), bytes_of(3, "<i8")),
        (pa.array([decimal.Decimal("1.50")]), b"1.50"),
        (pa.array([b"abc"], pa.binary(3)), b"abc"),
    ],
    ids=lambda v: str(v.type) if isinstance(v, pa.Array) else "",
)
def test_values_hash_as_their_documented_bytes(values, raw):
    xxhash = pytest.importorskip("xxhash")
    assert hash_levels(values).tolist() == [xxhash.xxh64_intdigest(raw)]


def test_a_null_has_the_missing_key():
    for kind in (pa.string(), pa.int32(), pa.float64(), pa.null(), pa.date32(), pa.bool_()):
        assert hash_levels(pa.nulls(2, kind)).tolist() == [MISSING_KEY] * 2
    assert hash_levels(pa.array(["a", None]))[0] == hash_levels(pa.array(["a"]))[0]


def test_nested_values_cannot_be_levels():
    with pytest.raises(TypeError, match="list<item: int64>"):
        hash_levels(pa.array([[1]]))


def test_no_level_keeps_a_reserved_key():
    keys = np.array([MISSING_KEY, 5, UNSEEN_KEY], np.uint64)
    _reserve(keys)
    assert keys.tolist() == [2**64 - 2, 5, 2**64 - 2]


@settings(deadline=None, max_examples=50)
@given(keys64)
def test_splitmix64_of_ints_and_arrays_agree(values):
    array = np.array(values, np.uint64)
    assert splitmix64(array).tolist() == [splitmix64(v) for v in values]
    assert array.tolist() == values


def test_splitmix64_gives_the_published_sequence():
    # the first outputs of the reference generator with seed 1234567
    gamma = 0x9E3779B97F4A7C15
    seeds = [(1234567 + i * gamma) % 2**64 for i in range(3)]
    assert [splitmix64(s) for s in seeds] == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_combined_keys_depend_on_the_order_and_are_spread():
    small = np.arange(300, dtype=np.uint64)
    grid = combine(np.repeat(small, 300), np.tile(small, 300))
    assert len(np.unique(grid)) == 90_000
    assert abs(int((grid >> np.uint64(63)).sum()) - 45_000) < 1000
    assert combine(small[:1], small[1:2]) != combine(small[1:2], small[:1])


def test_value_keys_are_those_of_the_value_whatever_its_width():
    for dtype in ("int8", "uint8", "int64", "uint64", "bool"):
        assert value_keys(np.array([1, 0]).astype(dtype)).tolist() == [splitmix64(1), splitmix64(0)]
    assert value_keys(np.array([-1], np.int16)).tolist() == [splitmix64(2**64 - 1)]
    for dtype in ("float16", "float32", "float64"):
        keys = value_keys(np.array([1.5, -0.0, 0.0, np.nan, np.inf], dtype))
        assert keys[0] == splitmix64(int(np.array([1.5]).view(np.uint64)[0]))
        assert keys[1] == keys[2] != MISSING_KEY
        assert keys[3] == MISSING_KEY
        assert len(set(keys.tolist())) == 4


@pytest.mark.parametrize("n", [0, 1, 999, 5000])
def test_keys_are_sorted_whatever_they_are(n):
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 2**64, n, dtype=np.uint64)
    for keys in (hashes, hashes >> np.uint64(40), hashes << np.uint64(52), hashes[::-1] % np.uint64(7)):
        assert argsort_keys(keys).tolist() == np.argsort(keys, kind="stable").tolist()


@settings(deadline=None, max_examples=50)
@given(keys64, keys64)
def test_lookup_finds_each_key_and_nothing_else(known, asked):
    known = sorted(set(known))
    table = wire.unpack(wire.pack(KeyTable(np.array(known, np.uint64))))
    queries = np.array([*asked, *known], np.uint64)
    rows = table.lookup(queries)
    assert rows.dtype == np.int32
    assert rows.tolist() == [known.index(q) if q in known else -1 for q in queries.tolist()]


@pytest.mark.parametrize("spread", ["hashes", "consecutive", "two heaps", "long bucket"])
def test_lookup_in_large_tables_agrees_with_bisection(spread):
    rng = np.random.default_rng(0)
    n = 5000
    keys = {
        "hashes": lambda: rng.integers(0, 2**64, n, dtype=np.uint64),
        "consecutive": lambda: np.arange(n, dtype=np.uint64),
        "two heaps": lambda: np.append(np.arange(40, dtype=np.uint64), ~np.arange(40, dtype=np.uint64)),
        "long bucket": lambda: np.append(rng.integers(0, 2**64, n, dtype=np.uint64), np.arange(60, dtype=np.uint64)),
    }[spread]()
    keys = np.unique(keys.astype(np.uint64))
    queries = np.concatenate([keys[::-1], keys + np.uint64(1), rng.integers(0, 2**64, n, dtype=np.uint64)])
    at = np.minimum(np.searchsorted(keys, queries), len(keys) - 1)
    expected = np.where(keys[at] == queries, at, -1)
    assert KeyTable(keys).lookup(queries).tolist() == expected.tolist()
    assert KeyTable(keys).lookup(queries[:0]).tolist() == []


def test_only_the_keys_of_a_table_travel():
    table = KeyTable(np.arange(1000, dtype=np.uint64))
    before = wire.pack(table)
    table.lookup(table.keys)
    assert wire.pack(table) == before
    assert len(table) == 1000


def test_array_module_is_numpy_or_that_of_the_device(monkeypatch):
    class OnDevice:
        __cuda_array_interface__ = None

    monkeypatch.setitem(__import__("sys").modules, "cupy", "the device's module")
    assert array_module(np.zeros(1)) is np
    assert array_module(OnDevice()) == "the device's module"


def test_tables_of_equal_keys_are_shared_while_they_are_in_use():
    keys = np.array([3, 5, 8], np.uint64)
    table = KeyTable.shared(keys)
    assert KeyTable.shared(keys.copy()) is table
    assert KeyTable.shared(np.array([3, 6, 7], np.uint64)) is not table  # of the same length and sum
    assert KeyTable.shared(np.array([3, 6, 7], np.uint64)).lookup(np.array([7], np.uint64)).tolist() == [2]
