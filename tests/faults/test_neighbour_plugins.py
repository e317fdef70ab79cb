"""Plugins that change what a test may call, or that are loaded in an unusual way: verdicts and outcomes are the usual."""

from __future__ import annotations

import pytest

from projects import Project
from variants import variants

pytestmark = pytest.mark.laboratory

IN_A_LOOP = """
    import asyncio
    import os

    import pytest
    from blockbuster import BlockBuster

    KEPT = []

    @pytest.fixture(autouse=True, scope="session")
    def no_blocking_calls():
        guard = BlockBuster()
        guard.activate()
        yield
        guard.deactivate()

    def run(make):
        async def task():
            await make()
        asyncio.run(task())

    def test_refuses():
        async def blocks():
            open(__file__).read()
        with pytest.raises(Exception, match="Blocking call"):
            run(blocks)

    @pytest.mark.parametrize("leak", [False, True], ids=["clean", "leaky"])
    def test_steps(leakcheck, leak):
        async def loop():
            for _ in leakcheck.steps(fd=0, disk=0, object=0):
                await asyncio.sleep(0)
                KEPT.extend([os.dup(0)] if leak else ())
        run(loop)

    @pytest.mark.parametrize("leak", [False, True], ids=["clean", "leaky"])
    def test_block(leakcheck, leak):
        async def block():
            with leakcheck.budget(fd=0):
                await asyncio.sleep(0)
                KEPT.extend([os.dup(0)] if leak else ())
        run(block)

    def test_left(leakcheck):
        async def loop():
            for step in leakcheck.steps(fd=0):
                if step == 3:
                    break
        run(loop)
"""


@pytest.mark.parametrize("isolate", variants([()], [("--leakcheck-isolate",)]), ids=["in place", "isolated"])
def test_own_readings_are_no_blocking_calls_of_the_test(project: Project, isolate: tuple[str, ...]) -> None:
    pytest.importorskip("blockbuster")
    ran = project.run_test(IN_A_LOOP, *isolate)
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
