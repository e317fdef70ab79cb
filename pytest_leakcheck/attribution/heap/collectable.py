"""Find out whether an object is gone but for a caller's variables, and if not, what holds it."""

from __future__ import annotations

import gc
import sys
import threading
import traceback
import weakref
from dataclasses import dataclass
from types import CellType, FrameType, ModuleType
from typing import Any, Final

from pytest_leakcheck.attribution import inspection
from pytest_leakcheck.attribution.heap.cycles import find_garbage
from pytest_leakcheck.attribution.heap.owner_search import (
    references_outside,
    say_references,
    with_referrers,
)
from pytest_leakcheck.attribution.heap.reference_paths import (
    describe_holder,
    describe_owner,
    find_paths,
    frame_of,
    is_class,
    is_ours,
    module_name,
    running_frames,
    variables_of_frame,
)
from pytest_leakcheck.model import InputError
from pytest_leakcheck.model.culprit import Owner
from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.garbage_collector import collect_while, has_frozen

# The most objects that are searched for a way back to the one object. What is left out counts as in
# use.
_MAX_PARTS: Final = 500_000
# A thread that has handed a result over drops its own references a moment later. Seconds.
_MAX_WAIT: Final = 1.0
_FIRST_PAUSE: Final = 0.001


@dataclass(frozen=True, slots=True)
class StillHeld:
    """What holds an object, or why that is unknown; as text, so that it holds nothing itself.

    `may_end`: another thread holds it, which may be about to return.
    """

    what: str
    owner: Owner | None
    reason: str = ""
    may_end: bool = False


class Watched:
    """An object that should be collected, or a weak reference to one that should be gone."""

    __slots__ = ("_is_lent", "_reference")

    def __init__(self, given: Any) -> None:
        __tracebackhide__ = True
        # Of an object, the caller has variables; a weak reference says that it has none.
        self._is_lent = not issubclass(type(given), weakref.ref)
        try:
            self._reference: weakref.ref[Any] = weakref.ref(given) if self._is_lent else given
        except TypeError:
            raise InputError(
                f"{inspection.type_name(given)} objects cannot be weakly referenced, so nothing shows when one is gone. An "
                "instance of a class can, unless its __slots__ lack '__weakref__'. Give the object that holds it, or use a "
                "subclass of the type"
            ) from None

    def _get(self) -> Any:
        # A `WeakMethod` makes a method when it is called.
        return weakref.ref.__call__(self._reference)

    def find_holder(self, caller: FrameType) -> StillHeld | None:
        """Return what holds the object besides variables of the caller; None if nothing does."""
        borrower = caller if self._is_lent else None
        if not self._is_held(borrower):
            return None
        held = self._explain(borrower)
        deadline, pause = clock.monotonic() + _MAX_WAIT, _FIRST_PAUSE
        while held is not None and held.may_end and clock.monotonic() < deadline:
            clock.sleep(pause)
            pause *= 2
            if not self._is_held(borrower):
                return None
        return held

    def _is_held(self, borrower: FrameType | None) -> bool:
        collect_while(lambda: self._get() is not None)
        if self._get() is None:
            return False
        return borrower is None or not self._is_only_lent(borrower)

    def _is_only_lent(self, borrower: FrameType) -> bool:
        """Return whether the object is garbage but for a frame's variables that are the object."""
        number = id(self._get())
        names: set[str] = set()
        for frame in running_frames():
            variables = variables_of_frame(frame, is_caller=frame is borrower)
            found = {name for name, value in variables if id(value) == number}
            # From here on, it would be a reference to the object.
            del variables
            if frame is borrower:
                names = found
            elif found and not is_ours(frame):
                # From Python 3.14 on, a variable of the frame that it calls may borrow its
                # reference.
                return False
        objects, lent = self._list_parts(borrower, names)
        return any(id(one) == number for one in find_garbage(objects, lent))

    def _list_parts(
        self, borrower: FrameType, names: set[str]
    ) -> tuple[list[object], dict[int, int]]:
        """List the object with what only it may keep, and count a frame's references to it."""
        # What leads to the object and is no part of it is in use elsewhere. `find_garbage` counts
        # references: those of this function must be gone, which under `sys.setprofile` outlive its
        # variables.
        number = id(self._get())
        parts = inspection.parts_of(
            inspection.walk((self._get(),), lambda one: _may_belong(one, borrower), _MAX_PARTS)
        )
        in_cells = names.intersection(borrower.f_code.co_cellvars)
        # A free variable is in a cell of another function.
        lent = {number: len(names - in_cells - {*borrower.f_code.co_freevars})}
        if in_cells:
            # A cell that is part of the object may be frozen, so that it is not among the
            # referrers.
            near = [*gc.get_referrers(self._get()), *parts.values()]
            cells = [
                cell
                for cell in near
                if type(cell) is CellType and number in map(id, gc.get_referents(cell))
            ]
            parts |= {id(one): one for one in cells}
            # Only a frame holds a cell unseen.
            lent |= {
                id(cells[at]): min(1, references_outside(cells[at : at + 1]))
                for at in range(len(cells))
            }
        return list(parts.values()), lent

    def _explain(self, borrower: FrameType | None) -> StillHeld | None:
        """Describe what holds the object; None if only garbage among frozen objects did."""
        frozen = has_frozen()
        gc.unfreeze()
        try:
            return self._describe(borrower) if self._is_held(borrower) else None
        finally:
            if frozen:
                collect_while(lambda: True)
                gc.freeze()

    def _describe(self, borrower: FrameType | None) -> StillHeld | None:
        targets = [self._get()]
        if targets[0] is None:
            # Another thread has just released it.
            return None
        what = inspection.type_name(targets[0])
        referrers = [one for one in gc.get_referrers(*targets) if one is not targets]
        # The frame of a coroutine is searched as one that runs.
        own = {id(one) for one in referrers if borrower is not None and frame_of(one) is borrower}
        (path,) = find_paths(targets, {*own, id(referrers)}, to_root=False, borrower=borrower)
        if path:
            callers = {id(frame) for frame, _line in traceback.walk_stack(None)}
            of_thread = type(path[0]) is FrameType and id(path[0]) not in callers
            may_end = of_thread or issubclass(type(path[0]), threading.Thread)
            return StillHeld(what, describe_owner(path, path[-2], what), may_end=may_end)
        del referrers
        return StillHeld(
            what,
            None,
            _explain_unseen(targets, borrower, own),
            may_end=len(sys._current_frames()) > 1,
        )


def _explain_unseen(targets: list[object], borrower: FrameType | None, ignore: set[int]) -> str:
    """Say which object on the way to the target has a reference that no object accounts for."""
    found = with_referrers(targets, ignore={*ignore, *map(id, running_frames())})
    for at in range(len(found)):
        lost = references_outside(found[at : at + 1])
        if found[at] is not targets[0]:
            if lost > 0 and type(found[at]) is not CellType:
                holder = describe_holder(found[at])
                return f"held by a {holder}, and that by a loop, a call, C, or an object that the collector does not list"
            continue
        if borrower is not None:
            lost -= sum(
                value is targets[0] for _name, value in variables_of_frame(borrower, is_caller=True)
            )
        if lost > 0:
            return (
                f"{say_references(lost)} held by C, or by objects that the collector does not list"
            )
    return "what holds it was not found"


def _may_belong(obj: Any, borrower: FrameType) -> bool:
    """Return whether an object may live only because of another: no module, class or caller."""
    if not gc.is_tracked(obj) or issubclass(type(obj), ModuleType) or module_name(obj):
        return False
    if is_class(obj):
        # One of a module lives as long as that, and may lead to all of a library.
        return "<locals>" in inspection.class_name(obj)
    return frame_of(obj) is not borrower
