"""How long the session waits for its fork server."""

from __future__ import annotations

import os
import sys

import pytest

from literal_readings import SleepingClock
from pytest_leakcheck.probes import clock as probes_clock
from pytest_leakcheck.runner.processes import fork_server
from pytest_leakcheck.runner.processes.fork_server import ForkServer

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are forked on Linux only")


def test_an_answer_is_waited_for_twenty_seconds_with_twenty_looks_in_each(monkeypatch: pytest.MonkeyPatch) -> None:
    SleepingClock(monkeypatch)
    looks: list[int] = []

    def is_readable(number: int, *, seconds: float) -> bool:
        looks.append(number)
        probes_clock.sleep(seconds)
        return False

    monkeypatch.setattr(fork_server, "is_readable", is_readable)
    server = ForkServer.__new__(ForkServer)
    server._waiting = lambda: None
    server._connection = os.open(os.devnull, os.O_WRONLY)
    with pytest.raises(TimeoutError):
        server._ask({})
    os.close(server._connection)
    assert len(looks) == pytest.approx(400, abs=3)
