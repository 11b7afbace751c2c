"""The target as numbers: 0 and 1 for two classes, the value itself for regression."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa

from ..columns import ArrayModule, Column
from ..errors import ConfigError, DataError, listing
from ..features.contract import Field
from ..hashing import hash_levels
from ..wire import record

Objective = Literal["binary", "regression"]


@record
@dataclass(frozen=True)
class Target:
    """What the target column means.

    Parameters
    ----------
    column : str
        Its name.
    task : {'binary', 'regression'}
        What the model learns.
    labels : pyarrow.Array, optional
        For two classes: the label that is 0 and the label that is 1.
    """

    column: str
    task: Objective
    labels: pa.Array | None = None

    @property
    def field(self) -> Field:
        """The encoded column's field."""
        return Field("numeric", "uint8" if self.task == "binary" else "float64")

    def encode(self, column: Column, xp: ArrayModule, where: str) -> Column:
        """Numbers for the target's values; missing stays missing.

        Raises
        ------
        DataError
            If there is a label that training did not see.
        """
        if self.labels is None:
            return Column(column.values, valid=column.valid)
        missing = column.missing()
        if column.levels is not None:
            keys = hash_levels(self.labels)
            level_is = [xp.append(column.levels.keys == k, False) for k in keys]  # the last slot is for code -1
            is_one, known = level_is[1][column.values], (level_is[0] | level_is[1])[column.values]
        else:
            zero, one = self.labels.to_pylist()
            is_one = column.values == one
            known = is_one | (column.values == zero)
        unknown = int((~known & ~missing).sum())
        if unknown:
            raise DataError(
                f"The target {self.column!r} has {unknown} values in {where} that are neither of "
                f"{listing(self.labels.to_pylist())}",
                "Expected the two labels that the training rows have",
                f"Correct {self.column}, or drop such rows with data.filter",
            )
        return replace(Column(is_one.astype("uint8")), valid=~missing if bool(missing.any()) else None)


def task_of(objective: str) -> Objective:
    """The task that an XGBoost objective stands for.

    Raises
    ------
    ConfigError
        If it is one that tabgpu cannot evaluate yet.
    """
    if objective == "binary:logistic":
        return "binary"
    if objective.split(":")[0] in ("reg", "count"):
        return "regression"
    raise ConfigError(
        f"model.objective is {objective!r}",
        "Expected an objective for two classes (binary:logistic) or regression (reg:squarederror and the like)",
        "Set model.objective, or pass --set model.objective=binary:logistic",
    )
