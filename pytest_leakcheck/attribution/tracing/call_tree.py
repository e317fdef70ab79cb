"""Find the call that makes a counter grow.

The calls form a tree with one node per call path (a calling-context tree). At each call and return,
the counter's growth since the last event is charged to the node of the running call.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import CodeType, FrameType
from typing import Any, Final, TypeAlias

from pytest_leakcheck.attribution.call_paths import is_own, line_at, read_path
from pytest_leakcheck.attribution.inspection import name_of_called
from pytest_leakcheck.attribution.tracing.allocations import python_traced
from pytest_leakcheck.attribution.tracing.tracer import (
    LEAST_OF_GROWTH,
    MOST_OF_GROWTH,
    OWN,
    QUIET,
    Event,
    Handler,
    Handover,
    explains,
    is_by_chance,
    is_left_out,
)
from pytest_leakcheck.model.culprit import Site

# A call is the only one that gains if all others together gain at most this share of the growth.
_MAX_OTHER_GAINS_RATIO: Final = 0.1
# A call is the main one if it retains at least this share of the growth,
_MIN_MAIN_RATIO: Final = 0.6
# and all others together retain and release at most this share of what it retains: Python's lists
# of freed objects may move a block per iteration from one function to another.
_MAX_BESIDE_MAIN_RATIO: Final = 0.5
# What a call returns may be a copy of what leaks if new Python objects hold at least this share of
# the growth in it.
_MIN_COPY_RATIO: Final = 0.8
# The most calls, lines or C functions that a reason lists.
MAX_SHOWN: Final = 4
# A line, and the name of the function that it calls.
_Call: TypeAlias = tuple[int, str]


@dataclass(frozen=True, slots=True)
class TracedCall:
    """The call that a growth was traced to."""

    # From the outermost frame to that call; empty if nothing grew or no call was found.
    path: tuple[Site, ...]
    # The last function, if the path does not name the call in it; `LineTracer` then finds the line.
    code: CodeType | None = None
    # Why no single call in the last function explains the growth; empty if one call or its own
    # lines do.
    why: str = ""
    # The last call is to a function of the program whose events were left out: the line is in it,
    # or below it.
    ends_early: bool = False
    # The last function calls functions of the program that change the counter.
    calls_program: bool = False
    # What new Python objects hold was left out.
    of_c: bool = False
    # The functions on the path.
    codes: tuple[CodeType, ...] = ()
    # What new Python objects hold that the call, or one on the path whose inside was left out, has
    # left behind.
    python: int = 0

    def cut(self) -> TracedCall:
        """End the path in the program's innermost function, at any line; without one, no path."""
        path = self.path[: len(self.codes)]
        while path and not is_own(path[-1].file):
            path = path[:-1]
        return (
            TracedCall((*path[:-1], replace(path[-1], call="")), code=self.codes[len(path) - 1])
            if path
            else TracedCall(())
        )


class _Node:
    """One call on one call path; the amount that it retains is ``CallTree.own[at]``."""

    __slots__ = ("at", "calls", "code", "is_left_out", "lasti", "name")

    def __init__(self, at: int, lasti: int, code: CodeType | None, name: str) -> None:
        self.at = at
        # Offset of the instruction in the caller's code. Its line is read only at the end, because
        # that takes 1 µs.
        self.lasti = lasti
        # None for a C function and for the root.
        self.code = code
        self.name = name
        # Whether it is a function of the program whose events are left out, so that it looks like a
        # C function.
        self.is_left_out = False
        self.calls: dict[tuple[int, int | str], _Node] = {}


class CallTree:
    """A tracer's listener that charges a counter's growth between events to the running call.

    Frames are identified by `id` and never referenced. Where events are missing (frames entered
    before tracing, throttled frames, the recursion limit), the real stack is read, and the growth
    since the last event is charged to the innermost frame that it shares with the recorded one.
    """

    def __init__(self, read: Callable[[], int]) -> None:
        self.read = read
        # What each node itself retains, without its calls. Python ints would be memory blocks that
        # the tracer leaks.
        self.own = array("q", (0,))
        # The part of it that new Python objects hold; zeros until that is measured.
        self.python = array("q", (0,))
        # That should have been measured, but a part of the calls was left out.
        self.lacks_python = False
        self.last = 0
        self.round = 0
        self.root = _Node(0, 0, None, "")
        self.handover = Handover()
        # Growth that one thread saw and another thread probably caused; not yet charged.
        self._held = 0

    def begin(self) -> None:
        self.round += 1
        self._held = 0
        self.handover.begin()

    def handler(self) -> Handler:
        return _ThreadStack(self).on_event

    def forget(self) -> None:
        """Reset all sums after the first iteration, which also fills caches; keep the nodes."""
        for at in range(len(self.own)):
            self.own[at] = 0

    @contextmanager
    def measuring_python(self) -> Iterator[None]:
        """Measure what new Python objects hold, in place of the counter."""
        read = self.read
        self.own, self.python = self.python, self.own
        try:
            with python_traced() as self.read:
                yield
        finally:
            self.own, self.python = self.python, self.own
            self.read = read

    def charge(self, event: Event, thread: int, node: _Node, returned: str) -> None:
        self.own[node.at] += self.take(event, thread, returned)

    def take(self, event: Event, thread: int, returned: str) -> int:
        """Return the growth since the last event, as far as this thread probably caused it."""
        now = self.read()
        grown = now - self.last
        self.last = now
        if not self.handover.many:
            return grown
        if event == "end" or (self._held and self.handover.is_suspect(thread)):
            grown += self._held
            self._held = 0
        elif grown and self.handover.is_anothers(thread, returned):
            self._held += grown
            grown = 0
            self.handover.hold(thread)
        return grown

    def explain(self, growth: int) -> TracedCall:
        """Follow all traced growth; if that leads to no line, follow that of the verdict.

        It leads to none, for example, when another thread allocates too.
        """
        # If the call that this leads to returns as much, only what Python's objects do not hold is
        # followed; without a result, the path ends in the innermost function of the program, for
        # `LineTracer`.
        traced = self.traced()
        if read_path(traced.path) is None or traced.why:
            traced = self.traced(growth)
        if read_path(traced.path) is None or traced.why:
            traced = self._traced_outside_runner(growth) or traced
        if traced.python < max(1.0, _MIN_COPY_RATIO * growth):
            in_lines = traced.code is not None and is_own(traced.code.co_filename)
            cut = traced.cut() if self.lacks_python and not in_lines else traced
            return replace(cut, of_c=True) if cut is not traced and cut.path else traced
        for node in _list_subtrees([self.root]):
            self.own[node.at] -= self.python[node.at]
        return replace(self._traced_outside_runner(growth) or traced.cut(), of_c=True)

    def _traced_outside_runner(self, growth: int) -> TracedCall | None:
        """Follow the growth without the test runner's functions; None if that leads to no line."""
        for node in _list_subtrees([self.root]):
            # What the test runner holds is released between two iterations, where nothing is
            # counted.
            if node.code is not None and QUIET[node.code.co_filename]:
                self.own[node.at] = 0
        found = self.traced(growth)
        return None if read_path(found.path) is None or found.why else found

    def traced(self, total: int | None = None) -> TracedCall:
        """Follow a growth (by default all traced) down the calls while a single one explains it."""
        wanted = sum(self.own) if total is None else total
        if wanted <= 0:
            return TracedCall(())
        found = self._descend(wanted)
        inside = list(_list_subtrees(found.nodes))
        return TracedCall(
            path=found.path(),
            code=None if found.name else found.code,
            why=self._why_scattered(found),
            ends_early=bool(found.name) and any(node.is_left_out for node in found.nodes),
            calls_program=any(
                self.own[node.at] and node.code is not None and is_own(node.code.co_filename)
                for node in inside
            ),
            codes=tuple(found.codes),
            python=found.python + sum(self.python[node.at] for node in inside),
        )

    def _descend(self, wanted: int) -> _Descent:
        found = _Descent([self.root], wanted)
        while True:
            calls = _group_by_line(found.nodes, found.code)
            kept = {key: self._sum(_list_subtrees(group)) for key, group in calls.items()}
            nearest = min(kept, key=lambda key: abs(kept[key] - found.wanted), default=None)
            found.kept = kept
            if nearest is None or not explains(kept[nearest], found.wanted):
                gain = _find_gain(kept, self._sum(found.nodes), found.wanted)
                if gain is None:
                    return found
                nearest, found.wanted = gain
            else:
                others = [amount for call, amount in kept.items() if call != nearest]
                if is_by_chance(kept[nearest], others, found.wanted):
                    found.name = ""
                    return found
            found.python += sum(self.python[node.at] for node in found.nodes if node.code is None)
            found.enter(nearest, calls[nearest])

    def _sum(self, nodes: Iterable[_Node]) -> int:
        return sum(self.own[node.at] for node in nodes)

    def _why_scattered(self, found: _Descent) -> str:
        """Return why no single call of the last function explains the growth; empty if one does."""
        code, own = found.code, self._sum(found.nodes)
        if code is None or found.name or own >= LEAST_OF_GROWTH * found.wanted:
            return ""
        flows = _format_flows(found.kept, own)
        most = MOST_OF_GROWTH * found.wanted
        if any(amount > most for amount in (own, *found.kept.values())):
            how = "is allocated in one call and freed in another"
        else:
            how = "comes from several calls"
        return f"in {code.co_qualname}() it {how} ({flows})" if flows else ""


@dataclass(slots=True)
class _Descent:
    """How far down a growth was followed."""

    nodes: list[_Node]
    # The part of the growth that is followed.
    wanted: int
    # What each call there retains.
    kept: Mapping[_Call, int] = field(default_factory=dict)
    # The Python functions, and the calls in all but the last of them.
    codes: list[CodeType] = field(default_factory=list)
    calls: list[Site] = field(default_factory=list)
    # The line in the last function, and the C function called there, if any.
    line: int = 0
    name: str = ""
    # What new Python objects hold that was left behind on the way.
    python: int = 0

    @property
    def code(self) -> CodeType | None:
        return self.codes[-1] if self.codes else None

    def enter(self, call: _Call, nodes: list[_Node]) -> None:
        self.nodes = nodes
        self.line, self.name = call
        if (called := nodes[0].code) is not None:
            if self.codes:
                self.calls.append(_make_site(self.codes[-1], *call))
            self.codes.append(called)
            self.line, self.name = called.co_firstlineno, ""

    def path(self) -> tuple[Site, ...]:
        if not self.codes:
            return ()
        return (*self.calls, _make_site(self.codes[-1], self.line, self.name))


class _ThreadStack:
    """The call stack of one thread as its events describe it: a path through the tree."""

    def __init__(self, tree: CallTree) -> None:
        self._tree = tree
        self._number = tree.handover.new_thread()
        self._round = tree.round
        self._nodes = [tree.root]
        # For each node the `id` of its frame; for a C function the inverted `id` of its caller's
        # frame.
        self._marks = [0]

    def on_event(self, event: Event, frame: FrameType, called: Any) -> None:
        tree = self._tree
        if self._round != tree.round:
            # A frame of an earlier iteration may have had the same `id`.
            self._round = tree.round
            del self._nodes[1:], self._marks[1:]
        name = ""
        if event == "call":
            self._enter(frame)
        elif event == "c_call":
            name = name_of_called(called)
            self._enter_c(frame, name, called)
        elif event in ("return", "c_return"):
            self._leave(event, frame)
        else:
            if event in ("begin", "cut"):
                # Growth between iterations, or after the last event that was reported, is charged
                # to no call.
                tree.last = tree.read()
            self._resync(event, frame)
        if tree.handover.many:
            tree.handover.note(self._number, name)

    def _enter(self, frame: FrameType) -> None:
        caller = frame.f_back
        mark = 0 if caller is None else id(caller)
        running = self._marks[-1]
        # A C function has no frame: when it calls a Python function, `f_back` is the C function's
        # own caller.
        if running == ~mark or (
            running == mark and caller is not None and self._is_running(caller)
        ):
            self._tree.charge("call", self._number, self._nodes[-1], "")
        else:
            caller = self._resync("call", caller)
        if self._push(0 if caller is None else caller.f_lasti, id(frame), frame.f_code, ""):
            self._tree.last = self._tree.read()

    def _is_running(self, frame: FrameType) -> bool:
        """Return whether the innermost call is surely that of this frame."""
        # Nothing tells when one of the test runner ends. Another one may then have its `id`.
        return self._nodes[-1].code is frame.f_code and not QUIET[frame.f_code.co_filename]

    def _enter_c(self, frame: FrameType, name: str, called: Any) -> None:
        mark = id(frame)
        if self._marks[-1] == mark:
            self._tree.charge("c_call", self._number, self._nodes[-1], "")
        else:
            self._resync("c_call", frame)
        if self._push(frame.f_lasti, ~mark, None, name):
            self._nodes[-1].is_left_out = is_left_out(called)
            self._tree.last = self._tree.read()

    def _leave(self, event: Event, frame: FrameType) -> None:
        mark = id(frame)
        if self._marks[-1] != (~mark if event == "c_return" else mark):
            self._resync(event, frame)
            if event == "c_return":
                return
        # Pop before the counter is read: the lists then release memory in the node in which they
        # allocated it.
        node = self._nodes.pop()
        self._marks.pop()
        self._tree.charge(event, self._number, node, node.name if event == "c_return" else "")

    def _push(self, lasti: int, mark: int, code: CodeType | None, name: str) -> bool:
        """Enter a call, and return whether memory was allocated for a new node."""
        tree = self._tree
        calls = self._nodes[-1].calls
        key = (lasti, name if code is None else id(code))
        node = calls.get(key)
        new = node is None
        if node is None:
            node = calls[key] = _Node(len(tree.own), lasti, code, name or name_of_called(code))
            tree.own.append(0)
            tree.python.append(0)
        self._nodes.append(node)
        self._marks.append(mark)
        return new

    def _resync(self, event: Event, frame: FrameType | None) -> FrameType | None:
        """Rebuild the recorded stack up to a frame, without this package; return its innermost."""
        tree = self._tree
        # The counter is read before and after, because rebuilding allocates memory.
        grown = tree.take(event, self._number, "")
        running = self._rebuild_stack(frame, grown)
        tree.last = tree.read()
        return running

    def _rebuild_stack(self, frame: FrameType | None, grown: int) -> FrameType | None:
        """Rebuild the recorded stack from the real one; charge growth to the innermost of both."""
        tree = self._tree
        chain = []
        while frame is not None:
            if not OWN[frame.f_code.co_filename]:
                chain.append(frame)
            frame = frame.f_back
        chain.reverse()
        common = self._drop_ended_calls(chain)
        tree.own[self._nodes[-1].at] += grown
        for inner in chain[common:]:
            self._push(_offset_of_call(inner), id(inner), inner.f_code, "")
        return chain[-1] if chain else None

    def _drop_ended_calls(self, chain: Sequence[FrameType]) -> int:
        """Drop nodes of ended calls; return how many real frames, outermost first, have a node."""
        known, at = 0, 1
        while at < len(self._nodes):
            mark = self._marks[at]
            if mark >= 0:
                if (
                    known == len(chain)
                    or mark != id(chain[known])
                    or not _is_of_call(chain[known], self._nodes[at])
                ):
                    break
                known += 1
            at += 1
        # A C function has returned if its caller is the innermost frame.
        while at > 1 and self._marks[at - 1] < 0 and known == len(chain):
            at -= 1
        del self._nodes[at:], self._marks[at:]
        return known


def _is_of_call(frame: FrameType, node: _Node) -> bool:
    """Return whether a frame may belong to a call: it may have the `id` of one that has ended."""
    return node.code is frame.f_code and node.lasti == _offset_of_call(frame)


def _offset_of_call(frame: FrameType) -> int:
    return 0 if frame.f_back is None else frame.f_back.f_lasti


def _list_subtrees(nodes: Iterable[_Node]) -> Iterator[_Node]:
    # A loop instead of recursion, because the tree may be deeper than the recursion limit.
    left = list(nodes)
    while left:
        node = left.pop()
        yield node
        left.extend(node.calls.values())


def _find_gain(kept: Mapping[_Call, int], own: int, total: int) -> tuple[_Call, int] | None:
    """Return the call to follow if none matches, and the growth to explain in it; else None."""
    most = max(kept, key=kept.__getitem__, default=None)
    if most is None:
        return None
    amount, amounts = kept[most], (own, *kept.values())
    other_gains = sum(one for one in amounts if one > 0) - amount
    remains = explains(sum(amounts), total)
    if (
        amount >= LEAST_OF_GROWTH * total
        and remains
        and other_gains <= _MAX_OTHER_GAINS_RATIO * total
    ):
        # It is the only one that gains, and the others release a part of that again.
        return most, total
    beside = sum(map(abs, amounts)) - amount
    if (
        _MIN_MAIN_RATIO * total <= amount <= MOST_OF_GROWTH * total
        and beside <= _MAX_BESIDE_MAIN_RATIO * amount
    ):
        # It retains most of the growth. The rest is not part of this leak.
        return most, amount
    return None


def _group_by_line(nodes: Iterable[_Node], code: CodeType | None) -> dict[_Call, list[_Node]]:
    """Group the calls of one function's nodes by line and name; `code` is None at the root."""
    found: dict[_Call, list[_Node]] = {}
    for node in nodes:
        for call in node.calls.values():
            line = 0 if code is None else line_at(code, call.lasti)
            found.setdefault((line, call.name), []).append(call)
    return found


def _make_site(code: CodeType, line: int, name: str) -> Site:
    return Site(
        code.co_filename, line or code.co_firstlineno, code.co_qualname, f"{name}()" if name else ""
    )


def _format_flows(kept: Mapping[_Call, int], own: int) -> str:
    """Format net amounts, the largest first: ``line 9 drop(): -5008, its own lines: +3``."""
    parts = [(amount, f"line {line} {name}()") for (line, name), amount in kept.items()]
    parts.append((own, "its own lines"))
    parts.sort(key=lambda part: -abs(part[0]))
    return ", ".join(f"{text}: {amount:+d}" for amount, text in parts[:MAX_SHOWN] if amount)
