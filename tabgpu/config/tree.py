"""The pipeline file as a tree of dictionaries and lists, before it is checked.

Overrides are set in the tree; then variables of the environment are read and paths made absolute, and `Origin` keeps
what the file said, so that neither a secret nor somebody's home folder is ever written back. `show` is the way back.
Nothing here knows the models; `tabgpu.config.load` calls all of it.
"""

from __future__ import annotations

import datetime
import glob
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigError, nearest
from .base import EnvironmentText, Options, path_text
from .step_options import StepOptions, step_mapping, step_names
from .yaml12 import KeyPath, parse, resolve

_VARIABLE = re.compile(r"\$(\$?)\{([^}]*)\}")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(://|::)")
_SEGMENT = re.compile(r'(?:\.|^)"([^"]*)"|(?:\.|^)([^.\[\]"]+)|\[(\d+)\]')
_PASSWORD = re.compile(r"(://[^/@:\s]*:)[^/@\s]+(?=@)")
_LISTS: list[list[str | int]] = [["features"], ["data", "join"]]
_TOKEN = re.compile(r"([?&][^=&\s]*(?:token|secret|sig|password|passwd|key|credential)[^=&\s]*=)[^&\s]+", re.IGNORECASE)


@dataclass(frozen=True)
class Origin:
    """Where a text of the model comes from.

    Parameters
    ----------
    value : str
        The text in the model.
    text : str
        The text in the file.
    relative : bool
        Whether it is a path that was relative to the file's folder.
    """

    value: str
    text: str
    relative: bool


def plain(value: Any, depth: int = 0) -> Any:
    """Copy a tree made in Python into dictionaries, lists and scalars of its own: what YAML would have given.

    Raises
    ------
    ConfigError
        If a key is no text, or it is nested beyond 50 levels.
    """
    if depth > 50:
        raise ConfigError("The pipeline is nested beyond 50 levels", "Expected a tree", "Write it without such nesting")
    if isinstance(value, Options):
        return plain(step_mapping(value) if isinstance(value, StepOptions) else value.model_dump(mode="json"), depth)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ConfigError(f"The pipeline has the key {key!r}", "Expected text as key", "Write it in quotes")
        return {str(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.isoformat() if isinstance(value, datetime.date) else value


def apply_overrides(tree: dict[str, Any], overrides: Sequence[str] | Mapping[str, Any]) -> dict[KeyPath, str]:
    """Set keys in the tree.

    Parameters
    ----------
    tree : dict
        Changed in place.
    overrides : sequence of str, or mapping
        See `tabgpu.config.load`.

    Returns
    -------
    dict
        The key paths that were set, and by what, for messages.

    Raises
    ------
    ConfigError
        If a text is no ``key.path=value``, or a list has no such step, table or position.
    """
    given = {}
    if isinstance(overrides, str):
        overrides = [overrides]
    pairs: list[tuple[str, Any, str]] = []
    if isinstance(overrides, Mapping):
        pairs = [(str(key), plain(value), f"set {key}") for key, value in overrides.items()]
    else:
        pairs = [_split_override(text) for text in overrides]
    for key, value, by in pairs:
        path = _locate(tree, _parse_key(key), key)
        _assign(tree, path, value)
        given[path] = by
    return given


def _split_override(text: str) -> tuple[str, Any, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(
            f"--set {text} has no value", "Expected key.path=value", "Write = and the value after the key"
        )
    key, value = key.strip(), value.strip()
    # a glob, an exclusion or a quoted column name; YAML would see an alias, a tag or an error
    parsed = value if value[:1] in {"*", "!", "`", "@", "%"} else parse(value, f"--set {key}").tree
    return key, parsed, f"--set {text}"


def _parse_key(key: str) -> list[str]:
    parts, position = [], 0
    while match := _SEGMENT.match(key, position) if position else _SEGMENT.match(key):
        parts.append(next(group for group in match.groups() if group is not None))
        position = match.end()
    if not key or position < len(key):
        raise ConfigError(
            f"--set has the key {key!r}",
            "Expected names joined by dots, such as memory.limit or features[1].smooth; quote a name that holds a dot",
            "Correct the key after --set",
        )
    return parts


def _locate(tree: dict[str, Any], parts: list[str], key: str) -> KeyPath:
    """Path in the tree of a key of `--set`: positions for names, the kind of a step put between."""
    path: list[str | int] = []
    node: Any = tree
    for part in parts:
        if len(path) == 2 and path[0] == "features" and isinstance(node, dict) and len(node) == 1:
            ((kind, node),) = node.items()
            path.append(kind)
            if part == kind:
                continue
        index: str | int = part
        if isinstance(node, list) or (node is None and path in _LISTS):
            items = node or []
            index = _position(items, part, tuple(path), key)
            node = items[index]
        elif node is None or isinstance(node, dict):
            node = node.get(part) if node else None
        else:
            raise ConfigError(
                f"--set {key}: {path_text(tuple(path))} is {str(node)[:60]!r}, which has no keys",
                "Expected a mapping or a list there",
                f"Set {path_text(tuple(path))} as a whole",
            )
        path.append(index)
    return tuple(path)


def _assign(tree: Any, path: KeyPath, value: Any) -> None:
    for part in path[:-1]:
        if (tree.get(part) if isinstance(tree, dict) else tree[part]) is None:
            tree[part] = {}
        tree = tree[part]
    tree[path[-1]] = value


def _position(items: list[Any], part: str, path: KeyPath, key: str) -> int:
    """Position of a step or table by its name or number."""
    if part.isdecimal() and int(part) < len(items):
        return int(part)
    if path == ("features",):
        bodies = [next(iter(i.items())) if isinstance(i, dict) and len(i) == 1 else ("", None) for i in items]
        pairs = [(kind, body.get("name") if isinstance(body, dict) else None) for kind, body in bodies]
        names = step_names([(kind, name if isinstance(name, str) else "") for kind, name in pairs])
    else:
        names = [str(item.get("name")) for item in items if isinstance(item, dict)]
    if part in names:
        return names.index(part)
    raise ConfigError(
        f"--set {key}: {path_text(path)} has no {part!r}",
        nearest(part, names),
        f"Correct the name, or give a position from 0 to {len(items) - 1}"
        if items
        else f"Write {path_text(path)} first",
    )


def prepare(
    tree: dict[str, Any], base_dir: Path, place: Callable[[KeyPath], str]
) -> tuple[dict[str, Any], dict[KeyPath, Origin]]:
    """Read variables and make paths absolute.

    Parameters
    ----------
    tree : dict
        Not changed.
    base_dir : Path
        Folder for relative paths.
    place : callable
        Takes a key path, returns where it stands, for messages.

    Returns
    -------
    tree : dict
        Of the same shape.
    origins : dict
        What the file says where that differs.

    Raises
    ------
    ConfigError
        If a variable is not set.
    """
    origins: dict[KeyPath, Origin] = {}

    def walk(value: Any, path: KeyPath) -> Any:
        if isinstance(value, dict):
            return {key: walk(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [walk(item, (*path, i)) for i, item in enumerate(value)]
        if not isinstance(value, str):
            return value
        text = _expand(value, path, place)
        relative = _is_path(path) and text not in ("", "auto") and not _URL.match(text)
        if relative:
            text = os.path.expanduser(text)
            relative = not os.path.isabs(text)
            text = absolute(text, base_dir)
        if text != value:
            origins[path] = Origin(text, value, relative)
        whole = _VARIABLE.fullmatch(value) if isinstance(path[-1], str) and not _is_path(path) else None
        return EnvironmentText(text) if whole and not whole[1] else text

    ready: dict[str, Any] = walk(tree, ())
    return ready, origins


def absolute(path: str, base_dir: Path) -> str:
    """Absolute path below a folder; the folder's own ``*``, ``?`` and ``[`` are no globs."""
    folder = glob.escape(str(base_dir)) if glob.has_magic(path) and glob.has_magic(str(base_dir)) else str(base_dir)
    return os.path.normpath(os.path.join(folder, path))


def _is_path(path: KeyPath) -> bool:
    if path[:2] in {("data", "source"), ("data", "valid"), ("data", "test")}:
        return True
    if path[:2] == ("data", "join"):
        return path[3:4] == ("source",)
    return path in {("cache", "dir"), ("output",), ("cluster", "scheduler_file"), ("cluster", "local_directory")}


def _expand(text: str, path: KeyPath, place: Callable[[KeyPath], str]) -> str:
    def variable(match: re.Match[str]) -> str:
        escaped, name = match.groups()
        if escaped:
            return match[0][1:]
        if name not in os.environ:
            near = nearest(name, os.environ)
            where = f" ({place(path)})" if place(path) else ""
            raise ConfigError(
                f"{path_text(path)} is {text!r}, but the variable {name!r} is not set{where}",
                near if near.startswith("Did") else "Expected a variable of the environment",
                f"Set it, or write $${{{name}}} for the text itself, or pass --set {path_text(path)}=VALUE",
            )
        return os.environ[name]

    return _VARIABLE.sub(variable, text)


def show(
    tree: dict[str, Any], origins: Mapping[KeyPath, Origin], base_dir: Path, folder: Path, secrets_hidden: bool
) -> dict[str, Any]:
    """Put back what the file said.

    Parameters
    ----------
    tree : dict
        The model as dictionaries and lists.
    origins : mapping
        From `prepare`.
    base_dir, folder : Path
        What relative paths were relative to, and what they shall be relative to.
    secrets_hidden : bool
        Write ``***`` for passwords and tokens inside URLs.
    """

    def leaf(value: Any, path: KeyPath) -> Any:
        origin = origins.get(path) or (origins.get(path[:-1]) if path[-1] == 0 else None)
        if origin is not None and value in (origin.value, resolve(origin.value)):
            text = origin.text
            if origin.relative and folder != base_dir:
                text = os.path.normpath(os.path.join(os.path.relpath(base_dir, folder), text))
        elif isinstance(value, str):
            text = value
        else:
            return value
        return _TOKEN.sub(r"\1***", _PASSWORD.sub(r"\1***", text)) if secrets_hidden else text

    def walk(value: Any, path: KeyPath) -> Any:
        if isinstance(value, dict):
            return {key: walk(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [walk(item, (*path, i)) for i, item in enumerate(value)]
        return leaf(value, path)

    shown: dict[str, Any] = walk(tree, ())
    return shown


def hide_values(error: ConfigError, origins: Mapping[KeyPath, Origin]) -> ConfigError:
    """Write ``${NAME}`` instead of the values of variables in a message."""
    sentences = [error.happened, error.expected, error.remedy]
    for origin in origins.values():
        if _VARIABLE.search(origin.text) and len(origin.value) > 2:
            sentences = [sentence.replace(origin.value, origin.text) for sentence in sentences]
    return ConfigError(*sentences)
