"""Plugins that change what a test may call, or that are loaded in an unusual way: verdicts and outcomes are the usual."""

from __future__ import annotations

import pytest

from projects import Project
from variants import variants

pytestmark = pytest.mark.laboratory


@pytest.mark.parametrize("isolate", variants([()], [("--leakcheck-isolate",)]), ids=["in place", "isolated"])
def test_own_readings_are_no_blocking_calls_of_the_test(project: Project, isolate: tuple[str, ...]) -> None:
    pytest.importorskip("blockbuster")
    project.copy("program_in_a_loop_of_asyncio.py")
    ran = project.run(*isolate)
    verdicts = {name: verdict for (name, resource), verdict in ran.verdicts.items() if resource == "fd"}
    assert verdicts == {
        "test_steps[clean]": "ok",
        "test_steps[leaky]": "leak",
        "test_block[clean]": "ok",
        "test_block[leaky]": "over_budget",
        "test_left": "inconclusive",
    }, ran.text
    assert "leak" not in {one["verdict"] for one in ran.findings if "clean" in one["test"]}
    assert ran.last_line == "2 failed, 4 passed", ran.text


TIMED = """
    import pytest

    NUMBERS = []

    @pytest.mark.timeout(2)
    @pytest.mark.fd_budget(0)
    @pytest.mark.leakcheck(isolate=True)
    def test_hangs():
        NUMBERS.append(1)
        while len(NUMBERS) >= 3:
            pass

    @pytest.mark.fd_budget(0)
    def test_after():
        pass
"""


def test_a_plugin_that_is_loaded_by_its_module_is_recognized(project: Project) -> None:
    """Its name as a plugin is another then. The timer of the session would end the session as the subprocess runs."""
    project.write("test_it.py", TIMED)
    ran = project.run(
        "-p", "pytest_leakcheck.plugin", "-p", "pytest_timeout", "-p", "pytest_cov.plugin", "-p", "xdist.plugin",
        PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
    )  # fmt: skip
    assert "INTERNALERROR" not in ran.text
    assert ran.verdicts == {("test_hangs", "process"): "inconclusive", ("test_after", "fd"): "ok"}, ran.text
    assert ran.last_line == "2 passed"
