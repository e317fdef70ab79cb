"""The line in a child process that opens what it keeps; where no line can be known, the report says why."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from projects import UNNAMED as UNNAMED_CAUSE
from projects import Outcome, Project, line_of

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

# Each test gives a worker one piece of work, which leaks in the line that ends in LEAK. Workers outlive the iterations.
WORKERS = """
    import ctypes, multiprocessing, os, subprocess, sys, threading
    import pytest

    LEAKY = True
    KEPT = []
    libc = ctypes.CDLL(None)

    def finish(file):
        if LEAKY:
            KEPT.append(file)
        else:
            os.close(file)

    def in_python(path):
        file = os.open(path, os.O_RDONLY)  # of test_forked LEAK
        finish(file)

    def in_c(path):
        file = libc.open(path.encode(), os.O_RDONLY)  # of test_opened_in_c LEAK
        finish(file)

    def after_others(path):
        for _ in range(20):
            os.close(os.open(path, os.O_RDONLY))
        file = os.dup(0)  # of test_churn LEAK
        finish(file)

    def count_up():
        for number in range(200_000):
            pass

    def busy(path):
        count_up()
        file = os.open(path, os.O_RDONLY)  # of test_busy LEAK
        finish(file)

    def work_to_do(worker):
        work, done = threading.Event(), threading.Event()
        KEPT.append((work, done))
        threading.Thread(target=worker, args=(work, done), daemon=True).start()

    def opens(work, done):
        while work.wait():
            work.clear()
            finish(os.open(__file__, os.O_RDONLY))
            done.set()

    def in_thread(path):
        if not KEPT:
            work_to_do(opens)
        work, done = KEPT[0]
        done.clear()
        work.set()
        done.wait()

    def of_context(name):
        @pytest.fixture(scope="module")
        def pool():
            with multiprocessing.get_context(name).Pool(1) as pool:
                yield pool
        return pool

    forked, spawned, served = of_context("fork"), of_context("spawn"), of_context("forkserver")
    forked_for_c, forked_for_churn, forked_for_busy, forked_for_thread = (of_context("fork") for _ in range(4))

    @pytest.mark.fd_budget(0)
    def test_forked(forked):
        forked.apply(in_python, (__file__,))

    @pytest.mark.fd_budget(0)
    def test_opened_in_c(forked_for_c):
        forked_for_c.apply(in_c, (__file__,))

    @pytest.mark.fd_budget(0)
    def test_churn(forked_for_churn):
        forked_for_churn.apply(after_others, (__file__,))

    @pytest.mark.fd_budget(0)
    def test_busy(forked_for_busy):
        forked_for_busy.apply(busy, (__file__,))

    @pytest.mark.fd_budget(0)
    def test_in_a_thread(forked_for_thread):
        forked_for_thread.apply(in_thread, (__file__,))

    def in_spawned(path):
        file = os.open(path, os.O_RDONLY)  # of test_spawned LEAK
        finish(file)

    def in_served(path):
        file = os.open(path, os.O_RDONLY)  # of test_served LEAK
        finish(file)

    @pytest.mark.fd_budget(0)
    def test_spawned(spawned):
        spawned.apply(in_spawned, (__file__,))

    @pytest.mark.fd_budget(0)
    def test_served(served):
        served.apply(in_served, (__file__,))

    PROGRAM = "import sys\\nfor line in sys.stdin: (open('/dev/null').fileno() if line == 'no\\\\n' else KEPT.append(open('/dev/null'))); print('done', flush=True)"

    @pytest.fixture(scope="module")
    def program():
        command = [sys.executable, "-c", "KEPT = []; exec(sys.argv[1])".replace("exec", "import sys; exec"), PROGRAM]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            yield process
            # The tracer's signal would have ended it.
            assert process.poll() is None
            process.stdin.close()

    @pytest.mark.fd_budget(0)
    def test_program(program):
        program.stdin.write(b"yes\\n" if LEAKY else b"no\\n")
        program.stdin.flush()
        assert program.stdout.readline() == b"done\\n"
"""
NAMED = ("test_forked", "test_opened_in_c", "test_churn", "test_busy", "test_spawned", "test_served")
# Why no line is known.
UNNAMED = {
    "test_in_a_thread": "another of its threads was running too, and only the main thread is traced",
    "test_program": "it was not started by os.fork or multiprocessing during the session, or its signals are changed",
}


@pytest.fixture(scope="module")
def leaky(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, str]:
    project = Project(tmp_path_factory.mktemp("leaky"))
    path = project.write("test_workers.py", WORKERS)
    return project.run(), path.read_text()


def finding_of(outcome: Outcome, test: str) -> dict[str, Any]:
    found = outcome.finding(f"::{test}")
    assert (found["verdict"], found["slope"]) == ("leak", 1.0), outcome.text
    return found


@pytest.mark.parametrize("test", NAMED)
def test_the_line_in_the_worker_is_named(leaky: tuple[Outcome, str], test: str) -> None:
    outcome, text = leaky
    found = finding_of(outcome, test)
    assert found["site"] is not None, outcome.text
    assert Path(found["site"]["file"]).name == "test_workers.py"
    assert found["site"]["line"] == line_of(f"{test} LEAK", text)
    where = found["culprit"]["where"]
    assert where["process"].startswith("child process ")
    assert (where["phase"], where["fixture"], found["culprit"]["hint"]) == ("", "", "")
    assert found["culprit"]["unresolved"] == {"owner": "they are in a child process, whose objects are not searched"}


@pytest.mark.parametrize("test", ["test_forked", "test_served"])
def test_a_worker_that_was_forked_is_named_by_its_name_and_not_by_a_command(
    leaky: tuple[Outcome, str], test: str
) -> None:
    """Also one that the fork server has forked, whose command that one has."""
    (held,) = finding_of(leaky[0], test)["held"]
    assert re.fullmatch(r"in child \S+ \(forked\)", held["note"]), held


@pytest.mark.parametrize("test", UNNAMED)
def test_where_no_line_is_known_the_reason_is_given(leaky: tuple[Outcome, str], test: str) -> None:
    outcome, _text = leaky
    found = finding_of(outcome, test)
    assert (found["site"], found["owner"]) == (None, None)
    why = found["culprit"]["unresolved"]["site"]
    assert why.startswith("created in child process "), why
    assert why.endswith(f"; no line is known, because {UNNAMED[test]}"), why


def test_the_fixed_workers_say_nothing(project: Project) -> None:
    project.write("test_workers.py", WORKERS.replace("LEAKY = True", "LEAKY = False"))
    # Python 3.12 and later warn of a fork of a process that has threads.
    outcome = project.run("-W", "ignore::DeprecationWarning")
    assert outcome.last_line == f"{len(NAMED) + len(UNNAMED)} passed", outcome.text
    assert set(outcome.verdicts.values()) == {"ok"}


LOADER = """
    import os
    import pytest

    torch = pytest.importorskip("torch")
    KEPT = []

    class Frames(torch.utils.data.Dataset):
        def __len__(self):
            return 10_000

        def __getitem__(self, index):
            file = os.open(__file__, os.O_RDONLY)  # of test_next LEAK
            KEPT.append(file) if LEAKY else os.close(file)
            return index

    @pytest.fixture(scope="module")
    def batches():
        # A tensor would have a descriptor while it is in transit.
        loader = torch.utils.data.DataLoader(
            Frames(), batch_size=4, num_workers=1, collate_fn=list, multiprocessing_context=CONTEXT, prefetch_factor=1
        )
        return iter(loader)

    @pytest.mark.fd_budget(0)
    def test_next(batches):
        next(batches)
        wait_until_idle(batches)

    def wait_until_idle(batches):
        import time
        while batches._index_queues[0]._reader.poll() or not batches._worker_result_queue._reader.poll():
            time.sleep(0.001)
"""


@pytest.mark.parametrize("context", ["fork", pytest.param("forkserver", marks=pytest.mark.laboratory)])
def test_the_line_in_a_worker_of_a_dataloader_is_named(project: Project, context: str) -> None:
    pytest.importorskip("torch")
    loader = f"CONTEXT = {context!r}\n" + LOADER.replace("\n    ", "\n")
    path = project.write("test_loader.py", f"LEAKY = True\n{loader}")
    outcome = project.run()
    found = outcome.finding("::test_next")
    assert found["verdict"] == "leak", outcome.text
    assert found["site"] is not None, outcome.text
    assert found["site"]["line"] == line_of("test_next LEAK", path.read_text()), outcome.text
    assert found["culprit"]["where"]["process"] == "child process pt_data_worker"

    project.write("test_loader.py", f"LEAKY = False\n{loader}")
    outcome = project.run()
    assert outcome.verdicts == {("test_next", "fd"): "ok"}, outcome.text


CYCLES = """
    import multiprocessing, os
    import pytest

    LEAKY = True

    class Source:
        def __init__(self, path):
            self.number = os.open(path, os.O_RDONLY)  # of the cycle LEAK
            self.itself = self

        def close(self):
            if self.number >= 0:
                os.close(self.number)
                self.number = -1

        __del__ = close

    def read(path):
        source = Source(path)
        if not LEAKY:
            source.close()
        # The collector runs after some hundred or thousand new objects.
        return len([[] for _ in range(10_000)])

    @pytest.fixture(scope="module")
    def pool():
        with multiprocessing.get_context(CONTEXT).Pool(1) as pool:
            yield pool

    @pytest.mark.fd_budget(0)
    def test_read(pool):
        pool.apply(read, (__file__,))
"""


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_what_only_the_collector_of_a_worker_releases_is_unclosed_with_its_line(project: Project, context: str) -> None:
    text = f"CONTEXT = {context!r}\n" + CYCLES.replace("\n    ", "\n")
    path = project.write("test_cycles.py", text)
    outcome = project.run()
    found = outcome.finding("::test_read")
    assert found["verdict"] == "unclosed", outcome.text
    assert 0.9 <= found["slope"] <= 1.1
    assert "1 descriptor per iteration released by a garbage collector only" in outcome.one_line
    assert (found["site"]["line"], found["site"]["function"]) == (
        line_of("the cycle LEAK", path.read_text()),
        "Source.__init__",
    ), outcome.text
    assert {one["what"] for one in found["held"]} == {str(path)}

    project.write("test_cycles.py", text.replace("LEAKY = True", "LEAKY = False"))
    outcome = project.run()
    assert outcome.verdicts == {("test_read", "fd"): "ok"}, outcome.text


# Two workers, the second of which opens twice as many; each has a limit of its own.
UNEVEN = """
    import multiprocessing, os, resource
    import pytest

    resource.setrlimit(resource.RLIMIT_NOFILE, (500, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    def keep(count):
        for _ in range(count):
            os.open(__file__, os.O_RDONLY)

    @pytest.fixture(scope="module")
    def pools():
        with multiprocessing.get_context("fork").Pool(1) as one, multiprocessing.get_context("fork").Pool(1) as two:
            yield one, two

    @pytest.mark.fd_budget(0)
    def test_uneven(pools):
        for count, pool in enumerate(pools, start=1):
            pool.apply(keep, (count,))
"""


def test_the_worker_that_reaches_its_limit_first_is_named_with_what_it_gained(project: Project) -> None:
    project.write("conftest.py", UNNAMED_CAUSE)
    outcome = project.run_test(UNEVEN)
    found = outcome.finding("::test_uneven")
    assert (found["verdict"], found["slope"]) == ("leak", 3.0), outcome.text
    fullest = outcome.recordings[0]["fullest"]
    assert (fullest["gained"], fullest["of"]) == (2 * found["iterations"], 3 * found["iterations"])
    there = 3 + found["iterations"] + math.ceil((500 - fullest["held"]) / 2)
    said = f"which has gained {fullest['gained']} of {fullest['of']}, reaches its limit of 500 descriptors"
    assert f"{said} (ulimit -n) after ≈ {there} iterations" in outcome.one_line
