"""Read ceilings: limits far below those of the machine, so that what a leak comes to after hours comes in seconds.

Descriptors are limited by RLIMIT_NOFILE, memory by RLIMIT_AS (a request fails, and the test sees why) or by a cgroup (the
kernel kills, as it does in a container), a device by its allocator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from pytest_leakcheck.model.resources import RESOURCES, find_resource
from pytest_leakcheck.model.units import AmountError, format_amount, parse_amount

Means: TypeAlias = Literal["rlimit", "cgroup"]

LIMITED: Final = tuple(sorted(name for name, resource in RESOURCES.items() if resource.ceiling))
MEANS: Final = ("rlimit", "cgroup")
_EXAMPLE: Final = 'fd=256, rss="1 GiB", vram="2 GiB"'
# A limit on descriptors below this leaves no room for pytest itself.
_LEAST_FDS: Final = 32


class CeilingError(ValueError):
    """Ceilings that cannot be read; the message says what was seen and what is valid."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The limits that one test runs under.

    Attributes:
        sizes: By resource, in its unit: one of `LIMITED`.
        means: How memory is limited.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    means: Means = "rlimit"

    def __str__(self) -> str:
        return ", ".join(f"{name} {format_amount(size, find_resource(name).unit)}" for name, size in self.sizes.items())


def read_ceiling(*positional: object, by: object = "rlimit", **sizes: object) -> Ceiling:
    """Read ``fd=256, rss="1 GiB", by="cgroup"``.

    Raises:
        CeilingError: An unknown resource, an amount that is none, or nothing at all.
    """
    if positional:
        raise CeilingError("takes keywords only")
    if by not in MEANS:
        raise CeilingError(f"by={by!r} is not one of {', '.join(map(repr, MEANS))}")
    unknown = [name for name in sizes if name not in LIMITED]
    if unknown:
        raise CeilingError(f"{unknown[0]}={sizes[unknown[0]]!r}: only {', '.join(LIMITED)} can be limited")
    if not sizes:
        raise CeilingError(f"names no resource: write {_EXAMPLE}")
    read: dict[str, int] = {}
    for name, value in sizes.items():
        try:
            read[name] = parse_amount(value, find_resource(name).unit)
        except AmountError as error:
            raise CeilingError(f"{name}: {error}") from None
        if find_resource(name).exhausts == "descriptors" and read[name] < _LEAST_FDS:
            raise CeilingError(f"{name}={value!r} leaves no room for pytest itself: at least {_LEAST_FDS}")
    return Ceiling(read, "cgroup" if by == "cgroup" else "rlimit")


def read_option(text: str) -> Ceiling:
    """The same from a command line: ``fd=256,rss=1GiB``; empty for none.

    Raises:
        CeilingError: As `read_ceiling`.
    """
    given: dict[str, object] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, is_there, value = part.partition("=")
        if not is_there:
            raise CeilingError(f"{part!r} is no limit: write fd=256,rss=1GiB")
        given[name.strip()] = int(value) if value.strip().isdecimal() else value.strip()
    return read_ceiling(**given) if given else Ceiling()
