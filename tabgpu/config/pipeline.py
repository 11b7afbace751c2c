"""The pipeline file: strict models of every key, defaults, and `load`.

`load` reads a file, a dictionary or a `Pipeline`: YAML 1.2, overrides of ``--set``, variables of the environment, paths
made absolute, then the models below, which check all that can be checked without data, hardware or libraries. Every
mistake is a `ConfigError` with key path, value, file and line. A `Pipeline` is frozen; `to_yaml` writes it again, with
``${NAME}`` where a variable stood and paths as they were given.

Left to others: whether columns exist (`select_columns` in `tabgpu.config.steps`, once footers are read), expressions
(`tabgpu.data.expressions`), names of XGBoost parameters (`tabgpu.train.params`), what fits (`tabgpu.plan`).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from ..errors import ConfigError
from .base import EnvironmentText, Options, explain
from .data import ColumnOptions, Data, Join, Name, Split, Text
from .resources import Cluster, Memory, Pool, Size, check_together
from .step_options import STEP_KINDS, Seed, StepField, StepOptions, step_names
from .tree import Origin, apply_overrides, hide_values, plain, prepare, show
from .yaml12 import KeyPath, dump, parse, read_text, resolve

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
]


Scalar = bool | int | float | str


def _check_parameter(value: Any, depth: int = 0) -> Any:
    if isinstance(value, EnvironmentText):
        return resolve(value)
    if isinstance(value, list | tuple) and depth < 3:
        return [_check_parameter(item, depth + 1) for item in value]
    if isinstance(value, Mapping) and depth < 3 and all(isinstance(key, str) for key in value):
        return {key: _check_parameter(item, depth + 1) for key, item in value.items()}
    if not isinstance(value, Scalar) or value != value or value in (float("inf"), float("-inf")):
        raise PydanticCustomError("parameter", "a number, text, true, false, or a list or mapping of these")
    return value


class Model(Options):
    """What is trained."""

    kind: Literal["xgboost"] = Field(default="xgboost", description="which library trains")
    objective: Text = Field(description="objective of XGBoost, such as binary:logistic or reg:squarederror")
    rounds: int = Field(default=100, ge=1, lt=2**31, description="number of boosting rounds")
    early_stopping: int | None = Field(
        default=None, ge=1, lt=2**31, description="stop after so many rounds without a better validation metric"
    )
    seed: Seed = Field(default=0, description="seed of row and column sampling")
    cuts: Literal["own", "exact"] = Field(
        default="own", description="own: histogram cuts from exact quantiles of a sample; exact: those of XGBoost"
    )
    checkpoint_every: int = Field(default=50, ge=1, lt=2**31, description="rounds between checkpoints")
    params: dict[str, Annotated[Any, BeforeValidator(_check_parameter)]] = Field(
        default={}, description="any other parameter of XGBoost, by its own name"
    )


class Cache(Options):
    """Where features are kept between the passes of training."""

    dir: Text = Field(default="auto", description="folder for cached features; auto for the system's temporary folder")
    limit: Size = Field(default="auto", description="most disk space to use: auto, '100GB' or bytes")


def _check_version(value: Any) -> Any:
    if type(value) is not int:  # True and 1.0 equal 1
        raise PydanticCustomError("version", "1")
    return value


def _as_steps(value: Any) -> Any:
    if isinstance(value, Mapping):
        raise ConfigError(
            "features is a mapping",
            "Expected a list of steps, in the order in which they are done",
            "Put '- ' before each step: '- fill: {columns: [a]}'",
        )
    return tuple(value) if isinstance(value, list) else value


def _named(steps: tuple[StepOptions, ...]) -> tuple[StepOptions, ...]:
    names = step_names([(step.kind, step.name) for step in steps])
    return tuple(
        step if step.name == name else step.model_copy(update={"name": name})
        for step, name in zip(steps, names, strict=True)
    )


class Pipeline(Options):
    """The pipeline file."""

    version: Annotated[Literal[1], BeforeValidator(_check_version)] = Field(description="version of the format: 1")
    name: Name = Field(
        default="pipeline",
        description="name of the run folders: letters, digits, '.', '_' and '-'; the file's by default",
    )
    data: Data = Field(description="rows, columns and their roles")
    split: Split = Field(default_factory=Split, description="training, validation and test parts")
    features: Annotated[tuple[StepField, ...], BeforeValidator(_as_steps), AfterValidator(_named)] | None = Field(
        default=None, description="steps, in order; null for a default by kind and cardinality"
    )
    model: Model | None = Field(default=None, description="what is trained; null to end with the features")
    precision: Literal["full", "mixed", "half"] = Field(default="full", description="float types of the features")
    memory: Memory = Field(default_factory=Memory, description="memory limits")
    cache: Cache = Field(default_factory=Cache, description="cache of features")
    engine: Literal["auto", "cpu", "gpu"] = Field(default="auto", description="where arrays live")
    cluster: Cluster | None = Field(default=None, description="workers; null for this process alone")
    output: Text = Field(default="runs", description="folder of the run folders")

    _base_dir: Path = PrivateAttr(default_factory=Path.cwd)
    _origins: dict[KeyPath, Origin] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Pipeline:
        encodes_target = any(step.kind == "target_encode" for step in self.features or ())
        for wanted, key, reader in (
            (self.model is not None, "target", "model"),
            (encodes_target, "target", "target_encode"),
            (self.split.by == "time", "time", "split.by: time"),
            (self.split.by == "group", "group", "split.by: group"),
        ):
            if wanted and getattr(self.data, key) is None:
                raise ConfigError(
                    f"data.{key} is missing, which {reader} needs",
                    f"Expected the name of a column under data.{key}",
                    f"Write data.{key}, or pass --set data.{key}=NAME",
                )
        has_valid = bool(self.data.valid or self.split.valid or self.split.by == "column")
        if self.model is not None and self.model.early_stopping is not None and not has_valid:
            raise ConfigError(
                f"model.early_stopping is {self.model.early_stopping} without a validation part",
                "Expected split.valid or data.valid",
                "Write split.valid, or leave model.early_stopping out",
            )
        if self.cluster is not None:
            check_together(self.memory, self.cluster, self.engine)
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pipeline) and self.__dict__ == other.__dict__

    def __repr__(self) -> str:
        return f"Pipeline:\n{self.to_yaml()}"

    __str__ = __repr__

    @property
    def base_dir(self) -> Path:
        """Folder that relative paths are relative to: the file's, else the working directory."""
        return self._base_dir

    @property
    def digest(self) -> str:
        """SHA-256 of what `to_yaml` writes, hexadecimal; variables count by name, not by value."""
        return hashlib.sha256(self.to_yaml().encode("utf-8", "backslashreplace")).hexdigest()

    def to_tree(self, secrets_hidden: bool = True, folder: Path | None = None) -> dict[str, Any]:
        """What `to_yaml` writes, as dictionaries and lists."""
        tree = self.model_dump(mode="json")
        return show(tree, self._origins, self._base_dir, folder or self._base_dir, secrets_hidden)

    def to_yaml(self, secrets_hidden: bool = True, folder: Path | None = None) -> str:
        """Write the pipeline file with every key, variables as ``${NAME}``.

        Parameters
        ----------
        secrets_hidden : bool
            Also write ``***`` for passwords and tokens inside URLs. The file then cannot read those URLs.
        folder : Path, optional
            Where the file will lie: relative paths are written relative to it. `base_dir` by default.

        Returns
        -------
        str
            Reads as an equal pipeline with `load`, in that folder and environment.
        """
        return dump(self.to_tree(secrets_hidden, folder))


def load(
    source: str | os.PathLike[str] | Mapping[str, Any] | Pipeline, overrides: Sequence[str] | Mapping[str, Any] = ()
) -> Pipeline:
    """Read a pipeline.

    Parameters
    ----------
    source : path, mapping or Pipeline
        The file, or the same as a dictionary or `Pipeline`. Relative paths are relative to the file, else to the
        working directory.
    overrides : sequence of str, or mapping
        ``"memory.limit=8GB"`` as for ``--set``, values in YAML; or a mapping of key paths to values. A step is given by
        name or position: ``features.rates.smooth``, ``features[1].smooth``.

    Returns
    -------
    Pipeline
        Checked, with absolute paths.

    Raises
    ------
    ConfigError
        At any mistake: key path, value, file and line, what was expected, what to do.

    Examples
    --------
    >>> pipeline = load({"version": 1, "data": {"source": "x"}}, ["split.test=0.2", "memory.limit=8GB"])
    >>> pipeline.split.test, pipeline.memory.limit
    (0.2, '8GB')
    """
    file, lines = "", {}
    if isinstance(source, Pipeline):
        tree, base_dir = source.to_tree(secrets_hidden=False), source.base_dir
    elif isinstance(source, Mapping):
        tree, base_dir = plain(source), Path.cwd()
    else:
        path = Path(source)
        document = parse(read_text(path), path.name)
        tree, lines, file, base_dir = document.tree, dict(document.lines), path.name, path.absolute().parent
        if isinstance(tree, dict) and re.fullmatch(r"[A-Za-z0-9][\w.-]{0,99}", path.stem, re.ASCII):
            tree.setdefault("name", path.stem)
    if not isinstance(tree, dict):
        raise ConfigError(
            f"{file} holds {'nothing' if tree is None else repr(tree)[:60]}",
            "Expected a mapping with version, data and more",
            "Begin with 'version: 1', or let 'tabgpu init' write one",
        )
    given = apply_overrides(tree, overrides)
    tree.setdefault("output", "runs")
    _understand_gpu_hist(tree)

    def place(path: KeyPath) -> str:
        for n in range(len(path), 0, -1):
            if path[:n] in given:
                return given[path[:n]]
            if path[:n] in lines:
                return f"{file}, line {lines[path[:n]]}"
        return file

    ready, origins = prepare(tree, base_dir, place)
    try:
        pipeline = Pipeline.model_validate(ready)
    except ValidationError as error:
        raise hide_values(explain(error, Pipeline, ready, tree, place), origins) from None
    pipeline._base_dir, pipeline._origins = base_dir, origins
    return pipeline


def _understand_gpu_hist(tree: dict[str, Any]) -> None:
    """Old parameter files ask for the GPU by ``tree_method: gpu_hist``."""
    model = tree.get("model")
    params = model.get("params") if isinstance(model, dict) else None
    if not isinstance(params, dict) or params.get("tree_method") != "gpu_hist":
        return
    if tree.get("engine", "auto") == "cpu":
        raise ConfigError(
            "model.params.tree_method is 'gpu_hist' with engine 'cpu'",
            "Expected tree_method hist, or engine gpu",
            "Remove model.params.tree_method, or pass --set engine=gpu",
        )
    params["tree_method"] = "hist"
    tree["engine"] = "gpu"


def json_schema() -> dict[str, Any]:
    """JSON Schema of the pipeline file, for editors and docs."""
    schema = Pipeline.model_json_schema()
    items = []
    for kind, options in STEP_KINDS.items():
        definition = schema["$defs"][options.__name__]
        del definition["properties"]["kind"]
        items.append(
            {
                "type": "object",
                "properties": {kind: {"$ref": f"#/$defs/{options.__name__}"}},
                "required": [kind],
                "additionalProperties": False,
            }
        )
    for branch in schema["properties"]["features"]["anyOf"]:
        if "items" in branch:
            branch["items"] = {"anyOf": items}
    pool = schema["$defs"]["Memory"]["properties"]["pool"]
    pool["anyOf"] = [{"$ref": "#/$defs/Pool"}, {"enum": ["async", "fixed"]}]
    pool.pop("$ref", None)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
