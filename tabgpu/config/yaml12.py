"""Read and write YAML 1.2, strictly.

PyYAML knows YAML 1.1, in which ``no`` is false, ``1e-3`` is text and ``012`` is ten. Here its parser is used for the
syntax alone; scalars follow the core schema of YAML 1.2.2, section 10.3, and the same rules decide what is quoted when
writing. Dates stay text. Every key is text, as it stands: ``no``, ``012`` and ``2013`` are good column names.

What a pipeline file has no use for is refused, so that a file can do no harm and hold no surprise: tags, anchors and
aliases, several documents, duplicate keys, keys that are lists, nesting beyond 50 levels, more than 20,000 nodes, more
than 1 MB. Mistakes are `ConfigError` with file, line and column. This module knows nothing of pipelines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from yaml import events

from ..errors import ConfigError, nearest

KeyPath = tuple[str | int, ...]
MAX_BYTES = 1_000_000
_MAX_DEPTH, _MAX_NODES = 50, 20_000

_NULL = re.compile(r"~|null|Null|NULL|")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", re.ASCII)
_FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", re.ASCII
)
_BREAKS = re.compile("[\r\n\x85\u2028\u2029]")
_Parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml: 30 times as fast, and in every wheel


@dataclass(frozen=True)
class Document:
    """What a file holds, and where.

    Parameters
    ----------
    tree : object
        Dictionaries, lists, text, ints, floats, bools and None.
    lines : mapping of tuple to int
        The line, from 1, of each key path such as ``("features", 0, "fill")``.
    """

    tree: Any
    lines: Mapping[KeyPath, int]


def resolve(text: str) -> bool | int | float | str | None:
    """Value of a plain scalar in the core schema of YAML 1.2.

    Examples
    --------
    >>> [resolve(t) for t in ("no", "012", "0o14", "1e-3", "true", "~", "2013-10-01")]
    ['no', 12, 12, 0.001, True, None, '2013-10-01']
    """
    if _NULL.fullmatch(text):
        return None
    if _BOOL.fullmatch(text):
        return text in {"true", "True", "TRUE"}
    if _INT.fullmatch(text):
        base = {"0o": 8, "0x": 16}.get(text[:2], 10)
        return int(text, base) if len(text) < 400 else text
    if _FLOAT.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


def read_text(path: Path) -> str:
    """Text of a file of at most 1 MB in UTF-8, with or without a byte order mark.

    Raises
    ------
    ConfigError
        If there is no such file (with the nearest name in its folder), or it is no such text.
    """
    if not path.is_file():
        there = [p.name for p in path.parent.glob("*.y*ml")]
        what = "is a folder" if path.is_dir() else "is no regular file" if path.exists() else "does not exist"
        near = nearest(path.name, there) if there else "Expected the path of a YAML file"
        raise ConfigError(f"The file {path} {what}", near, "Correct the path")
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise _too_long(path.name)
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        happened = f"{path.name} is no UTF-8 at byte {error.start}"
        raise ConfigError(happened, "Expected text in UTF-8", f"Save {path.name} as UTF-8") from None
    except OSError as error:
        happened = f"The file {path} cannot be read: {error.strerror}"
        raise ConfigError(happened, "Expected a readable file", "Correct its permissions") from error


def parse(text: str, name: str) -> Document:
    """Read one document.

    Parameters
    ----------
    text : str
        The file's text.
    name : str
        The file's name, for messages.

    Raises
    ------
    ConfigError
        At a syntax error or anything that the module refuses: names file, line and column.

    Examples
    --------
    >>> parse("a: {b: no, c: [1, 1e-3]}", "x.yaml").tree
    {'a': {'b': 'no', 'c': [1, 0.001]}}
    """
    if len(text) > MAX_BYTES:
        raise _too_long(name)
    try:
        return _Builder(yaml.parse(text, Loader=_Parser), name).document()
    except yaml.MarkedYAMLError as error:
        mark: Any = error.problem_mark or error.context_mark
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        line = text.splitlines()[mark.line : mark.line + 1] if mark is not None else []
        hint = "; inside [ ] and { }, quote '${NAME}'" if line and "${" in line[0] else ""
        raise _refusal(name, mark, reason, f"Expected YAML 1.2{hint}") from None
    except yaml.YAMLError as error:
        position = getattr(error, "position", None)
        at = f"{name}, character {position}" if position is not None else name
        reason = getattr(error, "reason", None) or str(error)
        raise ConfigError(
            f"{at}: {reason}",
            "Expected YAML 1.2 in UTF-8 without control characters",
            f"Save {name} as plain UTF-8 text",
        ) from None


def dump(tree: Any) -> str:
    """Write a tree so that `parse` reads the same again; innermost mappings and lists on one line.

    Examples
    --------
    >>> print(dump({"a": {"b": "no", "c": "1e-3", "d": 0.001}}), end="")
    a: {b: no, c: '1e-3', d: 0.001}
    """
    return str(yaml.dump(tree, Dumper=_Dumper, sort_keys=False, default_flow_style=None, allow_unicode=True, width=110))


class _Builder:
    """Build the tree from the parser's events, without recursion limits of the parser's own."""

    def __init__(self, stream: Iterator[Any], name: str) -> None:
        self.stream, self.name = stream, name
        self.lines: dict[KeyPath, int] = {}
        self.n_nodes = 0

    def document(self) -> Document:
        """Read the whole stream."""
        tree: Any = None
        n_documents = 0
        for event in self.stream:
            if isinstance(event, events.DocumentStartEvent):
                n_documents += 1
                if n_documents > 1:
                    raise _refusal(self.name, event.start_mark, "a second document starts", "Expected one document")
                tree = self.node(next(self.stream), ())
        return Document(tree, self.lines)

    def node(self, event: Any, path: KeyPath) -> Any:
        """Read the node that `event` begins."""
        self.check(event, path)
        self.lines.setdefault(path, event.start_mark.line + 1)
        if isinstance(event, events.ScalarEvent):
            return self.scalar(event)
        if isinstance(event, events.SequenceStartEvent):
            items: list[Any] = []
            while not isinstance(event := next(self.stream), events.SequenceEndEvent):
                items.append(self.node(event, (*path, len(items))))
            return items
        return self.mapping(path)

    def mapping(self, path: KeyPath) -> dict[str, Any]:
        """Read the pairs of a mapping."""
        tree: dict[str, Any] = {}
        while not isinstance(event := next(self.stream), events.MappingEndEvent):
            mark: Any = event.start_mark
            if not isinstance(event, events.ScalarEvent):
                self.check(event, path)
                raise _refusal(self.name, mark, "a key is a list or a mapping", "Expected text as key")
            self.check(event, path)
            key, here = event.value, (*path, event.value)
            if key in tree:
                reason = f"the key {key!r} stands here again, first on line {self.lines[here]}"
                raise _refusal(self.name, mark, reason, "Expected each key once")
            self.lines[here] = mark.line + 1
            tree[key] = self.node(next(self.stream), here)
        return tree

    def scalar(self, event: Any) -> Any:
        """Value of a scalar: text where quoted, by the core schema where plain."""
        if not event.implicit[0]:
            return event.value
        value = resolve(event.value)
        if isinstance(value, str) and _INT.fullmatch(value):
            raise _refusal(self.name, event.start_mark, "a number of 400 digits or more", "Expected a shorter number")
        return value

    def check(self, event: Any, path: KeyPath) -> None:
        """Refuse what no pipeline file needs."""
        self.n_nodes += 1
        reason = ""
        if isinstance(event, events.AliasEvent) or event.anchor is not None:
            reason = "anchors (&) and aliases (*) are not read; quote text that begins with & or *"
        elif event.tag is not None and event.tag != "!":
            reason = f"the tag {event.tag} is not read; quote text that begins with !"
        elif len(path) > _MAX_DEPTH:
            reason = f"more than {_MAX_DEPTH} levels of nesting"
        elif self.n_nodes > _MAX_NODES:
            reason = f"more than {_MAX_NODES:,} values"
        if reason:
            raise _refusal(self.name, event.start_mark, reason, "Expected plain mappings, lists and scalars")


def _too_long(name: str) -> ConfigError:
    return ConfigError(
        f"{name} holds more than {MAX_BYTES:,} bytes",
        "Expected a pipeline file, not data",
        "Choose columns by globs such as 'w_*' instead of long lists",
    )


def _refusal(name: str, mark: Any, reason: str, expected: str) -> ConfigError:
    at = f"{name}, line {mark.line + 1}, column {mark.column + 1}" if mark is not None else name
    return ConfigError(f"{at}: {reason}", expected, f"Correct {name} there")


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes by the core schema of YAML 1.2."""

    yaml_implicit_resolvers: dict[str | None, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  PyYAML's own form

    def ignore_aliases(self, data: Any) -> bool:
        """Write a value twice rather than an alias."""
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    # PyYAML folds the line breaks of other scripts wrongly in its other styles
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, '"' if _BREAKS.search(text) else None)


_Dumper.add_representer(str, _text)
for _tag, _pattern in (("null", _NULL), ("bool", _BOOL), ("int", _INT), ("float", _FLOAT)):
    _whole = re.compile(f"(?:{_pattern.pattern})\\Z", _pattern.flags)
    _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _whole, None)
