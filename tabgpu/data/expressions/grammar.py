"""The grammar of the expression language: text in, a tree of operations out.

Python's own parser reads the text; what may stand in it is decided here by a list, and everything else is refused with
its position. Nothing is ever compiled or evaluated by Python. Before it reads, names in backquotes become plain ones of
the same length in bytes, so that the positions that it reports are those of the text.

What the tree is for, and the language for users, is in `tabgpu.data.expressions`.
"""

from __future__ import annotations

import ast
import keyword
import math
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from ...errors import ConfigError, nearest
from . import choices, comparisons, logic, numbers
from .values import Operation, Scalar

MAX_LENGTH = 10_000  # characters
MAX_DEPTH = 100

FUNCTIONS: dict[str, tuple[int, int, Operation]] = {  # fewest and most arguments
    "missing": (1, 1, logic.missing),
    "where": (3, 3, choices.where),
    "coalesce": (2, 50, choices.coalesce),
    "abs": (1, 1, numbers.absolute),
    "min": (2, 50, partial(numbers.extreme, "min")),
    "max": (2, 50, partial(numbers.extreme, "max")),
    "log": (1, 1, partial(numbers.smooth, "log")),
    "exp": (1, 1, partial(numbers.smooth, "exp")),
    "sqrt": (1, 1, partial(numbers.smooth, "sqrt")),
    "round": (1, 1, partial(numbers.rounded, "round")),
    "floor": (1, 1, partial(numbers.rounded, "floor")),
    "ceil": (1, 1, partial(numbers.rounded, "ceil")),
}
_ARITHMETIC = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
}
_COMPARISONS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_CONSTANTS: dict[str, Scalar] = {"true": True, "false": False, "null": None}
_HINTS = {
    ast.BitAnd: "Write and for &",
    ast.BitOr: "Write or for |",
    ast.Invert: "Write not for ~",
    ast.BitXor: "Write ** for ^",
    ast.Is: "Write missing(x) for x is null",
    ast.IsNot: "Write not missing(x) for x is not null",
    ast.IfExp: "Write where(condition, a, b)",
}
_ALLOWED = (
    "Expected column names, numbers, quoted text, true, false, null, + - * / // % **, comparisons, in [..], "
    "and, or, not, and the functions " + ", ".join(FUNCTIONS)
)
_TOKEN = re.compile(r"'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"|(`(?:[^`]|``)+`)|[\s#`'\"]")


@dataclass(frozen=True, eq=False)
class Node:
    """A piece of an expression, and where it stands: offset and text."""

    offset: int
    piece: str


@dataclass(frozen=True, eq=False)
class Literal(Node):
    """A number, quoted text, true, false or null."""

    value: Scalar


@dataclass(frozen=True, eq=False)
class Name(Node):
    """A column."""

    name: str


@dataclass(frozen=True, eq=False)
class Call(Node):
    """An operation on other nodes."""

    operation: Operation
    arguments: tuple[Node, ...]


def walk(node: Node) -> Iterator[Node]:
    """Every node, each once."""
    seen: set[Node] = set()
    stack = [node]
    while stack:
        current = stack.pop()
        if current in seen:
            continue
        seen.add(current)
        yield current
        if isinstance(current, Call):
            stack.extend(reversed(current.arguments))


def at(piece: str, offset: int) -> str:
    """A piece and its position, 1 for the first character, for a message."""
    return f"{shortened(piece, 80)} at position {offset + 1}"


def shortened(text: str, length: int = 200) -> str:
    """The text in quotes, cut after `length` characters."""
    return repr(text if len(text) <= length else text[:length] + "...")


class Reader:
    """Reads one text into nodes. Offsets of Python's parser count UTF-8 bytes; ours count characters."""

    def __init__(self, text: str, where: str) -> None:
        self.text, self.where = text, where
        self.n_strings = 0

    def read(self) -> Node:
        """Return the tree; ConfigError where the text is none of the language."""
        if not isinstance(self.text, str) or len(self.text) > MAX_LENGTH or not self.text.strip():
            raise ConfigError(
                f"{self.where} is {str(self.text)[:40]!r}",
                f"Expected an expression of at most {MAX_LENGTH} characters",
                f"Write one under {self.where}, such as arr_delay >= 15",
            )
        code = _TOKEN.sub(self._plain, self.text)
        self.lead = len(code) - len(code.lstrip(" "))  # white space has become as many spaces as it had bytes
        try:
            self.source = self.text.encode()
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # an unknown escape in a string is a mistake
                tree = ast.parse(code.strip(" "), mode="eval")
        except SyntaxError as error:
            before = code[: self.lead + (error.offset or 1) - 1].encode()
            position = len(self.source[: len(before)].decode(errors="ignore")) + 1
            raise self._syntax_error(position, error.msg) from None
        except (ValueError, RecursionError, MemoryError, Warning):
            raise self._syntax_error(1, "it cannot be read") from None
        node = self._convert(tree.body, 0)
        n_strings = sum(isinstance(n, ast.Constant) and isinstance(n.value, str) for n in ast.walk(tree))
        if n_strings != self.n_strings:  # Python would glue 'a' 'b' together
            raise self._syntax_error(1, "two strings stand side by side")
        return node

    def _plain(self, match: re.Match[str]) -> str:
        """Make a token plain to Python's parser, without moving what follows it by a byte."""
        token = match[0]
        if match[1]:
            return "_" * len(token.encode(errors="replace"))
        if token.isspace():
            return " " * len(token.encode())
        if len(token) == 1:  # a comment, or a quote that has no end
            raise self._syntax_error(match.start() + 1, f"{token} cannot stand here")
        self.n_strings += 1
        return token

    def _syntax_error(self, position: int, message: str) -> ConfigError:
        words = [w for w in re.findall(r"\w+", self.text) if w not in ("in", "and", "or", "not")]
        hint = "A column with an odd name stands in backquotes"
        if re.search(r"(?<![=<>!])=(?!=)", self.text):
            hint = "Equality is written =="
        elif reserved := [w for w in words if keyword.iskeyword(w)]:
            hint = f"A column named {reserved[0]} is written `{reserved[0]}`, in backquotes"
        elif shouted := [w for w in words if w in ("AND", "OR", "NOT", "IN")]:
            hint = f"{shouted[0]} is written {shouted[0].lower()}"
        return ConfigError(
            f"{self.where} is {shortened(self.text)}, which cannot be read at position {position}: {message}",
            f"{_ALLOWED}. {hint}",
            f"Correct the expression under {self.where}",
        )

    def _segment(self, node: ast.expr) -> tuple[int, str]:
        first, last = node.col_offset + self.lead, (node.end_col_offset or 0) + self.lead
        return len(self.source[:first].decode()), self.source[first:last].decode()

    def _refuse(self, node: ast.expr, expected: str = _ALLOWED) -> ConfigError:
        offset, piece = self._segment(node)
        return ConfigError(
            f"{self.where} has {at(piece, offset)} of {shortened(self.text)}",
            expected,
            f"Correct the expression under {self.where}",
        )

    def _call(self, node: ast.expr, operation: Operation, *arguments: Node) -> Call:
        return Call(*self._segment(node), operation, arguments)

    def _convert(self, node: ast.expr, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise self._refuse(node, f"Expected at most {MAX_DEPTH} levels of nesting; derive a part of it first")
        match node:
            case ast.Constant():
                return self._literal(node, node.value)
            case ast.Name():
                offset, raw = self._segment(node)  # as written: Python folds some letters in names
                if raw in _CONSTANTS:
                    return Literal(offset, raw, _CONSTANTS[raw])
                return Name(offset, raw, raw[1:-1].replace("``", "`") if raw.startswith("`") else raw)
            case ast.UnaryOp():
                return self._unary(node, self._convert(node.operand, depth + 1))
            case ast.BinOp() if type(node.op) in _ARITHMETIC:
                sides = (self._convert(side, depth + 1) for side in (node.left, node.right))
                return self._call(node, partial(numbers.arithmetic, _ARITHMETIC[type(node.op)]), *sides)
            case ast.BoolOp():
                operation = logic.both if isinstance(node.op, ast.And) else logic.either
                return self._call(node, operation, *(self._convert(v, depth + 1) for v in node.values))
            case ast.Compare():
                return self._comparison(node, depth)
            case ast.Call():
                return self._function(node, depth)
        raise self._refuse(node, self._hint(node))

    def _hint(self, node: ast.expr) -> str:
        hint = _HINTS.get(type(getattr(node, "op", node)))
        return f"{hint}. {_ALLOWED}" if hint else _ALLOWED

    def _literal(self, node: ast.expr, value: object) -> Literal:
        if value is None or isinstance(value, bool | str):
            return Literal(*self._segment(node), value)
        if (isinstance(value, int) and abs(value) < 2**64) or (isinstance(value, float) and math.isfinite(value)):
            return Literal(*self._segment(node), value)
        raise self._refuse(node, f"Expected numbers within 64 bits. {_ALLOWED}")

    def _unary(self, node: ast.UnaryOp, inner: Node) -> Node:
        if isinstance(node.op, ast.Not):
            return self._call(node, logic.negation, inner)
        if isinstance(node.op, ast.Invert):
            raise self._refuse(node, self._hint(node))
        if isinstance(inner, Literal) and isinstance(inner.value, int | float) and not isinstance(inner.value, bool):
            return self._literal(node, -inner.value if isinstance(node.op, ast.USub) else inner.value)
        return self._call(node, numbers.negative if isinstance(node.op, ast.USub) else numbers.positive, inner)

    def _comparison(self, node: ast.Compare, depth: int) -> Node:
        left = self._convert(node.left, depth + 1)
        links: list[Node] = []
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            if isinstance(op, ast.In | ast.NotIn):
                if len(node.ops) > 1:
                    raise self._refuse(node, "Expected x in [..] on its own, joined to others by and")
                link: Node = self._call(node, partial(comparisons.within, self._choices(right_node)), left)
                links.append(link if isinstance(op, ast.In) else self._call(node, logic.negation, link))
                continue
            if type(op) not in _COMPARISONS:
                raise self._refuse(node, f"{_HINTS[type(op)]}. {_ALLOWED}")
            right = self._convert(right_node, depth + 1)
            links.append(self._call(node, partial(comparisons.compare, _COMPARISONS[type(op)]), left, right))
            left = right
        return links[0] if len(links) == 1 else self._call(node, logic.both, *links)

    def _choices(self, node: ast.expr) -> tuple[Scalar, ...]:
        items = node.elts if isinstance(node, ast.List | ast.Tuple | ast.Set) else []
        values = [self._convert(item, 0) for item in items if isinstance(item, ast.Constant | ast.UnaryOp | ast.Name)]
        literals = tuple(v.value for v in values if isinstance(v, Literal) and v.value is not None)
        if not literals or len(literals) != len(items):
            raise self._refuse(node, "Expected a list of numbers or quoted text, such as x in ['a', 'b']")
        return literals

    def _function(self, node: ast.Call, depth: int) -> Node:
        name = self._segment(node.func)[1]
        if not isinstance(node.func, ast.Name) or name not in FUNCTIONS:
            raise self._refuse(node, f"{nearest(name[:80], FUNCTIONS)} {_ALLOWED}")
        fewest, most, operation = FUNCTIONS[name]
        if node.keywords or not fewest <= len(node.args) <= most:
            number = str(fewest) if fewest == most else f"{fewest} to {most}"
            raise self._refuse(node, f"Expected {name} with {number} values between its brackets")
        return self._call(node, operation, *(self._convert(a, depth + 1) for a in node.args))
