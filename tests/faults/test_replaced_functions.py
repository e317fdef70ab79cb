"""A test may replace functions that the harness uses: tests around it are judged, and the report is whole."""

from __future__ import annotations

import pytest

from projects import Project
from variants import variants

TESTS = """
    import gc, json, os, resource, signal, threading
    import pytest

    KEPT = []
    NUMBERS = []

    def refuse(*_, **__):
        raise RuntimeError("refused")

    @pytest.mark.fd_budget(0)
    def test_replaces(monkeypatch):
        {body}

    def test_unmarked():
        {after}

    @pytest.mark.fd_budget(0)
    def test_leaky():
        KEPT.append(os.open(__file__, os.O_RDONLY))

    def test_fails():
        assert False
"""


@pytest.mark.parametrize(
    "body",
    variants(
        ['monkeypatch.setattr(os, "getpid", lambda: 42)', "json.loads = json.dumps = refuse", "gc.collect = refuse"],
        [
            'monkeypatch.setattr(os, "getpid", refuse)',
            "os.getpid = lambda: 42",
            "threading.current_thread = refuse",
            "json.dumps = lambda *_, **__: None",
            "os.listdir = refuse",
        ],
    ),
)
def test_what_follows_is_judged(project: Project, body: str) -> None:
    ran = project.run_test(TESTS.format(body=body, after="pass"))
    assert "INTERNALERROR" not in ran.text
    assert ran.verdicts["test_replaces", "fd"] in ("ok", "inconclusive")
    assert ran.verdicts["test_leaky", "fd"] in ("leak", "inconclusive")
    assert "FAILED test_it.py::test_fails" in ran.text


def test_a_limit_on_files_leaves_a_whole_report(project: Project) -> None:
    body = """NUMBERS.append(os.open(__file__, os.O_RDONLY))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))"""
    after = "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))"
    ran = project.run_test(TESTS.format(body=body, after=after))
    assert ran.verdicts == {("test_replaces", "fd"): "leak", ("test_leaky", "fd"): "leak"}
    assert "session" in project.lines()[-1]


def test_a_message_of_megabytes_is_cut(project: Project) -> None:
    body = """NUMBERS.append(1)
        if len(NUMBERS) == 5:
            raise ValueError("word " * 2_000_000)"""
    finding = project.run_test(TESTS.format(body=body, after="pass")).finding("test_replaces")
    assert finding["verdict"] == "inconclusive"
    assert "ValueError: word word" in finding["reason"]
    assert len(finding["reason"]) < 1000


def test_control_characters_of_names_do_not_reach_the_terminal(project: Project) -> None:
    ran = project.run_test(r"""
        import pytest

        KEPT = []
        KIND = type("ev\x1b[31mil\x07", (), {})

        @pytest.mark.fd_budget(0)
        def test_file(tmp_path_factory):
            KEPT.append(open(tmp_path_factory.getbasetemp() / "evil\x1b]0;pwned\x07", "w"))

        @pytest.mark.object_budget(0)
        def test_type():
            KEPT.append(KIND())
        """)
    assert set(ran.verdicts.values()) == {"leak"}
    assert r"evil\x1b]0;pwned" in ran.text
    assert not {"\x1b", "\x07"} & set(ran.text)


def test_a_report_that_cannot_be_ended_is_stated_and_its_findings_stay(project: Project) -> None:
    project.write(
        "conftest.py",
        """
        from pytest_leakcheck.plugin import report_files

        def refuse(*_):
            raise RuntimeError("refused")

        report_files.LastLine = refuse
        """,
    )
    ran = project.run_test(TESTS.format(body="pass", after="pass"))
    assert "findings.json: RuntimeError: refused" in ran.text
    assert "1 failed" not in ran.text
    assert ran.status == pytest.ExitCode.INTERNAL_ERROR
    assert [line["test"] for line in project.lines()[1:]] == ["test_it.py::test_replaces", "test_it.py::test_leaky"]


def test_a_finding_that_cannot_be_concluded_is_inconclusive(project: Project) -> None:
    project.write(
        "conftest.py",
        """
        import pytest_leakcheck.plugin.repeated_item as repeated

        CONCLUDE, DONE = repeated.conclude, []

        def fail_once(*args):
            DONE.append(args)
            if len(DONE) == 1:
                raise RuntimeError("refused")
            return CONCLUDE(*args)

        repeated.conclude = fail_once
        """,
    )
    ran = project.run_test(TESTS.format(body="NUMBERS.append(os.open(__file__, os.O_RDONLY))", after="pass"))
    assert ran.verdicts == {("test_replaces", "fd"): "inconclusive", ("test_leaky", "fd"): "leak"}
    assert "the measurement failed: RuntimeError: refused" in ran.finding("test_replaces")["reason"]
