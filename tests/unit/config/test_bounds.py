from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_leakcheck.config.scaling_marker import Bound, FormulaBound, OrderBound, SlopeBound, parse_bound
from pytest_leakcheck.model import InputError
from pytest_leakcheck.model.units import Unit, singular

KIB, MIB = 2**10, 2**20
PROPERTY = settings(max_examples=200, deadline=None, derandomize=True)


@pytest.mark.parametrize(
    ("text", "exponent"),
    [
        ("O(1)", None),
        (" O( 1 ) ", None),
        ("O(log n)", 0.0),
        ("O(log  n)", 0.0),
        ("O(sqrt n)", 0.5),
        ("O(n^0.5)", 0.5),
        ("O(n^2)", 2.0),
        ("O(n)", 1.0),
    ],
)
def test_laws(text: str, exponent: float | None) -> None:
    bound = parse_bound(text, "shards", "bytes")
    assert bound == OrderBound(text, exponent)
    assert str(bound) == text


@pytest.mark.parametrize(
    ("text", "axis", "unit", "per"),
    [
        ("1.2 MiB/shard", "shards", "bytes", 1.2 * MIB),
        ("1.2 MiB / shards", "shards", "bytes", 1.2 * MIB),
        ("65536/shard", "shards", "bytes", 65536),
        ("0.5/shard", "shards", "bytes", 0.5),
        ("3/shard", "shards", "count", 3),
        ("0.5/world_size", "world_size", "count", 0.5),
        ("2/batch", "batches", "count", 2),
        ("2/copy", "copies", "count", 2),
    ],
)
def test_slopes(text: str, axis: str, unit: Unit, per: float) -> None:
    bound = parse_bound(text, axis, unit)
    assert bound == SlopeBound(text, per)
    assert str(bound) == text


@pytest.mark.parametrize(
    ("axis", "one"),
    [
        ("shards", "shard"),
        ("world_size", "world_size"),
        ("batches", "batch"),
        ("boxes", "box"),
        ("copies", "copy"),
        ("images", "image"),
        ("mass", "mass"),
        ("ties", "tie"),
        ("s", "s"),
    ],
)
def test_one_of_an_axis(axis: str, one: str) -> None:
    assert singular(axis) == one


@pytest.mark.parametrize(
    ("text", "unit", "size", "expected"),
    [
        ("<= 512 MiB", "bytes", 8, 512 * MIB),
        ("<=512MiB", "bytes", 8, 512 * MIB),
        ("<= 65536", "bytes", 8, 65536),
        ("<= 3", "count", 8, 3),
        ("<= max(64, n)", "count", 128, 128),
        ("<= 64 // n // 2", "count", 5, 6),
        ("<= 1.5 MiB * n + 64 MiB", "bytes", 8, 76 * MIB),
        ("<= 1.5 * n", "count", 8, 12),
    ],
)
def test_formulas(text: str, unit: Unit, size: int, expected: float) -> None:
    bound = parse_bound(text, "n", unit)
    assert isinstance(bound, FormulaBound)
    assert bound.at(size) == expected
    assert str(bound) == text


def test_a_number_is_a_limit() -> None:
    limit = parse_bound(3, "shards", "count")
    assert isinstance(limit, FormulaBound)
    assert (limit.at(8), str(limit)) == (3, "<= 3")
    assert str(parse_bound(3, "shards", "count", lower=True)) == "3"


@pytest.mark.parametrize("text", ["64 - (world_size - 1)", ">= 64 - (world_size - 1)"])
def test_a_lower_bound_needs_no_sign(text: str) -> None:
    bound = parse_bound(text, "world_size", "count", lower=True)
    assert isinstance(bound, FormulaBound)
    assert (bound.at(4), str(bound)) == (61, text)


BYTES = "write a law 'O(1)', a slope '1.2 MiB/shard' or a limit '<= 512 MiB'"
COUNT = "write a law 'O(1)', a slope '3/shard' or a limit '<= 3'"
SLOPE = "is not a slope: write an amount per unit of the axis, such as"
LAWS = "write O(1), O(log n), O(sqrt n), O(n), or O(n^0.5) with an exponent up to 3"
LIST = "a formula may contain numbers, 'shards', + - * //, max() and min()"
FORMULA = "valid example: 'max(64, shards)'"


# What was seen, what is wrong with it, what is valid.
@pytest.mark.parametrize(
    ("value", "unit", "message"),
    [
        (None, "bytes", f"None is not a bound: {BYTES}"),
        ("512 MiB", "bytes", f"'512 MiB' is not a bound: {BYTES}"),
        ("O(n log n)", "bytes", f"'O(n log n)' is not a supported complexity: {LAWS}"),
        ("1 MiB/row", "bytes", "'1 MiB/row' is per 'row', but the axis is 'shards': write '1.2 MiB/shard'"),
        ("1/2/shard", "count", f"'1/2/shard' {SLOPE} '3/shard'"),
        ("1 MiB/shard", "count", f"'1 MiB/shard' {SLOPE} '3/shard'"),
        ("<= -3", "count", f"'<= -3' contains '-3': {LIST}; {FORMULA}"),
        ("<= rows", "count", f"'<= rows' uses the name 'rows': the only valid name is the axis, 'shards'; {FORMULA}"),
        ("<= 3 MiB", "count", f"'<= 3 MiB' has '3 MiB', but this resource is counted in plain numbers; {FORMULA}"),
        ("<= 3 / 2", "count", f"'<= 3 / 2' contains '3 / 2': {LIST}; {FORMULA}"),
        ("<= print(3)", "count", f"'<= print(3)' contains 'print(3)': {LIST}; {FORMULA}"),
        ("<= True", "count", f"'<= True' contains 'True': {LIST}; {FORMULA}"),
        (
            "<= 3 // (shards - 8)",
            "count",
            "'<= 3 // (shards - 8)' divides by a term: divide by a number above 0 or by the axis; " + FORMULA,
        ),
        (
            "<= 9223372036854775808",
            "count",
            "'<= 9223372036854775808' has an invalid number: 9223372036854775808 is too large: "
            f"at most 2**63 - 1; {FORMULA}",
        ),
    ],
)
def test_what_is_no_bound(value: object, unit: Unit, message: str) -> None:
    with pytest.raises(InputError) as error:
        parse_bound(value, "shards", unit)
    assert str(error.value) == message


@pytest.mark.parametrize("value", ["O(1)", "3/shard", "<= 3", ""])
def test_what_is_no_lower_bound(value: str) -> None:
    with pytest.raises(InputError, match="valid example: "):
        parse_bound(value, "shards", "count", lower=True)


@pytest.mark.parametrize("value", [None, 1.5])
def test_a_lower_bound_is_a_formula(value: object) -> None:
    with pytest.raises(InputError, match=r"is not a bound: write a formula such as '3 - \(shards - 1\)'$"):
        parse_bound(value, "shards", "count", lower=True)


def read(value: object, unit: Unit, *, lower: bool = False) -> Bound | str:
    """The bound over ``shards``, or what is said against it."""
    try:
        return parse_bound(value, "shards", unit, lower=lower)
    except InputError as error:
        return str(error)


PIECES = st.sampled_from(
    [*"()+-*/,<=>.0 9O^n", "//", "max(", "min(", "MiB", "shards", "shard", "<= ", "O(", "log n", "__"]
)
TEXTS = (
    st.text(max_size=60)
    | st.lists(PIECES, max_size=30).map("".join)
    | st.lists(PIECES, max_size=30).map("<= {}".format)
)


@PROPERTY
@given(TEXTS, st.booleans(), st.booleans())
def test_any_text_is_a_bound_or_an_error_of_ours(text: str, counted: bool, lower: bool) -> None:
    bound = read(text, "count" if counted else "bytes", lower=lower)
    if isinstance(bound, str):
        return
    assert str(bound) == text
    if isinstance(bound, FormulaBound):
        assert bound.at(7) is not None


def joined(parts: tuple[str, str, str]) -> str:
    return f"({parts[0]} {parts[1]} {parts[2]})"


LEAVES = st.integers(0, 1000).map(str) | st.just("shards") | st.sampled_from(["0.5", "1.25"])
FORMULAS = st.recursive(
    LEAVES,
    lambda inner: (
        st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(joined)
        | st.tuples(inner, st.just("//"), st.integers(1, 9).map(str) | st.just("shards")).map(joined)
        # Without parentheses, it is a matter of which sign binds first.
        | st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(" ".join)
        | st.tuples(inner, inner).map(lambda pair: f"max({pair[0]}, {pair[1]})")
        | st.tuples(inner, inner).map(lambda pair: f"min({pair[0]}, {pair[1]})")
    ),
    max_leaves=8,
)


@PROPERTY
@given(FORMULAS, st.integers(1, 10_000))
def test_a_formula_is_worth_what_python_makes_of_it(formula: str, size: int) -> None:
    bound = read(f"<= {formula}", "count")
    assert isinstance(bound, FormulaBound)
    assert bound.at(size) == eval(formula, {"shards": size})
