"""Text in, numbers out, and back: amounts of a resource as people write them ("64 MiB", 3)."""

from __future__ import annotations

import math
import re
from typing import Final, Literal, TypeAlias

Unit: TypeAlias = Literal["count", "bytes"]

_FACTORS: Final = {
    "": 1,
    "b": 1,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
_AMOUNT: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", re.ASCII)
# Longest first, so that a number is shown in the largest unit in which it is at least 1.
_SHOWN: Final = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
# Beyond this a budget is a slip of the pen (2**63 bytes is 8 EiB), and would not fit the readings' 64-bit arrays.
LARGEST: Final = 2**63 - 1


class AmountError(ValueError):
    """An amount that cannot be read.

    The message says what was seen and what is valid; whoever knows where the amount was written puts that in front.
    """


def parse_amount(value: object, unit: Unit) -> int:
    """Read a level: a whole number of things, or of bytes as a number or a text such as ``"64 MiB"``.

    Args:
        value: An ``int``, or for bytes also a ``str`` with one of B, KiB, MiB, GiB, TiB, KB, MB, GB, TB.
        unit: What is counted.

    Returns:
        The amount, at least 0, in things or in bytes (fractions of a byte are rounded down).

    Raises:
        AmountError: The value is negative, of the wrong type, too large, or in no known unit.
    """
    return math.floor(_parse(value, unit, whole=True))


def parse_rate(value: object, unit: Unit) -> float:
    """Read a rate per iteration; as `parse_amount`, and fractions are kept (``0.5`` of a descriptor per iteration)."""
    return _parse(value, unit, whole=False)


def _parse(value: object, unit: Unit, *, whole: bool) -> float:
    number: float
    if isinstance(value, str) and unit == "bytes":
        match = _AMOUNT.fullmatch(value)
        factor = _FACTORS.get(match[2].lower()) if match else None
        if match is None or factor is None:
            raise AmountError(f"{value!r} is not a size: write bytes as 65536 or '64 KiB' (B, KiB, MiB, GiB, TiB)")
        number = float(match[1]) * factor if "." in match[1] else int(match[1]) * factor
    elif (isinstance(value, int) and not isinstance(value, bool)) or (
        isinstance(value, float) and math.isfinite(value) and not whole
    ):
        number = value
    else:
        valid = "0 or 3" if unit == "count" else "65536 or '64 KiB'"
        raise AmountError(f"{value!r} is not {'a number' if unit == 'count' else 'a size'}: write {valid}")
    if number < 0:
        raise AmountError(f"{value!r} is negative: a budget is 0 or more")
    if number > LARGEST:
        raise AmountError(f"{value!r} is too large: at most 2**63 - 1")
    return number


def format_amount(value: float, unit: Unit) -> str:
    """Write an amount for people: ``12``, ``1.3 MiB``, ``832 B``; three significant digits, the sign kept."""
    if unit == "count":
        return f"{value:.0f}" if float(value).is_integer() else _short(value)
    size = abs(value)
    for name, factor in _SHOWN:
        if size >= factor:
            return f"{_short(value / factor)} {name}"
    return f"{value:.0f} B"


def format_rate(value: float, unit: Unit) -> str:
    """Write a rate per iteration with its sign: ``+1.0/iter``, ``+1.3 MiB/iter``."""
    text = format_amount(value, unit) if unit == "bytes" else _short(value)
    return f"{'+' if value >= 0 else ''}{text}/iter"


def _short(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if magnitude >= 0.95 or magnitude == 0 else f"{value:.2g}"
