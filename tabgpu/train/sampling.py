"""Row sampling that depends on rows alone: whether a row takes part in a round follows from its identity.

XGBoost draws by the position of a row in its matrix, so that on several workers other rows are drawn than on one. Where
cuts are ours, the draw is too: a row takes part in a round if the hash of its identity and of the round is below
``subsample``. The others are given weight 0 in that round, which does to gradients and Hessians what XGBoost's own
sampling does: it sets both to 0 (``src/tree/hist/sampler.h``, `SampleGradient`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..columns import Array, ArrayModule
from ..hashing import splitmix64

_SALT = 0x726F_7773_2E64_7261
_PIECE = 2**18  # rows hashed at once: what stands between the steps stays in the processor's cache


def share_of(params: Mapping[str, Any]) -> float | None:
    """The share of rows that each round draws; None where all take part, or XGBoost has to draw.

    It has to where it draws by gradients, or anew for each of several trees a round.

    Examples
    --------
    >>> share_of({"subsample": 0.7}), share_of({"subsample": 0.7, "num_parallel_tree": 5})
    (0.7, None)
    """
    share = float(params.get("subsample", 1))
    simple = params.get("sampling_method", "uniform") == "uniform" and int(params.get("num_parallel_tree", 1)) == 1
    return share if share < 1 and simple else None


def row_hashes(xp: ArrayModule, identity: Array) -> Array:
    """uint32, shape (n_rows,): what is kept of each row's identity.

    Examples
    --------
    >>> import numpy as np
    >>> row_hashes(np, np.arange(2, dtype="uint64")).dtype.name
    'uint32'
    """
    return (splitmix64(identity ^ xp.uint64(_SALT)) >> xp.uint64(32)).astype("uint32")


class RowSampler:
    """Draws the rows of each round.

    Parameters
    ----------
    xp : module
        The array module of `hashes`.
    hashes : Array
        uint32, shape (n_rows,): `row_hashes` of the rows of the matrix, in their order.
    weight : Array, optional
        float32, shape (n_rows,): weights that rows have besides.
    share : float
        Of rows that take part, above 0 and below 1.
    seed : int
        Another seed draws other rows.
    """

    def __init__(self, xp: ArrayModule, hashes: Array, weight: Array | None, share: float, seed: int) -> None:
        self._xp, self._hashes, self.weight = xp, hashes, weight
        self._below, self._seed = int(share * 2**32), seed

    def weights(self, rounds: int) -> Array:
        """float32, shape (n_rows,): the weights in the round after so many."""
        xp = self._xp
        key = xp.uint32(splitmix64(splitmix64(self._seed) ^ rounds) >> 32)
        weights = xp.empty(len(self._hashes), dtype="float32")
        for start in range(0, len(weights), _PIECE):
            piece = slice(start, start + _PIECE)
            weights[piece] = _mix(xp, self._hashes[piece] ^ key) < xp.uint32(self._below)
        return weights if self.weight is None else weights * self.weight


def _mix(xp: ArrayModule, x: Array) -> Array:
    """The finalizer of MurmurHash3 for 32 bits (Appleby 2011): a bijection that looks random. Changes `x`."""
    x ^= x >> xp.uint32(16)
    x *= xp.uint32(0x85EB_CA6B)
    x ^= x >> xp.uint32(13)
    x *= xp.uint32(0xC2B2_AE35)
    x ^= x >> xp.uint32(16)
    return x
