"""Count references to long-lived objects, which C code may forget to release, or release twice."""

from __future__ import annotations

import builtins
import gc
import sys
from array import array
from collections import Counter
from collections.abc import Iterator
from itertools import repeat
from operator import sub
from sys import getrefcount
from typing import Any, Final, NamedTuple

from pytest_leakcheck.probes.base import Stateless, Unavailable
from pytest_leakcheck.probes.runtime_counters import Blocks, with_subclasses

_CONTAINERS: Final = frozenset({dict, frozenset, list, set, tuple})
# The interpreter, pytest and the plugin take and release these all the time.
_PLAIN: Final = frozenset({bool, bytes, complex, float, int, str, type(None)})
# So do they with the class of the readings, and each function refers to the names of `builtins`.
_BUSY: Final = frozenset(map(id, ((), array, vars(builtins))))
_RUNNER: Final = frozenset({"_pytest", "pluggy", "pytest_leakcheck"})
# How many references are taken to an object that loses some. They are kept until the process ends:
# the object would be destroyed while the program still uses it.
_RESERVE: Final = 1000
_reserve: Final[list[object]] = []
# Py_TPFLAGS_HAVE_GC (Include/object.h).
_HAVE_GC: Final = 1 << 14
# These bypass the metaclass, which may override attribute access.
_flags_of: Final = type.__dict__["__flags__"].__get__
_module_of: Final = type.__dict__["__module__"].__get__


class Account(NamedTuple):
    """References to one object, and what explains them.

    Attributes:
        obj: The object.
        change: References gained since the start of the series; negative if it has lost some.
        held: References from objects that the collector lists.
        blocks: Blocks in use, of which an object that the collector does not list takes one.
    """

    obj: object
    change: int
    held: int
    blocks: int

    def explains_since(self, earlier: Account) -> bool:
        """Return whether objects of Python hold, or gave up, most of what changed."""
        changed, held = self.change - earlier.change, self.held - earlier.held
        if 2 * abs(changed - held) < abs(changed):
            return True
        return not _lists_holders(self.obj) and 2 * (self.blocks - earlier.blocks) > changed > 0


class References(Stateless):
    """``reference``: the most references that one long-lived object has gained or lost since start.

    Long-lived are all classes, what the variables of modules refer to, and what containers among
    these hold. Resolution: one reference. Noise: a few. Cost: 0.25 us per object, of which a
    process with torch has some 30,000. Scope: this process. Not counted: other objects; None,
    strings and numbers, of which the test runner takes and releases many. Unavailable without the
    global lock, where references are not counted at once.
    """

    resource = "reference"

    def open(self) -> None:
        if "t" in sys.abiflags:
            raise Unavailable("a free-threaded Python does not count references at once")
        self._objects = list({id(one): one for one in _list_long_lived()}.values())
        self._blocks = Blocks()
        self.start()

    def start(self) -> None:
        """Let changes count from now on."""
        self._counts = array("q", map(getrefcount, self._objects))
        self._lowest = 0
        self._reserved = Counter[int]()

    def read(self) -> int:
        lowest, highest = min(self._changes()), max(self._changes())
        if lowest < self._lowest:
            self._lowest = lowest
            self._reserve(self.find_changed())
        return max(-lowest, highest)

    def close(self) -> None:
        self._objects, self._counts = [], array("q")

    def find_changed(self) -> int:
        """Return where the object is whose count has changed most.

        One that has lost references comes first: a program may crash without them.
        """
        changes = array("q", self._changes())
        lowest, highest = min(changes), max(changes)
        return changes.index(lowest if -2 * lowest >= highest else highest)

    def account(self, at: int) -> Account:
        """Look who holds an object; nothing may be frozen. This walks all objects."""
        change, obj = self.change(at), self._objects[at]
        return Account(obj, change, _count_held(obj), self._blocks.read())

    def change(self, at: int) -> int:
        """Return how many references to an object have come since the start."""
        return getrefcount(self._objects[at]) - self._counts[at]

    def object(self, at: int) -> object:
        return self._objects[at]

    def _changes(self) -> Iterator[int]:
        return map(sub, map(getrefcount, self._objects), self._counts)

    def _reserve(self, at: int) -> None:
        """Take references to an object that loses some."""
        if self._lowest < -self._reserved[at]:
            _reserve.extend(repeat(self._objects[at], _RESERVE))
            self._counts[at] += _RESERVE
            self._reserved[at] += _RESERVE


def _lists_holders(obj: object) -> bool:
    """Return whether the collector lists what may hold an object."""
    # It leaves out tuples and dicts of what it does not track, and objects of some classes.
    is_class = issubclass(type(obj), type)
    return gc.is_tracked(obj) and not (is_class and not _flags_of(obj) & _HAVE_GC)


def _count_held(obj: object) -> int:
    holders = gc.get_referrers(obj)
    return sum(one is obj for holder in holders for one in gc.get_referents(holder))


def _list_long_lived() -> Iterator[object]:
    for one in _list_with_contents():
        is_class = issubclass(type(one), type)
        if not (type(one) in _PLAIN or id(one) in _BUSY or (is_class and _is_of_runner(one))):
            yield one


def _list_with_contents() -> Iterator[object]:
    yield from with_subclasses(object)
    for module in list(sys.modules.values()):
        # A module that is loaded later loads as its attribute `__dict__` is read.
        for namespace in gc.get_referents(module):
            for value in list(namespace.values()) if type(namespace) is dict else ():
                yield value
                if type(value) in _CONTAINERS:
                    yield from gc.get_referents(value)


def _is_of_runner(kind: Any) -> bool:
    """Return whether a class is the plugin's or pytest's, whose objects come and go."""
    try:
        module = _module_of(kind)
    except AttributeError:
        return False
    return type(module) is str and module.partition(".")[0] in _RUNNER
