from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_leakcheck.model import InputError
from pytest_leakcheck.model.units import Unit, format_amount, format_rate, parse_amount, parse_rate

PROPERTY = settings(max_examples=50, deadline=None, derandomize=True)
UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
DECIMAL_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("65536", 65536),
        ("64 KiB", 65536),
        ("64KiB", 65536),
        (" 64 kib ", 65536),
        ("1.5 MiB", 3 * 2**19),
        ("1.0005 KiB", 1024),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_sizes_are_read(text: str, expected: int) -> None:
    assert parse_amount(text, "bytes") == expected


def test_numbers_are_read_as_they_are() -> None:
    assert parse_amount(3, "count") == 3
    assert parse_amount(4096, "bytes") == 4096
    assert parse_rate(0.5, "count") == 0.5
    assert parse_rate("1.5 KiB", "bytes") == 1536.0


@pytest.mark.parametrize(
    ("value", "unit", "message"),
    [
        ("many", "count", "'many' is not a number: write 0 or 3"),
        ("3", "count", "'3' is not a number: write 0 or 3"),
        (None, "count", "None is not a number: write 0 or 3"),
        (True, "count", "True is not a number: write 0 or 3"),
        (1.5, "count", "1.5 is not a number: write 0 or 3"),
        (-1, "count", "-1 is negative: a budget is 0 or more"),
        (2**63, "count", "9223372036854775808 is too large: at most 2**63 - 1"),
        (
            "5 parsecs",
            "bytes",
            "'5 parsecs' is not a size: write bytes as 65536 or '64 KiB' (B, KiB, MiB, GiB, TiB)",
        ),
        ("", "bytes", "'' is not a size: write bytes as 65536 or '64 KiB' (B, KiB, MiB, GiB, TiB)"),
        ("-1 KiB", "bytes", "'-1 KiB' is not a size: write bytes as 65536 or '64 KiB' (B, KiB, MiB, GiB, TiB)"),
        # A digit of another script is a digit to `int`, and a slip of the pen to a reader.
        (
            "\N{ARABIC-INDIC DIGIT FIVE} KiB",
            "bytes",
            "'\N{ARABIC-INDIC DIGIT FIVE} KiB' is not a size: write bytes as 65536 or '64 KiB' (B, KiB, MiB, GiB, TiB)",
        ),
        (1.5, "bytes", "1.5 is not a size: write 65536 or '64 KiB'"),
        (["64 KiB"], "bytes", "['64 KiB'] is not a size: write 65536 or '64 KiB'"),
        ("8388608 TiB", "bytes", "'8388608 TiB' is too large: at most 2**63 - 1"),
        # `int` refuses so many digits.
        ("9" * 5000, "bytes", f"'{'9' * 5000}' is too large: at most 2**63 - 1"),
    ],
)
def test_what_is_no_amount_is_named_with_the_valid_form(value: object, unit: Unit, message: str) -> None:
    with pytest.raises(InputError) as raised:
        parse_amount(value, unit)
    assert str(raised.value) == message


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.5])
def test_a_rate_is_a_finite_number_of_at_least_0(value: float) -> None:
    with pytest.raises(InputError):
        parse_rate(value, "count")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (12, "count", "12"),
        (0, "count", "0"),
        (0.25, "count", "0.25"),
        (-3, "count", "-3"),
        (832, "bytes", "832 B"),
        (1023, "bytes", "1023 B"),
        (1024, "bytes", "1.0 KiB"),
        (-2048, "bytes", "-2.0 KiB"),
        (1.3 * 2**20, "bytes", "1.3 MiB"),
        (150 * 2**20, "bytes", "150 MiB"),
        (3 * 2**40, "bytes", "3.0 TiB"),
    ],
)
def test_amounts_are_written_for_people(value: float, unit: Unit, text: str) -> None:
    assert format_amount(value, unit) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1, "count", "+1.0/iter"),
        (0, "count", "+0.0/iter"),
        (0.25, "count", "+0.25/iter"),
        (-2, "count", "-2.0/iter"),
        (30 * 1024, "bytes", "+30.0 KiB/iter"),
        (-1024, "bytes", "-1.0 KiB/iter"),
    ],
)
def test_rates_carry_their_sign(value: float, unit: Unit, text: str) -> None:
    assert format_rate(value, unit) == text


@PROPERTY
@given(number=st.integers(0, 8191), unit=st.sampled_from(sorted(UNITS | DECIMAL_UNITS)), gap=st.sampled_from(["", " "]))
def test_a_number_with_a_unit_is_that_many_bytes(number: int, unit: str, gap: str) -> None:
    assert parse_amount(f"{number}{gap}{unit}", "bytes") == number * (UNITS | DECIMAL_UNITS)[unit]


@PROPERTY
@given(st.integers(0, 2**62))
def test_what_is_written_is_read_back_as_precisely_as_it_was_shown(size: int) -> None:
    # Two digits at the least are shown: half of the second is the error.
    assert parse_amount(format_amount(size, "bytes"), "bytes") == pytest.approx(size, rel=0.051)


@PROPERTY
@given(
    st.one_of(st.text(), st.integers(), st.floats(), st.none(), st.booleans(), st.binary()),
    st.sampled_from(["count", "bytes"]),
)
def test_any_value_is_an_amount_of_at_least_0_or_an_amount_error(value: object, unit: Unit) -> None:
    try:
        amount, rate = parse_amount(value, unit), parse_rate(value, unit)
    except InputError:
        return
    assert 0 <= amount <= rate <= 2**63 - 1
