"""Parse ceilings: limits far below those of the machine, so that a leaking test fails in seconds, not hours.

RLIMIT_NOFILE limits descriptors, RLIMIT_AS limits memory, and the device's allocator limits its memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pytest_leakcheck.model import LeakcheckError
from pytest_leakcheck.model.resources import RESOURCES, find_resource
from pytest_leakcheck.model.units import AmountError, format_amount, parse_amount

LIMITED: Final = tuple(sorted(name for name, resource in RESOURCES.items() if resource.ceiling))
_EXAMPLE_LIMITS: Final = 'fd=256, rss="1 GiB", vram="2 GiB"'
# The smallest limit on descriptors that leaves enough for pytest itself.
_MIN_DESCRIPTORS: Final = 32


class CeilingError(LeakcheckError, ValueError):
    """Invalid ceilings; the message gives the value and the valid forms."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The limits of one test, each in the unit of its resource (a key of `LIMITED`)."""

    sizes: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return ", ".join(f"{name} {format_amount(size, find_resource(name).unit)}" for name, size in self.sizes.items())


def read_ceiling(*positional: object, **sizes: object) -> Ceiling:
    """Parse the arguments of the mark ``leakcheck_ceiling``, such as ``fd=256, rss="1 GiB"``.

    Raises:
        CeilingError: A resource or an amount is invalid, no resource is given, or an argument is positional.
    """
    if positional:
        raise CeilingError("takes keyword arguments only")
    unknown = [name for name in sizes if name not in LIMITED]
    if unknown:
        raise CeilingError(f"{unknown[0]}={sizes[unknown[0]]!r}: only {', '.join(LIMITED)} can be limited")
    if not sizes:
        raise CeilingError(f"names no resource: write {_EXAMPLE_LIMITS}")
    read: dict[str, int] = {}
    for name, value in sizes.items():
        try:
            read[name] = parse_amount(value, find_resource(name).unit)
        except AmountError as error:
            raise CeilingError(f"{name}: {error}") from None
        if find_resource(name).exhausts == "descriptors" and read[name] < _MIN_DESCRIPTORS:
            raise CeilingError(f"{name}={value!r} is too low for pytest itself: write {_MIN_DESCRIPTORS} or more")
    return Ceiling(read)


def read_option(text: str) -> Ceiling:
    """Parse ``--leakcheck-ceiling``, such as ``fd=256,rss=1GiB`` or empty, or raise `CeilingError`."""
    given: dict[str, object] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals_sign, value = part.partition("=")
        if not equals_sign:
            raise CeilingError(f"{part!r} is not a limit: write fd=256,rss=1GiB")
        given[name.strip()] = int(value) if value.strip().isdecimal() else value.strip()
    return read_ceiling(**given) if given else Ceiling()
