"""Parse ceilings: limits far below those of the machine, so that a leaking test fails in seconds, not hours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pytest_leakcheck.model import InputError, invalid_at
from pytest_leakcheck.model.resources import DESCRIPTORS, DEVICE_MEMORY, RESIDENT, find_resource
from pytest_leakcheck.model.units import format_amount, parse_amount

# RLIMIT_NOFILE limits descriptors, RLIMIT_AS limits memory, and the device's allocator limits its memory.
_LIMITED: Final = (DESCRIPTORS, RESIDENT, DEVICE_MEMORY)
# The smallest limit on descriptors that leaves enough for pytest itself.
_MIN_DESCRIPTORS: Final = 32


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The limits of one test, by resource (``fd``, ``rss`` or ``vram``), each in its unit."""

    sizes: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return ", ".join(f"{name} {format_amount(size, find_resource(name).unit)}" for name, size in self.sizes.items())


def read_ceiling(*positional: object, **sizes: object) -> Ceiling:
    """Parse the arguments of the mark ``leakcheck_ceiling``, such as ``fd=256, rss="1 GiB"``; or raise `InputError`."""
    if positional:
        raise InputError("takes keyword arguments only")
    if not sizes:
        raise InputError('names no resource: write fd=256, rss="1 GiB", vram="2 GiB"')
    read: dict[str, int] = {}
    for name, value in sizes.items():
        if name not in _LIMITED:
            raise InputError(f"{name}={value!r}: only {', '.join(_LIMITED)} can be limited")
        with invalid_at(name):
            read[name] = parse_amount(value, find_resource(name).unit)
        if name == DESCRIPTORS and read[name] < _MIN_DESCRIPTORS:
            raise InputError(f"{name}={value!r} is too low for pytest itself: write {_MIN_DESCRIPTORS} or more")
    return Ceiling(read)


def read_option(text: str) -> Ceiling:
    """Parse ``--leakcheck-ceiling``, such as ``fd=256,rss=1GiB`` or empty, or raise `InputError`."""
    given: dict[str, object] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals_sign, value = part.partition("=")
        if not equals_sign:
            raise InputError(f"{part!r} is not a limit: write fd=256,rss=1GiB")
        given[name.strip()] = int(value) if value.strip().isdecimal() else value.strip()
    return read_ceiling(**given) if given else Ceiling()
