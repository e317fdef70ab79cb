"""Python objects that stay in reach of something that lives on: lists, listeners, closures, tracebacks."""

from __future__ import annotations

import gc
import itertools
import operator
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar
from unittest import mock

from cases.case import drain, kept, leak, numbers

NUMBERS = numbers()
CALLS = itertools.count()


@dataclass
class Session:
    """What is kept: an object with a list and a dictionary."""

    number: int
    rows: list[int] = field(default_factory=lambda: [1, 2, 3])
    options: dict[str, list[int]] = field(default_factory=lambda: {"columns": [1]})
    related: list[list[int]] = field(default_factory=list)


REGISTRY: dict[int, Session] = {}
CALLBACKS: list[Callable[[], object]] = []
ERRORS: list[BaseException] = []
REFERENCES: list[weakref.ref[Session]] = []
BY_USER: defaultdict[str, list[Session]] = defaultdict(list)


class Recent:
    """The last thousand lines of a log, all of which exist when the test begins."""

    lines: ClassVar[deque[str]] = deque(maxlen=1000)

    @classmethod
    def write(cls, count: int) -> None:
        for _ in range(count):
            cls.lines.append(f"line {next(CALLS)}")

    @classmethod
    def fill(cls) -> None:
        cls.write(1000)


def kept_beside_a_log() -> None:
    Recent.write(30)
    session = Session(next(NUMBERS))
    REGISTRY[session.number] = session


def dropped_beside_a_log() -> None:
    Recent.write(30)
    Session(next(NUMBERS))


def registered() -> None:
    session = Session(next(NUMBERS))
    REGISTRY[session.number] = session


class Indexes:
    """Lists every session in several tables, which do not become larger at the same time."""

    tables: ClassVar[list[list[list[int]]]] = []

    @classmethod
    def make(cls) -> None:
        cls.tables = [[[]] * (40 + 5 * at) for at in range(12)]

    @classmethod
    def drop(cls) -> None:
        cls.tables = []


def indexed() -> None:
    row = [next(NUMBERS)]
    for table in Indexes.tables:
        table.append(row)


def indexed_and_removed() -> None:
    indexed()
    for table in Indexes.tables:
        table.pop()


def kept_in_two() -> None:
    REGISTRY[next(NUMBERS)] = Session(0)
    BY_USER["all"].append(Session(1))


def forget_both() -> None:
    REGISTRY.clear()
    BY_USER.clear()


class Topic:
    """Calls all subscribers."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[int], object]] = []

    def publish(self, value: int) -> None:
        for listener in self.listeners[-3:]:
            listener(value)


TOPIC = Topic()


class View:
    """Listens for as long as it is shown."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        TOPIC.listeners.append(self.seen.append)

    def close(self) -> None:
        TOPIC.listeners.remove(self.seen.append)


def view_forgotten() -> None:
    View()
    TOPIC.publish(1)


def view_closed() -> None:
    view = View()
    TOPIC.publish(1)
    view.close()


class Plugin:
    """Notes its instances in a list of the class."""

    loaded: ClassVar[list[Plugin]] = []

    def __init__(self) -> None:
        self.loaded.append(self)


class TidyPlugin:
    """Notes its instances in a list of its own."""

    def __init__(self) -> None:
        self.loaded: list[int] = []
        self.loaded.append(id(self))


def default_argument(row: Session, rows: list[Session] = []) -> int:
    rows.append(row)
    return len(rows)


def default_none(row: Session, rows: list[Session] | None = None) -> int:
    rows = [] if rows is None else rows
    rows.append(row)
    return len(rows)


def closure_kept() -> None:
    rows = [Session(next(NUMBERS))]
    CALLBACKS.append(lambda: rows)


def parse() -> int:
    rows = [Session(next(NUMBERS))]
    return rows[0].rows[10]


def error_kept() -> None:
    try:
        parse()
    except IndexError as error:
        ERRORS.append(error)


def error_noted() -> None:
    try:
        parse()
    except IndexError as error:
        ERRORS[:] = [error.with_traceback(None)]


def error_in_a_cycle() -> None:
    try:
        parse()
    except IndexError as error:
        # The error knows this frame, and the frame the error.
        last = error
    assert last.__traceback__ is not None


def error_let_go() -> None:
    try:
        parse()
    except IndexError as error:
        assert error.__traceback__ is not None


def kept_on_error() -> None:
    session = Session(next(NUMBERS))
    REGISTRY[session.number] = session
    try:
        session.rows.remove(7)
    except ValueError:
        return
    del REGISTRY[session.number]


def dropped_on_error() -> None:
    session = Session(next(NUMBERS))
    REGISTRY[session.number] = session
    try:
        session.rows.remove(7)
    except ValueError:
        return
    finally:
        del REGISTRY[session.number]


def every_tenth() -> None:
    session = Session(next(NUMBERS))
    session.related = [[1], [2]]
    if next(CALLS) % 10 == 0:
        REGISTRY[session.number] = session


def every_tenth_dropped() -> None:
    session = Session(next(NUMBERS))
    if next(CALLS) % 10 == 0:
        REGISTRY[session.number] = session
        REGISTRY.clear()


def reference_kept() -> None:
    # The session goes, the reference to it and what it would call do not.
    REFERENCES.append(weakref.ref(Session(next(NUMBERS)), partial(operator.is_, [])))


def reference_dropped() -> None:
    REFERENCES[:] = [weakref.ref(Session(next(NUMBERS)), lambda _reference: None)]


class Owner:
    """Lives as long as the program, and so do its finalizers."""

    only: ClassVar[list[Owner]] = []

    @classmethod
    def enter(cls) -> None:
        cls.only.append(cls())

    @classmethod
    def leave(cls) -> None:
        cls.only.clear()


def finalizer_registered() -> None:
    finalizer = weakref.finalize(Owner.only[0], list, [Session(next(NUMBERS))])
    finalizer.atexit = False


def finalizer_detached() -> None:
    weakref.finalize(Owner.only[0], list, [Session(next(NUMBERS))]).detach()


def user_never_leaves() -> None:
    BY_USER[f"user {next(NUMBERS)}"].append(Session(0))


CLIENT = mock.Mock()


def mock_remembers() -> None:
    CLIENT.send([next(NUMBERS)], timeout=1)


class Event:
    """Knows the one before it."""

    def __init__(self, before: Event | None) -> None:
        self.before = before


# Holds the last event, and with it all: a container that does not grow, and has one entry.
HISTORY: dict[str, Event] = {}


def event_linked() -> None:
    HISTORY["last"] = Event(HISTORY.get("last"))


def event_alone() -> None:
    HISTORY["last"] = Event(None)


class Request:
    """Small, and noted."""

    def __init__(self) -> None:
        self.rows: list[int] = []


class Reply:
    """Large, and cached."""

    def __init__(self) -> None:
        self.text = bytearray(20_000)


REQUESTS: list[Request] = []
REPLIES: dict[int, Reply] = {}


def reply_cached() -> None:
    REQUESTS.append(Request())
    REPLIES[next(NUMBERS)] = Reply()


def forget_replies() -> None:
    REQUESTS.clear()
    REPLIES.clear()


class Node:
    """A tree whose branches know the trunk."""

    def __init__(self, parent: Node | None = None) -> None:
        self.parent = parent
        self.children: list[Node] = []
        if parent is not None:
            parent.children.append(self)


def cycle_left() -> None:
    Node(Node())


def cycle_broken() -> None:
    branch = Node(trunk := Node())
    branch.parent = None
    trunk.children.clear()


def collector_on() -> None:
    gc.enable()
    gc.collect()


CASES = (
    leak("kept_beside_a_log", "object block", kept_beside_a_log, dropped_beside_a_log, REGISTRY.clear,
         setup=Recent.fill, line=("session = Session(next(NUMBERS))", "REGISTRY[session.number] = session"),
         owner=".REGISTRY"),
    kept("registered", "object", registered, REGISTRY.clear,
         line=("session = Session(next(NUMBERS))", "REGISTRY[session.number] = session"), owner=".REGISTRY"),
    kept("kept_in_two", "object", kept_in_two, forget_both,
         line=("REGISTRY[next(NUMBERS)] = Session(0)", 'BY_USER["all"].append(Session(1))', "kept_in_two()"),
         owner=(".REGISTRY", ".BY_USER")),
    leak("view_forgotten", "object", view_forgotten, view_closed, TOPIC.listeners.clear,
         line=("View()", "self.seen: list[int] = []", "TOPIC.listeners.append("), owner=".TOPIC.listeners"),
    leak("class_level_list", "object", Plugin, TidyPlugin, drain(Plugin.loaded),
         line=("arm()", "self.loaded.append(self)"), owner="Plugin.loaded"),
    leak("default_argument", "object",
         lambda: default_argument(Session(next(NUMBERS))),
         lambda: default_none(Session(next(NUMBERS))),
         lambda: default_argument.__defaults__[0].clear(),  # type: ignore[index]
         line=("default_argument(Session(next(NUMBERS)))", "rows.append(row)"),
         owner=".default_argument default argument 'rows'"),
    kept("closure_kept", "object", closure_kept, CALLBACKS.clear,
         line=("rows = [Session(next(NUMBERS))]", "CALLBACKS.append("), owner=".CALLBACKS"),
    leak("error_kept", "object", error_kept, error_noted, ERRORS.clear,
         line=("ERRORS.append(error)", "parse()", "return rows[0].rows[10]"), owner=".ERRORS"),
    leak("kept_on_error", "object", kept_on_error, dropped_on_error, REGISTRY.clear,
         line=("session = Session(next(NUMBERS))", "REGISTRY[session.number] = session"), owner=".REGISTRY"),
    leak("every_tenth_object", "object", every_tenth, every_tenth_dropped, REGISTRY.clear,
         line=("session = Session(next(NUMBERS))", "session.related = [[1], [2]]",
               "REGISTRY[session.number] = session"),
         owner=".REGISTRY"),
    leak("weak_reference_kept", "object", reference_kept, reference_dropped, REFERENCES.clear,
         line="REFERENCES.append(weakref.ref(", owner=".REFERENCES"),
    leak("finalizer_registered", "object", finalizer_registered, finalizer_detached, Owner.leave,
         setup=Owner.enter, line="weakref.finalize(Owner.only[0]", owner="finalize._registry"),
    kept("user_never_leaves", "object", user_never_leaves, BY_USER.clear,
         line="BY_USER[f", owner=".BY_USER"),
    leak("events_linked", "object", event_linked, event_alone, HISTORY.clear,
         line='HISTORY["last"] = Event(', owner=".HISTORY"),
    kept("reply_cached", "heap object", reply_cached, forget_replies,
         line=("self.text = bytearray(20_000)", "REPLIES[next(NUMBERS)] = Reply()"), owner=".REPLIES"),
    kept("mock_remembers", "object", mock_remembers, CLIENT.reset_mock,
         line="CLIENT.send(", owner=".CLIENT"),
    leak("cycle_without_collector", "object", cycle_left, cycle_broken, collector_on,
         setup=gc.disable, line="Node(Node())", owner="cycle of Node, Node", process_wide=True),
    leak("indexed_in_tables", "object", indexed, indexed_and_removed, Indexes.drop,
         setup=Indexes.make, line="row = [", owner=".Indexes.tables"),
    leak("error_without_collector", "object", error_in_a_cycle, error_let_go, collector_on,
         setup=gc.disable, line=("last = error", "parse()", "return rows[0].rows[10]"),
         owner="cycle of IndexError, traceback, frame of error_in_a_cycle() local 'last'", process_wide=True),
)  # fmt: skip
