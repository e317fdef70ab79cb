"""What else a test may be or carry, and the plugin's manners with it."""

from __future__ import annotations

import re

import pytest

from projects import HEAD, Project


def test_an_expected_leak(project: Project) -> None:
    outcome = project.run_test(
        HEAD
        + """
    from pytest_leakcheck import LeakError

    @pytest.mark.fd_budget(0)
    @pytest.mark.xfail(raises=LeakError, strict=True)
    def test_known(): leak()

    @pytest.mark.fd_budget(0)
    @pytest.mark.xfail(raises=LeakError, strict=True)
    def test_fixed(): pass
    """
    )
    assert outcome.last_line == "1 failed, 1 xfailed"
    assert "[XPASS(strict)]" in outcome.text


def test_a_missing_instrument(project: Project) -> None:
    """Never a silent pass: the other budgets are judged first, then it is a skip with the reason, or a failure."""
    project.write(
        "conftest.py",
        """
        import psutil
        from pytest_leakcheck.probes import native_heap as heap
        psutil.heap_info = None
        class NoMallinfo:
            def __init__(self, name): raise OSError("no libc here")
        heap.ctypes = type("ctypes", (), {"PyDLL": NoMallinfo})
        """,
    )
    outcome = project.run_test(
        HEAD
        + """
    @pytest.mark.fd_budget(0)
    @pytest.mark.heap_budget(0)
    def test_clean(): pass

    @pytest.mark.fd_budget(0)
    @pytest.mark.heap_budget(0)
    def test_leaky(): leak()
    """,
        "-rs",
    )
    assert outcome.last_line == "1 failed, 1 skipped", outcome.text
    assert outcome.verdicts["test_clean", "heap"] == "unavailable"
    assert outcome.verdicts["test_clean", "fd"] == "ok"
    assert outcome.verdicts["test_leaky", "fd"] == "leak"
    assert "heap: neither the C library (mallinfo2" in outcome.text
    strict = project.run("--leakcheck-missing=fail")
    assert strict.last_line == "2 failed"


# A debugger that continues at once, because its input is not a terminal.
_UNATTENDED = """
    import pdb

    class Unattended(pdb.Pdb):
        def interaction(self, *_arguments):
            print("STOPPED")
            self.set_continue()
"""
# What stands in for a debugger: the module that an editor's one imports, the tracer of `python -m pdb`, and the
# identifier that one reserves from Python 3.12 on.
ATTACHED = {
    "editor": "import sys; sys.modules['debugpy'] = sys",
    "pdb": "import bdb, sys; one = bdb.Bdb(); one.reset(); sys.settrace(one.trace_dispatch)",
    "monitors": """
        import sys
        from types import SimpleNamespace

        if hasattr(sys, "monitoring"): sys.monitoring.use_tool_id(sys.monitoring.DEBUGGER_ID, "one")
        else: sys.monitoring = SimpleNamespace(DEBUGGER_ID=0, get_tool={0: "one"}.get)
    """,
}


@pytest.mark.parametrize("kind", [*ATTACHED, "trace"])
def test_under_a_debugger_each_test_runs_once(project: Project, kind: str) -> None:
    project.copy("program_that_counts_its_runs.py")
    project.write("stub/attached.py", ATTACHED.get(kind, _UNATTENDED))
    options = ("--trace", "--pdbcls=attached:Unattended") if kind == "trace" else ("-p", "attached")
    outcome = project.run("-s", *options, PYTHONPATH="stub")
    reason = "run once with --trace" if kind == "trace" else "run once under a debugger"
    assert outcome.last_line == "5 passed", outcome.text
    assert outcome.findings == []
    assert "RUNS {'isolated': 1, 'loop': 1, 'plain': 1, 'repeated': 1, 'sizes': 1}" in outcome.text
    assert f"\nleakcheck: no verdicts: tests {reason}\n" in outcome.text
    # `test_plain` did not ask for a verdict.
    assert f"\nleakcheck: 4 not measured: {reason}\n" in outcome.text
    assert f"\n5 tests: 5 not judged (4 {reason}, 1 without a mark)\n" in outcome.text
    everything = project.run("-s", "--leakcheck-scope=all", *options, PYTHONPATH="stub").text
    assert f"\n5 tests: 5 not judged (5 {reason})\n" in everything
    assert "leakcheck: judging" not in everything


def test_after_a_breakpoint_the_test_is_not_repeated(project: Project) -> None:
    project.write("stub/unattended.py", _UNATTENDED)
    project.copy("program_with_breakpoints.py")
    outcome = project.run("-s", "--pdbcls=unattended:Unattended", PYTHONPATH="stub")
    assert outcome.last_line == "1 failed, 7 passed", outcome.text
    assert "RUNS {'fifth': 5, 'first': 1, 'isolated': 1, 'loop': 3, 'set_trace': 1, 'set_up': 1}" in outcome.text
    # The isolated test stops in its subprocess, and again in this process, which has the terminal.
    assert outcome.text.count("STOPPED") == 8
    assert outcome.verdicts == {("test_never", "fd"): "leak"}
    assert "\nleakcheck: 7 not measured: stopped in a debugger\n" in outcome.text


def test_coverage_is_no_debugger(project: Project) -> None:
    """Neither its tracer in C nor that in Python, nor the trace function of another tool."""
    project.write("test_it.py", HEAD + "\n    @pytest.mark.fd_budget(0)\n    def test_it(): leak()\n")
    project.write("stub/other.py", "import sys\ndef trace(*_arguments): return None\nsys.settrace(trace)\n")
    for options in (("--cov=.",), ("--cov=.", "--cov-config=python.cfg"), ("-p", "other")):
        project.write("python.cfg", "[run]\ncore = pytrace\n")
        outcome = project.run(*options, PYTHONPATH="stub")
        assert outcome.verdicts == {("test_it", "fd"): "leak"}, outcome.text
        assert "not measured" not in outcome.text


@pytest.mark.parametrize(
    ("mark", "variables"),
    [("timeout(2)", {}), ("filterwarnings('default')", {"PYTEST_TIMEOUT": "2"})],
    ids=["mark", "variable"],
)
def test_a_timeout_is_never_of_our_making(project: Project, mark: str, variables: dict[str, str]) -> None:
    # The variable goes before the configuration.
    outcome = project.run_test(
        f"""
        import time
        import pytest
        @pytest.mark.fd_budget(0)
        @pytest.mark.{mark}
        def test_it(): time.sleep(0.2)
        """,
        "--override-ini=timeout=600",
        **variables,
    )
    assert outcome.last_line == "1 passed"
    assert outcome.finding("test_it")["reason"].endswith(" iterations, 13 needed")


@pytest.mark.laboratory
def test_a_dump_of_the_stacks_is_never_of_our_making(project: Project) -> None:
    project.write("pytest.ini", "[pytest]\nfaulthandler_timeout = 1\nfaulthandler_exit_on_timeout = true\n")
    outcome = project.run_test(
        """
        import time
        import pytest

        @pytest.mark.fd_budget(0)
        def test_repeats(): time.sleep(0.15)

        @pytest.mark.fd_budget(0)
        def test_hangs(runs=[]):
            runs.append(1)
            time.sleep(5 if len(runs) == 8 else 0.15)
        """,
        "-p",
        "no:asyncio",
        "-k",
        "repeats",
    )
    assert (outcome.last_line, outcome.finding("test_repeats")["verdict"]) == ("1 passed, 1 deselected", "ok")
    assert outcome.finding("test_repeats")["iterations"] > 8
    assert "Timeout (" not in outcome.text
    # An iteration that takes too long is still shown, and ends the session.
    outcome = project.run("-p", "no:asyncio", "-k", "hangs")
    assert (outcome.status, "Timeout (0:00:01)!" in outcome.text, "in test_hangs" in outcome.text) == (1, True, True)


def test_own_descriptors_survive_a_double_close(project: Project) -> None:
    """A test that closes a descriptor twice, or a range of them, hits none of the harness's."""
    outcome = project.run_test(
        HEAD
        + """
    STALE = []

    @pytest.mark.fd_budget(0)
    def test_twice():
        file = os.open(__file__, os.O_RDONLY)
        os.close(file)
        for number in STALE:
            with pytest.raises(OSError):
                os.close(number)
        STALE[:] = [file]

    @pytest.mark.fd_budget(0)
    def test_range(): os.closerange(3000, 5000)

    @pytest.mark.fd_budget(0)
    def test_callbacks():
        import gc
        gc.callbacks.clear()
    """
    )
    assert outcome.last_line == "3 passed", outcome.text


def test_warnings_as_errors(project: Project) -> None:
    """An unclosed file that the collector finds is the finding, and no failure of the iteration after it.

    Where the first run leaves it to the end of the session, pytest complains as in a plain session.
    """
    project.write(
        "test_it.py",
        """
        import pytest

        @pytest.mark.fd_budget(0)
        def test_it():
            cycle = [open(__file__)]
            cycle.append(cycle)
        """,
    )
    project.write("pytest.ini", "[pytest]\nfilterwarnings = error\n")
    # Python 3.14 words it differently.
    complaint = r"PytestUnraisableExceptionWarning: Exception ignored (in:|while finalizing file) <_io\.FileIO"
    assert len(re.findall(complaint, project.run("-p", "no:asyncio", leakcheck=False).text)) == 1
    outcome = project.run("-p", "no:asyncio")
    assert outcome.finding("test_it")["verdict"] == "unclosed", outcome.text
    assert len(re.findall(complaint, outcome.text)) == 1


def test_in_ci_the_short_summary_is_one_line(project: Project) -> None:
    text = project.run_test(HEAD + "\n    @pytest.mark.fd_budget(0)\n    def test_it(): leak()\n", CI="true").text
    assert text.rstrip().splitlines()[-2].startswith("LEAK test_it.py::test_it - LeakError: fd +1.0/iter")
    assert text.count("finding  ") == 1


def test_a_plugin_that_reads_fixtures_from_every_report(project: Project) -> None:
    """As pytest-benchmark does, and many a conftest: the fixtures are gone when what was run silently is logged."""
    project.write(
        "conftest.py",
        """
        import pytest

        @pytest.hookimpl(hookwrapper=True)
        def pytest_runtest_makereport(item, call):
            outcome = yield
            report = outcome.get_result()
            report.sections.append(("seen", f"{call.when} {item.funcargs.get('benchmark')} {len(item.funcargs['request'].node.name)}"))
        """,
    )
    outcome = project.run_test(
        HEAD
        + """
    pytestmark = pytest.mark.fd_budget(0)

    @pytest.fixture(scope="module")
    def ends_badly():
        yield
        raise ValueError("at the end of the module")

    def test_fails(request): assert 0

    def test_skips(request): pytest.skip("not here")

    def test_does_not_repeat(request):
        KEPT.append(1)
        assert len(KEPT) < 3

    def test_passes(request): pass

    def test_later(request, ends_badly):
        KEPT.append(1)
        assert len(KEPT) < 6
    """,
        "-rA",
    )
    assert "INTERNALERROR" not in outcome.text
    assert outcome.last_line == "1 failed, 3 passed, 1 skipped, 1 error", outcome.text
    assert "ValueError: at the end of the module" in outcome.text
    strict = project.run("--leakcheck-fail-on=leak,inconclusive")
    assert strict.last_line == "3 failed, 1 passed, 1 skipped, 1 error", strict.text
