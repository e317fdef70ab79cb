"""Which call makes a counter grow: a calling-context tree, charged at each call and return."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Final

from pytest_leakcheck.attribution.object_inspection import name_of, name_of_called
from pytest_leakcheck.attribution.tracing.frames import line_at
from pytest_leakcheck.attribution.tracing.thread_handover import Handover
from pytest_leakcheck.attribution.tracing.trace_events import OWN, Event, Handler
from pytest_leakcheck.model.culprit import Site

# A call explains a growth if it keeps this part of it. More than that is taken here and given back elsewhere.
LEAST: Final = 0.9
MOST: Final = 1.5
# Where calls beside it take or give back so much of what it keeps, it must be that more exactly.
_BESIDE: Final = 0.5
_EXACT: Final = 0.03
_FLOWS_SHOWN: Final = 4


@dataclass(frozen=True, slots=True)
class Traced:
    """Where a growth was traced to.

    Attributes:
        path: From the outermost frame to the call that keeps it; empty if nothing grew.
        kept: How much of it that call keeps.
        code: The function whose own lines it happens in, where the path names no call in it: the last line of the path
            is then that of the ``def``, and `Lines` finds the right one.
        flows: What each call in the last frame took and gave, where no single one explains it.
        balanced: Whether it is taken in one call and mostly given back in another.
        coarse: Whether the path may be shorter than it could be, since tracing was throttled.
    """

    path: tuple[Site, ...]
    kept: int = 0
    code: CodeType | None = None
    flows: str = ""
    balanced: bool = False
    coarse: bool = False


class _Node:
    """A call in its context. The numbers are kept elsewhere, in place."""

    __slots__ = ("at", "calls", "code", "lasti", "name")

    def __init__(self, at: int, lasti: int, code: CodeType | None, name: str) -> None:
        self.at = at
        # Where in the caller's code: a line number costs a microsecond to find out, and is found out in the end.
        self.lasti = lasti
        # None for a function of C.
        self.code = code
        self.name = name
        self.calls: dict[tuple[int, int | str], _Node] = {}


class CallTree:
    """Listens to a tracer: between two events, what the counter grew by is charged to the call that was running.

    Frames are known by their numbers (`id`) and never held. Where an event was missed (frames entered before, throttled
    ones, a recursion at its limit) the real frames say what is running, and what grew meanwhile is charged to what they
    have in common with what was thought to run.

    Attributes:
        read: The counter.
        own: What each node keeps itself. In place: Python ints held by the nodes would be blocks that the tracer leaks.
        last: The counter when it was last charged.
        round: The number of the iteration.
    """

    def __init__(self, read: Callable[[], int]) -> None:
        self.read = read
        self.own = array("q", (0,))
        self.last = 0
        self.round = 0
        self.root = _Node(0, 0, None, "")
        self.handover = Handover()
        # Seen by one thread and not charged yet, since it is another's.
        self._held = 0
        self._coarse = False

    def begin(self) -> None:
        self.round += 1
        self._held = 0
        self.handover.begin()

    def became_coarse(self) -> None:
        self._coarse = True

    def handler(self) -> Handler:
        return _Thread(self).on_event

    def forget(self) -> None:
        """Start all sums anew, and keep the nodes: after a first iteration, which also fills caches and makes nodes."""
        for at in range(len(self.own)):
            self.own[at] = 0

    @property
    def total(self) -> int:
        """What the counter grew by while it was traced."""
        return sum(self.own)

    def charge(self, event: Event, thread: int, node: _Node, returned: str) -> None:
        """Add to a node what the counter grew by since the last event."""
        grown = self.take(event, thread, returned)
        if grown:
            self.own[node.at] += grown

    def take(self, event: Event, thread: int, returned: str) -> int:
        """What it grew by since the last event, as far as it is this thread's doing."""
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

    def traced(self, total: int | None = None) -> Traced:
        """Follow the growth from the outermost frame inwards, as long as one call explains it.

        Args:
            total: What is to be explained; what grew while it was traced, if not given.
        """
        total = self.total if total is None else total
        if total <= 0:
            return Traced((), coarse=self._coarse)
        nodes = [self.root]
        path: list[Site] = []
        # The Python function that was come to, and what it calls if that is of C.
        code: CodeType | None = None
        line, name = 0, ""
        while True:
            calls = _by_line(nodes, code)
            kept = {key: self._sum(group) for key, group in calls.items()}
            nearest = min(kept, key=lambda key: abs(kept[key] - total), default=None)
            if nearest is None or not LEAST * total <= kept[nearest] <= MOST * total:
                break
            beside = any(abs(amount) > _BESIDE * total for call, amount in kept.items() if call != nearest)
            if beside and abs(kept[nearest] - total) > _EXACT * total:
                # Others take and give back as much: that one of them comes near may be chance.
                name = ""
                break
            nodes = calls[nearest]
            line, name = nearest
            called = nodes[0].code
            if called is not None:
                if code is not None:
                    path.append(_site(code, line, name))
                code, line, name = called, called.co_firstlineno, ""
        if code is not None:
            path.append(_site(code, line, name))
        own = sum(self.own[node.at] for node in nodes)
        explained = bool(name) or own >= LEAST * total
        return Traced(
            path=tuple(path),
            kept=self._sum(nodes),
            code=None if name else code,
            flows="" if explained else _flows(kept, own),
            balanced=not explained and any(amount > MOST * total for amount in (own, *kept.values())),
            coarse=self._coarse,
        )

    def _sum(self, nodes: Iterable[_Node]) -> int:
        """What these calls keep, with all that they call. A loop, since a tree may be deeper than the recursion limit."""
        total = 0
        left = list(nodes)
        while left:
            node = left.pop()
            total += self.own[node.at]
            left.extend(node.calls.values())
        return total


class _Thread:
    """What runs in one thread, as far as its events tell: a path through the tree."""

    def __init__(self, tree: CallTree) -> None:
        self._tree = tree
        self._number = tree.handover.new_thread()
        self._round = tree.round
        self._nodes = [tree.root]
        # The frame of each node; of a function of C that of its caller, inverted.
        self._marks = [0]

    def on_event(self, event: Event, frame: FrameType, called: Any) -> None:
        tree = self._tree
        if self._round != tree.round:
            # A frame of an earlier iteration may have had the same number.
            self._round = tree.round
            del self._nodes[1:], self._marks[1:]
        name = ""
        if event == "call":
            self._enter(frame)
        elif event == "c_call":
            name = name_of_called(called)
            self._enter_c(frame, name)
        elif event in ("return", "c_return"):
            self._leave(event, frame)
        else:
            if event in ("begin", "cut"):
                # What it grew by since the last iteration, or since this one was looked at, is nobody's.
                tree.last = tree.read()
            self._resynchronise(event, frame)
        if tree.handover.many:
            tree.handover.note(self._number, name)

    def _enter(self, frame: FrameType) -> None:
        caller = frame.f_back
        mark = 0 if caller is None else id(caller)
        running = self._marks[-1]
        # When a function of C calls one of Python, the frame below is that of the caller of both.
        if running == ~mark or (running == mark and caller is not None and self._nodes[-1].code is caller.f_code):
            self._tree.charge("call", self._number, self._nodes[-1], "")
        else:
            caller = self._resynchronise("call", caller)
        if self._push(0 if caller is None else caller.f_lasti, id(frame), frame.f_code, ""):
            self._tree.last = self._tree.read()

    def _enter_c(self, frame: FrameType, name: str) -> None:
        mark = id(frame)
        if self._marks[-1] == mark:
            self._tree.charge("c_call", self._number, self._nodes[-1], "")
        else:
            self._resynchronise("c_call", frame)
        if self._push(frame.f_lasti, ~mark, None, name):
            self._tree.last = self._tree.read()

    def _leave(self, event: Event, frame: FrameType) -> None:
        mark = id(frame)
        if self._marks[-1] != (~mark if event == "c_return" else mark):
            self._resynchronise(event, frame)
            if event == "c_return":
                return
        # First what is ours goes, so that what it took is given back where it was taken.
        node = self._nodes.pop()
        self._marks.pop()
        self._tree.charge(event, self._number, node, node.name if event == "c_return" else "")

    def _push(self, lasti: int, mark: int, code: CodeType | None, name: str) -> bool:
        """Go down to a call. Returns whether it is new, and the tracer has taken memory for it."""
        tree = self._tree
        calls = self._nodes[-1].calls
        key = (lasti, name if code is None else id(code))
        node = calls.get(key)
        new = node is None
        if node is None:
            node = calls[key] = _Node(len(tree.own), lasti, code, name or name_of_called(code))
            tree.own.append(0)
        self._nodes.append(node)
        self._marks.append(mark)
        return new

    def _resynchronise(self, event: Event, frame: FrameType | None) -> FrameType | None:
        """Make this frame the running one; of this package's, the next one outwards. Returns it."""
        tree = self._tree
        # Read before and after: what follows takes memory.
        grown = tree.take(event, self._number, "")
        running = self._rebuild(frame, grown)
        tree.last = tree.read()
        return running

    def _rebuild(self, frame: FrameType | None, grown: int) -> FrameType | None:
        tree = self._tree
        chain = []
        while frame is not None:
            if not OWN[frame.f_code.co_filename]:
                chain.append(frame)
            frame = frame.f_back
        chain.reverse()
        common = self._keep_what_runs(chain)
        tree.own[self._nodes[-1].at] += grown
        for inner in chain[common:]:
            caller = inner.f_back
            self._push(0 if caller is None else caller.f_lasti, id(inner), inner.f_code, "")
        return chain[-1] if chain else None

    def _keep_what_runs(self, chain: Sequence[FrameType]) -> int:
        """Drop what runs no longer. Returns how many of these frames, outermost first, are on the path already.

        A frame of a call that was not reported may have had the number of one that runs now: its code tells them apart.
        """
        known, at = 0, 1
        while at < len(self._nodes):
            mark = self._marks[at]
            if mark >= 0:
                same = known < len(chain) and mark == id(chain[known]) and self._nodes[at].code is chain[known].f_code
                if not same:
                    break
                known += 1
            at += 1
        # A function of C has returned if it is its caller that runs.
        while at > 1 and self._marks[at - 1] < 0 and known == len(chain):
            at -= 1
        del self._nodes[at:], self._marks[at:]
        return known


def _by_line(nodes: Iterable[_Node], code: CodeType | None) -> dict[tuple[int, str], list[_Node]]:
    """The calls in these nodes; equal ones in one line belong together, and so do the code objects of one function."""
    found: dict[tuple[int, str], list[_Node]] = {}
    for node in nodes:
        for call in node.calls.values():
            line = 0 if code is None else line_at(code, call.lasti)
            found.setdefault((line, call.name), []).append(call)
    return found


def _site(code: CodeType, line: int, name: str) -> Site:
    return Site(code.co_filename, line or code.co_firstlineno, name_of(code), f"{name}()" if name else "")


def _flows(kept: dict[tuple[int, str], int], own: int) -> str:
    """The largest first, as ``line 7 make(): +5120, line 9 drop(): -5008, its own lines: +3``."""
    parts = [(amount, f"line {line} {name}()") for (line, name), amount in kept.items()]
    parts.append((own, "its own lines"))
    parts.sort(key=lambda part: -abs(part[0]))
    return ", ".join(f"{text}: {amount:+d}" for amount, text in parts[:_FLOWS_SHOWN] if amount)
