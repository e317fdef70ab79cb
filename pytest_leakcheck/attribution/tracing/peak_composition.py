"""Find the line and the owner (a variable or an attribute) of the memory that is held at a peak.

Memory is inspected once or twice, when it is near the height of a peak that was measured before.

`tracemalloc` gives the lines that allocated the live memory. The search for the owner covers the local variables of the
running functions and the attributes of the objects that these variables refer to, because a test keeps its working data
there.
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

# A line or an owner is named only if it accounts for at least this share of the peak.
_MIN_EXPLAINED_RATIO: Final = 0.5
# Stack frames that `tracemalloc` records per allocation.
_TRACED_FRAMES: Final = 24
# The maximum number of inspections ("looks"). Each covers the variables of all threads. The second look can find data
# that was not yet stored in a variable at the first look.
_MAX_LOOKS: Final = 2
# Objects of these types are shared by many others, and are no part of a peak.
_SHARED_TYPES: Final = (ModuleType, FunctionType, type)
# The maximum number of entries of a container that are measured; the size of the others is extrapolated.
_MAX_ENTRIES_MEASURED: Final = 32
_NOT_ALLOCATED_BY_PYTHON: Final = "not allocated by Python: allocations in C are not traced to a line"
IN_CHILDREN: Final = "most of it is in child processes, which are not searched"
_NO_OWNER: Final = "no variable of a running function, and no attribute of one, holds half of it"


class Composition:
    """The composition of one memory peak: the line and the owner of at least half of the memory.

    Create it before the test runs, call `look` when `wants` is true, and `culprit` at the end.
    """

    def __init__(self, resource: str, wanted: int) -> None:
        """Start `tracemalloc`.

        Args:
            resource: The resource whose peak is examined.
            wanted: Look once memory is this many bytes above its level at the start of the test.
        """
        self._resource = resource
        self._wanted = wanted
        self._path: tuple[Site, ...] = ()
        self._owner: Owner | None = None
        self._looks = 0
        self._seen: CodeType | None = None
        tracemalloc.start(_TRACED_FRAMES)

    def wants(self, frame: FrameType, risen: int) -> bool:
        """Return whether to look now.

        The first look is due when enough memory is held. If it finds no owner, a second one is due in another function.

        Args:
            frame: The running frame.
            risen: Bytes above the start level.
        """
        if risen < self._wanted or self._owner is not None or self._looks >= _MAX_LOOKS:
            return False
        return frame.f_code is not self._seen

    def look(self, frame: FrameType, risen: int) -> None:
        """Search for the line and the owner of the memory that is held now.

        Args:
            frame: The running frame.
            risen: Bytes above the start level.
        """
        self._looks += 1
        self._seen = frame.f_code
        if not self._path:
            place = culprit_of(kept_now(), risen, by_size=True)
            self._path = place.path if place is not None else ()
        self._owner = _find_owner(frame, risen)

    def culprit(self) -> Culprit:
        """Stop `tracemalloc` and return the culprit.

        Call this only at the end, because reading source files retains memory.
        """
        tracemalloc.stop()
        where = read_path(with_functions(self._path)) if self._path else None
        missing = {
            "site": _NOT_ALLOCATED_BY_PYTHON if where is None else "",
            "owner": _NO_OWNER if self._owner is None else "",
        }
        if not self._looks:
            missing = dict.fromkeys(missing, "it did not rise as high again")
        return Culprit(
            self._resource,
            where,
            owner=self._owner,
            unresolved={part: why for part, why in missing.items() if why},
            source=text_of(where.site) if where else "",
        )


def highest_at(resource: str, path: tuple[Site, ...]) -> Culprit | None:
    """Return the call at which a counter reached its peak, as a culprit.

    Args:
        resource: The name of the counter.
        path: The path of that call.

    Returns:
        The culprit; None if the call is not part of the test.
    """
    where = read_path(path)
    return None if where is None else Culprit(resource, where, source=text_of(where.site))


def _find_owner(frame: FrameType, wanted: int) -> Owner | None:
    """Return the variable that holds at least half of the wanted bytes.

    The running thread is searched first, then the others: the variable may belong to a thread that is waiting for the
    running one.
    """
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
            function = f"{name_of(at.f_code)}()"
            for name, value in (
                (name, value) for name, value in at.f_locals.items() if type(value) not in _SHARED_TYPES
            ):
                for steps, held in _iter_held(name, value):
                    if _estimate_size(held) >= _MIN_EXPLAINED_RATIO * wanted:
                        return _make_owner(function, steps, held)
        at = at.f_back
    return None


def _iter_held(name: str, value: object) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield the attributes of the object that a variable refers to, then the object.

    The attributes come first because they are more specific.

    Yields:
        The names, which are the variable and perhaps an attribute with a leading dot, and the object they refer to.
    """
    for attribute, held in list((instance_dict(value) or {}).items()):
        yield (name, f".{attribute}"), held
    yield (name,), value


def _make_owner(function: str, names: tuple[str, ...], held: Any) -> Owner:
    """Describe an object as the owner of a peak.

    Args:
        function: The function with the variable, as ``name()``.
        names: The variable, and the attribute with a leading dot, if any.
        held: The object.
    """
    entries = list(islice(_iter_entries(held), _MAX_ENTRIES_MEASURED))
    holds = describe_many(entries, length(held), array_types()) if entries else describe(held)
    variable, *attributes = names
    steps = [Step(f"frame of {function}", f"local {variable!r}", suspect=not (attributes or entries))]
    steps += [Step("an instance", attribute, suspect=not entries) for attribute in attributes]
    steps += [Step(describe(held), f"[{length(held) - 1}]", suspect=True)] if entries else []
    name = f"{function} local {variable!r}{''.join(attributes)}"
    return Owner(name, f"frame of {function}", tuple(steps), holds, 0.0)


def _estimate_size(one: object) -> float:
    """Estimate the bytes that an object holds.

    The size of a large container is extrapolated from a sample of its entries.
    """
    count = length(one)
    some = list(islice(_iter_entries(one), 0, None, max(1, count // _MAX_ENTRIES_MEASURED)))[:_MAX_ENTRIES_MEASURED]
    arrays = array_types()
    if not some:
        return own_size(one, None, arrays)
    return count * sum(own_size(entry, None, arrays) for entry in some) / len(some)


def _iter_entries(one: Any) -> Iterator[object]:
    """Iterate over the entries of a container; for a dict, over its values. Other objects have no entries."""
    kind: Any = container_kind(one)
    if kind is None:
        return iter(())
    entries: Iterator[object] = iter(dict.values(one)) if kind is dict else kind.__iter__(one)
    return entries
