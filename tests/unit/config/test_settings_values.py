from __future__ import annotations

from typing import Any

import pytest

from pytest_leakcheck.config.settings import OPTIONS, Settings, resolve
from pytest_leakcheck.model import InputError


@pytest.fixture(autouse=True)
def _no_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CI", "BUILD_NUMBER"):
        monkeypatch.delenv(name, raising=False)


def resolved(command_line: dict[str, Any] | None = None, configuration: dict[str, Any] | None = None) -> Settings:
    return resolve(command_line or {}, configuration or {}, "pyproject.toml")


def test_nothing_said_gives_the_defaults_and_says_so() -> None:
    found = resolved()
    assert set(found.sources.values()) == {"default"}
    assert (found.warmup, found.max_time, found.resources, found.missing) == (3, 30.0, ("countable", "memory"), "skip")
    assert {option.field for option in OPTIONS} == set(found.sources)


def test_the_command_line_beats_the_configuration_and_that_beats_the_default() -> None:
    configuration = {"leakcheck_warmup": 5, "leakcheck_run": 100}
    found = resolved({"leakcheck_warmup": "7", "leakcheck_iterations": None}, configuration)
    assert (found.warmup, found.run, found.iterations) == (7, 100, 0)
    assert (found.sources["warmup"], found.sources["run"], found.sources["iterations"]) == (
        "command line",
        "pyproject.toml",
        "default",
    )
    assert found.from_command_line("warmup")
    assert not found.from_command_line("run")


def test_values_of_the_command_line_are_text_and_become_numbers() -> None:
    found = resolved({"leakcheck_max_time": "1.5", "leakcheck_iterations": "40", "leakcheck": True})
    assert (found.max_time, found.iterations, found.active) == (1.5, 40, True)


@pytest.mark.parametrize(
    ("text", "outcomes"),
    [
        ("auto", ("leak", "over_budget", "unclosed")),
        ("leak", ("leak",)),
        (" leak, inconclusive,,", ("leak", "inconclusive")),
        ("leak,auto", ("leak", "over_budget", "unclosed")),
        ("auto,inconclusive,nothing", ("leak", "over_budget", "unclosed", "inconclusive", "nothing")),
        ("none", ()),
    ],
)
def test_what_turns_a_test_red(text: str, outcomes: tuple[str, ...]) -> None:
    assert resolved({"leakcheck_fail_on": text}).fail_on == outcomes


def test_scope_all_on_the_command_line_switches_measuring_on() -> None:
    assert resolved({"leakcheck_scope": "all"}).active
    assert not resolved({"leakcheck_scope": "marked"}).active
    assert not resolved(configuration={"leakcheck_scope": "all"}).active
    assert resolved({"leakcheck": True}, {"leakcheck_scope": "all"}).scope == "all"


@pytest.mark.parametrize("variable", ["CI", "BUILD_NUMBER"])
def test_in_ci_inconclusive_is_red_unless_said_otherwise(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "1")
    assert resolved().fail_on == ("leak", "over_budget", "unclosed", "inconclusive")
    assert resolved({"leakcheck_fail_on": "leak"}).fail_on == ("leak",)
    monkeypatch.setenv(variable, "")
    assert "inconclusive" not in resolved().fail_on


ITERATIONS, WARMUP = (f"must be a whole number from {least} to 100,000" for least in (0, 1))
WRONG = [
    *(("leakcheck_iterations", value, ITERATIONS) for value in (-1, "x", "1.5", None)),
    *(("leakcheck_warmup", value, WARMUP) for value in (0, 100_001)),
    *(("leakcheck_max_time", value, "must be a number of seconds above 0") for value in (0, -1.5, "nan", "soon")),
    ("leakcheck_min_time", -1, "must be a number of seconds from 0"),
    ("leakcheck_run", 0, "must be a whole number from 1"),
    (
        "leakcheck_fail_on",
        "leak,bad",
        "'bad' is not one of auto, none, leak, over_budget, unclosed, inconclusive, nothing",
    ),
    ("leakcheck_missing", "x", "must be one of skip, fail"),
    ("leakcheck_cases", "two", "must be one of all, one"),
    ("leakcheck_sample", "1", "expects a share such as 1/10, or 1/10@7 for the seventh turn"),
    ("leakcheck_session_time", "soon", "expects a time above 0 such as 90s, 10min or 1.5h"),
    ("leakcheck_summary", "x", "must be one of failed, all, none"),
    (
        "leakcheck_blame",
        "src/decode",
        "'src/decode' is not the name of a package or module: give top-level names, as imported",
    ),
]


@pytest.mark.parametrize(("key", "value", "wrong"), WRONG)
def test_a_wrong_value_in_the_file_names_key_value_file_and_the_valid_form(key: str, value: Any, wrong: str) -> None:
    with pytest.raises(InputError) as raised:
        resolved(configuration={key: value})
    assert str(raised.value) == f"{key} = {value!r} (pyproject.toml): {wrong}"


@pytest.mark.parametrize(("key", "value", "wrong"), [row for row in WRONG if row[1] is not None])
def test_a_wrong_flag_is_shown_as_it_was_typed(key: str, value: Any, wrong: str) -> None:
    flag = next(option.flag for option in OPTIONS if option.key == key)
    with pytest.raises(InputError) as raised:
        resolved({key: str(value)})
    assert str(raised.value) == f"{flag}={value} (command line): {wrong}"
