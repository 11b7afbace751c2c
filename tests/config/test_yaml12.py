"""YAML 1.2: what is read, what is refused, and that writing is the inverse of reading."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabgpu.config.yaml12 import MAX_BYTES, dump, parse, read_text, resolve
from tabgpu.errors import ConfigError

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False)
    | st.text(max_size=12)
    | st.sampled_from(
        ["1e-3", "012", "0o7", "0x", "~", "no", ".inf", "2013-10-01", "a\n\nb", "\x85", "\u2028x", "\ufeff", "<<"]
    )
)
TREES = st.dictionaries(
    st.text(max_size=6),
    st.recursive(
        SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_size=4,
)


@settings(deadline=None, max_examples=50)
@given(TREES)
def test_what_is_written_reads_the_same(tree: dict[str, Any]) -> None:
    back = parse(dump(tree), "x").tree
    assert back == tree
    assert repr(back) == repr(tree)  # 1, 1.0 and True are equal, and -0.0 and 0.0


@settings(deadline=None, max_examples=50)
@given(st.text(alphabet=st.sampled_from(list("ab:-[]{},&*!|>'\"%@`#?~ \n\t\0é0.$")), max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        parse(text, "x.yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"), ("on", "on"), ("y", "y"), ("1e-3", 1e-3), ("012", 12), ("-0o14", "-0o14"), ("0o14", 12),
        ("0x1F", 31), ("1_000", "1_000"), ("12:30:45", "12:30:45"), ("2013-10-01", "2013-10-01"), ("True", True),
        ("tRue", "tRue"), ("", None), ("~", None), ("+1", 1), (".5", 0.5), ("1.", 1.0), ("-.INF", float("-inf")),
        ("e3", "e3"), (".", "."), ("=", "="), ("<<", "<<"), ("0b1", "0b1"), ("١", "١"),
    ],
)  # fmt: skip
def test_scalars_follow_the_core_schema(text: str, value: Any) -> None:
    assert resolve(text) == value
    assert type(resolve(text)) is type(value)
    assert parse(f"a: {text}", "x").tree == {"a": value}


def test_keys_are_text_and_quoted_scalars_too() -> None:
    assert parse("no: 1\n012: 2\nnull: '3'\n1.5: \"~\"", "x").tree == {"no": 1, "012": 2, "null": "3", "1.5": "~"}


def test_lines_are_known() -> None:
    document = parse("a: 1\nb:\n  - c: 2\n  - d:\n      e: 3\n", "x")
    assert document.lines["a",] == 1
    assert document.lines["b", 1, "d", "e"] == 5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: 2\na: 3", ["line 3, column 1", "'a'", "line 1"]),
        ("a: {b: 1, b: 2}", ["'b'"]),
        ("a: &x 1\nb: *x", ["line 1, column 4", "anchors"]),
        ("a: *x", ["aliases"]),
        ("a: !!python/object/apply:os.system [ls]", ["tag", "python"]),
        ("? [1]\n: 2", ["key"]),
        ("a: 1\n---\nb: 2", ["second document", "line 2"]),
        ("a: [1, 2\nb: 3", ["x.yaml, line"]),
        ("a: b: c", ["line 1, column 5"]),
        ("\ta: 1", ["line 1"]),
        ("a: \0", ["control characters"]),
        ("a: {b: ${X}}", ["quote '${NAME}'"]),
        ("a: " + "9" * 5000, ["400 digits"]),
        ("[" * 300 + "]" * 300, ["nesting"]),
        ("- " * 300 + "a", ["nesting"]),
        ("a: x" * MAX_BYTES, ["1,000,000"]),
    ],
)
def test_refusals_name_the_place(text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "x.yaml")
    assert "x.yaml" in caught.value.happened
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "text", ["[" + "1," * 499_000 + "]", "a: [" * 200_000, "k: v\n" * 190_000, "a: &a [*a,*a]\n" * 50_000]
)
def test_hostile_files_are_refused_in_a_second(text: str) -> None:
    start = time.monotonic()
    with pytest.raises(ConfigError):
        parse(text, "x")
    assert time.monotonic() - start < 1


def test_an_alias_bomb_is_refused_at_its_first_anchor() -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 20)]
    with pytest.raises(ConfigError, match="line 1, column 5"):
        parse("\n".join(lines), "x")


def test_files_are_text_of_a_size(tmp_path: Path) -> None:
    good = tmp_path / "flights.yaml"
    good.write_bytes(b"\xef\xbb\xbfa: \xc3\xa9")
    assert read_text(good) == "a: é"
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9")
    (tmp_path / "big.yaml").write_bytes(b"# " + b"\xc3\xa9" * MAX_BYTES)
    for name, word in (
        ("latin.yaml", "byte 3"),
        ("big.yaml", "1,000,000"),
        ("flight.yaml", "'flights.yaml'"),
        (".", "folder"),
    ):
        with pytest.raises(ConfigError) as caught:
            read_text(tmp_path / name)
        assert word in str(caught.value)
    with pytest.raises(ConfigError, match="no regular file"):
        read_text(Path("/dev/null"))
