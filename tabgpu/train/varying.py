"""Whether a feature differs between training rows: a model of features that do not is refused, with what they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..columns import Array
from ..errors import DataError, listing
from ..wire import record


@record
@dataclass(frozen=True)
class Varying:
    """Bounds of each feature, as far as it takes to see that it varies; mergeable.

    Parameters
    ----------
    low, high : numpy.ndarray
        float32, shape (n_features,): bounds of the values seen; inf and -inf where none was.
    missing : numpy.ndarray
        bool, shape (n_features,): whether a value was missing.
    """

    low: np.ndarray
    high: np.ndarray
    missing: np.ndarray

    @classmethod
    def of_none(cls, n_features: int) -> Varying:
        """Before any row."""
        bound = np.full(n_features, np.inf, np.float32)
        return cls(bound, -bound, np.zeros(n_features, bool))

    @property
    def varies(self) -> np.ndarray:
        """bool, shape (n_features,): whether two values were seen, the missing one being a value too."""
        return (self.low < self.high) | (self.missing & (self.high > -np.inf))

    def with_block(self, features: Array) -> Varying:
        """After a block of features, shape (n_rows, n_features); columns that are known to vary are not read."""
        low, high, missing = self.low.copy(), self.high.copy(), self.missing.copy()
        for j in np.flatnonzero(~self.varies):
            column = features[:, int(j)]
            present = column[column == column]
            missing[j] |= len(present) < len(column)
            if len(present):
                low[j] = min(low[j], float(present.min()))
                high[j] = max(high[j], float(present.max()))
        return Varying(low, high, missing)

    def merge(self, other: Varying) -> Varying:
        """After the rows of both."""
        return Varying(np.minimum(self.low, other.low), np.maximum(self.high, other.high), self.missing | other.missing)

    def check(self, names: Sequence[str]) -> None:
        """Raise DataError if no feature varies."""
        if self.varies.any():
            return
        values = [
            f"{n}: {'all missing' if h == -np.inf else f'always {h:g}'}" for n, h in zip(names, self.high, strict=True)
        ]
        raise DataError(
            f"No feature differs between training rows: {listing(values, 6)}",
            "Expected at least one feature with two values",
            "Look at features and data.filter in the pipeline file",
        )
