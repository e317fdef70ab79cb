"""A test that writes into the files of its process ends as a lost test: the session goes on, and runs nothing for it."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from projects import Project
from variants import variants

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="links and pipes in place of files")

# The first run of each test is real; what it sends is then changed.
CONFTEST = """
    import json, os, random, shutil, sys
    from pathlib import Path
    from mutations import mutate, replace_file
    from pytest_leakcheck.plugin.isolation import engines

    RANDOM, SECRET = random.Random(int(os.environ["SEED"])), Path("SECRET").absolute()
    REAL, SENT, TRIED = engines.supervisor.run, {}, []

    def run(start, folder, watch):
        task = json.loads((folder / "start").read_text())
        key = task["test"].partition("[")[0], task["sizing"] and task["sizing"]["size"]
        names = [f"messages-{rank}" for rank in range(start.ranks)]
        if key not in SENT:
            ended = REAL(start, folder, watch)
            SENT[key] = [(folder / name).read_text() for name in names], ended
            return ended
        texts, ended = SENT[key]
        for name, text in zip(names, texts):
            (folder / name).write_text(mutate(text, RANDOM), errors="surrogatepass")
        if RANDOM.random() < 0.2:
            replace_file(folder / RANDOM.choice([*names, "stack-0", "failures"]), RANDOM, SECRET)
        elif start.ranks > 1:
            (folder / "failures").write_text(mutate('{"0": 1, "1": -9}', RANDOM), errors="surrogatepass")
        TRIED.append(key)
        return ended

    engines.supervisor.run = run

    def audit(event, arguments):
        if event == "import" and arguments[0] == "evil" or event == "open" and str(arguments[0]) == str(SECRET):
            os.write(2, f"BREACH {event} {arguments}".encode())
    sys.addaudithook(audit)

    def pytest_sessionfinish():
        Path("tried").write_text(str(len(TRIED)))
"""
TESTS = """
    import os, warnings
    import pytest
    KEPT, COUNT = [], int(os.environ["COUNT"])

    @pytest.mark.fd_budget(0)
    @pytest.mark.parametrize("n", range(COUNT))
    def test_leak(n, record_property):
        warnings.warn("careful", ResourceWarning)
        record_property("kind", [1, None])
        print("said")
        KEPT.append(os.open(__file__, os.O_RDONLY))

    @pytest.mark.fd_budget(0)
    @pytest.mark.parametrize("n", range(COUNT))
    def test_fails(n):
        try:
            {}["a"]
        except KeyError as error:
            raise ValueError("b") from error

    if "WORLDS" in os.environ:
        @pytest.mark.fd_budget(0)
        @pytest.mark.parametrize("n", range(COUNT))
        def test_skips(n):
            pytest.skip("not here")

        @pytest.mark.scaling_budget("world_size", [1, 2, 4], engine="process", rss="<= 900 MiB")
        @pytest.mark.parametrize("n", range(COUNT))
        def test_world(n, world_size):
            assert world_size
"""


# Of the gate: 300 inputs; of the laboratory: 10,000 with each seed, also of worlds of ranks and skipped tests.
@pytest.mark.parametrize("seed", variants([1], [2, 3]))
def test_nothing_that_a_child_sends_breaks_the_session(project: Project, seed: int) -> None:
    count = 150 if seed == 1 else 2400
    project.write("conftest.py", CONFTEST)
    project.write("SECRET", "do not read\n")
    project.write("evil.py", "open('proof', 'w')\n")
    project.write("test_it.py", TESTS)
    worlds: dict[str, Any] = {"WORLDS": "1"} if count > 1000 else {}
    ran = project.run(
        "--leakcheck-isolate",
        "--leakcheck-html=page.html",
        "--junitxml=junit.xml",
        "-p",
        "no:hypothesispytest",
        SEED=str(seed),
        COUNT=str(count),
        **worlds,
    )
    # Some mutations make a valid pass, so only their sum is known.
    assert ran.status == pytest.ExitCode.TESTS_FAILED, ran.text[-3000:]
    assert "INTERNALERROR" not in ran.text
    assert "BREACH" not in ran.text
    assert "do not read" not in ran.text
    assert not (project.folder / "proof").exists()
    assert "sent what cannot be read: " in ran.text
    assert int((project.folder / "tried").read_text()) >= (4 if worlds else 2) * (count - 1)
    assert "Traceback (most recent call last)" not in ran.text
