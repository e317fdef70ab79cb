"""A test that writes into the files of its process ends as a lost test: the session goes on, and runs nothing for it."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from projects import Project
from variants import variants

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="links and pipes in place of files")


# Of the gate: 300 inputs; of the laboratory: 10,000 with each seed, also of worlds of ranks and skipped tests.
@pytest.mark.parametrize("seed", variants([1], [2, 3]))
def test_nothing_that_a_child_sends_breaks_the_session(project: Project, seed: int) -> None:
    count = 150 if seed == 1 else 2400
    project.copy("conftest_that_mutates_messages.py", "conftest.py")
    project.write("SECRET", "do not read\n")
    project.write("evil.py", "open('proof', 'w')\n")
    project.copy("program_with_hostile_children.py")
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
