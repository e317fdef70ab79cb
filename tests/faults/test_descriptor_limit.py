"""A test sees the descriptor limit that the session has, in each iteration and in the logged run, and may set its own."""

from __future__ import annotations

from projects import Project

TESTS = """
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
    ran = project.run_test(TESTS)
    assert ran.verdicts == {
        ("test_reads_it", "fd"): "ok",
        ("test_sets_it", "fd"): "ok",
        ("test_finds_what_was_set", "fd"): "ok",
        ("test_uses_up_all", "fd"): "leak",
    }
    assert "1 failed, 3 passed" in ran.text
