"""The base of all models of the pipeline file, and how their mistakes are told.

`Options` is a pydantic model that is frozen, strict and refuses unknown keys, and that raises `ConfigError` instead of
pydantic's error when it is built in Python. `explain` turns pydantic's list of errors into one `ConfigError` of three
sentences: the first mistake with its key path, value and place, what was expected with the nearest known key, and what
to do; further mistakes are counted.

Text that came from the environment is marked as `EnvironmentText`: a field of another type reads it as YAML would.
Messages show what the file says (``${NAME}``), never the value of a variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
)

from ..errors import ConfigError, nearest
from .yaml12 import KeyPath, resolve


class EnvironmentText(str):
    """A text that is wholly the value of one variable: ``key: ${NAME}``."""

    __slots__ = ()


class Options(BaseModel):
    """Base of all models of the pipeline file: frozen, strict, no unknown keys."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        defer_build=True,  # imports stay fast; the first use builds what it needs
    )

    def __init__(self, **values: Any) -> None:
        try:
            self.__pydantic_validator__.validate_python(values, self_instance=self)
        except ValidationError as error:
            raise explain(error, type(self), values) from None

    # pydantic's mark of a constructor that need not be called for nested models: their errors keep their key path
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # a function's own attribute

    @field_validator("*", mode="wrap")
    @classmethod
    def _from_environment(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        if not isinstance(value, EnvironmentText):
            return handler(value)
        try:
            return handler(resolve(value))
        except ValidationError:
            return handler(str(value))


def _as_tuple(value: Any) -> Any:
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


Names = Annotated[Sequence[str], BeforeValidator(_as_tuple, json_schema_input_type=str | list[str])]
"""One name or a list of names; held as a tuple."""


def explain(
    error: ValidationError,
    model: type[BaseModel],
    tree: Any,
    shown: Any = None,
    place: Callable[[KeyPath], str] = lambda path: "",
) -> ConfigError:
    """Turn pydantic's errors into one `ConfigError`.

    Parameters
    ----------
    error : ValidationError
        What pydantic raised.
    model : type
        The model that was validated.
    tree : object
        What was validated: a tree of dictionaries and lists.
    shown : object, optional
        Where a file was read: the same before variables were read. Values in messages come from it.
    place : callable, optional
        Takes a key path, returns where it stands ("flights.yaml, line 3"), or nothing.

    Returns
    -------
    ConfigError
        The first mistake, with the number of the others.
    """
    found = [(_key_path(detail, tree), detail) for detail in error.errors(include_url=False)]
    # of the branches of a union, the one that went deepest knows best
    deepest = [(p, d) for p, d in found if not any(len(o) > len(p) and o[: len(p)] == p for o, _ in found)]
    deepest.sort(key=lambda pair: pair[1]["type"] != "extra_forbidden")
    path, first = deepest[0]
    others = len({other for other, _ in deepest}) - 1
    more = f"{others} more mistake{'s' if others > 1 else ''}" if others else ""
    where = "; ".join(filter(None, (place(path), more)))
    raised = first.get("ctx", {}).get("error")
    name = path_text(path)
    if isinstance(raised, ConfigError):
        return ConfigError(_placed(raised.happened, where), raised.expected, raised.remedy)
    flag = f", or pass --set {name}=VALUE" if shown is not None else ""
    if first["type"] == "extra_forbidden":
        owner = path_text(path[:-1]) if path[:-1] else _title(model)
        near = _near_key(str(path[-1]), _known(model, path[:-1]), model)
        return ConfigError(_placed(f"{owner} has no key {str(path[-1])!r}", where), near, f"Correct or remove {name}")
    if first["type"] == "missing":
        wanted = f"Expected {_description(model, path)}"
        return ConfigError(_placed(f"{name} is missing", where), wanted, f"Write {name}{flag}")
    value = _look_up(tree if shown is None else shown, path)
    same = [detail for other, detail in deepest if other == path]
    return ConfigError(
        _placed(f"{name} is {_short(value)}", where),
        f"Expected {_expectations(same, _description(model, path))}{_suggestion(value, same)}",
        f"Correct {name}{flag}",
    )


def path_text(path: KeyPath) -> str:
    """Write a key path as messages and `--set` do.

    Examples
    --------
    >>> path_text(("features", 1, "categorify", "min_count"))
    'features[1].categorify.min_count'
    """
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            quoted = part if part and not set(part) & set('.[]"= \n') else '"' + part.replace('"', "'") + '"'
            text += f".{quoted}" if text else quoted
    return text or "the pipeline"


_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "none_required": "null",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
    "list_type": "a list",
    "tuple_type": "a list",
    "is_instance_of": "a list",
    "sequence_str": "a list",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a number of at least {ge}",
    "less_than": "a number below {lt}",
    "less_than_equal": "a number of at most {le}",
    "too_short": "a list of at least {min_length}",
    "string_too_short": "text that is not empty",
    "literal_error": "{expected}",
}


def _expectations(details: Sequence[Mapping[str, Any]], description: str) -> str:
    """What the branches of a union would have taken."""
    texts = []
    for detail in details:
        pattern = description if detail["type"] == "string_pattern_mismatch" else str(detail["msg"])
        texts.append(_EXPECTED.get(detail["type"], pattern).format(**detail.get("ctx", {})))
    if {"a number", "a finite number"} & set(texts):
        texts = [text for text in texts if text != "a whole number"]
    return " or ".join(dict.fromkeys(texts))


def _title(model: type[BaseModel]) -> str:
    field = model.model_fields.get("kind")
    return str(field.default) if field is not None and isinstance(field.default, str) else model.__name__.lower()


def _suggestion(value: Any, details: Sequence[Mapping[str, Any]]) -> str:
    choices = [text.strip("'") for d in details if d["type"] == "literal_error" for text in _choices(d)]
    if not isinstance(value, str) or not choices:
        return ""
    near = nearest(value, choices)
    return f". {near}" if near.startswith("Did") else ""


def _choices(detail: Mapping[str, Any]) -> list[str]:
    return str(detail["ctx"]["expected"]).replace(" or ", ", ").split(", ")


def _key_path(detail: Mapping[str, Any], tree: Any) -> KeyPath:
    """Keys of pydantic's `loc` that stand in the tree: it also names branches of unions and validators."""
    path: list[str | int] = []
    node, loc = tree, detail["loc"]
    for i, part in enumerate(loc):
        last = i == len(loc) - 1
        if isinstance(node, BaseModel):
            node = {name: getattr(node, name) for name in type(node).model_fields}
        in_list = isinstance(node, list | tuple) and isinstance(part, int) and part < len(node)
        if in_list or (isinstance(node, Mapping) and part in node):
            node = node[part]
        elif not (last and detail["type"] == "missing"):
            continue
        path.append(part)
    return tuple(path)


def _look_up(tree: Any, path: KeyPath) -> Any:
    for part in path:
        try:
            tree = tree[part]
        except (KeyError, IndexError, TypeError):
            return tree
    return tree


def _models(annotation: Any) -> Iterator[type[Options]]:
    if isinstance(annotation, type) and issubclass(annotation, Options):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)


def _owners(model: type[BaseModel], path: KeyPath) -> list[type[BaseModel]]:
    """Models that the key path may lead to: a list's or a mapping's own keys change nothing, a step's kind chooses."""
    models: list[type[BaseModel]] = [model]
    for part in path:
        fields = [m.model_fields[part] for m in models if part in m.model_fields]
        found: list[type[BaseModel]] = [m for field in fields for m in _models(field.annotation)]
        chosen = [m for m in models if "kind" in m.model_fields and m.model_fields["kind"].default == part]
        models = found or chosen or models
    return models


def _known(model: type[BaseModel], path: KeyPath) -> list[str]:
    names = [(name, field) for owner in _owners(model, path) for name, field in owner.model_fields.items()]
    return [name for name, field in names if not (name == "kind" and field.default in path)]  # a step's kind is its key


def _description(model: type[BaseModel], path: KeyPath) -> str:
    for owner in _owners(model, path[:-1]):
        if path and path[-1] in owner.model_fields:
            return owner.model_fields[str(path[-1])].description or "a value"
    return "a value"


def _near_key(key: str, known: Sequence[str], model: type[BaseModel]) -> str:
    near = nearest(key, known)
    if near.startswith("Did"):
        return near
    for name, field in model.model_fields.items():
        for owner in _models(field.annotation):
            if key in owner.model_fields and name != "features":
                return f"Did you mean {name}.{key}?"
    return near


def _short(value: Any) -> str:
    text = repr(str(value)) if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _placed(happened: str, where: str) -> str:
    return f"{happened.rstrip('.')} ({where})" if where else happened
