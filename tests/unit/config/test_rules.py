"""Rules per folder: whose tests they are for, what they set, and what overrides them."""

from __future__ import annotations

import pytest

from pytest_leakcheck.config.plan import for_test, parse_rules, unused
from pytest_leakcheck.config.settings import Settings, resolve
from pytest_leakcheck.model import InputError

MATCHING = [
    ("tests/net/**", "tests/net/test_a.py::test_it", True),
    ("tests/net/**", "tests/net/deep/er/test_a.py::test_it", True),
    ("tests/net", "tests/net/deep/test_a.py::test_it", True),
    ("tests/net/", "tests/net/test_a.py::test_it", True),
    ("tests/net/**", "tests/network/test_a.py::test_it", False),
    ("tests/net/**", "other/tests/net/test_a.py::test_it", False),
    ("**/net", "other/tests/net/test_a.py::test_it", True),
    ("**/net", "net/test_a.py::test_it", True),
    ("tests/*/test_?.py", "tests/net/test_a.py::test_it", True),
    ("tests/*/test_?.py", "tests/net/deep/test_a.py::test_it", False),
    ("tests/*/test_?.py", "tests/net/test_ab.py::test_it", False),
    ("test_a.py", "test_a.py::TestIt::test_it[a::b/c]", True),
    ("test_a+.py", "test_aa.py::test_it", False),
]
WRONG = [
    ("tests/net/**", "is not PATTERN: WORDS, as in tests/net/**: resources=fd,thread max_time=15"),
    (": off", "is not PATTERN: WORDS, as in tests/net/**: resources=fd,thread max_time=15"),
    ("a:", "is not PATTERN: WORDS, as in tests/net/**: resources=fd,thread max_time=15"),
    (
        "a: max_tim=3",
        "'max_tim' is not one of off, resources, iterations, warmup, max_time, min_time, run, unclosed, isolate,",
    ),
    ("a: max_tim=3", "Did you mean 'max_time'?"),
    ("a: max_time", "'max_time' needs a value: write max_time=S"),
    ("a: isolate=yes", "'isolate=yes' takes no value: write isolate"),
    ("a: max_time=0", "max_time=0: must be a number of seconds above 0"),
    ("a: warmup=many", "warmup=many: must be a whole number from 1 to 100,000"),
    ("a: resources=fds", "resources=fds: 'fds' is not one of countable, memory, fd,"),
    ("a: unclosed=no", "unclosed=no: must be one of warn, fail, allow"),
]


def given(*rules: str, **command_line: object) -> Settings:
    flags = {f"leakcheck_{name}": value for name, value in command_line.items()}
    return resolve(flags, {"leakcheck_rules": list(rules), "leakcheck_max_time": 20.0}, "pytest.ini")


@pytest.mark.parametrize(("pattern", "test", "matches"), MATCHING)
def test_a_pattern_is_for_files_below_the_root_directory(pattern: str, test: str, matches: bool) -> None:
    (rule,) = parse_rules((f"{pattern}: off",))
    assert rule.matches(test) is matches


@pytest.mark.parametrize(("line", "wrong"), WRONG)
def test_a_wrong_line_is_quoted_with_what_is_valid(line: str, wrong: str) -> None:
    with pytest.raises(InputError) as raised:
        parse_rules(("fine: off", line))
    assert str(raised.value).startswith(f"leakcheck_rules = {line!r}: ")
    assert wrong in str(raised.value)


def test_the_first_that_matches_overrides_the_file_but_not_the_command_line() -> None:
    settings = given("a/b: isolate max_time=5 resources=fd,thread unclosed=fail", "a: max_time=7 warmup=9", max_time=3)
    changed = for_test(settings, "a/b/test_it.py::test_it")
    assert (changed.isolate, changed.resources, changed.unclosed, changed.warmup) == (True, ("fd", "thread"), "fail", 3)
    assert changed.max_time == 3.0
    assert not changed.from_command_line("isolate")
    assert for_test(given("a: max_time=7"), "a/test_it.py::test_it").max_time == 7.0
    assert for_test(settings, "c/test_it.py::test_it") is settings


def test_rules_for_no_file_are_listed() -> None:
    assert unused(given("a: off", "b: off"), ["a/test_it.py::test_it"]) == ("b",)
