"""Define what tests use with or without ``--leakcheck``: `Leakcheck`, `LeakError`, gloo ranks.

A rank is one of the processes that run a test together; gloo is a torch.distributed backend that
connects them.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

import pytest

from pytest_leakcheck.config.settings import SCALING
from pytest_leakcheck.plugin import keys

if TYPE_CHECKING:
    # Not imported at run time, because a plain run with ``xfail(raises=LeakError)`` stays light.
    from types import FrameType

    from typing_extensions import Unpack

    from pytest_leakcheck.attribution.heap.collectable import Watched
    from pytest_leakcheck.config.budget import Levels
    from pytest_leakcheck.report.finding_text import Line

# The network interface of gloo's sockets; by default, that of the host's name, which other machines
# may reach.
_INTERFACE_VARIABLE: Final = "GLOO_SOCKET_IFNAME"


@final
class LeakError(pytest.fail.Exception):  # type: ignore[name-defined,misc]  # pytest makes it at run time
    """A red (failing) verdict, raised in the test's call phase, or an object that is not collected.

    The first line of the text states what happened; the report below it names what grew, by how
    much, and what is retained. Only the plugin raises this exception, so it is never the test's own
    failure. To resolve it, fix the leak, or raise the budget to what the test is meant to retain.
    ``@pytest.mark.xfail(raises=LeakError)`` marks a leak as known.
    """

    # pytest shows no module name before the name of a built-in exception. The short summary shows
    # about 60 columns, and the package's name would take 17 of them.
    __module__ = "builtins"

    def __init__(self, text: str, lines: tuple[Line, ...] = (), *, pytrace: bool = False) -> None:
        """Take the text and its styled lines, if any; `pytrace` shows the failing line too."""
        super().__init__(text, pytrace=pytrace)
        self.lines = lines


class Leakcheck:
    """The fixture, which a test can use with and without ``--leakcheck``.

    This base class measures nothing: loops run `n` steps, by default one, and blocks, gauges and
    checkpoints have no effect. Single objects are checked all the same.
    """

    @property
    def rank(self) -> int:
        """The number of this process or thread, from 0, if several run the test; else 0."""
        return 0

    def steps(self, n: int | None = None, **levels: Unpack[Levels]) -> Iterator[int]:
        """Judge a loop: ``for step in leakcheck.steps(fd=0, heap="1 MiB"): train(step)``.

        The numbers of the steps begin at 0 and include the warm-up. A red (failing) verdict raises
        `LeakError` at the end of the loop.

        Args:
            n: The number of steps after the warm-up; if omitted, as many as the verdict needs.
            levels: How far each resource may be above its start level (the reading after the
                warm-up); with ``fd=None``, only the growth of ``fd`` is bounded. If omitted, the
                growth of all resources that are judged by default is bounded.
        """
        # The report on wrong use ends with the user's own line.
        __tracebackhide__ = True
        from pytest_leakcheck.config.budget import read_levels

        read_levels(levels)
        check_steps(n)
        return iter(range(1 if n is None else n))

    def budget(self, **levels: Unpack[Levels]) -> contextlib.AbstractContextManager[None]:
        """Judge a block that runs once: ``with leakcheck.budget(fd=0, heap="1 MiB"): run()``.

        The levels state how far each resource may be above its level before the block. If they are
        omitted, file descriptors, threads, child processes, shared memory and temporary files are
        limited to 0. The end of the block raises `LeakError` if a level is exceeded, or if
        something was released only by the garbage collector.
        """
        __tracebackhide__ = True
        from pytest_leakcheck.config.budget import read_levels

        read_levels(levels)
        return contextlib.nullcontext()

    def assert_collected(self, obj: object) -> None:
        """Fail if anything but a variable of the caller holds an object.

        For example, ``leakcheck.assert_collected(window)``. Garbage is collected first, so a
        reference cycle holds nothing. Variables of the calling function that are the object itself
        may stay. Another variable that leads to it holds it, and so does a variable of another
        function. A failure raises `LeakError`, which names the path to the object.

        Args:
            obj: The object, or a weak reference (`weakref.ref`) to one that must be gone: no
                variable may hold that.

        Raises:
            InputError: The object cannot be weakly referenced, such as an int or a list.
        """
        __tracebackhide__ = True
        from pytest_leakcheck.attribution.heap.collectable import Watched

        watched = Watched(obj)
        del obj
        _check_collected((watched,), sys._getframe(1))

    def collected(self, obj: object, *others: object) -> contextlib.AbstractContextManager[None]:
        """Check objects as `assert_collected` does, once a block has ended.

        For example, ``with leakcheck.collected(page): page.close()``. If the block raises an
        exception, nothing is checked.
        """
        __tracebackhide__ = True
        from pytest_leakcheck.attribution.heap.collectable import Watched

        return _Collected((Watched(obj), *map(Watched, others)))

    def gauge(self, name: str, read: Callable[[], int] | int, *, level: int | None = None) -> None:
        """Follow a counter of your own, which must not keep growing.

        The counter is read after each step of a loop, and before and after a block. In a test that
        is repeated as a whole, it is read at the end of the body, so call this method in each
        iteration. In a test that runs at several sizes (``scaling_budget``), it is read at each
        call and return of a function, and its highest reading counts. If `read` is a number there,
        that number is a single reading.
        """

    def checkpoint(self, label: str) -> None:
        """End a phase of the test; the report shows each phase separately.

        In a repeated test or loop, the report shows what the phase adds to the counters. In a test
        that runs at several sizes, it shows the peaks in the phase.
        """


class _Collected:
    """The block of `Leakcheck.collected`."""

    def __init__(self, watched: tuple[Watched, ...]) -> None:
        self._watched = watched

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        __tracebackhide__ = True
        if error is not None:
            return
        caller = sys._getframe(1)
        # An `ExitStack` calls this for the user's function.
        while caller.f_back is not None and caller.f_globals.get("__name__") == "contextlib":
            caller = caller.f_back
        _check_collected(self._watched, caller)


def _check_collected(watched: tuple[Watched, ...], caller: FrameType) -> None:
    __tracebackhide__ = True
    for target in watched:
        if (held := target.find_holder(caller)) is not None:
            from pytest_leakcheck.report.finding_text import still_held

            raise LeakError(still_held(held.what, held.owner, held.reason), pytrace=True)


def check_steps(n: int | None) -> None:
    """Raise `ValueError` if the number of steps of a loop is less than 1; None is valid."""
    __tracebackhide__ = True
    if n is not None and n < 1:
        raise ValueError(f"leakcheck.steps({n!r}): the number of steps must be at least 1")


def has_process_group(engine: str | None) -> bool:
    """Return whether ranks join a group before set-up; those of Ray only if torch is loaded."""
    return engine == "gloo" or (engine == "ray" and "torch" in sys.modules)


@contextlib.contextmanager
def join_process_group(folder: str, rank: int, ranks: int) -> Iterator[None]:
    """Join the group of all ranks over gloo, and leave it after the body.

    The ranks meet in a file of the folder, which only this user can reach: a store of torch's that
    listens runs the code of anybody who connects. If the body raises, the group is not destroyed,
    so that this rank does not wait for the others.
    """
    import torch.distributed as dist

    meeting = Path(folder, "meeting")
    # torch would let everybody read it.
    meeting.touch(0o600)
    with _on_loopback():
        dist.init_process_group("gloo", init_method=meeting.as_uri(), rank=rank, world_size=ranks)
        yield
    # It returns at once if the test ended well on every rank. An error is of no use, because the
    # process ends anyway.
    with contextlib.suppress(Exception):
        dist.destroy_process_group()


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Make the body's process groups, also the test's, listen only on the loopback interface."""
    given = os.environ.get(_INTERFACE_VARIABLE)
    os.environ[_INTERFACE_VARIABLE] = "lo" if sys.platform.startswith("linux") else "lo0"
    try:
        yield
    finally:
        os.environ.pop(_INTERFACE_VARIABLE, None)
        if given is not None:
            os.environ[_INTERFACE_VARIABLE] = given


class GlooAlone:
    """The hook that gives a test that is not judged a group of one rank."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        mark = item.get_closest_marker(SCALING)
        if mark is None or not has_process_group(mark.kwargs.get("engine")):
            return (yield)
        from pytest_leakcheck.config.plan import is_opted_out

        if item.config.stash[keys.SETTINGS].active and not is_opted_out(item.iter_markers()):
            return (yield)
        from pytest_leakcheck.probes.own_folder import temporary_folder

        with temporary_folder() as folder, join_process_group(str(folder), rank=0, ranks=1):
            return (yield)
