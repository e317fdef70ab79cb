"""Isolated tests run in processes that a server forks, which has imported and collected once, or are started as before."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter

import psutil
import pytest

from processes_left import left_over
from projects import Outcome, Project
from variants import variants

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are forked on Linux only")

ISOLATE = "--leakcheck-isolate"
# Both files say when they are imported, and in which process.
CONFTEST = """
    import os
    with open("imports", "a") as file: print("conftest", os.getpid(), file=file)
"""
TESTS = """
    import os
    import pytest

    KEPT = []
    with open("imports", "a") as file: print("tests", os.getpid(), file=file)

    @pytest.mark.fd_budget(0)
    @pytest.mark.parametrize("number", range(4))
    def test_it(number):
        if not KEPT:
            with open("pids", "a") as file: print(os.getpid(), file=file)
        descriptor = os.open(__file__, os.O_RDONLY)
        KEPT.append(descriptor if number == 2 else None)
        {after}
"""
STARTED = """
    from pytest_leakcheck.runner.processes import fork_server
    fork_server.unsupported = lambda: "as before"
"""


def how(outcome: Outcome) -> dict[str, str]:
    """Return how the process of each test came to be: nothing for one that was forked."""
    environments = [one["environment"] for one in outcome.recordings]
    assert {one["isolated"] for one in environments} <= {
        "tcache off, mmap threshold 128 KiB",
        "ended without a verdict",
    }
    names = [finding["test"].rpartition("::")[2] for finding in outcome.findings]
    return {name: one.get("not forked", "") for name, one in zip(names, environments, strict=True)}


@pytest.mark.parametrize("workers", variants(["0"], ["2"]))
def test_the_interpreter_starts_once_for_many_tests(project: Project, workers: str) -> None:
    project.write("conftest.py", CONFTEST)
    project.write("test_it.py", TESTS.format(after="number == 2 or os.close(descriptor)"))
    leaky = project.run(ISOLATE, "-n", workers)
    assert leaky.last_line == "1 failed, 3 passed", leaky.text
    assert leaky.finding("test_it[2]", "fd")["owner"]["name"] == "test_it.KEPT"
    assert set(how(leaky).values()) == {""}
    # That of the session, or of its controller and workers, and one of a server for each.
    imports = Counter(line.split()[0] for line in (project.folder / "imports").read_text().splitlines())
    assert imports == {"0": {"conftest": 2, "tests": 2}, "2": {"conftest": 5, "tests": 4}}[workers]
    assert len(set((project.folder / "pids").read_text().split())) == 4
    assert not left_over(project.folder)
    project.write("test_it.py", TESTS.format(after="os.close(descriptor)"))
    fixed = project.run(ISOLATE, "-n", workers)
    assert fixed.last_line == "4 passed", fixed.text
    assert set(how(fixed).values()) == {""}


OBSTACLES = {
    "thread": (
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
        "2 threads run",
    ),
    "child": ("import subprocess; CHILD = subprocess.Popen(['sleep', '600'])", "a child process runs"),
    "socket": ("import socket; PAIR = socket.socketpair()", "socket:[N] is open"),
    "file": ("FILE = open(__file__)", "test_file.py is open"),
    "memory": ("import mmap; SHARED = mmap.mmap(-1, 4096)", "it shares memory"),
    "coverage": (
        "import coverage; MEASURED = coverage.Coverage(data_file=None); MEASURED.start()",
        "coverage is measured",
    ),
    # As libffi does itself, where its callbacks are mapped from its file.
    "library": ("import _ctypes; FILE = open(_ctypes.__file__, 'rb')", ""),
    "nothing": ("import tempfile; FILE = tempfile.TemporaryFile()", ""),
}


def test_what_cannot_be_forked_is_started_and_the_report_says_why(project: Project) -> None:
    for name, (text, _why) in OBSTACLES.items():
        project.write(f"test_{name}.py", f"import pytest; {text}\n@pytest.mark.fd_budget(0)\ndef test_{name}(): pass\n")
    outcome = project.run(ISOLATE, "--leakcheck-iterations=4")
    assert outcome.last_line == f"{len(OBSTACLES)} passed", outcome.text
    said = {name: re.sub(r"\d{3,}", "N", why.replace(f"{project.folder}/", "")) for name, why in how(outcome).items()}
    assert said == {f"test_{name}": why for name, (_text, why) in OBSTACLES.items()}
    assert "started, not forked: 1 isolated test (2 threads run)" in outcome.text


def test_what_a_conftest_ends_with_the_session_is_begun_in_each_process(project: Project) -> None:
    """All of the forked processes would have the same folder, and the first one would remove it."""
    project.write(
        "conftest.py",
        """
        import shutil, tempfile
        def pytest_configure(config): config.folder = tempfile.mkdtemp(dir=config.rootpath)
        def pytest_unconfigure(config): shutil.rmtree(config.folder)
        """,
    )
    project.write(
        "test_it.py",
        """
        import os, pytest
        @pytest.mark.fd_budget(0)
        @pytest.mark.parametrize("number", range(2))
        def test_it(number, request): assert os.path.isdir(request.config.folder)
        """,
    )
    outcome = project.run(ISOLATE, "--leakcheck-iterations=4")
    assert outcome.last_line == "2 passed", outcome.text
    assert set(how(outcome).values()) == {"conftest.py has the hook pytest_unconfigure"}


def test_a_forked_process_is_like_a_started_one(project: Project) -> None:
    project.copy("program_that_shows_its_process.py")
    forked = project.run(ISOLATE, "-rP", "--leakcheck-iterations=4")
    assert set(how(forked).values()) == {""}
    # What modules begin ends once all have run, and what tests begin with their process.
    assert sorted(path.name for path in project.folder.glob("*[ab]")) == ["finalized-a", "finalized-b"]
    assert not list(project.folder.glob("tmp*"))
    project.write("conftest.py", STARTED)
    started = project.run(ISOLATE, "-rP", "--leakcheck-iterations=4")
    assert set(how(started).values()) == {"as before"}
    assert _said(forked) == _said(started)


def _said(outcome: Outcome) -> list[str]:
    text = re.sub(r"0x[0-9a-f]+|\d+\.\d+ ?s\b|pytest-\d+", "N", outcome.text)
    return [line.strip("=- ") for line in text.splitlines() if "started, not forked: " not in line]


def test_what_one_process_has_written_is_not_written_by_another(project: Project) -> None:
    """Neither what is captured of a test whose process dies, nor what waits in a buffer."""
    tests = """
        import os, sys, pytest
        print("said on", "import")
        @pytest.mark.fd_budget(0)
        def test_dies():
            os.write(1, b"of the %s" % b"dead")
            os._exit(3)
        @pytest.mark.fd_budget(0)
        @pytest.mark.parametrize("number", range(2))
        def test_it(number): print("said by", "test")
    """
    captured = project.run_test(tests, ISOLATE, "-rP", "--leakcheck-iterations=4")
    assert captured.last_line == "1 failed, 2 passed", captured.text
    assert set(how(captured).values()) == {""}
    assert captured.text.count("said by test") == 2
    assert "of the dead" not in captured.text
    shown = project.run_test(tests, ISOLATE, "-s", "--leakcheck-iterations=4", PYTHONUNBUFFERED="")
    # Once here, and once in the server.
    assert shown.text.count("said on import") == 2


def test_the_session_has_no_child_and_tests_of_one_file_see_nothing_of_another(project: Project) -> None:
    project.write(
        "conftest.py",
        """
        import shutil, tempfile
        def pytest_configure(config):
            config.folder = tempfile.mkdtemp()
            config.add_cleanup(lambda: shutil.rmtree(config.folder))
        """,
    )
    project.write(
        "test_a.py",
        """
        import os, sys
        import psutil, pytest
        sys.imported_here = os.environ["VALUE"]
        @pytest.mark.fd_budget(0)
        @pytest.mark.parametrize("number", range(2))
        def test_isolated(number, request):
            assert os.environ["VALUE"] == "given"
            assert os.path.isdir(request.config.folder)
        def test_in_place():
            assert psutil.Process().children() == []
            with pytest.raises(ChildProcessError): os.wait()
            os.environ["VALUE"] = "of a test"
        @pytest.mark.fd_budget(0)
        def test_isolated_again(): assert os.environ["VALUE"] == sys.imported_here == "of a test"
        """,
    )
    project.write(
        "test_b.py",
        """
        import sys, pytest
        @pytest.mark.fd_budget(0)
        def test_other_file(): assert not hasattr(sys, "imported_here")
        """,
    )
    outcome = project.run(ISOLATE, "--leakcheck-iterations=4", VALUE="given")
    assert outcome.last_line == "5 passed", outcome.text
    assert set(how(outcome).values()) == {""}


LOST = """
    import os, signal, time
    import psutil, pytest

    COUNT = []

    @pytest.mark.fd_budget(0)
    @pytest.mark.parametrize("name", "abc")
    def test_it(name):
        COUNT.append(name)
        parents = [parent.pid for parent in psutil.Process().parents()]
        with open("pids", "a") as file: print(os.getpid(), file=file)
        if name == "b" and len(COUNT) == 3 and int(os.environ["SESSION"]) not in parents:
            with open("pids", "a") as file: print(*parents[:{level} + 1], file=file)
            os.kill(parents[{level}], signal.{signal})
            # Stopped, it lets its children live.
            if "{signal}" != "SIGSTOP": time.sleep(600)
"""


@pytest.mark.parametrize("ended", variants(["SIGKILL 0"], ["SIGKILL 1", "SIGSEGV 0", "SIGSTOP 0"]))
def test_without_the_server_the_test_and_later_ones_are_started(project: Project, ended: str) -> None:
    """The signal goes to the process for the file, the parent, or to the one before it."""
    number, level = ended.split()
    project.write("conftest.py", "import os\nos.environ.setdefault('SESSION', str(os.getpid()))\n")
    project.write("test_it.py", LOST.format(level=level, signal=number))
    outcome = project.run(ISOLATE, "--leakcheck-iterations=4", "--leakcheck-max-time=2")
    assert outcome.last_line == "3 passed", outcome.text
    lost = "the fork server was lost"
    assert how(outcome) == {"test_it[a]": "", "test_it[b]": lost, "test_it[c]": lost}
    assert not left_over(project.folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_server_ends_with_a_session_that_is_ended(project: Project, number: signal.Signals) -> None:
    project.write(
        "test_it.py",
        """
        import os, time
        import psutil, pytest
        @pytest.mark.fd_budget(0)
        def test_it():
            parents = [parent.pid for parent in psutil.Process().parents()]
            with open("writing", "w") as file: print(os.getpid(), *parents[:2], file=file)
            os.rename("writing", "pids")
            time.sleep(600)
        """,
    )
    pids = project.folder / "pids"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--leakcheck", ISOLATE]
    environment = {**os.environ, "TMPDIR": str(project.folder)}
    session = subprocess.Popen(command, cwd=project.folder, env=environment, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 600
    while not pids.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    numbers = [int(word) for word in pids.read_text().split()]
    assert session.pid not in numbers
    assert len(numbers) == 3
    assert all(map(psutil.pid_exists, numbers))
    session.send_signal(number)
    session.wait(600)
    assert not left_over(project.folder)


# Adopts the server, which has no parent in the session, to count what it and its children take.
COUNTED = """
import ctypes, os, resource, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
try:
    while True: os.wait()
except ChildProcessError:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(used.ru_utime + used.ru_stime)
"""


@pytest.mark.laboratory
def test_a_forked_process_takes_a_third_of_a_started_one(project: Project) -> None:
    def seconds(count: int) -> float:
        project.write(
            "test_it.py",
            f"""
            import pytest
            @pytest.mark.fd_budget(0)
            @pytest.mark.parametrize("number", range({count}))
            def test_it(number): pass
            """,
        )
        command = [sys.executable, "-c", COUNTED, sys.executable, "-m", "pytest", "--leakcheck", ISOLATE]
        return float(subprocess.run(command, cwd=project.folder, capture_output=True, check=True).stdout)

    forked = seconds(22) - seconds(2)
    project.write("conftest.py", STARTED)
    started = seconds(12) - seconds(2)
    assert forked / 20 < started / 10 / 3
