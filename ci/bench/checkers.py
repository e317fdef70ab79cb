"""List the leak checkers to compare: the test that each needs, and how its output shows that it reports a leak.

To add a checker, add an entry to `CHECKERS`. Its form is a test module that imports `hosted` and calls
`hosted.iterate()` once, or `hosted.loop()` if the checker leaves the repetition to the test. The mode "default" has the
settings that the documentation of the checker shows first. The mode "best" has the best reasonable settings that we
know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from venvs import PROJECT

MODES: Final = ("default", "best")
# The mode that skips the search for the cause, so that only the time of the verdict is measured.
VERDICT: Final = "verdict"
FORM: Final = "test_subject"
_PYTEST: Final = ("-m", "pytest", "-q", "-rA", "--tb=short", "-p", "no:cacheprovider", f"{FORM}.py")
_NUMPY: Final = "numpy==2.3.5"  # some subjects retain arrays
_COMMON: Final = (_NUMPY, "pytest>=9,<10")


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of a checker in one of its modes.

    Attributes:
        form: Text of the test module.
        arguments: Arguments added to the command.
        environment: Variables added to the environment.
    """

    form: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Checker:
    """A program that reports leaks.

    Attributes:
        name: Name in the table.
        requires: Packages to install, the checker last; checkers with equal requirements share an environment.
        leak: A regular expression that matches the output if and only if a leak is reported; empty if it reports none.
        settings: Settings by mode.
        undecided: A regular expression that matches if no leak is reported because the checker could not decide.
        command: Arguments of the interpreter.
        debug: Whether it needs an interpreter that counts references.
    """

    name: str
    requires: tuple[str, ...]
    leak: str
    settings: Mapping[str, Setting]
    undecided: str = ""
    command: tuple[str, ...] = _PYTEST
    debug: bool = False


_ONCE: Final = """
import hosted

def test_subject():
    hosted.iterate()
"""

_WARM: Final = """
def test_a_warm():
    hosted.warm()
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

_OURS_UNNAMED: Final = f"""
from pytest_leakcheck.runner.measuring import Measuring

Measuring.diagnoses = False
{_OURS}"""

# With a longer warm-up than by default, and with every resource.
_OURS_BEST: Final = """
import hosted
import pytest
from pytest_leakcheck.model.resources import RESOURCES

@pytest.mark.leakcheck(resources=list(RESOURCES), warmup=hosted.WARM, max_time=60)
def test_subject():
    hosted.iterate()
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

# psleak compares the tolerance with the growth over all calls of a round. It covers the variation of the allocator.
_PSLEAK_BEST: Final = """
import hosted
import psleak

SCHEDULE = {"times": 10, "retries": 4, "warmup_times": 2} if hosted.HEAVY else {}
TOLERANCE = {"heap": 1 << 10, "uss": 128 << 10, "rss": 128 << 10, "vms": 256 << 10}

class TestSubject(psleak.MemoryLeakTestCase):
    def test_subject(self):
        hosted.warm()
        self.execute(hosted.iterate, tolerance=TOLERANCE, **SCHEDULE)
"""

_LIMIT_LEAKS: Final = """
import hosted
import pytest

@pytest.mark.limit_leaks("1 MB")
def test_subject():
    hosted.loop()
"""

# The limit applies to the sum per location, so a small leak counts as its size times the number of calls.
_LIMIT_LEAKS_BEST: Final = f"""
import gc
import hosted
import pytest
{_WARM}
@pytest.mark.limit_leaks("4 KB")
def test_subject():
    hosted.loop()
    gc.collect()
"""

_LIMIT_MEMORY: Final = """
import hosted
import pytest

@pytest.mark.limit_memory("24 MB")
def test_subject():
    hosted.iterate()
"""

_LIMIT_MEMORY_BEST: Final = f"""
import hosted
import pytest
{_WARM}
@pytest.mark.limit_memory("32 MB")
def test_subject():
    hosted.loop()
"""

_DISTRIBUTED_BEST: Final = """
import hosted
import pytest

@pytest.mark.leaking("fds", "memory", "threads", "processes", "tracemalloc")
def test_a_warm():
    hosted.warm()

def test_subject():
    hosted.loop()
"""

# -R sets how often the test is run, so the loop inside it is short.
_REPEATED_BEST: Final = """
import hosted

def test_subject():
    hosted.loop(3 if hosted.HEAVY else 40)
"""

_REGRTEST: Final = """
import unittest
import hosted

class TestSubject(unittest.TestCase):
    def test_subject(self):
        hosted.iterate()
"""

_REGRTEST_BEST: Final = _REGRTEST.replace("hosted.iterate()", "hosted.loop(3 if hosted.HEAVY else 40)")

# Without PYTHONMALLOC=malloc psleak skips every memory test.
_MALLOC: Final = {"PYTHONMALLOC": "malloc", "PYTHONUNBUFFERED": "1"}
_LEAKS_ALL: Final = ("-p", "distributed.pytest_resourceleaks", "-L", "all")

CHECKERS: Final[tuple[Checker, ...]] = (
    # The table divides the times of all checkers by those of this one.
    Checker("plain pytest", _COMMON, "", {"default": Setting(_ONCE)}),
    Checker(
        "pytest-leakcheck",
        (*_COMMON, PROJECT),
        # Matches the block of a failed test, or a line of the summary. Resources that only the garbage collector
        # releases are reported in the summary, because they fail no test that has no explicit budget.
        r"^  (?:leak|over budget|unclosed) {2,}|^[0-9a-f]{6}-\S+  \S+ \S+ unclosed ",
        {
            "default": Setting(_OURS, ("--leakcheck",)),
            "best": Setting(_OURS_BEST, ("--leakcheck",)),
            VERDICT: Setting(_OURS_UNNAMED, ("--leakcheck",)),
        },
        undecided=r" (?:inconclusive|unavailable): |^SKIPPED ",
    ),
    Checker(
        "psleak",
        (*_COMMON, "psleak==0.1.6"),
        r"psleak\.\w+Error: ",
        {"default": Setting(_PSLEAK, (), _MALLOC), "best": Setting(_PSLEAK_BEST, (), _MALLOC)},
        undecided=r"^SKIPPED ",
    ),
    Checker(
        "memray limit_leaks",
        (*_COMMON, "pytest-memray==1.11.0"),
        r"Test was allowed to leak",
        # By default five frames are shown. Without --stacks, native frames fill these, and no Python frame is shown.
        {"default": Setting(_LIMIT_LEAKS), "best": Setting(_LIMIT_LEAKS_BEST, ("--stacks=60",))},
    ),
    Checker(
        "memray limit_memory",
        (*_COMMON, "pytest-memray==1.11.0"),
        r"Test was limited to",
        {
            "default": Setting(_LIMIT_MEMORY),
            "best": Setting(_LIMIT_MEMORY_BEST, ("--native", "--trace-python-allocators", "--stacks=60")),
        },
    ),
    Checker(
        "distributed -L all",
        (*_COMMON, "distributed==2026.8.0"),
        r"test_subject leaking \w+:",
        {
            "default": Setting(_ONCE, _LEAKS_ALL),
            "best": Setting(
                _DISTRIBUTED_BEST,
                (*_LEAKS_ALL, "--leaks-fail", "--leaks-timeout=1"),
                {"MALLOC_TRIM_THRESHOLD_": "65536"},
            ),
        },
    ),
    Checker(
        "pytest-leaks -R",
        # pytest-leaks supports no later pytest, and this release cannot state that in its requirements.
        (_NUMPY, "pytest<6", "pytest-leaks==0.3.1"),
        r"test_subject: leaked ",
        {
            "default": Setting(_ONCE, ("--assert=plain", "-R", ":")),
            "best": Setting(_REPEATED_BEST, ("--assert=plain", "-R", "10:6")),
        },
        debug=True,
    ),
    Checker(
        "regrtest -R",
        (_NUMPY,),
        r"leaked \[[^]]*\] [a-z ]+, sum=",
        {"default": Setting(_REGRTEST, ("-R", "3:3")), "best": Setting(_REGRTEST_BEST, ("-R", "10:6"))},
        command=("-m", "test", "--testdir", ".", FORM),
        debug=True,
    ),
)
