"""Parse and format amounts of a resource, such as "64 MiB" or 3."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import Final, Literal, TypeAlias

from pytest_leakcheck.model import InputError

Unit: TypeAlias = Literal["count", "bytes"]

_AMOUNT_PATTERN: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", re.ASCII)
# The largest first, so that a number is displayed in the largest unit in which it is at least 1.
_DISPLAY_UNITS: Final = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_DECIMAL_UNITS: Final = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_BYTES_PER_UNIT: Final = {name.lower(): size for name, size in _DISPLAY_UNITS} | _DECIMAL_UNITS
# A larger budget is a mistake (2**63 bytes are 8 EiB) and would not fit the 64-bit arrays of
# readings.
LARGEST: Final = 2**63 - 1


def parse_amount(value: object, unit: Unit) -> int:
    """Parse a level of at least 0: a whole number, or for bytes also a text such as ``"64 MiB"``.

    Raise `InputError` for anything else. A text may end with B, KiB, MiB, GiB, TiB, KB, MB, GB or
    TB; fractions of a byte are rounded down.
    """
    return math.floor(_parse_number(value, unit, whole=True))


def parse_rate(value: object, unit: Unit) -> float:
    """Parse a rate per iteration like `parse_amount`, but keep fractions."""
    return _parse_number(value, unit, whole=False)


def _parse_number(value: object, unit: Unit, *, whole: bool) -> float:
    number: float
    if isinstance(value, str) and unit == "bytes":
        match = _AMOUNT_PATTERN.fullmatch(value)
        factor = _BYTES_PER_UNIT.get(match[2].lower()) if match else None
        if match is None or factor is None:
            raise InputError(
                f"{value!r} is not a size: write bytes as 65536 or '64 KiB' (B, KiB, MiB, GiB, TiB)"
            )
        # Python refuses to convert thousands of digits to an integer.
        is_exact = "." not in match[1] and len(match[1]) < 20
        number = (int(match[1]) if is_exact else float(match[1])) * factor
    elif (
        isinstance(value, int if whole else (int, float))
        and not isinstance(value, bool)
        and abs(value) < math.inf
    ):
        number = value
    else:
        valid = "0 or 3" if unit == "count" else "65536 or '64 KiB'"
        raise InputError(
            f"{value!r} is not {'a number' if unit == 'count' else 'a size'}: write {valid}"
        )
    if number < 0:
        raise InputError(f"{value!r} is negative: a budget is 0 or more")
    if number > LARGEST:
        raise InputError(f"{value!r} is too large: at most 2**63 - 1")
    return number


def format_amount(value: float, unit: Unit) -> str:
    """Format an amount for a report: ``12``, ``1.3 MiB``, ``832 B``.

    Fractions are rounded to one decimal place, to none from 100 on, and to two significant digits
    below 0.95. Amounts below 1 KiB are rounded to whole bytes.
    """
    if unit == "count":
        return f"{value:.0f}" if float(value).is_integer() else _format_number(value)
    size = abs(value)
    for name, factor in _DISPLAY_UNITS:
        if size >= factor:
            return f"{_format_number(value / factor)} {name}"
    return f"{value:.0f} B"


def format_change(value: float, unit: Unit) -> str:
    """Format an amount with its sign: ``+1.3 MiB``, ``-12``."""
    return f"{'+' if value >= 0 else ''}{format_amount(value, unit)}"


def format_count(count: int, word: str) -> str:
    """Format a number of things: ``1 test``, ``1,940 tests``."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def format_rate(value: float, unit: Unit) -> str:
    """Format a rate per iteration with its sign: ``+1.0/iter``, ``+1.3 MiB/iter``."""
    text = format_amount(value, unit) if unit == "bytes" else _format_number(value)
    return f"{'+' if value >= 0 else ''}{text}/iter"


def format_rates(values: Collection[float], unit: Unit) -> str:
    """Format the lowest and highest of rates: ``+1.0 to +2.0/iter``, or ``+1.0/iter`` if equal."""
    least, most = format_rate(min(values), unit), format_rate(max(values), unit)
    return least if least == most else f"{least.removesuffix('/iter')} to {most}"


def singular(axis: str) -> str:
    """Return the singular of the name of an axis: ``shard`` for ``shards``."""
    if axis.endswith("ies") and len(axis) > 4:
        return f"{axis[:-3]}y"
    if axis.endswith(("ches", "shes", "sses", "xes")):
        return axis[:-2]
    return axis[:-1] if axis.endswith("s") and not axis.endswith("ss") and len(axis) > 1 else axis


def _format_number(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if magnitude >= 0.95 or magnitude == 0 else f"{value:.2g}"
