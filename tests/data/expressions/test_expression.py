"""What expressions mean: what is exact, what is refused for its types, and what missing means."""

from __future__ import annotations

import math
import operator
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabgpu.columns import Chunk, Column, Levels
from tabgpu.data.expressions import parse
from tabgpu.data.expressions.grammar import FUNCTIONS
from tabgpu.errors import ConfigError, DataError
from tabgpu.features.contract import Field
from tabgpu.hashing import hash_levels

COMPARE = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
HARD = [0, 1, -1, 15, 2**24 + 1, 2**31 - 1, 2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 2**62 + 3]
HARD_FLOATS = [
    0.0,
    -0.0,
    0.5,
    -1.5,
    1e30,
    1e-30,
    5e-324,
    2.0**53,
    2.0**53 + 2,
    2.0**63,
    -(2.0**63),
    math.inf,
    -math.inf,
]

integers = st.one_of(st.sampled_from(HARD), st.integers(-20, 20), st.integers(-(2**63), 2**63 - 1))
unsigned = st.one_of(st.sampled_from([0, 2**63 - 1, 2**63, 2**64 - 1]), st.integers(0, 20), st.integers(0, 2**64 - 1))
floats = st.one_of(st.sampled_from(HARD_FLOATS), st.floats(allow_nan=False), st.integers(-20, 20).map(float))


def numeric(values, dtype):
    """A column from Python values, None for missing."""
    if np.dtype(dtype).kind == "f":
        return Column(np.array([math.nan if v is None else v for v in values], dtype=dtype))
    valid = np.array([v is not None for v in values], dtype=bool)
    return Column(np.array([77 if v is None else v for v in values], dtype=dtype), valid=None if valid.all() else valid)


def text(values, levels=None, kind=None):
    levels = sorted({v for v in values if v is not None}, reverse=True) if levels is None else levels
    codes = np.array([-1 if v is None else levels.index(v) for v in values], dtype=np.int32)
    return Column(codes, kind="categorical", levels=Levels(pa.array(levels, kind or pa.string()), hash_levels))


def times(values, unit="s", zone=None):
    column = numeric(values, "int64")
    return Column(column.values, kind="datetime", valid=column.valid, unit=unit, zone=zone)


def chunk_of(**columns):
    n = len(next(iter(columns.values())))
    return Chunk(columns, np.arange(n, dtype=np.uint64), np)


def listed(column):
    """Python values, None for missing."""
    values = column.values.tolist()
    if column.levels is not None:
        values = [None if v < 0 else column.levels.values[v].as_py() for v in values]
    return [None if gone else v for v, gone in zip(values, column.missing().tolist(), strict=True)]


def result(expression, **columns):
    return listed(parse(expression, "data.derive.z").evaluate(chunk_of(**columns)))


def rows_of(*elements):
    return st.lists(st.tuples(*(st.one_of(st.none(), e) for e in elements)), min_size=1, max_size=12)


# ---- numbers ----


@settings(deadline=None, max_examples=50)
@given(rows_of(integers, unsigned, floats, st.integers(-128, 127)), st.sampled_from(sorted(COMPARE)), st.data())
def test_comparisons_are_those_of_the_true_values(rows, symbol, data):
    i, u, x, b = zip(*rows, strict=True)
    columns = {"i": numeric(i, "int64"), "u": numeric(u, "uint64"), "x": numeric(x, "float64"), "b": numeric(b, "int8")}
    plain = {"i": i, "u": u, "x": x, "b": b}
    left = data.draw(st.sampled_from("iuxb"))
    right = data.draw(st.one_of(st.sampled_from("iuxb"), integers, unsigned, floats.filter(math.isfinite)))
    others = plain[right] if isinstance(right, str) else [right] * len(rows)
    expected = [
        None if p is None or q is None else int(COMPARE[symbol](p, q)) for p, q in zip(plain[left], others, strict=True)
    ]
    source = right if isinstance(right, str) else repr(right)
    assert result(f"{left} {symbol} {source}", **columns) == expected
    if left != right:
        flipped = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(symbol, symbol)
        assert result(f"{source} {flipped} {left}", **columns) == expected


@pytest.mark.parametrize("symbol", sorted(COMPARE))
def test_comparisons_of_all_hard_pairs(symbol):
    unsigned_hard = [v for v in HARD if v >= 0] + [2**63, 2**64 - 1]
    fractions = [*HARD_FLOATS, 2.0**53 - 1, -(2.0**53) - 2, 2.0**64, 14.5, -0.5]
    columns = {"int64": HARD, "uint64": unsigned_hard, "float64": fractions, "int32": [0, 1, -1, 15, -(2**31)]}
    for left, p_values in columns.items():
        for right, q_values in columns.items():
            pairs = [(p, q) for p in p_values for q in q_values]
            p, q = zip(*pairs, strict=True)
            expected = [int(COMPARE[symbol](p, q)) for p, q in pairs]
            assert result(f"p {symbol} q", p=numeric(p, left), q=numeric(q, right)) == expected
        for literal in [*HARD, 2**63, 2**64 - 1, *(f for f in fractions if math.isfinite(f))]:
            expected = [int(COMPARE[symbol](p, literal)) for p in p_values]
            assert result(f"p {symbol} {literal!r}", p=numeric(p_values, left)) == expected


@settings(deadline=None, max_examples=50)
@given(rows_of(integers, unsigned, floats), st.lists(st.one_of(integers, unsigned), min_size=1, max_size=4))
def test_membership_is_equality_with_any(rows, choices):
    i, u, x = zip(*rows, strict=True)
    columns = {"i": (i, "int64"), "u": (u, "uint64"), "x": (x, "float64")}
    for name, (values, dtype) in columns.items():
        expected = [None if v is None else int(any(v == c for c in choices)) for v in values]
        assert result(f"{name} in {choices}", **{name: numeric(values, dtype)}) == expected
        flipped = [None if v is None else 1 - v for v in expected]
        assert result(f"{name} not in {choices}", **{name: numeric(values, dtype)}) == flipped


@settings(deadline=None, max_examples=50)
@given(rows_of(integers, integers), st.sampled_from(["+", "-", "*", "//", "%"]), st.data())
def test_integers_are_exact_or_refused(rows, symbol, data):
    functions = {"+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod}
    a, b = zip(*rows, strict=True)
    literal = data.draw(st.one_of(st.none(), integers))
    others = b if literal is None else [literal] * len(a)
    expected = [
        None if p is None or q is None or (q == 0 and symbol in "//%") else functions[symbol](p, q)
        for p, q in zip(a, others, strict=True)
    ]
    source = f"a {symbol} {'b' if literal is None else literal}"
    columns = {"a": numeric(a, "int64"), "b": numeric(b, "int64")}
    if all(e is None or -(2**63) <= e < 2**63 for e in expected):
        near = any(e is not None and abs(e) > 2**63 * (1 - 2.0**-49) for e in expected) and symbol == "*"
        try:
            assert result(source, **columns) == expected
        except DataError:
            assert near  # a product this near the edge may be refused, never wrong
    else:
        with pytest.raises(DataError, match="beyond 64 bits"):
            result(source, **columns)


def test_narrow_integers_are_widened():
    assert result("a * a", a=numeric([127, -128], "int8")) == [127 * 127, 128 * 128]
    assert result("a * b", a=numeric([-(2**31)], "int32"), b=numeric([-(2**31)], "int32")) == [2**62]
    assert result("a - b", a=numeric([0], "uint8"), b=numeric([200], "uint8")) == [-200]
    assert result("-a", a=numeric([200], "uint8")) == [-200]
    assert result("abs(a)", a=numeric([-128], "int8")) == [128]
    with pytest.raises(DataError):
        result("a * b", a=numeric([2**32 - 1], "uint32"), b=numeric([2**32 - 1], "uint32"))
    with pytest.raises(DataError):
        result("abs(a)", a=numeric([-(2**63)], "int64"))
    with pytest.raises(DataError):
        result("a + 1", a=numeric([2**63], "uint64"))


def test_members_that_the_column_cannot_hold_are_in_no_row():
    assert result("i in [1.5, -0.5, 300, 2]", i=numeric([1, -1, 44, 127, 2, None], "int8")) == [0, 0, 0, 0, 1, None]
    assert result("x in [9007199254740993]", x=numeric([2.0**53, 2.0**53 + 2], "float64")) == [0, 0]


def test_what_is_missing_cannot_overflow():
    column = Column(np.array([2**63 - 1, 1]), valid=np.array([False, True]))
    assert result("a + a", a=column) == [None, 2]
    assert result("a * 4", a=column) == [None, 4]


@settings(deadline=None, max_examples=50)
@given(rows_of(floats, floats), st.sampled_from(["+", "-", "*", "/"]))
def test_floats_are_those_of_python(rows, symbol):
    functions = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
    a, b = zip(*rows, strict=True)
    expected = []
    for p, q in rows:
        value = None if p is None or q is None or (symbol == "/" and q == 0) else functions[symbol](p, q)
        expected.append(None if value is None or math.isnan(value) else value)
    assert result(f"a {symbol} b", a=numeric(a, "float64"), b=numeric(b, "float64")) == expected


def test_undefined_numbers_are_missing():
    x = numeric([0.0, -1.0, 4.0, None], "float64")
    assert result("1 / x", x=x) == [None, -1.0, 0.25, None]
    assert result("x // 0", x=x) == [None] * 4
    assert result("5 % x", x=x) == [None, -0.0, 1.0, None]
    assert result("log(x)", x=x) == [None, None, math.log(4), None]
    assert result("sqrt(x)", x=x) == [0.0, None, 2.0, None]
    assert result("x ** -1", x=x) == [None, -1.0, 0.25, None]
    assert result("i / j", i=numeric([7, 7], "int64"), j=numeric([2, 0], "int64")) == [3.5, None]
    assert result("-7 // i", i=numeric([2, None], "int64")) == [-4, None]


@pytest.mark.parametrize(
    ("source", "dtype"),
    [
        ("f + 1", "float32"),
        ("f * 0.1", "float32"),
        ("f / f", "float32"),
        ("h * 2", "float32"),
        ("f + d", "float64"),
        ("f + i", "float64"),
        ("f + b", "float32"),
        ("f + 16777217", "float64"),
        ("f * 1e300", "float64"),
        ("i / 2", "float64"),
        ("i + 2", "int64"),
        ("b + b", "int64"),
        ("i + 0.5", "float64"),
        ("i ** 2", "float64"),
        ("max(i, b)", "int64"),
        ("min(f, 0)", "float32"),
        ("exp(b)", "float64"),
        ("floor(f)", "float32"),
        ("round(i)", "int64"),
        ("60 * 24", "int64"),
        ("i > 1", "uint8"),
        ("missing(f)", "uint8"),
        ("where(i > 1, i, null)", "int64"),
        ("where(i > 1, f, 0)", "float32"),
        ("coalesce(f, d, 0)", "float64"),
        ("where(i > 1, 'a', 'b')", "int32"),
        ("t - t", "float64"),
        ("coalesce(t, '2013-10-01')", "int64"),
        ("i - true_", "int64"),
    ],
)
def test_check_tells_what_evaluate_gives(source, dtype):
    kinds = {"f": "float32", "d": "float64", "h": "float16", "i": "int64", "b": "int8", "true_": "uint8"}
    fields = {n: Field("numeric", d) for n, d in kinds.items()} | {"t": Field("datetime", "int64", "s", "UTC")}
    columns = {n: numeric([1, 2, None], d) for n, d in kinds.items()} | {"t": times([1, 2, None], "s", "UTC")}
    expression = parse(source, "data.derive.z")
    column = expression.evaluate(chunk_of(**columns))
    field = expression.check(fields)
    assert field.dtype == dtype == column.values.dtype.name
    assert (field.kind, field.unit, field.zone) == (column.kind, column.unit, column.zone)
    assert len(column) == 3


def test_fractions_beside_float32_mean_the_float32():
    x = numeric([0.1, 0.2, 1e30], "float32")
    assert result("x == 0.1", x=x) == [1, 0, 0]
    assert result("x in [0.1, 0.2]", x=x) == [1, 1, 0]
    assert result("x < 0.1", x=x) == [0, 0, 0]
    assert result("x > 16777217", x=numeric([16777216, 16777218], "float32")) == [0, 1]
    assert result("x <= 1e30", x=numeric([1.0, math.inf], "float16")) == [1, 0]
    assert result("x == 1e-50", x=numeric([0.0], "float32")) == [0]


def test_functions():
    x = numeric([-1.5, 2.5, None], "float64")
    assert result("round(x)", x=x) == [-2.0, 2.0, None]
    assert result("floor(x)", x=x) == [-2.0, 2.0, None]
    assert result("ceil(x)", x=x) == [-1.0, 3.0, None]
    assert result("max(x, 0)", x=x) == [0.0, 2.5, None]
    assert result("min(x, 0, -2)", x=x) == [-2.0, -2.0, None]
    assert result("max(i, 2)", i=numeric([2**53 + 1, 1, None], "int64")) == [2**53 + 1, 2, None]
    assert result("exp(x)", x=numeric([0.0, 1e6], "float64")) == [1.0, math.inf]
    assert len(FUNCTIONS) == 12


# ---- truth ----


def test_kleene_logic():
    a = [True, True, True, False, False, False, None, None, None]
    b = [True, False, None] * 3
    columns = {"a": numeric(a, "uint8"), "b": numeric(b, "uint8")}
    conjunction = [
        False if p is False or q is False else None if None in (p, q) else True for p, q in zip(a, b, strict=True)
    ]
    disjunction = [
        True if p is True or q is True else None if None in (p, q) else False for p, q in zip(a, b, strict=True)
    ]
    assert result("a and b", **columns) == conjunction
    assert result("a or b", **columns) == disjunction
    assert result("not a", **columns) == [None if p is None else not p for p in a]
    assert result("a and true", **columns) == a
    assert result("a or missing(a)", **columns) == [True] * 3 + [False] * 3 + [True] * 3
    assert result("a == true", **columns) == a


def test_late_is_missing_where_the_delay_is():
    delay = numeric([14.9, 15.0, None], "float64")
    assert result("arr_delay >= 15", arr_delay=delay) == [0, 1, None]
    assert result("0 <= arr_delay < 15", arr_delay=delay) == [1, 0, None]


def test_filter_keeps_what_is_true():
    chunk = chunk_of(x=numeric([1, 5, None], "int64"))
    assert parse("x > 2", "data.filter").keep(chunk).tolist() == [False, True, False]
    assert parse("not x > 2", "data.filter").keep(chunk).tolist() == [True, False, False]
    assert parse("true", "data.filter").keep(chunk).tolist() == [True] * 3
    for call in (lambda e: e.keep(chunk), lambda e: e.check({"x": Field("numeric", "int64")}, condition=True)):
        with pytest.raises(ConfigError, match="no condition"):
            call(parse("x + 1", "data.filter"))


# ---- text ----


def test_text_is_compared_on_levels():
    carrier = text(["UA", None, "DL", "é", "UA"])
    assert result("carrier == 'UA'", carrier=carrier) == [1, None, 0, 0, 1]
    assert result("carrier != 'nowhere'", carrier=carrier) == [1, None, 1, 1, 1]
    assert result("carrier in ['UA', 'DL']", carrier=carrier) == [1, None, 1, 0, 1]
    assert result("'E' < carrier", carrier=carrier) == [1, None, 0, 1, 1]
    assert result("carrier <= 'UA' and carrier >= 'DL'", carrier=carrier) == [1, None, 1, 0, 1]
    assert result("carrier < 'UA' or carrier > 'UA'", carrier=carrier) == [0, None, 1, 1, 0]
    assert result("missing(carrier)", carrier=carrier) == [0, 1, 0, 0, 0]
    assert result("carrier == 'UA'", carrier=text([None, None], [])) == [None, None]
    assert result("carrier == 'UA'", carrier=text([None], [], pa.null())) == [None]
    assert result("flight == 7", flight=text([7, 9, None], kind=pa.int64())) == [1, 0, None]
    assert result("flight in [7, 8.5]", flight=text([7, 9, None], kind=pa.int64())) == [1, 0, None]


def test_two_columns_of_text_are_compared_by_key():
    a, b = text(["x", "y", None, "z"]), text(["x", "z", "x", "z"], ["z", "q", "x"])
    assert result("a == b", a=a, b=b) == [1, 0, None, 1]
    assert result("a != b", a=a, b=b) == [0, 1, None, 0]
    with pytest.raises(ConfigError, match="== or !="):
        result("a < b", a=a, b=b)


@pytest.mark.parametrize("source", ["carrier == 5", "carrier in [5]", "carrier + 1", "carrier == x", "not carrier"])
def test_text_is_no_number(source):
    with pytest.raises(ConfigError, match=r"data\.derive\.z"):
        result(source, carrier=text(["a"]), x=numeric([1], "int64"))


# ---- times ----


def test_times_are_compared_with_iso_text():
    start = 1380585600  # 2013-10-01 UTC
    t = times([start - 1, start, None, start + 14400], "s")
    assert result("t >= '2013-10-01'", t=t) == [0, 1, None, 1]
    assert result("t < '2013-10-01T00:00:00.5'", t=t) == [1, 1, None, 0]
    assert result("t == '2013-10-01T02:00+02:00'", t=t) == [0, 1, None, 0]
    assert result("t in ['2013-10-01', '2013-10-02']", t=t) == [0, 1, None, 0]
    new_york = times([start - 1, start, None, start + 14400], "s", "America/New_York")
    assert result("t >= '2013-10-01'", t=new_york) == [0, 0, None, 1]
    assert result("t < '9999-12-31'", t=times([2**63 - 1], "ns")) == [1]
    with pytest.raises(ConfigError, match="no time"):
        result("t > 'soon'", t=t)
    with pytest.raises(ConfigError, match=r"data\.derive\.z"):
        result("t > 5", t=t)


@settings(deadline=None, max_examples=50)
@given(rows_of(integers, integers), st.sampled_from(["s", "ms", "us", "ns"]), st.sampled_from(["s", "ms", "us", "ns"]))
def test_times_of_different_units_meet_as_instants(rows, left, right):
    ticks = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}
    a, b = zip(*rows, strict=True)
    columns = {"a": times(a, left), "b": times(b, right)}
    instants = [
        (None if p is None else Fraction(p, ticks[left]), None if q is None else Fraction(q, ticks[right]))
        for p, q in rows
    ]
    for symbol, function in COMPARE.items():
        expected = [None if None in pair else int(function(*pair)) for pair in instants]
        assert result(f"a {symbol} b", **columns) == expected


def test_differences_of_times_are_seconds():
    a, b = times([10, 5, None], "s"), times([9_999_999_999, 5_000_000_000, 0], "ns")
    assert result("a - b", a=a, b=b) == [1e-9, 0.0, None]
    assert result("a - b", a=times([2**63 - 1], "s"), b=times([-(2**63)], "s")) == [2.0**64]


# ---- choices ----


def test_choices():
    x, y = numeric([1, None, 3], "int64"), numeric([7, 8, None], "int64")
    assert result("where(x > 1, x, y)", x=x, y=y) == [7, None, 3]
    assert result("where(missing(x), 0, x)", x=x) == [1, 0, 3]
    assert result("where(missing(x), null, x + 1)", x=x) == [2, None, 4]
    assert result("where(true, null, x)", x=x) == [None, None, None]
    assert result("coalesce(x, y)", x=x, y=y) == [1, 8, 3]
    assert result("coalesce(x, null, 2.5)", x=x) == [1.0, 2.5, 3.0]
    assert result("coalesce(x, 9007199254740993)", x=x) == [1, 2**53 + 1, 3]
    a, b = text(["p", None, "q"]), text(["q", "r", None])
    assert result("coalesce(a, b, 'none')", a=a, b=b) == ["p", "r", "q"]
    assert result("where(a == 'p', 'yes', b)", a=a, b=b) == ["yes", None, None]
    assert result("where(b == 'r', 'none', a)", a=a, b=b) == ["p", "none", None]
    assert result("where(x == 1, 'a', null)", x=x) == ["a", None, None]
    assert result("coalesce(t, '1970-01-02')", t=times([5, None], "s")) == [5, 86400]
    keys = parse("coalesce(a, 'none')", "w").evaluate(chunk_of(a=a)).levels
    assert keys.keys.tolist() == hash_levels(keys.values).tolist()


# ---- law 1 ----

SOURCES = [
    "x / y + i",
    "i // 3 * 2 - i % 7",
    "where(x > 0 and not missing(s), x, y)",
    "coalesce(s, 'none')",
    "s in ['a', 'c'] or t >= '1970-01-01T00:00:10'",
    "max(x, y, 0) ** 2",
    "-1 < x <= 5",
    "t - t",
]


@settings(deadline=None, max_examples=30)
@given(
    rows_of(floats, floats, st.integers(-99, 99), st.sampled_from("abc"), st.integers(0, 20)),
    st.sampled_from([1, 7, 5]),
)
def test_chunks_change_nothing(rows, size):
    x, y, i, s, t = zip(*rows, strict=True)

    def made(part):
        return chunk_of(
            x=numeric(x[part], "float64"), y=numeric(y[part], "float64"),
            i=numeric(i[part], "int64"), s=text(s[part]), t=times(t[part]),
        )  # fmt: skip

    for source in SOURCES:
        expression = parse(source, "data.derive.z")
        whole = listed(expression.evaluate(made(slice(None))))
        pieces = [listed(expression.evaluate(made(slice(k, k + size)))) for k in range(0, len(rows), size)]
        assert repr(whole) == repr([v for piece in pieces for v in piece])
        assert listed(expression.evaluate(made(slice(0, 0)))) == []
