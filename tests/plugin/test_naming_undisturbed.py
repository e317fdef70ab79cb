"""Looking for the culprit leaves the program's own hooks in force, and is not done for what came once."""

from __future__ import annotations

from projects import Project

FOREIGN = """
    import cProfile, os, sys, threading
    import pytest

    KEPT = []

    def profile(frame, event, argument):
        pass

    def trace(frame, event, argument):
        return None

    @pytest.mark.fd_budget(0)
    def test_hooks_are_put_back():
        KEPT.append(os.open(__file__, os.O_RDONLY))

    def test_afterwards():
        assert (sys.getprofile(), sys.gettrace()) == (profile, trace)
"""


def test_what_the_program_has_hooked_in_is_put_back(project: Project) -> None:
    project.write("test_it.py", FOREIGN)
    project.write(
        "conftest.py",
        """
        import sys
        import pytest

        @pytest.fixture(autouse=True, scope="session")
        def hooks(request):
            from test_it import profile, trace
            sys.setprofile(profile)
            sys.settrace(trace)
            yield
            sys.setprofile(None)
            sys.settrace(None)
        """,
    )
    ran = project.run()
    assert ran.last_line == "1 failed, 1 passed", ran.text
    assert ran.finding("test_hooks_are_put_back")["site"] is not None


def test_what_comes_once_is_not_looked_for(project: Project) -> None:
    found = project.run_test("""
        import os, itertools
        import pytest
        count = itertools.count()

        @pytest.mark.fd_budget(0)
        def test_once():
            if next(count) == 8:
                os.dup(1)
        """).finding("test_once")
    assert (found["verdict"], found["site"], found["owner"]) == ("over_budget", None, None)
    assert set(found["culprit"]["unresolved"].values()) == {"it appeared once, and was not seen to recur"}
    assert found["culprit"]["iterations"] == 0
