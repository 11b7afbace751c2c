"""What signatures do not tell: where ``**kwargs`` go, and which names may stand in certain arguments.

A keyword that falls into ``**kwargs`` is refused by the binder unless a row here says that it arrives somewhere:
dask-cuda, for one, takes any keyword and then comes up with no workers. The libraries are imported where they are asked
(the binder runs in the contract environment alone).
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any


def _cluster() -> Iterator[str]:
    distributed = importlib.import_module("distributed")

    for owner in (distributed.LocalCluster, distributed.SpecCluster, distributed.Nanny, distributed.Worker):
        yield from inspect.signature(owner).parameters


def _communicator() -> Iterator[str]:
    collective = importlib.import_module("xgboost.collective")
    yield from re.findall(r"- (dmlc_\w+):", collective.init.__doc__ or "")
    yield from ["DMLC_TRACKER_URI", "DMLC_TRACKER_PORT"]  # as RabitTracker.worker_args() names them


def _xgboost_settings() -> Iterable[str]:
    return list(importlib.import_module("xgboost").get_config())


ANYWHERE = None  # the keywords are those of a function of our own, or names of our own
FORWARDS: dict[str, Callable[[], Iterable[str]] | None] = {
    "distributed.client.Client.submit": ANYWHERE,
    "distributed.client.Client.map": ANYWHERE,
    "distributed.client.Client.run": ANYWHERE,
    "distributed.client.Client.run_on_scheduler": ANYWHERE,
    "distributed.client.Client.sync": ANYWHERE,
    "distributed.utils.sync": ANYWHERE,
    "distributed.deploy.local.LocalCluster": _cluster,
    "dask_cuda.local_cuda_cluster.LocalCUDACluster": _cluster,
    "xgboost.core.Booster.set_attr": ANYWHERE,
    "xgboost.collective.CommunicatorContext": _communicator,
    "xgboost.collective.init": _communicator,
    "xgboost.config.config_context": _xgboost_settings,
    "xgboost.config.set_config": _xgboost_settings,
}


def reached(name: str) -> Iterable[str] | None:
    """Keywords that may fall into the ``**kwargs`` of a callable, None where any may."""
    if name not in FORWARDS:
        return ()
    forward = FORWARDS[name]
    return None if forward is None else frozenset(forward())


# ---- names of options


def _cudf_options() -> Iterable[str]:
    return list(importlib.import_module("cudf.options")._OPTIONS)


def _is_dask_key(key: str) -> bool:
    importlib.import_module("distributed")  # it adds its keys
    place: Any = importlib.import_module("dask.config").config
    for part in key.split("."):
        names = {str(name).replace("_", "-"): name for name in place} if isinstance(place, dict) else {}
        if part.replace("_", "-") not in names:
            return False
        place = place[names[part.replace("_", "-")]]
    return True


def misused(name: str, call: ast.Call) -> Iterator[str]:
    """Options named in a call's literals that the library does not have."""
    if name in ("cudf.options.set_option", "cudf.options.get_option"):
        for argument in call.args[:1]:
            if isinstance(argument, ast.Constant) and argument.value not in _cudf_options():
                yield f"cuDF has no option {argument.value}"
    if name == "dask.config.set":
        keys = [k for a in call.args[:1] if isinstance(a, ast.Dict) for k in a.keys]
        texts = [k.value for k in keys if isinstance(k, ast.Constant)]
        texts += [k.arg.replace("__", ".") for k in call.keywords if k.arg not in (None, "config", "lock", "arg")]
        yield from (f"Dask has no setting {text}" for text in texts if not _is_dask_key(text))
