"""Each leaky test is followed by a clean one."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

KEPT: list[Any] = []
END = threading.Event()


@pytest.fixture(scope="session", autouse=True)
def tidy() -> Iterator[None]:
    yield
    END.set()
    for one in KEPT:
        if isinstance(one, subprocess.Popen):
            one.kill()
            one.wait()


class Cycle:
    def __init__(self) -> None:
        self.itself, self.file = self, open(os.devnull)


@pytest.mark.leakcheck
@pytest.mark.parametrize(
    "leak",
    [
        lambda: KEPT.append(open(os.devnull)),
        lambda: KEPT.append(threading.Thread(target=END.wait)) or KEPT[-1].start(),  # type: ignore[func-returns-value, redundant-expr]
        lambda: KEPT.append(subprocess.Popen(["sleep", "60"])),
        lambda: KEPT.append([]),
        lambda: KEPT.append(tempfile.mkdtemp()),
        Cycle,
    ],
    ids=["file", "thread", "child", "list", "folder", "cycle"],
)
@pytest.mark.parametrize("turn", ["leaky", "clean"])
def test_it(turn: str, leak: Callable[[], object]) -> None:
    if turn == "leaky":
        leak()
