"""A red report names the line that makes it and who holds it; fixed, the same test says nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from projects import Outcome, Project, line_of

# Each test leaks in the line that ends in LEAK, or is kept in the one that ends in KEPT; its docstring names the owner.
LEAKS = """
    import asyncio, ctypes, functools, itertools, logging, mmap, os, socket, sqlite3, subprocess, sys, tempfile, threading
    import pytest
    from multiprocessing.shared_memory import SharedMemory

    LEAKY = True
    KEPT = []
    CACHE = {}
    number = itertools.count()
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p

    def keep(one):
        CACHE[next(number)] = one

    class Loader:
        opened = []

        def __init__(self, path):
            self.file = os.open(path, os.O_RDONLY)  # of Loader LEAK
            self.frames = []

        def close(self):
            os.close(self.file)

    @pytest.fixture(autouse=True, scope="module")
    def end():
        yield
        for one in KEPT:
            one() if callable(one) else None
        loop.close()

    @pytest.mark.fd_budget(0)
    def test_file():
        '''test_leaks.CACHE'''
        file = open(__file__)  # of test_file LEAK
        keep(file) if LEAKY else file.close()

    @pytest.mark.fd_budget(0)
    def test_in_tmp_path(tmp_path):
        '''test_leaks.CACHE'''
        # Tear-down removes the folder before the file is looked at.
        file = (tmp_path / "x").open("w")  # of test_in_tmp_path LEAK
        keep(file) if LEAKY else file.close()

    @pytest.mark.fd_budget(0)
    def test_moved(tmp_path):
        '''test_leaks.CACHE'''
        file = (tmp_path / "x.part").open("w")  # of test_moved LEAK
        (tmp_path / "x.part").rename(tmp_path / "x")
        keep(file) if LEAKY else file.close()

    @pytest.mark.fd_budget(0)
    def test_database(tmp_path):
        '''test_leaks.CACHE'''
        database = sqlite3.connect(tmp_path / "x")  # of test_database LEAK
        database.execute("create table frames (number)")
        keep(database) if LEAKY else database.close()

    @pytest.mark.fd_budget(0)
    def test_loader():
        '''Loader.opened'''
        loader = Loader(__file__)
        Loader.opened.append(loader) if LEAKY else loader.close()

    @pytest.mark.fd_budget(0)
    def test_native():
        file = libc.dup(1)  # of test_native LEAK
        if not LEAKY:
            os.close(file)

    @pytest.mark.fd_budget(0)
    def test_exception():
        def risky():
            left, right = socket.socketpair()  # of test_exception LEAK
            if LEAKY:
                KEPT.extend((left.close, right.close))
                raise ValueError(left)
            left.close(), right.close()
        try:
            risky()
        except ValueError:
            pass

    @pytest.mark.fd_budget(0)
    def test_comprehension():
        files = [open(path) for path in (__file__, os.devnull)]  # of test_comprehension LEAK
        for file in files:
            KEPT.append(file.close) if LEAKY else file.close()

    def frames(path):
        with open(path) as file:  # of test_generator LEAK
            yield from file

    suspended = []

    @pytest.mark.fd_budget(0)
    def test_generator():
        '''test_leaks.suspended'''
        lines = frames(__file__)
        next(lines)
        suspended.append(lines) if LEAKY else lines.close()

    @pytest.mark.thread_budget(0)
    def test_thread():
        end = threading.Event()
        thread = threading.Thread(target=end.wait, daemon=True)
        thread.start()  # of test_thread LEAK
        KEPT.append(end.set) if LEAKY else (end.set(), thread.join())

    @pytest.mark.process_budget(0)
    def test_child():
        child = subprocess.Popen(["sleep", "60"])  # of test_child LEAK
        KEPT.append(child.kill) if LEAKY else (child.kill(), child.wait())

    @pytest.mark.shm_budget(0)
    def test_segment():
        segment = SharedMemory(create=True, size=64)  # of test_segment LEAK
        segment.close()
        KEPT.append(segment.unlink) if LEAKY else segment.unlink()

    @pytest.mark.disk_budget(0)
    def test_folder():
        folder = tempfile.mkdtemp(prefix="leakcheck-culprit-")  # of test_folder LEAK
        KEPT.append(functools.partial(os.rmdir, folder)) if LEAKY else os.rmdir(folder)

    class Record:
        pass

    def remember(record, known=[]):
        known.append(record)  # of test_objects KEPT

    @pytest.mark.object_budget(0)
    def test_objects():
        '''test_leaks.remember default argument'''
        record = Record()  # of test_objects LEAK
        if LEAKY:
            remember(record)

    def make_collector():
        items = []
        def collect(payload):
            items.append(payload)
        return collect

    collect = make_collector()

    @pytest.mark.heap_budget()
    def test_payload():
        '''test_leaks.collect closure cell'''
        payload = bytes(5000)  # of test_payload LEAK
        if LEAKY:
            collect(payload)

    @functools.lru_cache(None if LEAKY else 4)
    def lookup(key):
        return bytearray(3000)  # of test_cache LEAK

    @pytest.mark.heap_budget()
    def test_cache():
        '''lru_cache of lookup'''
        lookup(next(number))

    @pytest.mark.object_budget(0)
    def test_handlers():
        '''logging.getLogger('culprit').handlers'''
        log = logging.getLogger("culprit")
        handler = logging.NullHandler()  # of test_handlers LEAK
        log.addHandler(handler)
        if not LEAKY:
            log.removeHandler(handler)

    @pytest.mark.mmap_budget()
    def test_mapping():
        '''test_leaks.KEPT'''
        memory = mmap.mmap(-1, 1 << 16)  # of test_mapping LEAK
        KEPT.append(memory) if LEAKY else memory.close()

    loop = asyncio.new_event_loop()

    @pytest.mark.task_budget(0)
    def test_task():
        '''test_leaks.KEPT'''
        async def begin():
            task = asyncio.create_task(asyncio.Event().wait())  # of test_task LEAK
            await asyncio.sleep(0)
            KEPT.append(task) if LEAKY else task.cancel()
        loop.run_until_complete(begin())

    libc.free.argtypes = [ctypes.c_void_p]

    @pytest.mark.heap_budget()
    def test_malloc():
        block = libc.malloc(3000)  # of test_malloc LEAK
        if not LEAKY:
            libc.free(block)
"""
NAMES = re.findall(r"def (test_\w+)", LEAKS)


def owner_of(name: str, text: str) -> str:
    found = re.search(rf"def {name}\(\w*\):\n +'''(.+?)'''\n", text)
    return found[1] if found else ""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Outcome, str]:
    """The leaky project and the fixed one, each run once, and the text of the file."""
    project = Project(tmp_path_factory.mktemp("culprit"))
    path = project.write("test_leaks.py", LEAKS)
    leaky = project.run("--tb=short")
    text = path.read_text()
    path.write_text(text.replace("LEAKY = True", "LEAKY = False"))
    return leaky, project.run(), text


@pytest.mark.parametrize("name", NAMES)
def test_the_line_and_the_owner_are_named(ran: tuple[Outcome, Outcome, str], name: str) -> None:
    leaky, fixed, text = ran
    found: dict[str, Any] = next(one for one in leaky.findings if one["test"].endswith(name) and one["colour"] == "red")
    assert found["verdict"] in ("leak", "unclosed")
    site, culprit = found["site"], found["culprit"]
    line = line_of(f"{name} LEAK", text) or line_of("Loader LEAK", text)
    assert (Path(site["file"]).name, site["line"]) == ("test_leaks.py", line)
    assert (culprit["where"]["phase"], culprit["where"]["fixture"]) == ("call", "")
    wanted = owner_of(name, text)
    if wanted:
        assert found["owner"]["name"].startswith(wanted)
        assert sum(step["suspect"] for step in found["owner"]["steps"]) == 1
    kept = line_of(f"{name} KEPT", text)
    if kept:
        assert culprit["kept"]["line"] == kept
    assert culprit["iterations"] <= 25
    assert not [one for one in fixed.findings if one["test"].endswith(name) and one["colour"] != "green"]


PAIRED = """
    import sqlite3
    import pytest

    opened = []

    def acquire():
        for _ in range(2 if LEAKY else 1):
            opened.append(sqlite3.connect(":memory:"))
            # More than a connection itself takes, which is 13 kB with SQLite 3.40 and 62 kB with 3.53.
            opened[-1].execute("create table frames as select zeroblob(110000)")  # of test_paired LEAK

    def release():
        opened.pop(0).close()

    @pytest.mark.heap_budget()
    def test_paired():
        acquire()
        release()
"""


def test_memory_that_one_call_takes_and_another_gives_back_is_followed_into_c(project: Project) -> None:
    pytest.importorskip("memray")
    project.write("test_it.py", "LEAKY = False" + PAIRED.replace("\n    ", "\n"))
    assert project.run().last_line == "1 passed"
    path = project.write("test_it.py", "LEAKY = True" + PAIRED.replace("\n    ", "\n"))
    leaky = project.run()
    found = leaky.finding("test_paired", "heap")
    assert found["site"]["line"] == line_of("test_paired LEAK", path.read_text())
    assert "sqlite3" in " ".join(found["culprit"]["native"])
    assert re.search(r"^  in C +sqlite3\w+", leaky.text, re.MULTILINE)
    assert found["owner"]["name"] == "test_it.opened"
    assert found["culprit"]["iterations"] <= 34


FORKS = """
    import os
    import time
    import pytest

    @pytest.mark.leakcheck(resources=["object"])
    def test_forks():
        # So long that it is searched for at first sight.
        time.sleep(0.01)
        if LEAKY:
            os.register_at_fork(after_in_child=lambda: None)  # of test_forks LEAK
"""


def test_what_is_registered_for_forks_is_red_at_once(project: Project) -> None:
    path = project.write("test_it.py", "LEAKY = True" + FORKS.replace("\n    ", "\n"))
    found = project.run().finding("test_forks", "object")
    assert (found["verdict"], found["iterations"], found["owner"]["name"]) == ("leak", 17, "os.register_at_fork")
    assert found["site"]["line"] == line_of("test_forks LEAK", path.read_text())
    project.write("test_it.py", "LEAKY = False" + FORKS.replace("\n    ", "\n"))
    assert project.run().last_line == "1 passed"


LOOP = """
    import os

    def test_loop(leakcheck):
        kept = []
        for step in leakcheck.steps(fd=0):
            kept.append(os.open(__file__, os.O_RDONLY))  # of test_loop LEAK
"""


def test_in_a_loop_of_the_test_the_line_in_it_is_named(project: Project) -> None:
    path = project.write("test_it.py", LOOP)
    found = project.run().finding("test_loop")
    assert found["site"]["line"] == line_of("test_loop LEAK", path.read_text())
    # Held by a running frame, which is no owner that lasts.
    assert found["owner"]["name"] == "frame of test_loop() local 'kept'"


CYCLE = """
    import gc, os
    import pytest

    class Container:
        def __init__(self):
            self.stream = Stream(self)
            self.file = os.open(__file__, os.O_RDONLY)
        def __del__(self):
            os.close(self.file)

    class Stream:
        def __init__(self, container):
            self.container = container

    @pytest.mark.fd_budget(0)
    def test_cycle():
        container = Container()
        if not LEAKY:
            container.stream = None

    @pytest.mark.fd_budget(0)
    def test_collector_off():
        gc.disable()
        test_cycle()
"""


def test_a_cycle_that_only_the_collector_frees_is_named(project: Project) -> None:
    project.write("test_it.py", "LEAKY = True\n" + CYCLE.replace("\n    ", "\n"))
    leaky = project.run()
    on, off = leaky.finding("test_cycle"), leaky.finding("test_collector_off")
    assert (on["verdict"], off["verdict"]) == ("unclosed", "leak")
    assert on["culprit"]["cycle"] == off["culprit"]["cycle"] == ["Container", "Stream"]
    assert leaky.text.count("released only by the garbage collector: Container ↔ Stream") == 2
    project.write("test_it.py", "LEAKY = False\n" + CYCLE.replace("\n    ", "\n"))
    assert project.run().last_line == "2 passed"


WAITS_IN_ACCEPT = """
    import os, socket, threading
    import pytest

    LISTENER = socket.create_server(("127.0.0.1", 0))
    LEAKS = {leaks}

    def descriptors(): return os.stat("/proc/self/fd").st_size

    def accept():
        connection, address = LISTENER.accept()
        connection.close()

    def serve():
        before = descriptors()
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        while descriptors() == before: pass
        return thread

    @pytest.mark.fd_budget(0)
    def test_serve():
        thread = serve()
        if not LEAKS:
            socket.create_connection(LISTENER.getsockname()).close()
            thread.join()
"""


@pytest.mark.skipif(not Path("/proc/self/fd").stat().st_size, reason="this Linux does not count reserved descriptors")
def test_of_what_no_listing_shows_the_line_is_that_of_what_grows_with_it(project: Project) -> None:
    project.write("test_it.py", WAITS_IN_ACCEPT.format(leaks=True))
    outcome = project.run()
    found = outcome.finding("test_serve")
    assert (found["verdict"], found["slope"], found["site"]["line"]) == ("leak", 1.0, 16), outcome.text
    culprit = found["culprit"]
    assert (culprit["companion"], culprit["unresolved"]["site"]) == (
        "thread",
        "no traced call of this process created one",
    )
    assert "fd +1.0/iter \u2014 test_it.py:16 Thread.start()" in outcome.text
    rows = [line.strip() for line in outcome.text.splitlines()]
    at = rows.index("opened       not resolved: no traced call of this process created one")
    assert rows[at + 1 : at + 4] == [
        "about as many threads remain as descriptors:",
        "started      test_it.py:16 in serve()",
        "thread.start()",
    ]
    project.write("test_it.py", WAITS_IN_ACCEPT.format(leaks=False))
    outcome = project.run()
    assert outcome.finding("test_serve")["verdict"] == "ok", outcome.text
