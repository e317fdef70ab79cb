"""A session over the arms of `program_with_failing_paths`: which call raises, and what then remains."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import program_with_failing_paths as program
import pytest

# The function, what raises, and what remains.
ARMS = {
    "handshake": ("socket.socket.sendall", "fd"),
    "save": ("json.dump", "disk"),
    "unpack": ("shutil.copyfile", "disk"),
    "locked": ("json.dumps", "fd"),
    "serve": ("os.open", "thread"),
    "load": ("json.loads", "fd"),
    "shards": ("os.open", "fd"),
    "pipe": ("subprocess.Popen", "fd"),
    "dispatch": ("program_with_failing_paths.called_back", "heap"),
    "share": ("pickle.dumps", "shm"),
    "gather": ("program_with_failing_paths.fetch", "task"),
    "reply": ("await", "fd"),
    "session": ("await", "fd"),
    "batches": ("await", "fd"),
    "workers": ("threading.Thread.start", "thread"),
    "request": ("os.write", "fd"),
    "prefetch": ("iterate", "thread"),
    "work": ("iterate", "disk"),
    "stream": ("iterate", "fd"),
    # Last: each look at the children that they leave takes time.
    "run_child": ("subprocess.Popen.communicate", "process"),
    "follow": ("await", "process"),
}


def _tests(arm: str) -> list[object]:
    marks = {name: pytest.mark.leakcheck(failures=[raises]) for name, (raises, _) in ARMS.items()}
    return [pytest.param(name, marks=mark, id=f"{name}-{arm}") for name, mark in marks.items()]


@pytest.fixture(scope="module", autouse=True)
def ended() -> Iterator[None]:
    yield
    for task in asyncio.all_tasks(program.LOOP):
        task.cancel()
    program.LOOP.run_until_complete(asyncio.sleep(0))
    program.LOOP.close()
    for one in program.OPEN:
        if isinstance(one, subprocess.Popen):
            one.kill()
            one.wait()


@pytest.mark.parametrize("name", _tests("leaky"))
def test_leaky(name: str, tmp_path: Path) -> None:
    getattr(program, name)(fixed=False, folder=tmp_path)


@pytest.mark.parametrize("name", _tests("fixed"))
def test_fixed(name: str, tmp_path: Path) -> None:
    getattr(program, name)(fixed=True, folder=tmp_path)
