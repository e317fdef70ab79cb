"""A session with leaks in children, and of children, that no process may look into without the right to trace others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

# The number is that of PR_SET_DUMPABLE.
PROGRAM = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(4, 0)
print("begun", flush=True)
for line in sys.stdin:
    file = os.open(os.devnull, os.O_RDONLY)
    if line == "fixed\\n":
        os.close(file)
    print("done", flush=True)
"""
CHILDREN: list[subprocess.Popen[str]] = []

arms = pytest.mark.parametrize("arm", ["leaky", "fixed"])


def start() -> Any:
    pipe = subprocess.PIPE
    one = subprocess.Popen([sys.executable, "-S", "-c", PROGRAM], stdin=pipe, stdout=pipe, text=True)
    CHILDREN.append(one)
    assert one.stdout is not None
    assert one.stdout.readline()
    return one


def end(one: subprocess.Popen[str]) -> None:
    one.communicate()
    CHILDREN.remove(one)


@pytest.fixture(scope="module", autouse=True)
def child() -> Iterator[Any]:
    yield start()
    for one in [*CHILDREN]:
        end(one)


@pytest.mark.fd_budget(0)
@arms
def test_fd(child: Any, arm: str) -> None:
    print(arm, file=child.stdin, flush=True)
    assert child.stdout.readline()


@pytest.mark.process_budget(0)
@arms
def test_process(arm: str) -> None:
    one = start()
    if arm == "fixed":
        end(one)
