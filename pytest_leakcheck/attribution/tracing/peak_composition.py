"""Find the line and the owner (a variable or an attribute) of the memory that is held at a peak.

Memory is inspected when it is near the height of a peak that was measured before, and again if it rises further.
`tracemalloc` gives the lines that allocated the live memory. The owner is searched for in the local variables of the
running functions and in the attributes of their objects, where a test keeps its working data.
"""

from __future__ import annotations

import sys
import threading
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from types import CodeType, FrameType
from typing import Any, Final

from pytest_leakcheck.attribution.call_paths import is_harness, is_own, read_path
from pytest_leakcheck.attribution.object_inspection import (
    container_kind,
    describe,
    describe_many,
    instance_dict,
    is_shared,
    length,
    own_size,
)
from pytest_leakcheck.attribution.tracing.allocations import kept_now, largest_of
from pytest_leakcheck.attribution.tracing.source_code import text_of, with_functions
from pytest_leakcheck.model.culprit import Culprit, Owner, Share, Site, Step

# A line or an owner is named as the cause only if it accounts for at least this share of the peak.
_MIN_EXPLAINED_RATIO: Final = 0.5
# A line that accounts for less is reported with its share, if it accounts for at least this one.
_MIN_SHARE: Final = 0.01
# Stack frames that `tracemalloc` records per allocation.
_TRACED_FRAMES: Final = 24
# Looks at one height: the second can find data that was not stored in a variable at the first.
_LOOKS_PER_HEIGHT: Final = 2
# Memory that exceeds the highest look by this factor is looked at again, up to a maximum number of looks.
_MIN_RISE: Final = 1.1
_MAX_LOOKS: Final = 10
# The maximum number of entries of a container that are measured; the size of the others is extrapolated.
_MAX_ENTRIES_MEASURED: Final = 32
_NOT_ALLOCATED_BY_PYTHON: Final = "not allocated by Python: allocations in C are not traced to a line"
_NO_LINE: Final = "no line of Python allocated half of it, and allocations in C are not traced to a line"
_IN_CHILDREN: Final = "most of it is in child processes, which are not searched"
_NO_OWNER: Final = "no variable of a running function, and no attribute of one, holds half of it"


class Composition:
    """The line and the owner of at least half of one memory peak, and the share of the largest line.

    Create it before the test runs, call `look` when `wants` is true, and `culprit` at the end.
    """

    def __init__(self, resource: str, wanted: int) -> None:
        """Start `tracemalloc`; look once memory is `wanted` bytes above its level at the start of the test."""
        self._resource = resource
        self._wanted = wanted
        self._path: tuple[Site, ...] = ()
        # Bytes that the last line of the path allocated, and the height of memory at that look.
        self._size = self._total = 0
        self._owner: Owner | None = None
        self._looks = self._height = 0
        self._seen: CodeType | None = None
        tracemalloc.start(_TRACED_FRAMES)

    def wants(self, frame: FrameType, risen: int) -> bool:
        """Return whether to look now, with memory `risen` bytes above the start level.

        If a look finds no line or no owner, another one is due in another function, and when memory has risen further.
        """
        if risen < self._wanted or self._looks >= _MAX_LOOKS or (self._is_cause and self._owner is not None):
            return False
        if risen >= _MIN_RISE * self._height:
            return True
        return self._looks < _LOOKS_PER_HEIGHT and frame.f_code is not self._seen

    def look(self, frame: FrameType, risen: int, held: int) -> None:
        """Search for the line and the owner of the memory; `held` leaves out freed memory that `malloc` could return."""
        self._looks += 1
        self._seen = frame.f_code
        self._height = held
        # If less is held than the peak that was measured, freed memory was a part of that peak.
        total = held if held >= self._wanted else risen
        if not self._is_cause:
            place = largest_of(kept_now(), by_size=True)
            if place is not None and place.size * self._total >= self._size * total:
                self._path, self._size, self._total = place.path, round(place.size), total
        if self._owner is None:
            self._owner = _find_owner(frame, total)

    @property
    def _is_cause(self) -> bool:
        return bool(self._path) and self._size >= _MIN_EXPLAINED_RATIO * self._total

    def culprit(self) -> Culprit:
        """Stop `tracemalloc` and return the culprit. Call this only at the end: reading source files retains memory."""
        tracemalloc.stop()
        found = read_path(with_functions(self._path)) if self._path else None
        source = text_of(found.site) if found else ""
        where = found if self._is_cause else None
        has_share = found is not None and self._size >= _MIN_SHARE * self._total
        share = Share(found, self._size, self._total, source) if found and has_share else None
        missing = {
            "site": "" if where else _NO_LINE if share else _NOT_ALLOCATED_BY_PYTHON,
            "owner": _NO_OWNER if self._owner is None else "",
        }
        if not self._looks:
            missing = dict.fromkeys(missing, "it did not rise as high again")
        return Culprit(
            self._resource,
            where,
            owner=self._owner,
            unresolved={part: why for part, why in missing.items() if why},
            source=source if where else "",
            share=share,
        )


def add_children(culprit: Culprit, size: int) -> Culprit:
    """Return the culprit of a peak that is mostly in child processes (`size` bytes): no line here is the cause."""
    share = replace(culprit.share, total=culprit.share.total + size) if culprit.share else None
    return Culprit(culprit.resource, unresolved=dict.fromkeys(("site", "owner"), _IN_CHILDREN), share=share)


def highest_at(resource: str, path: tuple[Site, ...]) -> Culprit | None:
    """Return the call at which a counter reached its peak, as a culprit; None if the call is not part of the test."""
    where = read_path(path)
    return None if where is None else Culprit(resource, where, source=text_of(where.site), at_peak=True)


def _find_owner(frame: FrameType, wanted: int) -> Owner | None:
    """Return the variable that holds at least half of the bytes, of this thread or of one that waits for it."""
    frames = sys._current_frames()
    frames.pop(threading.get_ident(), None)
    found = (_find_owner_in_stack(one, wanted) for one in (frame, *frames.values()))
    return next((owner for owner in found if owner is not None), None)


def _find_owner_in_stack(frame: FrameType, wanted: int) -> Owner | None:
    """Search the variables of one stack, from the innermost function outwards."""
    at: FrameType | None = frame
    # The innermost frame of the test runner, and all frames outside of it, are not part of the test.
    while at is not None and not is_harness(at.f_code.co_filename):
        if is_own(at.f_code.co_filename):
            function = f"{at.f_code.co_qualname}()"
            # A generator expression keeps its iterator in `.0`; a variable of the enclosing function reaches the same.
            variables = {name: one for name, one in at.f_locals.items() if not (name.startswith(".") or is_shared(one))}
            for name, value in variables.items():
                for steps, held in _iter_held(name, value):
                    if _estimate_size(held) >= _MIN_EXPLAINED_RATIO * wanted:
                        return _make_owner(function, steps, held)
        at = at.f_back
    return None


def _iter_held(name: str, value: object) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield the attributes of a variable's object, as they are more specific, then the object, each with its names."""
    for attribute, held in list((instance_dict(value) or {}).items()):
        yield (name, f".{attribute}"), held
    yield (name,), value


def _make_owner(function: str, names: tuple[str, ...], held: Any) -> Owner:
    """Describe an object as the owner of a peak; the names are a variable and perhaps an attribute with a dot."""
    entries = list(islice(_iter_entries(held), _MAX_ENTRIES_MEASURED))
    holds = describe_many(entries, length(held)) if entries else describe(held)
    variable, *attributes = names
    steps = [Step(f"frame of {function}", f"local {variable!r}", suspect=not (attributes or entries))]
    steps += [Step("an instance", attribute, suspect=not entries) for attribute in attributes]
    steps += [Step(describe(held), f"[{length(held) - 1}]", suspect=True)] if entries else []
    name = f"{function} local {variable!r}{''.join(attributes)}"
    return Owner(name, f"frame of {function}", tuple(steps), holds, 0.0)


def _estimate_size(one: object) -> float:
    """Estimate the bytes that an object holds, for a large container from a sample of its entries."""
    count = length(one)
    some = list(islice(_iter_entries(one), 0, None, max(1, count // _MAX_ENTRIES_MEASURED)))[:_MAX_ENTRIES_MEASURED]
    return count * sum(map(own_size, some)) / len(some) if some else own_size(one)


def _iter_entries(one: Any) -> Iterator[object]:
    """Iterate over the entries of a container, and over the values of a dict; other objects have none."""
    kind: Any = container_kind(one)
    if kind is None:
        return iter(())
    entries: Iterator[object] = iter(dict.values(one)) if kind is dict else kind.__iter__(one)
    return entries
