"""What a test replaces, hides or limits for its whole process: tests around it are judged, and the report is whole."""

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


HIDES = """
    import gc
    import pytest

    KEPT = []

    @pytest.mark.{mark}
    def test_it({fixture}):
        {work}
"""
KEEP = "KEPT.append([[] for _ in range(10)])"
# All objects of the program become visible, and are not held against a clean test.
UNFREEZES_IN_THE_FIFTH = "KEPT[:] = [KEPT[0] + 1 if KEPT else 1]; KEPT[0] == 5 and gc.unfreeze()"


@pytest.mark.parametrize(
    ("mark", "fixture", "work", "expected"),
    [
        ("object_budget(0)", "", f"{KEEP}; gc.freeze()", "inconclusive"),
        # Growth of another resource would end the repetition before this verdict.
        ("leakcheck(resources=['object'])", "", f"{KEEP}; gc.freeze()", "inconclusive"),
        ("filterwarnings", "leakcheck", f"with leakcheck.budget(object=0): {KEEP}; gc.freeze()", "inconclusive"),
        ("object_budget(0)", "", UNFREEZES_IN_THE_FIFTH, "inconclusive"),
        ("object_budget(0)", "", KEEP, "leak"),
        ("object_budget(0)", "", "gc.freeze(); gc.unfreeze()", "ok"),
    ],
)
def test_objects_that_a_test_hides_from_the_collector_are_in_doubt(
    project: Project, mark: str, fixture: str, work: str, expected: str
) -> None:
    ran = project.run_test(HIDES.format(mark=mark, fixture=fixture, work=work))
    assert ran.verdicts["test_it", "object"] == expected


def test_an_owner_is_named_where_the_test_unfreezes_all(project: Project) -> None:
    """All objects then look new, so that only the containers that grow are evidence."""
    work = "gc.unfreeze(); KEPT.append([[]])"
    finding = project.run_test(HIDES.format(mark="object_budget(0)", fixture="", work=work)).finding(
        "test_it", "object"
    )
    assert finding["owner"]["name"] == "test_it.KEPT"
    assert finding["held"] == []


LIMITS = """
    import os
    import resource

    import pytest

    pytestmark = pytest.mark.fd_budget(0)
    SOFT, HARD = resource.getrlimit(resource.RLIMIT_NOFILE)
    KEPT = []

    def test_reads_it():
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (SOFT, HARD)

    def test_sets_it():
        resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT - 1, HARD))

    def test_finds_what_was_set():
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (SOFT - 1, HARD)
        resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT - 1, HARD))

    def test_uses_up_all():
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, HARD))
        KEPT.append(os.open(os.devnull, os.O_RDONLY))
"""


def test_the_limit_is_the_programs_own(project: Project) -> None:
    ran = project.run_test(LIMITS)
    assert ran.verdicts == {
        ("test_reads_it", "fd"): "ok",
        ("test_sets_it", "fd"): "ok",
        ("test_finds_what_was_set", "fd"): "ok",
        ("test_uses_up_all", "fd"): "leak",
    }
    assert "1 failed, 3 passed" in ran.text
