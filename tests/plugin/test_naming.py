"""A red report names the line that makes it and who holds it; fixed, the same test says nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from projects import Outcome, Project, line_of

LEAKS = "arms_of_named_leaks.py"
NAMES = re.findall(r"def (test_\w+)", Path(__file__).with_name("sessions").joinpath(LEAKS).read_text(encoding="utf-8"))


def owner_of(name: str, text: str) -> str:
    found = re.search(rf"def {name}\(.*\) -> None:\n +\"\"\"(.+?)\"\"\"\n", text)
    return found[1] if found else ""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Outcome, str]:
    """The leaky project and the fixed one, each run once, and the text of the file."""
    project = Project(tmp_path_factory.mktemp("culprit"))
    path = project.copy(LEAKS, "test_leaks.py")
    leaky = project.run("--tb=short")
    project.copy(LEAKS, "test_leaks.py", LEAKY=False)
    return leaky, project.run(), path.read_text()


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
    # It is decided after 500 iterations; a busy machine may take longer than 30 s for them.
    leaky = project.run("--leakcheck-max-time=90")
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

    def test_warned():
        test_cycle()

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
    assert leaky.text.count("\n  cycle        Container → Stream → Container\n") == 2
    # Without a budget it is a warning, which only the summary explains.
    warned = project.run("--leakcheck-scope=all", "-k", "warned")
    assert (warned.status, warned.finding("test_warned")["colour"]) == (0, "yellow")
    assert "\n  cycle: Container → Stream → Container\n" in warned.text
    project.write("test_it.py", "LEAKY = False\n" + CYCLE.replace("\n    ", "\n"))
    assert project.run("--leakcheck-scope=all").last_line == "3 passed"


@pytest.mark.skipif(not Path("/proc/self/fd").stat().st_size, reason="this Linux does not count reserved descriptors")
def test_of_what_no_listing_shows_the_line_is_that_of_what_grows_with_it(project: Project) -> None:
    path = project.copy("program_that_waits_in_accept.py")
    outcome = project.run()
    found = outcome.finding("test_serve")
    line = line_of("test_serve LEAK", path.read_text())
    assert (found["verdict"], found["slope"], found["site"]["line"]) == ("leak", 1.0, line), outcome.text
    culprit = found["culprit"]
    assert (culprit["companion"], culprit["unresolved"]["site"]) == (
        "thread",
        "no traced call of this process created one",
    )
    assert f"fd +1.0/iter \u2014 test_it.py:{line} Thread.start()" in outcome.text
    rows = [line.strip() for line in outcome.text.splitlines()]
    at = rows.index("opened       not resolved: no traced call of this process created one")
    assert rows[at + 1 : at + 4] == [
        "about as many threads remain as descriptors:",
        f"started      test_it.py:{line} in serve()",
        "thread.start()  # of test_serve LEAK",
    ]
    project.copy("program_that_waits_in_accept.py", LEAKS=False)
    outcome = project.run()
    assert outcome.finding("test_serve")["verdict"] == "ok", outcome.text
