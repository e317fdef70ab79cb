"""What a peak is made of: looked at once, at a moment when memory stands as high as it was seen to come.

`tracemalloc` knows the lines that have allocated what is there; who holds it is looked for where a test keeps what it is
at work on: in the variables of the functions that run, and in the attributes of objects that these refer to.
"""

from __future__ import annotations

import sys
import threading
import tracemalloc
from collections.abc import Iterator
from itertools import islice
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, Final

from pytest_leakcheck.attribution.call_paths import is_harness, is_own, read_path
from pytest_leakcheck.attribution.object_inspection import (
    array_types,
    container_kind,
    describe,
    describe_many,
    instance_dict,
    length,
    name_of,
    own_size,
)
from pytest_leakcheck.attribution.tracing.allocations import culprit_of, kept_now
from pytest_leakcheck.attribution.tracing.source_code import text_of, with_functions
from pytest_leakcheck.model.culprit import Culprit, Owner, Site, Step

# What is named must make out so much of the peak.
_PART: Final = 0.5
_FRAMES: Final = 24
# Each sees the variables of all threads; a second one is for what is put where it belongs a little later.
_MOST_LOOKS: Final = 2
# What many things share is no part of a peak.
_SHARED: Final = (ModuleType, FunctionType, type)
# Entries of a container that are weighed; the rest weighs as much.
_WEIGHED: Final = 32
_NOT_PYTHONS: Final = "it is not allocated by Python: what C allocates is not followed to its line"
IN_CHILDREN: Final = "most of it is in child processes, which are not looked into"
_NOBODY: Final = "no variable of a function that runs, and no attribute of one, holds half of it"


class Composition:
    """Begin before the test runs; `look` when the peak is near; then `culprit`."""

    def __init__(self, resource: str, wanted: int) -> None:
        """
        Args:
            resource: What grows.
            wanted: Look once it stands so many bytes above its start.
        """
        self._resource = resource
        self._wanted = wanted
        self._path: tuple[Site, ...] = ()
        self._owner: Owner | None = None
        self._looks = 0
        self._seen: CodeType | None = None
        tracemalloc.start(_FRAMES)

    def wants(self, frame: FrameType, risen: int) -> bool:
        """Whether to look now: once, or where nobody was seen to hold it once more, in another function."""
        if risen < self._wanted or self._owner is not None or self._looks >= _MOST_LOOKS:
            return False
        return frame.f_code is not self._seen

    def look(self, frame: FrameType, risen: int) -> None:
        """At this moment it stands so many bytes above its start."""
        self._looks += 1
        self._seen = frame.f_code
        if not self._path:
            place = culprit_of(kept_now(), risen, by_size=True)
            self._path = place.path if place is not None else ()
        self._owner = _holder(frame, risen)

    def culprit(self) -> Culprit:
        """What was found; in the end, since to read the source leaves something behind."""
        tracemalloc.stop()
        where = read_path(with_functions(self._path)) if self._path else None
        missing = {"site": _NOT_PYTHONS if where is None else "", "owner": _NOBODY if self._owner is None else ""}
        if not self._looks:
            missing = dict.fromkeys(missing, "it did not come as high again")
        return Culprit(
            self._resource,
            where,
            owner=self._owner,
            unresolved={part: why for part, why in missing.items() if why},
            source=text_of(where.site) if where else "",
        )


def highest_at(resource: str, path: tuple[Site, ...]) -> Culprit | None:
    """The culprit of a counter that was highest at a call; None where that is not the test's."""
    where = read_path(path)
    return None if where is None else Culprit(resource, where, source=text_of(where.site))


def _holder(frame: FrameType, wanted: int) -> Owner | None:
    """The variable that holds half of it: of the thread that runs, and then of others, which may wait for it."""
    frames = sys._current_frames()
    frames.pop(threading.get_ident(), None)
    found = (_holder_in(one, wanted) for one in (frame, *frames.values()))
    return next((owner for owner in found if owner is not None), None)


def _holder_in(frame: FrameType, wanted: int) -> Owner | None:
    """From the innermost function outwards."""
    at: FrameType | None = frame
    # Beyond the test runner there is nothing of the test's.
    while at is not None and not is_harness(at.f_code.co_filename):
        if is_own(at.f_code.co_filename):
            function = f"{name_of(at.f_code)}()"
            for name, value in ((name, value) for name, value in at.f_locals.items() if type(value) not in _SHARED):
                for steps, held in _ways(name, value):
                    if _weight(held) >= _PART * wanted:
                        return _owner(function, steps, held)
        at = at.f_back
    return None


def _ways(name: str, value: object) -> Iterator[tuple[tuple[str, ...], object]]:
    """The attributes of what a variable refers to, which say more, and the variable itself."""
    for attribute, held in list((instance_dict(value) or {}).items()):
        yield (name, f".{attribute}"), held
    yield (name,), value


def _owner(function: str, names: tuple[str, ...], held: Any) -> Owner:
    entries = list(islice(_entries(held), _WEIGHED))
    holds = describe_many(entries, length(held), array_types()) if entries else describe(held)
    variable, *attributes = names
    steps = [Step(f"frame of {function}", f"local {variable!r}", suspect=not (attributes or entries))]
    steps += [Step("an instance", attribute, suspect=not entries) for attribute in attributes]
    steps += [Step(describe(held), f"[{length(held) - 1}]", suspect=True)] if entries else []
    name = f"{function} local {variable!r}{''.join(attributes)}"
    return Owner(name, f"frame of {function}", tuple(steps), holds, 0.0)


def _weight(one: object) -> float:
    """Bytes that an object holds; of many entries, judged by some of them."""
    count = length(one)
    some = list(islice(_entries(one), 0, None, max(1, count // _WEIGHED)))[:_WEIGHED]
    arrays = array_types()
    if not some:
        return own_size(one, None, arrays)
    return count * sum(own_size(entry, None, arrays) for entry in some) / len(some)


def _entries(one: Any) -> Iterator[object]:
    kind: Any = container_kind(one)
    if kind is None:
        return iter(())
    entries: Iterator[object] = iter(dict.values(one)) if kind is dict else kind.__iter__(one)
    return entries
