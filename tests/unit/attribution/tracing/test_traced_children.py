"""The tracer in a child, started by a signal: what it finds, what it leaves behind, and whom it does not disturb."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_leakcheck.attribution.tracing import traced_children
from pytest_leakcheck.attribution.tracing.traced_children import TracedChildren, prepare_children, release_children
from traced import marked

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
HERE = __file__


@pytest.fixture(autouse=True)
def prepared() -> Iterator[None]:
    release_children()
    assert prepare_children()
    yield
    release_children()


class Child:
    """A forked child that does one piece of work per call."""

    def __init__(self, work: Callable[[], object]) -> None:
        its_reading, self._telling = os.pipe()
        self._reading, its_telling = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._telling)
            os.close(self._reading)
            while os.read(its_reading, 1):
                answer = work()
                os.write(its_telling, b"%d" % (answer if isinstance(answer, int) else 0))
            os._exit(0)
        os.close(its_reading)
        os.close(its_telling)

    def work(self) -> int:
        os.write(self._telling, b"x")
        return int(os.read(self._reading, 8))

    def close(self) -> None:
        # Other children have copies of the pipes, so closing these would not end it.
        os.close(self._telling)
        os.close(self._reading)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@pytest.fixture
def child_of() -> Iterator[Callable[[Callable[[], object]], Child]]:
    children: list[Child] = []

    def make(work: Callable[[], object]) -> Child:
        children.append(Child(work))
        return children[-1]

    yield make
    for child in children:
        child.close()


def search(*children: Child, iterations: int = 5) -> TracedChildren:
    search = TracedChildren()
    for _ in range(iterations):
        search.begin_iteration()
        for child in children:
            child.work()
    search.close()
    return search


def lines_of(grown: TracedChildren) -> set[tuple[str, int]]:
    return {(one.path[-1].file, one.path[-1].line) for one in grown.found.values()}


def opens() -> None:
    os.open(os.devnull, os.O_RDONLY)  # here


def closes() -> None:
    os.close(os.open(os.devnull, os.O_RDONLY))


def test_several_children_and_a_child_of_a_child(child_of: Callable[..., Child]) -> None:
    def hands_on() -> int:
        if not inner:
            inner.append(Child(opens))
        return inner[0].work()

    inner: list[Child] = []
    children = [child_of(opens), child_of(opens), child_of(hands_on)]
    # The pipes of the inner child come before the search.
    children[-1].work()
    grown = search(*children)
    assert len(grown.names) == 3
    assert grown.describe().startswith("3 child processes, such as ")
    assert lines_of(grown) == {(HERE, marked(opens))}
    assert len({pid for pid, _fd in grown.found}) == 3


def test_the_tracer_leaves_nothing_behind(child_of: Callable[..., Child]) -> None:
    def state() -> int:
        closes()
        return bool(sys.gettrace()) + 2 * bool(sys._getframe().f_trace)

    child = child_of(state)
    search = TracedChildren()
    search.begin_iteration()
    assert child.work() == 0
    search.begin_iteration()
    assert child.work() == 3
    search.close()
    assert search.count == 0
    child.work()
    assert child.work() == 0


def test_a_trace_function_of_the_program_stays(child_of: Callable[..., Child]) -> None:
    def own(*_: Any) -> None: ...

    def state() -> int:
        if sys.gettrace() is None:
            sys.settrace(own)
        opens()
        return int(sys.gettrace() is own)

    child = child_of(state)
    grown = search(child)
    assert child.work() == 1
    assert not grown.found
    assert grown.why == traced_children._TRACED_ALREADY


def test_a_thread_that_waits_does_not_hide_the_line(child_of: Callable[..., Child]) -> None:
    waiting = threading.Event()

    def work() -> None:
        if threading.active_count() == 1:
            threading.Thread(target=waiting.wait, daemon=True).start()
            time.sleep(0.05)
        opens()

    assert lines_of(search(child_of(work))) == {(HERE, marked(opens))}


def test_what_a_thread_opens_while_its_time_is_read_has_no_line(
    child_of: Callable[..., Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran, works = [0], [False]

    def times() -> dict[int, bytes]:
        if works[0]:
            works[0] = False
            os.open(os.devnull, os.O_RDONLY)
            ran[0] += 1
        return {1: b"%d" % ran[0]}

    def work() -> None:
        works[0] = True
        closes()
        closes()

    monkeypatch.setattr(traced_children, "_times_of_other_threads", times)
    grown = search(child_of(work))
    assert grown.count
    assert not grown.found
    assert grown.why == traced_children._OTHER_THREADS


def test_a_child_that_dies_and_one_that_never_answers(child_of: Callable[..., Child]) -> None:
    dying = Child(opens)
    search = TracedChildren()
    search.begin_iteration()
    dying.work()
    search.begin_iteration()
    dying.work()
    dying.close()
    search.begin_iteration()
    search.close()
    assert search.count == 0

    search = TracedChildren()
    child = child_of(opens)
    search.begin_iteration()
    child.work()
    os.kill(child.pid, signal.SIGSTOP)
    search.begin_iteration()
    search.close()
    os.kill(child.pid, signal.SIGCONT)
    assert (search.count, search.found, search.why) == (1, {}, traced_children._NO_ANSWER)


def test_a_process_that_does_not_handle_the_signal_gets_none(child_of: Callable[..., Child]) -> None:
    def resets() -> None:
        signal.signal(traced_children._PREPARED[0].number, signal.SIG_DFL)
        opens()

    def blocks() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {traced_children._PREPARED[0].number})
        opens()

    for work in (resets, blocks):
        assert search(child_of(work)).why == traced_children._NO_HANDLER


def test_the_signal_is_one_that_nobody_handles() -> None:
    number = traced_children._PREPARED[0].number
    assert not prepare_children()
    release_children()
    earlier = signal.signal(number, lambda *_: None)
    try:
        assert prepare_children()
        assert traced_children._PREPARED[0].number != number
    finally:
        signal.signal(number, earlier)


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[traced_children._Tracer]:
    """A tracer of this thread that finds nothing new; it traces again if it is set."""
    monkeypatch.setattr(traced_children, "count_open", lambda: 7)
    monkeypatch.setattr(traced_children, "_times_of_other_threads", dict)
    before = sys.gettrace()
    sys.settrace(None)
    tracer = traced_children._Tracer(str(tmp_path / "seen"), None, collects=False)
    sys.settrace(None)
    yield tracer
    sys.settrace(before)


def test_a_function_that_opens_nothing_is_traced_for_10_000_lines(look: traced_children._Tracer) -> None:
    def count() -> int:
        number = 0
        while number < 15_000:
            number += 1
        return number

    sys.settrace(look._global_trace)
    count()
    sys.settrace(None)
    assert 9_900 < look._events[count.__code__] < 10_100


def test_a_child_is_traced_for_eight_seconds_of_events(
    look: traced_children._Tracer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each event takes a second."""
    seconds = iter(range(100))
    monkeypatch.setattr(traced_children, "monotonic", lambda: next(seconds))
    looks = 0
    while traced_children._TOO_MANY_LINES not in Path(look._file).read_text() and looks < 40:
        look._look(sys._getframe(), 0)
        looks += 1
    assert looks == 9
