"""The pipeline file: strict models of all its keys, how it is read, and how it is written back.

`pipeline` holds the whole and how it is loaded, `data` rows and split, `resources` memory and workers, `step_options`
the options of every step, `tree` overrides, variables and paths, `base` how mistakes are worded, `yaml12` the syntax.
"""

from __future__ import annotations

from .data import ColumnOptions, Data, Join, Split
from .pipeline import Cache, Model, Pipeline, json_schema, load
from .resources import Cluster, Memory, Pool
from .step_options import StepOptions, select_columns, step_names, steps

__all__ = [
    "Cache",
    "Cluster",
    "ColumnOptions",
    "Data",
    "Join",
    "Memory",
    "Model",
    "Pipeline",
    "Pool",
    "Split",
    "StepOptions",
    "json_schema",
    "load",
    "select_columns",
    "step_names",
    "steps",
]
