"""The path of a test item through the modules is the one that docs/architecture.md describes, step by step."""

from __future__ import annotations

import re

from projects import HEAD, ROOT, Project

RECORDER = """
    import sys
    from pathlib import Path

    ENTERED = {}

    def note(frame, event, _arg):
        if event == "call":
            name = frame.f_globals.get("__name__", "")
            if name.startswith("pytest_leakcheck."):
                ENTERED.setdefault(name.removeprefix("pytest_leakcheck."))

    def pytest_collection():
        sys.setprofile(note)

    def pytest_unconfigure():
        sys.setprofile(None)
        Path("entered").write_text(" ".join(ENTERED))
"""


def test_each_step_first_enters_the_modules_in_this_order(project: Project) -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text.partition("## The path of a test item\n")[2].partition("\nAn isolated item")[0]
    steps = re.findall(r"^\d\. .*(?:\n   .*)*", section, re.MULTILINE)
    assert len(steps) == 8
    described = [name for step in steps for name in re.findall(r"`((?:plugin|config|runner|judge|report)\.\w+)`", step)]
    assert len(described) > 15

    project.write("conftest.py", RECORDER)
    outcome = project.run_test(HEAD + "\n    @pytest.mark.fd_budget(0)\n    def test_it(): leak()\n")
    assert outcome.last_line == "1 failed"
    entered = (project.folder / "entered").read_text(encoding="utf-8").split()
    # What only holds values is entered where it is made, which a step may name earlier or later.
    assert [name for name in entered if name in described] == described
