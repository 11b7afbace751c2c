"""The metrics of each round, as XGBoost computes them: which ones, their text, and which way is better.

The last metric of the last side decides about early stopping. What tabgpu itself reports of a finished model is in
`metrics`. XGBoost is not imported here.
"""

from __future__ import annotations

import math

from ..errors import DataError

History = dict[str, dict[str, list[float]]]  # side, metric, value of each round

_MAXIMISED = ("auc", "aucpr", "pre", "map", "ndcg")


def default_metrics(objective: str) -> tuple[str, ...]:
    """Metrics to follow for an objective; the last one stops.

    Examples
    --------
    >>> default_metrics("binary:logistic"), default_metrics("reg:squarederror")
    (('auc', 'logloss'), ('rmse',))
    """
    if objective == "binary:logistic":
        return ("auc", "logloss")
    return ("rmse",) if objective == "reg:squarederror" else ()


def maximised(metric: str) -> bool:
    """Whether higher is better, by XGBoost's rule (`callback.EarlyStopping`).

    Examples
    --------
    >>> [maximised(m) for m in ("auc", "ndcg@5", "logloss", "mape", "error@0.3")]
    [True, True, False, False, False]
    """
    name = metric.split("@")[0].rstrip("-")
    return name in _MAXIMISED


def better(metric: str, side: str, values: list[float], best: int) -> bool:
    """Whether the last value is better than that of the best round; of equal values the first stays, as in XGBoost.

    Raises
    ------
    DataError
        If the last value is not a number: nothing could be compared with it, and the first round would stay the best.

    Examples
    --------
    >>> better("logloss", "valid", [0.6, 0.5], best=0), better("auc", "valid", [0.6, 0.6], best=0)
    (True, False)
    """
    if math.isnan(values[-1]):
        raise DataError(
            f"Metric {metric!r} of the {side} side is not a number after round {len(values)}",
            "Expected a number, since model.early_stopping watches it: auc, for one, needs rows of both classes",
            "Choose another metric (--set model.params.eval_metric=...), or give that side more rows with split",
        )
    sign = 1 if maximised(metric) else -1
    return sign * values[-1] > sign * values[best]


def parse(text: str) -> dict[str, dict[str, float]]:
    r"""Read XGBoost's line of metrics: side to metric to value.

    Examples
    --------
    >>> parse("[0]\tvalid-auc:0.5\tvalid-poisson-nloglik:nan")
    {'valid': {'auc': 0.5, 'poisson-nloglik': nan}}
    """
    values: dict[str, dict[str, float]] = {}
    for item in text.split("\t")[1:]:
        name, value = item.rsplit(":", 1)
        side, metric = name.split("-", 1)
        values.setdefault(side, {})[metric] = float(value)
    return values
