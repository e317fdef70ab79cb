"""What ``os._exit()`` does while tests are repeated in the second pass, by who calls it."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from pytest_leakcheck.plugin.second_pass import ProcessExit, _no_exit


def exit_of(module: str) -> Callable[[], None]:
    """Return a function of a module of this name."""
    space = {"__name__": module, "os": os}
    return lambda: exec("os._exit(77)", space)


@pytest.mark.parametrize(
    ("module", "in_thread", "ends"),
    [("test_a", False, False), ("pytest_timeout", True, False), ("conftest", True, True)],
)
def test_only_another_thread_than_a_timer_ends_the_process(
    module: str, in_thread: bool, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []
    monkeypatch.setattr(os, "_exit", left.append)
    with _no_exit(), ThreadPoolExecutor(1) as threads:
        if in_thread:
            error = threads.submit(exit_of(module)).exception()
        else:
            with pytest.raises(ProcessExit) as raised:
                exit_of(module)()
            error = raised.value
    assert (left, error is None) == ([77] if ends else [], ends)
    assert ends or isinstance(error, ProcessExit)
