"""Train and serve tabular models on data that does not fit in memory, on CPUs, one GPU or many.

    import tabgpu
    run = tabgpu.run("pipelines/flights.yaml")       # or a dict
    run.metrics["test"]
    model = tabgpu.load("runs/flights/latest")
    model.predict_proba(frame)

The verbs are those of the command line: `plan`, `run`, `score`, `transform`, `inspect`; `load` returns a `Model`,
`preview` the features of some rows. Steps can be written as objects, ``tabgpu.steps.fill(columns=["w_temp"])``. Errors
are subclasses of `TabgpuError`. Everything is imported at first use, so that ``import tabgpu`` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import Pipeline, steps
    from .errors import ClusterError, ConfigError, DataError, GateError, LockedError, ResourceError, TabgpuError
    from .model import Model, load
    from .preview import preview
    from .result import Run
    from .workflow import inspect, plan, run, score, transform

__version__ = "0.1.0"
__all__ = [
    "ClusterError",
    "ConfigError",
    "DataError",
    "GateError",
    "LockedError",
    "Model",
    "Pipeline",
    "ResourceError",
    "Run",
    "TabgpuError",
    "inspect",
    "load",
    "plan",
    "preview",
    "run",
    "score",
    "steps",
    "transform",
]

_HOMES = {
    "config": ("Pipeline", "steps"),
    "errors": ("ClusterError", "ConfigError", "DataError", "GateError", "LockedError", "ResourceError", "TabgpuError"),
    "preview": ("preview",),
    "model": ("Model", "load"),
    "result": ("Run",),
    "workflow": ("inspect", "plan", "run", "score", "transform"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'tabgpu' has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
