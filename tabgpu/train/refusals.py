"""What XGBoost refuses, said as the user's mistake: a parameter, the target's values, or too little memory.

XGBoost has one exception for all of it, with a trace of its own calls. Its words are kept and the trace is cut off.
`booster.probe` has tried all parameters on labels that suit the objective, so that whatever it says about labels
afterwards is about the data.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import xgboost

from ..errors import ConfigError, DataError, ResourceError, TabgpuError, nearest

_WHERE = re.compile(r"^\[[\d:]+\] \S+: (Check failed: \w+: (?=\S))?")  # the name of a flag tells nothing
_TRACE = re.compile(r"\n\s*\n|Stack trace")
_OBJECTIVE = re.compile(r"Unknown objective function: `?([^\s`]*)")
_CANDIDATE = re.compile(r"Objective candidate: (\S+)")
_LABEL = re.compile(r"\blabels?\b|base_score")  # the intercept is the mean of the labels
_MEMORY = re.compile("bad_alloc|out of memory|[Mm]emory allocation")


@contextmanager
def refusals(objective: str, *, of_parameters: bool) -> Iterator[None]:
    """Say what XGBoost raises within the block as an error of tabgpu.

    Parameters
    ----------
    objective : str
        The objective of the model.
    of_parameters : bool
        Whether the labels are known to be right, and it can only be a parameter.

    Raises
    ------
    ConfigError
        If it refuses a parameter, or anything else of which it does not say more.
    DataError
        If the target's values do not suit the objective.
    ResourceError
        If memory did not suffice.
    """
    try:
        yield
    except TabgpuError:
        raise
    except (xgboost.core.XGBoostError, ValueError) as error:
        raise _explained(str(error), objective, of_parameters) from error


def _explained(text: str, objective: str, of_parameters: bool) -> TabgpuError:
    words = " ".join(_WHERE.sub("", _TRACE.split(text)[0]).split())
    unknown = _OBJECTIVE.search(text)
    if unknown:
        return ConfigError(
            f"XGBoost has no objective {unknown[1]!r}",
            nearest(unknown[1], _CANDIDATE.findall(text)),
            "Correct model.objective (--set model.objective=...)",
        )
    if _MEMORY.search(words):
        return ResourceError(
            f"XGBoost ran out of memory: {words}",
            "Expected the room that the plan had computed",
            "Free memory, or lower max_depth (--set model.params.max_depth=6) or memory.limit",
        )
    if not of_parameters and _LABEL.search(words):
        return DataError(
            f"The target's values do not suit the objective {objective!r}: {words}",
            "Expected values that it can be trained on in every training row",
            "Choose another objective (--set model.objective=...) or eval_metric, or drop such rows with data.filter",
        )
    return ConfigError(
        f"XGBoost refuses a parameter: {words}",
        "Expected values as its documentation of parameters gives them",
        "Correct the value under model.params or model.objective",
    )
