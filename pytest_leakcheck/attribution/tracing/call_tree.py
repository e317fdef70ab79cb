"""Find the call that makes a counter grow.

The calls form a tree with one node per call path (a calling-context tree). At each call and return, the counter's
growth since the last event is charged to the node of the running call.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Final, TypeAlias

from pytest_leakcheck.attribution.call_paths import is_own, read_path
from pytest_leakcheck.attribution.object_inspection import name_of_called
from pytest_leakcheck.attribution.tracing.source_code import line_at
from pytest_leakcheck.attribution.tracing.thread_handover import Handover
from pytest_leakcheck.attribution.tracing.tracer import OWN, Event, Handler, is_left_out
from pytest_leakcheck.model.culprit import Site

# A call explains a growth if it retains at least `LEAST` times and at most `MOST` times that amount. If a call retains
# more than the growth, part of that is released elsewhere.
LEAST: Final = 0.9
MOST: Final = 1.5
# Another call that the same function makes is large if it retains or releases more than this multiple of the growth.
_LARGE_SIBLING_RATIO: Final = 0.5
# If there is such a large call, another call may match the growth by chance. That call then explains the growth only if
# the two differ by at most this share of the growth.
_MAX_DEVIATION_RATIO: Final = 0.03
# A call is the only one that gains if all others together gain at most this share of the growth.
_MAX_OTHER_GAINS_RATIO: Final = 0.1
# A call is the main one if it retains at least this share of the growth,
_MIN_MAIN_RATIO: Final = 0.6
# and all others together retain and release at most this share of what it retains. Python's lists of freed objects move
# a block per iteration from one function to another, which is a large share if an iteration retains few blocks.
_MAX_BESIDE_MAIN_RATIO: Final = 0.5
_MAX_FLOWS_SHOWN: Final = 4
# A line, and the name of the function that it calls.
_Call: TypeAlias = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Traced:
    """The call that a growth was traced to.

    Attributes:
        path: From the outermost frame to the call that retains the growth; empty if nothing grew or no call was found.
        kept: How much that call retains, over all traced iterations since `CallTree.forget`.
        code: The last function of the path, if the path does not name the call in it that retains the growth; else
            None. If it is set, the path usually ends at the line of its ``def``; `LineTracer` finds the right line.
        flows: The largest amounts that calls in the last function retained or released, as text; empty if a single call
            or the function's own lines explain the growth.
        balanced: Whether nothing explains the growth, and one call or the function's own lines retain more than `MOST`
            times as much. Part of that amount is then released elsewhere.
        ends_early: Whether the last call of the path is to a function of the program whose events were left out. What
            retains the growth is then a line of that function, or of one that it calls.
        calls_program: Whether the last function of the path calls functions of the program that change the counter.
    """

    path: tuple[Site, ...]
    kept: int = 0
    code: CodeType | None = None
    flows: str = ""
    balanced: bool = False
    ends_early: bool = False
    calls_program: bool = False


class _Node:
    """One call on one call path; the amount that it retains is ``CallTree.own[at]``."""

    __slots__ = ("at", "calls", "code", "is_left_out", "lasti", "name")

    def __init__(self, at: int, lasti: int, code: CodeType | None, name: str) -> None:
        self.at = at
        # Offset of the instruction in the caller's code. Its line is read only at the end, because that takes 1 µs.
        self.lasti = lasti
        # None for a C function and for the root.
        self.code = code
        self.name = name
        # Whether it is a function of the program whose events are left out, so that it looks like a C function.
        self.is_left_out = False
        self.calls: dict[tuple[int, int | str], _Node] = {}


class CallTree:
    """A tracer's listener that charges a counter's growth between events to the running call.

    Frames are identified by `id` and never referenced. Events are missing for frames that were entered before tracing,
    for throttled frames, and at the recursion limit. The tree then reads the real stack. It charges the growth since
    the last event to the innermost frame that the real stack and the recorded one share.

    `own` is what each node itself retains, without its calls: an array, because Python ints held by the nodes would be
    memory blocks that the tracer leaks.
    """

    def __init__(self, read: Callable[[], int]) -> None:
        self.read = read
        self.own = array("q", (0,))
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
        """Reset all sums and keep the nodes; for use after the first iteration, which also fills caches."""
        for at in range(len(self.own)):
            self.own[at] = 0

    @property
    def total(self) -> int:
        return sum(self.own)

    def charge(self, event: Event, thread: int, node: _Node, returned: str) -> None:
        grown = self.take(event, thread, returned)
        if grown:
            self.own[node.at] += grown

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

    def explain(self, growth: int) -> Traced:
        """Follow all growth that was traced, or the growth that the verdict found if the former leads to no line.

        The counter may also have changed for other reasons, such as the work of another thread.
        """
        traced = self.traced()
        return self.traced(growth) if read_path(traced.path) is None or traced.flows else traced

    def traced(self, total: int | None = None) -> Traced:
        """Follow the growth (by default all that was traced) down the calls, as long as a single call explains it."""
        wanted: int = self.total if total is None else total
        if wanted <= 0:
            return Traced(())
        nodes = [self.root]
        path: list[Site] = []
        # The Python function reached so far; the line in it, and the C function called there, if any.
        code: CodeType | None = None
        line, name = 0, ""
        while True:
            calls = _group_by_line(nodes, code)
            kept = {key: self._sum_subtrees(group) for key, group in calls.items()}
            nearest = min(kept, key=lambda key: abs(kept[key] - wanted), default=None)
            if nearest is None or not LEAST * wanted <= kept[nearest] <= MOST * wanted:
                found = _find_gain(kept, sum(self.own[node.at] for node in nodes), wanted)
                if found is None:
                    break
                nearest, wanted = found
            elif is_by_chance(kept[nearest], [amount for call, amount in kept.items() if call != nearest], wanted):
                name = ""
                break
            nodes = calls[nearest]
            line, name = nearest
            called = nodes[0].code
            if called is not None:
                if code is not None:
                    path.append(_make_site(code, line, name))
                code, line, name = called, called.co_firstlineno, ""
        if code is not None:
            path.append(_make_site(code, line, name))
        own = sum(self.own[node.at] for node in nodes)
        explained = bool(name) or own >= LEAST * wanted
        return Traced(
            path=tuple(path),
            kept=self._sum_subtrees(nodes),
            code=None if name else code,
            flows="" if explained else _format_flows(kept, own),
            balanced=not explained and any(amount > MOST * wanted for amount in (own, *kept.values())),
            ends_early=bool(name) and any(node.is_left_out for node in nodes),
            calls_program=self._calls_program(nodes),
        )

    def _calls_program(self, nodes: Iterable[_Node]) -> bool:
        return any(
            self.own[node.at] and node.code is not None and is_own(node.code.co_filename)
            for node in _list_subtrees(nodes)
        )

    def _sum_subtrees(self, nodes: Iterable[_Node]) -> int:
        return sum(self.own[node.at] for node in _list_subtrees(nodes))


class _ThreadStack:
    """The call stack of one thread as its events describe it: a path through the tree."""

    def __init__(self, tree: CallTree) -> None:
        self._tree = tree
        self._number = tree.handover.new_thread()
        self._round = tree.round
        self._nodes = [tree.root]
        # For each node the `id` of its frame; for a C function the inverted `id` of its caller's frame.
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
                # Growth since the last iteration, or since events of this one were last reported, is charged to no
                # call.
                tree.last = tree.read()
            self._resync(event, frame)
        if tree.handover.many:
            tree.handover.note(self._number, name)

    def _enter(self, frame: FrameType) -> None:
        caller = frame.f_back
        mark = 0 if caller is None else id(caller)
        running = self._marks[-1]
        # A C function has no frame: when it calls a Python function, `f_back` is the C function's own caller.
        if running == ~mark or (running == mark and caller is not None and self._nodes[-1].code is caller.f_code):
            self._tree.charge("call", self._number, self._nodes[-1], "")
        else:
            caller = self._resync("call", caller)
        if self._push(0 if caller is None else caller.f_lasti, id(frame), frame.f_code, ""):
            self._tree.last = self._tree.read()

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
        # Pop before the counter is read: the tracer's own lists then release memory in the node in which they allocated
        # it.
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
        self._nodes.append(node)
        self._marks.append(mark)
        return new

    def _resync(self, event: Event, frame: FrameType | None) -> FrameType | None:
        """Rebuild the recorded stack to end at this frame (without this package); return its innermost frame."""
        tree = self._tree
        # The counter is read before and after, because rebuilding allocates memory.
        grown = tree.take(event, self._number, "")
        running = self._rebuild_stack(frame, grown)
        tree.last = tree.read()
        return running

    def _rebuild_stack(self, frame: FrameType | None, grown: int) -> FrameType | None:
        """Rebuild the recorded stack from the real one, and charge a growth to the innermost frame that both share."""
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
            caller = inner.f_back
            self._push(0 if caller is None else caller.f_lasti, id(inner), inner.f_code, "")
        return chain[-1] if chain else None

    def _drop_ended_calls(self, chain: Sequence[FrameType]) -> int:
        """Drop nodes of calls that have ended; return how many frames of the real stack, outermost first, have a node.

        A running frame may have the same `id` as one that has ended, so code objects are compared too.
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
        # A C function has returned if its caller is the innermost frame.
        while at > 1 and self._marks[at - 1] < 0 and known == len(chain):
            at -= 1
        del self._nodes[at:], self._marks[at:]
        return known


def _list_subtrees(nodes: Iterable[_Node]) -> Iterator[_Node]:
    # A loop instead of recursion, because the tree may be deeper than the recursion limit.
    left = list(nodes)
    while left:
        node = left.pop()
        yield node
        left.extend(node.calls.values())


def is_by_chance(kept: float, others: Iterable[float], total: float) -> bool:
    """Return whether a call or line may match a growth by chance, because others retain or release large amounts.

    It may if it does not match closely, or if another one matches too: one of the two is then released elsewhere. An
    amount of the others is negative if that call or line releases more.
    """
    large = [amount for amount in others if abs(amount) > _LARGE_SIBLING_RATIO * total]
    rivals = any(LEAST * total <= amount <= MOST * total for amount in large)
    return rivals or (bool(large) and abs(kept - total) > _MAX_DEVIATION_RATIO * total)


def _find_gain(kept: Mapping[_Call, int], own: int, total: int) -> tuple[_Call, int] | None:
    """Return the call to follow where none matches the growth, and the growth to explain in it."""
    only = _find_only_gain(kept, own, total)
    if only is not None:
        return only, total
    main = _find_main_call(kept, own, total)
    # The rest of the growth is not part of this leak.
    return None if main is None else (main, kept[main])


def _find_only_gain(kept: Mapping[_Call, int], own: int, total: int) -> _Call | None:
    """Return the only call that retains anything, if the others release most of that again; else None."""
    most = max(kept, key=kept.__getitem__, default=None)
    if most is None or kept[most] < LEAST * total:
        return None
    gains = sum(amount for amount in (own, *kept.values()) if amount > 0) - kept[most]
    remains = LEAST * total <= own + sum(kept.values()) <= MOST * total
    return most if remains and gains <= _MAX_OTHER_GAINS_RATIO * total else None


def _find_main_call(kept: Mapping[_Call, int], own: int, total: int) -> _Call | None:
    """Return the call that retains most of the growth, if the others retain and release little; else None."""
    most = max(kept, key=kept.__getitem__, default=None)
    if most is None or kept[most] < _MIN_MAIN_RATIO * total:
        return None
    beside = abs(own) + sum(map(abs, kept.values())) - kept[most]
    return most if kept[most] <= MOST * total and beside <= _MAX_BESIDE_MAIN_RATIO * kept[most] else None


def _group_by_line(nodes: Iterable[_Node], code: CodeType | None) -> dict[_Call, list[_Node]]:
    """Group the calls made by these nodes of one function by line and name; `code` is None at the root."""
    found: dict[_Call, list[_Node]] = {}
    for node in nodes:
        for call in node.calls.values():
            line = 0 if code is None else line_at(code, call.lasti)
            found.setdefault((line, call.name), []).append(call)
    return found


def _make_site(code: CodeType, line: int, name: str) -> Site:
    return Site(code.co_filename, line or code.co_firstlineno, code.co_qualname, f"{name}()" if name else "")


def _format_flows(kept: Mapping[_Call, int], own: int) -> str:
    """Format net amounts, the largest first: ``line 7 make(): +5120, line 9 drop(): -5008, its own lines: +3``."""
    parts = [(amount, f"line {line} {name}()") for (line, name), amount in kept.items()]
    parts.append((own, "its own lines"))
    parts.sort(key=lambda part: -abs(part[0]))
    return ", ".join(f"{text}: {amount:+d}" for amount, text in parts[:_MAX_FLOWS_SHOWN] if amount)
