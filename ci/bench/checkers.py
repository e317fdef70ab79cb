"""List the leak checkers that are compared, each with the settings that its documentation shows first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from venvs import PROJECT

FORM: Final = "test_subject"
_PYTEST: Final = ("-m", "pytest", "-q", "-rA", "--tb=short", "-p", "no:cacheprovider", f"{FORM}.py")
_NUMPY: Final = "numpy==2.3.5"  # some subjects retain arrays
_COMMON: Final = (_NUMPY, "pytest>=9,<10")


@dataclass(frozen=True, slots=True)
class Checker:
    """A program that reports leaks; checkers with equal requirements share an environment.

    Attributes:
        requires: Packages to install, the checker last.
        leak: A regular expression that matches the output if and only if a leak is reported; empty if it reports none.
        form: Text of the test module.
        undecided: A regular expression that matches if no leak is reported because the checker could not decide.
        debug: Whether it needs an interpreter that counts references.
    """

    name: str
    requires: tuple[str, ...]
    leak: str
    form: str
    command: tuple[str, ...] = _PYTEST
    environment: Mapping[str, str] = field(default_factory=dict)
    undecided: str = ""
    debug: bool = False


_ONCE: Final = """
import hosted

def test_subject():
    hosted.iterate()
"""

_OURS: Final = """
import hosted
import pytest

if hosted.scaled is None:
    @pytest.mark.leakcheck
    def test_subject():
        hosted.iterate()
else:
    @pytest.mark.scaling_budget("n", [8, 16, 32, 64], rss="O(1)")
    def test_subject(n):
        hosted.scaled(n)
"""

# psleak's own schedule makes 22,663 calls if something leaks. At 1 MiB per call that is 22 GiB, so heavy subjects get
# a shorter schedule.
_PSLEAK: Final = """
import hosted
import psleak

SCHEDULE = {"times": 10, "retries": 4, "warmup_times": 2} if hosted.HEAVY else {}

class TestSubject(psleak.MemoryLeakTestCase):
    def test_subject(self):
        self.execute(hosted.iterate, **SCHEDULE)
"""

_LIMIT_LEAKS: Final = """
import hosted
import pytest

@pytest.mark.limit_leaks("1 MB")
def test_subject():
    for _ in range(40 if hosted.HEAVY else 100):
        hosted.iterate()
"""

_LIMIT_MEMORY: Final = """
import hosted
import pytest

@pytest.mark.limit_memory("24 MB")
def test_subject():
    hosted.iterate()
"""

_REGRTEST: Final = """
import unittest
import hosted

class TestSubject(unittest.TestCase):
    def test_subject(self):
        hosted.iterate()
"""

_LEAK_HUNTER: Final = """
import hosted

def test_subject(leak_check):
    leak_check(hosted.iterate, iterations=30)
"""

_LEAK_ASSERT: Final = """
import hosted
from leak_assert import LeakTest

def test_subject():
    with LeakTest(iterations=40 if hosted.HEAVY else 1000, warmup=50) as t:
        for _ in t:
            hosted.iterate()
    t.assert_growth_rate(max="1kb/iter")
    t.assert_stable(tolerance="5mb")
"""

# Ray's tests repeat 150 times, and again twice and three times as often, while the same lines are suspected.
_RAY: Final = """
import hosted
from ray.util.debug import _test_some_code_for_memory_leaks

def test_subject():
    repeats = 40 if hosted.HEAVY else 150
    suspects = _test_some_code_for_memory_leaks("subject", None, hosted.iterate, repeats, max_num_trials=3)
    assert not suspects, f"suspects: {len(suspects)}"
"""

CHECKERS: Final[tuple[Checker, ...]] = (
    # The table divides the times of all checkers by those of this one.
    Checker("plain pytest", _COMMON, "", _ONCE),
    Checker(
        "pytest-leakcheck",
        (*_COMMON, PROJECT),
        # Matches the block of a failed test, or a line of the summary. Resources that only the garbage collector
        # releases are reported in the summary, because they fail no test that has no explicit budget.
        r"^  (?:leak|over budget|unclosed) {2,}|^[0-9a-f]{6}-\S+  \S+ \S+ unclosed ",
        _OURS,
        (*_PYTEST, "--leakcheck"),
        undecided=r" (?:inconclusive|unavailable): |^SKIPPED ",
    ),
    Checker(
        "psleak",
        (*_COMMON, "psleak==0.1.6"),
        r"psleak\.\w+Error: ",
        _PSLEAK,
        # Without PYTHONMALLOC=malloc psleak skips every memory test.
        environment={"PYTHONMALLOC": "malloc", "PYTHONUNBUFFERED": "1"},
        undecided=r"^SKIPPED ",
    ),
    Checker("memray limit_leaks", (*_COMMON, "pytest-memray==1.11.0"), r"Test was allowed to leak", _LIMIT_LEAKS),
    Checker("memray limit_memory", (*_COMMON, "pytest-memray==1.11.0"), r"Test was limited to", _LIMIT_MEMORY),
    Checker(
        "distributed -L all",
        (*_COMMON, "distributed==2026.8.0"),
        r"test_subject leaking \w+:",
        _ONCE,
        (*_PYTEST, "-p", "distributed.pytest_resourceleaks", "-L", "all"),
    ),
    Checker(
        "pytest-leaks -R",
        # pytest-leaks supports no later pytest, and this release cannot state that in its requirements.
        (_NUMPY, "pytest<6", "pytest-leaks==0.3.1"),
        r"test_subject: leaked ",
        _ONCE,
        (*_PYTEST, "--assert=plain", "-R", ":"),
        debug=True,
    ),
    Checker(
        "regrtest -R",
        (_NUMPY,),
        r"leaked \[[^]]*\] [a-z ]+, sum=",
        _REGRTEST,
        ("-m", "test", "--testdir", ".", FORM, "-R", "3:3"),
        debug=True,
    ),
    Checker("python-leak-hunter", (*_COMMON, "python-leak-hunter==0.1.1"), r"leak_hunter\.\S*LeakError", _LEAK_HUNTER),
    Checker("leak-assert", (*_COMMON, "leak-assert==0.1.0"), r"LeakAssertionError: ", _LEAK_ASSERT),
    Checker("Ray's check", (*_COMMON, "scipy", "ray==2.60.0"), r"AssertionError: suspects: ", _RAY),
)
