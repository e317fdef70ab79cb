"""Processes that write to a store of batch-size factors, killed where a test says: ``python store_writers.py MODE STORE [N]``.

Each prints the ids of the runs that were acknowledged, one per line.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from leakcheck_incidents.batch_size import durable
from leakcheck_incidents.batch_size.records import Entry
from leakcheck_incidents.batch_size.runs import Run
from leakcheck_incidents.batch_size.store import Store

KEY, DEVICE = "set_01_gat_student", "simulated"
# A store to start from, so that there is something to lose.
BEFORE = 5
# More calls of the system than one write makes.
STEPS = 40


def entry(name: str, at: float) -> Entry:
    return Entry(name, at, Run(0.5, 0.8), 128)


def acknowledge(name: str) -> None:
    # A write as small as this is one piece in a pipe that many write to.
    os.write(1, f"{name}\n".encode())


def in_child(body: Callable[[], None]) -> int:
    """Run it in a fork. Returns the pid."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            body()
            status = 0
        except BaseException:  # noqa: BLE001 - nothing may unwind into the parent's code
            traceback.print_exc()
        finally:
            os._exit(status)
    return pid


def many(store: Store, writers: int) -> int:
    """All at once, one run of the same configuration each, and one of its own."""

    def write(number: int) -> None:
        for key, name in ((KEY, f"shared-{number}"), (f"own_{number}", f"own-{number}")):
            store.add(key, DEVICE, entry(name, number))
            acknowledge(name)

    children = [in_child(lambda number=number: write(number)) for number in range(writers)]  # type: ignore[misc]
    return sum(os.waitpid(pid, 0)[1] != 0 for pid in children)


class Dying:
    """The module `os`, in which the call with this number is the last one that is begun. A write gets half way."""

    def __init__(self, last: int) -> None:
        self._left = last

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return self._counted(name, real) if callable(real) else real

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self._left -= 1
            if self._left < 0:
                if name == "write":
                    real(arguments[0], arguments[1][: len(arguments[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments)

        return call


def killed(store: Store) -> int:
    """One writer after the other, each killed at the next call. Returns how many died."""
    for number in range(BEFORE):
        store.add(KEY, DEVICE, entry(f"before-{number}", number))
        acknowledge(f"before-{number}")
    died = 0
    for step in range(STEPS):

        def write(step: int = step) -> None:
            vars(durable)["os"] = Dying(step)
            store.add(KEY, DEVICE, entry(f"at-{step}", 100 + step))
            acknowledge(f"at-{step}")

        _pid, status = os.waitpid(in_child(write), 0)
        died += os.WIFSIGNALED(status)
    return died


if __name__ == "__main__":
    mode, path, *more = sys.argv[1:]
    result = many(Store(Path(path)), int(more[0])) if mode == "many" else killed(Store(Path(path)))
    acknowledge(f"= {result}")
