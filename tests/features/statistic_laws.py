"""What every statistic has to obey, and small chunks to show it with."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from tabgpu import wire
from tabgpu.columns import Chunk, Column, Levels
from tabgpu.features.contract import Again, Statistic
from tabgpu.hashing import hash_levels, splitmix64

NASTY = [0.0, -0.0, 1.0, 1e30, -1e30, 1e-30, 5e-324, -5e-324, 2.0**53, 2.0**53 + 2, 1.7e308, -1.7e308, 2.2e-308, 0.1]
INTS = [0, 1, -1, 2**31, -(2**31), 2**53 + 1, 2**62, 2**63 - 1, -(2**63), 1_700_000_000_000_000_000]

nasty_floats = st.sampled_from(NASTY) | st.floats(allow_nan=False, allow_infinity=False)
any_floats = nasty_floats | st.sampled_from([np.inf, -np.inf, np.nan])
nasty_ints = st.sampled_from(INTS) | st.integers(-(2**63), 2**63 - 1)
words = (
    st.sampled_from(["", "a", "b", "ä", "漢字", "a longer level than thirty-two bytes, for the stripes"]) | st.none()
)


def chunk_of(**columns: Any) -> Chunk:
    """Make a chunk from Arrow arrays (strings become categorical), NumPy arrays or columns."""
    made = {}
    for name, values in columns.items():
        if isinstance(values, pa.Array):
            values = categorical(values) if pa.types.is_string(values.type) else numeric(values)
        made[name] = values if isinstance(values, Column) else Column(np.asarray(values))
    n_rows = len(next(iter(made.values())))
    return Chunk(made, splitmix64(np.arange(n_rows, dtype=np.uint64)), np)


def categorical(values: pa.Array) -> Column:
    encoded = values.dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
    return Column(codes, "categorical", levels=Levels(encoded.dictionary, hash_levels))


def numeric(values: pa.Array) -> Column:
    valid = None if not values.null_count else values.is_valid().to_numpy(zero_copy_only=False)
    return Column(values.fill_null(0).to_numpy(zero_copy_only=False), valid=valid)


def piece(chunk: Chunk, rows: Any) -> Chunk:
    """Take rows, with levels of their own in an order of their own, as another file would have them."""
    taken = chunk.take(rows)
    fresh = {}
    for name, column in taken.columns.items():
        if column.levels is not None:
            codes = pa.array(column.values, mask=column.values < 0)
            fresh[name] = categorical(column.levels.values.take(codes))
    return taken.with_columns(fresh)


def pieces(chunk: Chunk, size: int) -> list[Chunk]:
    cut = [piece(chunk, slice(i, i + size)) for i in range(0, chunk.n_rows, size)]
    return [*cut, piece(chunk, slice(0, 0))]  # a chunk of no rows is legal


def run(statistic: Statistic, chunks: list[Chunk], order: np.random.Generator | None = None) -> tuple[Any, list[bytes]]:
    """Result of a statistic, and the packed state of each pass; states travel, and merge in a random order."""
    request, states = None, []
    while True:
        observed = [wire.unpack(wire.pack(statistic.observe(c, request))) for c in chunks]
        if order is not None:
            while len(observed) > 1:
                i, j = order.choice(len(observed), 2, replace=False)
                both = statistic.merge(observed[i], observed[j])
                observed = [s for k, s in enumerate(observed) if k not in (i, j)] + [both]
        state = functools.reduce(statistic.merge, observed)
        states.append(wire.pack(state))
        assert wire.pack(statistic.merge_all(observed, {})) == states[-1]
        result = statistic.finish(state, request)
        if not isinstance(result, Again):
            return result, states
        request = wire.unpack(wire.pack(result.request))
        assert len(states) < statistic.max_passes


def check_laws(statistic: Statistic, chunk: Chunk, seed: int = 0) -> Any:
    """Assert that neither chunk size nor order changes a state or the result; return the result."""
    result, states = run(statistic, [chunk])
    order = np.random.default_rng(seed)
    for size in (1, 7, max(1, int(order.integers(1, chunk.n_rows + 2)))):
        again, states_again = run(statistic, pieces(chunk, size), order)
        assert states_again == states
        assert wire.pack(again) == wire.pack(result)
    shuffled = order.permutation(chunk.n_rows)
    assert run(statistic, [piece(chunk, shuffled)])[1] == states
    return wire.unpack(wire.pack(result))
