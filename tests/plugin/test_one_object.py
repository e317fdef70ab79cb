"""``leakcheck.assert_collected`` and ``collected`` in a session, with and without ``--leakcheck``."""

from __future__ import annotations

import pytest

from projects import Project

SUITE = """
    import pytest

    OPEN = []

    class Page:
        def __init__(self):
            OPEN.append(self)
            self.buttons = [Button(self)]

        def close(self):
            {close}

    class Button:
        def __init__(self, page):
            self.page = page

    @pytest.mark.leakcheck(max_time=60)
    def test_it(leakcheck):
        page = Page()
        with leakcheck.collected(page):
            page.close()
        leakcheck.assert_collected(page)
"""


@pytest.mark.parametrize("leakcheck", [False, True])
def test_it_holds_in_a_plain_session_and_in_a_repeated_test(project: Project, leakcheck: bool) -> None:
    leaky = project.run_test(SUITE.format(close="pass"), leakcheck=leakcheck)
    assert leaky.last_line == "1 failed"
    # The last line of the user's, then what holds it; none of the plugin's.
    assert ">       with leakcheck.collected(page):" in leaky.text
    assert "E       LeakError: Page is not collected: held by test_it.OPEN" in leaky.text
    assert "└ OPEN → list of 1   <- keeps it" in leaky.text
    assert "inert.py" not in leaky.text
    # A repeated test would have gone on: it failed in its first run.
    assert not any(one["verdict"] == "leak" for one in leaky.findings)
    fixed = project.run_test(SUITE.format(close="OPEN.remove(self)"), leakcheck=leakcheck)
    assert fixed.last_line == "1 passed", fixed.text
    assert {one["verdict"] for one in fixed.findings} == ({"ok"} if leakcheck else set())


def test_it_disturbs_no_loop_and_a_fixture_holds_its_value(project: Project) -> None:
    outcome = project.run_test("""
        import pytest
        from pytest_leakcheck import LeakError

        class Page:
            def __init__(self): self.itself = self

        @pytest.fixture
        def shared(): return Page()

        def test_loop(leakcheck):
            for step in leakcheck.steps():
                page = Page()
                leakcheck.assert_collected(page)

        @pytest.mark.xfail(raises=LeakError, strict=True)
        def test_fixture(leakcheck, shared):
            leakcheck.assert_collected(shared)
    """)
    assert outcome.last_line == "1 passed, 1 xfailed", outcome.text
    assert {one["verdict"] for one in outcome.findings} == {"ok"}
