"""Memory of matrices and training on a GPU, as named terms: pure arithmetic, for the plan.

The formulas are read from the sources of XGBoost 3.4 (the file is named beside each); none was checked against a GPU
yet, which `scripts/gpu-check` does where there is one. The counterpart for a CPU is `tabgpu.terms`. What chunks, fitted
features and the CUDA context take, and how terms become stages, is counted in `tabgpu.planning.device`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .wire import record

_ROW = 32  # of training: quantised gradients 16, row index 4 + scratch 4, position 4, label 4
_OUTPUT = 12  # of a row and output: gradients 8, margin 4
_SAMPLED = 12  # of a row, with sampling_method: gradient_based
_WATCHED = 8  # of a row and output that is watched
_HISTOGRAM_BIN = 16  # two int64: sums of gradients and of hessians
_MOST_NODES = 4096  # XGBoost keeps histograms of so many nodes on a GPU
_SKETCH_WINDOW = 2**26  # elements that are sorted at once
_SKETCH_ELEMENT = 32  # of the window: entries and what sorting takes
_SKETCH_ENTRY = 16  # smallest and largest rank, weight, value
_SKETCH_COPIES = 4
PAGES = 3  # of an external matrix on the device: two that come, one that is worked on

Missing = Literal["none", "some", "every row"]


@record
@dataclass(frozen=True)
class DeviceMatrix:
    """What the memory of a training depends on.

    Parameters
    ----------
    n_rows, n_watched : int
        Rows of the training side on this device, and of the sides that are evaluated in each round.
    n_features, max_bin : int
        As in the matrix.
    block_rows : int
        Rows that XGBoost is given at once.
    missing : {'none', 'some', 'every row'}
        Whether features are missing nowhere, in some rows, or in all: it decides how many bits a cell takes.
    has_weight : bool
        Whether rows have weights.
    cuts : {'own', 'exact'}
        XGBoost's own cuts take a sketch of every feature.
    params : mapping
        Parameters of XGBoost.
    """

    n_rows: int
    n_watched: int
    n_features: int
    max_bin: int
    block_rows: int
    missing: Missing = "some"
    has_weight: bool = False
    cuts: Literal["own", "exact"] = "own"
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def input_bytes(self) -> int:
        """A block as it is handed over: float32 features, label and weight."""
        return 4 * min(self.block_rows, self.n_rows + self.n_watched) * (self.n_features + 2)

    def quantised(self, n_rows: int) -> int:
        """Bytes of the bins of so many rows; see `quantised_bytes`."""
        return quantised_bytes(n_rows, self.n_features, self.max_bin, self.missing)


def cell_bits(n_features: int, max_bin: int, missing: Missing) -> int:
    """Bits of a cell of the quantised matrix.

    `data/ellpack_page.cu` (`CalcNumSymbols`), `common/compressed_iterator.h`: symbols are the bins of one feature, one
    more where any value is missing, and the bins of all features where no row is complete.

    Examples
    --------
    >>> cell_bits(30, 256, "none"), cell_bits(30, 256, "some"), cell_bits(30, 255, "some")
    (8, 9, 8)
    >>> cell_bits(30, 256, "every row")
    13
    """
    symbols = {"none": max_bin, "some": max_bin + 1, "every row": n_features * max_bin + 1}[missing]
    return max(1, math.ceil(math.log2(symbols)))


def quantised_bytes(n_rows: int, n_features: int, max_bin: int, missing: Missing) -> int:
    """Bytes of the quantised matrix (ELLPACK): every row takes all features.

    Examples
    --------
    >>> quantised_bytes(1_000_000, 30, 256, "none")
    30000000
    """
    return math.ceil(n_rows * n_features * cell_bits(n_features, max_bin, missing) / 8)


def outputs(params: Mapping[str, Any]) -> int:
    """Values that the model predicts for a row.

    Examples
    --------
    >>> outputs({}), outputs({"num_class": 5}), outputs({"quantile_alpha": [0.1, 0.5, 0.9]})
    (1, 5, 3)
    """
    levels = [params.get(name) for name in ("quantile_alpha", "expectile_alpha")]
    return max([1, _whole(params, "num_class", 1), *(len(v) for v in levels if isinstance(v, list | tuple))])


def _whole(params: Mapping[str, Any], name: str, default: int) -> int:
    """What is no whole number is refused by XGBoost later."""
    value = params.get(name, default)
    return value if isinstance(value, int) else default


def row_state_bytes(matrix: DeviceMatrix) -> int:
    """Bytes of what training keeps for each row.

    ``n (32 + 12 K + 8 [K > 1] + 4 [weights]) + 8 K`` for each watched row, K outputs: `tree/updater_gpu_hist.cu`,
    `tree/gpu_hist/row_partitioner.cuh`, `quantiser.cu`, `sampler.cu`. 44 bytes a row for one output.

    Examples
    --------
    >>> row_state_bytes(DeviceMatrix(1_000_000, 100_000, 30, 256, 20_000))
    44800000
    """
    k = outputs(matrix.params)
    row = _ROW + _OUTPUT * k + 8 * (k > 1) + 4 * matrix.has_weight
    row += _SAMPLED * (matrix.params.get("sampling_method") == "gradient_based")
    return matrix.n_rows * row + matrix.n_watched * _WATCHED * k


def cached_nodes(params: Mapping[str, Any]) -> int:
    """Nodes of a tree whose histograms are kept: all but the leaves of the last level."""
    depth, leaves = _whole(params, "max_depth", 6), _whole(params, "max_leaves", 0)
    kept = _whole(params, "max_cached_hist_node", _MOST_NODES)
    by_depth = 2 ** min(depth, 31) - 1 if depth > 0 else kept
    return max(1, min(kept, by_depth, 2 * leaves - 1 if leaves else kept))


def histogram_bytes(matrix: DeviceMatrix, growth: int = 2) -> int:
    """Bytes of the cache of histograms.

    ``16 x bins x nodes x growth``: `tree/gpu_hist/histogram.cuh`. The cache is a vector that doubles when it is full:
    up to twice what it holds, and three times while it is copied.

    Examples
    --------
    >>> histogram_bytes(DeviceMatrix(1_000_000, 0, 30, 256, 20_000))
    15482880
    """
    return _HISTOGRAM_BIN * matrix.n_features * matrix.max_bin * cached_nodes(matrix.params) * growth


def sketch_bytes(matrix: DeviceMatrix) -> int:
    """Bytes of the sketch that XGBoost's own cuts take while the matrix is built; none with cuts of our own.

    A window of at most 64M elements of a block, and for each feature summaries of ``L = 2 B l + 1`` entries with the
    smallest l such that ``2^l L >= n``: `common/hist_util.cuh`, `common/quantile.cuh`. Measured by XGBoost's
    authors (pull request 12118): 1.47 to 1.98 GiB for windows that are full.

    Examples
    --------
    >>> sketch_bytes(DeviceMatrix(5_000_000, 0, 30, 256, 20_000, cuts="exact"))
    29032320
    """
    if matrix.cuts == "own" or not matrix.n_rows:
        return 0
    level = 1
    while 2**level * (2 * matrix.max_bin * level + 1) < matrix.n_rows:
        level += 1
    entries = 2 * matrix.max_bin * level + 1
    window = min(_SKETCH_WINDOW, min(matrix.block_rows, matrix.n_rows) * matrix.n_features)
    return _SKETCH_ELEMENT * window + _SKETCH_COPIES * _SKETCH_ENTRY * matrix.n_features * entries


def construction_terms(matrix: DeviceMatrix) -> dict[str, int]:
    """What building the matrix from blocks takes, beside the matrix itself.

    A block as it came, its bins, and 8 bytes for each of its rows (`data/iterative_dmatrix.cu`); the sketch.
    """
    rows = min(matrix.block_rows, matrix.n_rows + matrix.n_watched)
    return {"bins of a block": matrix.quantised(rows) + 8 * rows, "sketch": sketch_bytes(matrix)}


@record
@dataclass(frozen=True)
class Split:
    """How an external matrix is divided between device and host.

    Parameters
    ----------
    cache_host_ratio : float
        Share that lies on the host, 0 to 1.
    min_cache_page_bytes : int
        Blocks are joined to pages of at least so many bytes.
    """

    cache_host_ratio: float
    min_cache_page_bytes: int


def split_terms(matrix: DeviceMatrix, split: Split) -> tuple[dict[str, int], int]:
    """Terms of an external matrix on the device, and its bytes on the host.

    The device holds its share of the cache, and three pages for each matrix: two on their way and one at work
    (`data/ellpack_page_source.cu`, `DftPrefetchBatches`). A page is up to a block larger than its minimum. The rest is
    pinned host memory.
    """
    total = matrix.quantised(matrix.n_rows + matrix.n_watched)
    matrices = 2 if matrix.n_watched else 1
    on_host = math.ceil(total * split.cache_host_ratio)
    page = split.min_cache_page_bytes + matrix.quantised(min(matrix.block_rows, matrix.n_rows))
    return {"matrix": total - on_host, "matrix pages": PAGES * matrices * min(page, total)}, on_host


def divide(matrix: DeviceMatrix, room: int, device_bytes: int) -> Split:
    """The split that uses `room` bytes of the device: pages take up to half of it, the matrix the rest.

    XGBoost's own choice looks at all memory of the device and not at what is free (`data/batch_utils.cc`), so both are
    always given. A page holds fewer than 2^32 rows.

    Parameters
    ----------
    matrix : DeviceMatrix
        What is to be divided.
    room : int
        Bytes for the matrix and its pages; may be negative, and then the smallest pages are planned.
    device_bytes : int
        Memory of the device: a page takes at most 1/32 of it.

    Examples
    --------
    >>> divide(DeviceMatrix(100_000_000, 0, 100, 256, 20_000, "none"), 4_000_000_000, 80_000_000_000)
    Split(cache_host_ratio=0.81, min_cache_page_bytes=666666666)
    """
    total = max(1, matrix.quantised(matrix.n_rows + matrix.n_watched))
    matrices = 2 if matrix.n_watched else 1
    block = matrix.quantised(min(matrix.block_rows, matrix.n_rows))
    row = max(1, total // max(1, matrix.n_rows + matrix.n_watched))
    most = min(device_bytes // 32, (2**32 - 1 - matrix.block_rows) * row)
    page = max(1 << 20, min(most, room // (2 * PAGES * matrices)))
    kept = max(0, room - PAGES * matrices * min(page + block, total))
    return Split(min(1.0, max(0.0, math.ceil(100 * (1 - kept / total)) / 100)), page)
