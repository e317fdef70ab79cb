"""A session with a leaky and a fixed arm for what each counter counts. A comment marks the line of each leak."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

FILES: list[int] = []
THREADS: list[threading.Thread] = []
CHILDREN: list[subprocess.Popen[bytes]] = []
BYTES: list[bytearray] = []
END = threading.Event()

arms = pytest.mark.parametrize("arm", ["leaky", "fixed"])


@pytest.fixture(scope="module", autouse=True)
def ended() -> Iterator[None]:
    yield
    END.set()
    for one in CHILDREN:
        one.communicate()


# First: what other leaks allocate would take it longer to be certain.
@pytest.mark.heap_budget(0)
@arms
def test_heap(arm: str) -> None:
    more = bytearray(100_000)  # of test_heap
    if arm == "leaky":
        BYTES.append(more)


@pytest.mark.fd_budget(0)
@arms
def test_fd(arm: str) -> None:
    file = os.open(__file__, os.O_RDONLY)  # of test_fd
    if arm == "leaky":
        FILES.append(file)
    else:
        os.close(file)


@pytest.mark.thread_budget(0)
@arms
def test_thread(arm: str) -> None:
    one = threading.Thread(target=END.wait if arm == "leaky" else int)
    one.start()  # of test_thread
    if arm == "leaky":
        THREADS.append(one)
    else:
        one.join()


@pytest.mark.process_budget(0)
@arms
def test_process(arm: str) -> None:
    one = subprocess.Popen(["cat"], stdin=subprocess.PIPE)  # of test_process
    if arm == "leaky":
        CHILDREN.append(one)
    else:
        one.communicate()


@pytest.mark.disk_budget(0)
@arms
def test_disk(arm: str) -> None:
    file, name = tempfile.mkstemp()  # of test_disk
    os.close(file)
    if arm == "fixed":
        Path(name).unlink()


@pytest.mark.leakcheck(isolate=True, resources=["fd"])
@arms
def test_isolated(arm: str) -> None:
    test_fd(arm)


@pytest.mark.rss_budget(0)
def test_rss() -> None:
    pass


@pytest.mark.mmap_budget(0)
def test_mmap() -> None:
    pass


@pytest.mark.shm_budget(0)
def test_shm() -> None:
    pass


@pytest.mark.scaling_budget("n", [1, 2, 4], rss="O(1)")
def test_scaling(n: int) -> None:
    pass


@pytest.mark.leakcheck_ceiling(rss="1 GiB")
@pytest.mark.fd_budget(0)
def test_ceiling() -> None:
    pass
