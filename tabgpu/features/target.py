"""The step that encodes levels by the mean of the target: `TargetEncode`.

A level becomes the mean of the target over its training rows, drawn towards the mean of all rows by `smooth` rows. A
training row must not see its own target in this: it gets the encoding that the other folds give, and the prior leaves
out its fold, too. Folds are a function of the row's identity (`statistics.fold_of`), so that the same row has the same
encoding wherever it is read. Rows that are scored, also those of a training file, get the encoding of all folds.

Counts and sums come exact from `statistics.TargetSums`: that of the other folds is a difference of whole numbers, in
which the row's own fold leaves no trace.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .. import wire
from ..columns import Array, ArrayModule, Chunk, Column
from ..hashing import KeyTable, array_module
from .categorical import ANY_KIND
from .contract import Field, Fields, Result, Statistic, Step
from .fields import Group, add, distinct_columns, group_columns, group_name, require, to_float32
from .statistics import TargetGrid, TargetSums, TargetTable, cells_of, find, fold_of


@wire.record
@dataclass(frozen=True, eq=False)
class TargetEncoding:
    """Encodings of the levels of one column or group.

    Parameters
    ----------
    table : KeyTable
        Keys of the levels, shape (n,).
    encoding : array of float32
        Shape (n + 1,): of each level, from all training rows; last, the prior, for all other levels.
    out_of_fold : array of float32, optional
        Shape (n + 1, folds): of each level, from the training rows that are not in the fold; last, the priors. None
        where no training rows are to be transformed any more.
    """

    table: KeyTable
    encoding: Array
    out_of_fold: Array | None


@wire.record
@dataclass(frozen=True)
class TargetEncodeFitted:
    """The encodings of each column or group."""

    encodings: tuple[TargetEncoding, ...]

    def without_folds(self) -> TargetEncodeFitted:
        """The same for scoring alone: without what only training rows need, a sixth of the size at 5 folds."""
        return TargetEncodeFitted(tuple(replace(e, out_of_fold=None) for e in self.encodings))


@dataclass(frozen=True)
class TargetEncode(Step):
    """Add the smoothed mean of the target by level, as ``<name>_<column>``; for groups ``<name>_<a>_<b>``.

    With ``S`` and ``N`` the sum of the target and the number of training rows that have one,

    - scored rows get ``(S_level + smooth * prior) / (N_level + smooth)``, where ``prior = S / N``;
    - training rows of fold ``f`` get the same from the rows of all other folds, ``prior`` included.

    A level without a row in these sums gets the prior; where there is no row at all, as when a handful of training rows
    share one fold, the prior is 0: any other number would show the target of the row itself. Missing is a level of its
    own. float32, never missing.

    With an integer target, changing the target of one training row leaves the encoding of that row as it is, to the
    bit; with a float target too, as long as the grid stays the same.

    Parameters
    ----------
    name : str
        Name of the step, and the prefix of its columns.
    columns : tuple of str or tuple of str
        Columns of any kind, or groups of them.
    target : str
        The target: a numeric column.
    folds : int
        Number of folds, at least 2.
    smooth : float
        Weight of the prior, in rows; 0 for none.
    seed : int
        Of the folds.
    grid : TargetGrid
        How target values are summed exactly, from the range of the target.

    Examples
    --------
    >>> import numpy as np
    >>> columns = {"c": Column(np.array([1, 1, 2, 2])), "y": Column(np.array([1, 1, 0, 1], "int8"))}
    >>> chunk = Chunk(columns, np.arange(4, dtype="u8"), np)
    >>> step = TargetEncode("rate", ("c",), "y", folds=2, smooth=1.0, seed=0, grid=TargetGrid("integer"))
    >>> (sums,) = step.statistics()
    >>> fitted = step.fit((sums.finish(sums.observe(chunk, None), None),))
    >>> step.transform(chunk, fitted, training=False)["rate_c"].values.round(4)
    array([0.9167, 0.9167, 0.5833, 0.5833], dtype=float32)
    """

    name: str
    columns: tuple[Group, ...]
    target: str
    folds: int
    smooth: float
    seed: int
    grid: TargetGrid

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the columns that `transform` reads; the target is not among them."""
        return distinct_columns(self.columns)

    def outputs(self, fields: Fields) -> dict[str, Field]:
        """Fields of the encodings.

        Raises
        ------
        ConfigError
            If a column is not there, or a column of the new name is, or the target is not numeric.
        """
        require(self.name, fields, self.inputs, ANY_KIND)
        if self.target in fields:
            require(self.name, fields, (self.target,), ("numeric",))
        return add(self.name, fields, ((self._output(g), Field("numeric", "float32")) for g in self.columns))

    def statistics(self) -> tuple[Statistic, ...]:
        """Counts and sums of the target, by level and fold."""
        return tuple(TargetSums(group_columns(g), self.target, self.folds, self.seed, self.grid) for g in self.columns)

    def fit(self, results: tuple[Result, ...]) -> TargetEncodeFitted:
        """The encodings."""
        return TargetEncodeFitted(tuple(self._encoding(table) for table in results))

    def transform(self, chunk: Chunk, fitted: TargetEncodeFitted, training: bool) -> dict[str, Column]:
        """The encodings: float32, shape (n_rows,); for training rows those of the other folds."""
        made = {}
        for group, known in zip(self.columns, fitted.encodings, strict=True):
            codes, found = find(chunk, group_columns(group), known.table)
            if not training:
                values = known.encoding.take(found).take(codes)
            elif known.out_of_fold is None:
                raise ValueError(f"step {self.name!r} was loaded for scoring and cannot transform training rows")
            else:
                cells = cells_of(codes, fold_of(chunk, self.folds, self.seed), (len(found), self.folds))
                values = known.out_of_fold.take(found, axis=0).ravel().take(cells)
            made[self._output(group)] = Column(values)
        return made

    def _output(self, group: Group) -> str:
        return f"{self.name}_{group_name(group)}"

    def _encoding(self, table: TargetTable) -> TargetEncoding:
        xp = array_module(table.keys)
        out_of_fold = xp.empty((len(table) + 1, self.folds), dtype=xp.float32)
        for fold, (levels, overall) in enumerate(zip(table.level_others(), table.others(), strict=True)):
            out_of_fold[:, fold] = _smoothed(xp, levels, overall, self.smooth)
        return TargetEncoding(
            KeyTable.shared(table.keys), _smoothed(xp, table.level_totals(), table.totals(), self.smooth), out_of_fold
        )


def _smoothed(xp: ArrayModule, levels: tuple[Array, Array], overall: tuple[int, float], smooth: float) -> Array:
    """Encodings from counts and sums of the levels and of all rows; last the prior: float32, shape (n + 1,)."""
    (rows, sums), (n_rows, total) = levels, overall
    prior = total / n_rows if n_rows else 0.0
    means = xp.full(len(rows) + 1, prior)
    means[:-1] = sums
    means[:-1] += smooth * prior
    means[:-1] /= xp.maximum(rows, 1) + smooth
    means[:-1][rows == 0] = prior
    return to_float32(xp, means)
