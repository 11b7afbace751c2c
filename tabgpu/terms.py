"""Memory of matrices and training on a CPU, as a sum of named terms: pure arithmetic, for the plan.

The formulas follow XGBoost's sources and were checked against measured anonymous memory (see `matrix_terms`). What the
libraries, the chunks in flight and the feature cache take is counted elsewhere; XGBoost is not imported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

_ROW = 40  # of training: gradients, row sets, positions, margin, label, predictions
_EXTERNAL_ROW = 68  # measured over 40 rounds of 5M and 10M rows: it grows by a half in the first 20 rounds
_WATCHED_ROW = 12  # of another part: margin, label, predictions
_DRAWN_ROW = 12  # of training where rows are drawn: the hash of its identity, and its weight here and in XGBoost
_HISTOGRAM_BIN = 16  # sum of gradients and of hessians
_SKETCH_ENTRY = 16  # smallest and largest rank, weight, value
_MOST_NODES = 2**16  # XGBoost keeps histograms of so many nodes


def matrix_bytes(n_rows: int, n_features: int, max_bin: int, has_missing: bool) -> int:
    """Bytes of a binned matrix, in memory or on disk.

    Row pointers (8 each), the row-wise bins (w bytes a cell, w = 1 up to 256 bins, else 2; 4 a cell where anything is
    missing), and the column-wise bins (w bytes and one bit a cell): `src/data/gradient_index.h`,
    `src/common/column_matrix.h`.

    Examples
    --------
    >>> matrix_bytes(2_000_000, 30, 256, has_missing=False)
    143500000
    """
    cells = n_rows * n_features
    width = 1 if max_bin <= 256 else 2
    return 8 * n_rows + cells * width + cells // 8 + cells * (4 if has_missing else width)


def matrix_terms(  # noqa: PLR0913  # these facts are what the formulas take
    n_rows: int,
    n_valid: int,
    n_features: int,
    *,
    max_bin: int,
    has_missing: bool,
    kind: Literal["in_core", "external"],
    block_rows: int,
    params: Mapping[str, Any] | None = None,
    cuts: Literal["own", "exact"] = "own",
) -> dict[str, int]:
    """Bytes of each term of the peak of building matrices and training.

    Parameters
    ----------
    n_rows, n_valid : int
        Rows of the training part and of the other parts that have a matrix.
    n_features, max_bin : int
        As in the matrix.
    has_missing : bool
        Whether any feature is missing anywhere.
    kind : {'in_core', 'external'}
        The bins of an external matrix lie in files (mapped, not anonymous); one page, made of a block, is in memory
        while it is made.
    block_rows : int
        Rows of a block.
    params : mapping, optional
        Parameters of XGBoost: `max_depth`, `max_leaves` and `max_cached_hist_node` count here.
    cuts : {'own', 'exact'}
        XGBoost's own cuts take a sketch of every feature.

    Returns
    -------
    dict of str to int
        'matrix', 'row state', 'histograms' and 'block in flight': they add up to the peak above what stood before. The
        last is what reading blocks and the sketch take beyond the two before it, which come after them.

    Notes
    -----
    Predicted against measured growth of anonymous memory, 200,000 to 500,000 rows of 10 to 100 features, depths 6 to
    10, both kinds, with and without missing values, XGBoost 3.2 and 3.4: 0.78 to 1.21; with the smaller sketch of 3.4
    up to 1.6 for exact cuts of 400,000 rows, where it is the largest term.
    """
    in_memory = n_rows + n_valid if kind == "in_core" else min(n_rows, block_rows)
    a_row = _ROW if kind == "in_core" else _EXTERNAL_ROW
    a_row += _DRAWN_ROW if cuts == "own" and (params or {}).get("subsample", 1) != 1 else 0
    row_state = a_row * n_rows + _WATCHED_ROW * n_valid
    histograms = _HISTOGRAM_BIN * n_features * max_bin * _cached_nodes(params or {})
    block = 4 * min(block_rows, n_rows) * (n_features + 2)
    sketch = _sketch_bytes(n_rows, n_features, max_bin) if cuts == "exact" else 0
    return {
        "matrix": matrix_bytes(in_memory, n_features, max_bin, has_missing),
        "row state": row_state,
        "histograms": histograms,
        "block in flight": max(0, block + sketch - row_state - histograms),
    }


def _cached_nodes(params: Mapping[str, Any]) -> int:
    """Nodes of a tree that have a histogram: all but the leaves of the last level."""
    depth, leaves = int(params.get("max_depth", 6)), int(params.get("max_leaves", 0))
    by_depth = 2 ** min(depth, 16) if depth else _MOST_NODES
    by_leaves = 2 * leaves if leaves else _MOST_NODES
    return min(by_depth, by_leaves, int(params.get("max_cached_hist_node", _MOST_NODES)))


def _sketch_bytes(n_rows: int, n_features: int, max_bin: int) -> int:
    """Levels of summaries of a stream (`src/common/quantile.h`, `LimitSizeLevel`), and the queue before them."""
    if n_rows == 0:
        return 0
    levels = 1
    while 2**levels * 8 * max_bin * levels < n_rows:
        levels += 1
    limit = min(8 * max_bin * levels, n_rows)
    used = min(levels, max(1, math.ceil(math.log2(n_rows / limit)) + 1))
    return _SKETCH_ENTRY * limit * (used + 1) * n_features
