"""Children, forked and started, over an axis."""

from __future__ import annotations

import os
import signal

import pytest


@pytest.mark.scaling_budget("n", [1, 2, 4], rss="<= 8 MiB")
def test_forked(n: int) -> None:
    ready, told = os.pipe()
    children = []
    for _ in range(n):
        child = os.fork()
        if child == 0:
            held = bytearray(b"x") * (16 << 20)
            os.write(told, b"x")
            signal.pause()
        children.append(child)
    while n:
        n -= len(os.read(ready, 4))
    import time

    time.sleep(0.2)
    for child in children:
        os.kill(child, 9)
        os.waitpid(child, 0)


@pytest.mark.scaling_budget("n", [1, 2, 4], thread="<= 3", fd="<= 3")
def test_what_children_have_counts(n: int) -> None:
    import subprocess
    import sys

    work = (
        "import threading, os; end = threading.Event(); files = [os.open(os.devnull, 0) for _ in range(9)]; "
        "[threading.Thread(target=end.wait).start() for _ in range(4)]; print('on', flush=True); input(); end.set()"
    )
    with subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()  # type: ignore[union-attr]
        child.communicate(b"end")
