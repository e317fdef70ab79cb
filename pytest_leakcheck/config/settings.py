"""Define the options, and resolve their values to a frozen `Settings` that records the source of each value.

The command-line flags, the configuration keys and their documentation are generated from the table `OPTIONS`. No option
sets a budget. For iterations, time, isolation and ceilings (resource limits), the command line overrides markers, and
markers override the configuration file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from pytest_leakcheck.model import LeakcheckError

Kind: TypeAlias = Literal["bool", "int", "float", "string"]


class SettingError(LeakcheckError, ValueError):
    """An invalid option value; the message gives the option, the value, its source, and what is valid."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option: the flag ``--leakcheck-<name>`` and the configuration key ``leakcheck_<name>``.

    Attributes:
        name: The name without the prefix; empty for ``--leakcheck`` itself.
        kind: The type of the value, both of the flag and of the configuration key.
        default: The value if the option is not set.
        metavar: The placeholder for the value in the help.
        help: The help text; ends with an example if the format is not obvious.
        ini: Whether the option can be set in the configuration file.
        check: Returns what is wrong with a value; an empty string if it is valid.
    """

    name: str
    kind: Kind
    default: Any
    metavar: str
    help: str
    ini: bool = True
    check: Callable[[Any], str] | None = None

    @property
    def flag(self) -> str:
        return f"--leakcheck-{self.name}" if self.name else "--leakcheck"

    @property
    def key(self) -> str:
        return f"leakcheck_{self.name.replace('-', '_')}" if self.name else "leakcheck"


# Equal to `plan.MOST_ITERATIONS`, which is not imported here to keep runs without ``--leakcheck`` fast.
_MAX_ITERATIONS: Final = 100_000


def _at_least(least: float) -> Callable[[Any], str]:
    return lambda value: "" if value >= least else f"must be at least {least:g}"


def _check_iterations(value: Any) -> str:
    return _at_least(0)(value) or ("" if value <= _MAX_ITERATIONS else f"must be at most {_MAX_ITERATIONS:,}")


def _check_positive(value: Any) -> str:
    return "" if value > 0 else "must be more than 0"


def _one_of(*words: str) -> Callable[[Any], str]:
    return lambda value: "" if value in words else f"must be one of {', '.join(words)}"


def _check_outcomes(value: Any) -> str:
    words = ("leak", "over_budget", "unclosed", "inconclusive")
    wrong = [word for word in split_words(value) if word not in (*words, "auto")]
    return f"{wrong[0]!r} is not one of auto, {', '.join(words)}" if wrong else ""


def _check_packages(value: Any) -> str:
    wrong = [word for word in split_words(value) if not word.isidentifier()]
    return f"{wrong[0]!r} is not the name of a package or module: give top-level names, as imported" if wrong else ""


def _check_ceiling(value: Any) -> str:
    if not value:
        return ""
    # Imported only if a ceiling is set, to keep other runs fast.
    from pytest_leakcheck.config.ceiling import CeilingError, read_option

    try:
        read_option(value)
    except CeilingError as error:
        return str(error)
    return ""


def split_words(value: str) -> tuple[str, ...]:
    """Split a comma-separated list; surrounding spaces and empty words are dropped."""
    return tuple(word.strip() for word in value.split(",") if word.strip())


OPTIONS: Final = (
    Option("", "bool", False, "", "Check the marked tests for leaks, by repeating them."),
    Option(
        "iterations",
        "int",
        0,
        "N",
        "Judged iterations per test; 0 stops as soon as the verdict is known.",
        check=_check_iterations,
    ),
    Option("warmup", "int", 3, "N", "Iterations before the start level is read.", check=_check_iterations),
    Option(
        "max-time",
        "float",
        30.0,
        "S",
        "Seconds for all iterations of one test; with scaling_budget, for each of set-up, body and tear-down at each size.",
        check=_check_positive,
    ),
    Option(
        "min-time",
        "float",
        3.0,
        "S",
        "Seconds that must pass before growth of memory is reported as a leak. An undecided test whose iterations are cheap "
        "runs at least this long.",
        check=_at_least(0),
    ),
    Option(
        "isolate",
        "bool",
        False,
        "",
        "Run each measured test alone in a separate process, with allocator settings that reduce noise.",
    ),
    Option(
        "ceiling",
        "string",
        "",
        "LIMITS",
        "Run each measured test in a separate process under these limits, so that a leak fails in seconds, not hours. "
        "Example: --leakcheck-ceiling=fd=256,rss=1GiB",
        check=_check_ceiling,
    ),
    Option(
        "run",
        "int",
        10_000,
        "N",
        "Number of iterations in the production run that this test represents; slow growth is judged over that many.",
        check=_at_least(1),
    ),
    Option(
        "fail-on",
        "string",
        "auto",
        "LIST",
        "Outcomes that fail a test: leak,over_budget,unclosed,inconclusive. "
        "'auto' means the first three, and in CI also inconclusive under an explicit budget.",
        check=_check_outcomes,
    ),
    Option(
        "blame",
        "string",
        "",
        "LIST",
        "Packages: growth fails a test only if its call path passes through one of them; the rest is third-party. "
        "Example: --leakcheck-blame=decode,train",
        check=_check_packages,
    ),
    Option(
        "vram",
        "string",
        "device",
        "WORD",
        "VRAM source on machines without an accelerator: 'device' (unavailable) or 'accounted' (live CPU tensors).",
        check=_one_of("device", "accounted"),
    ),
    Option(
        "missing",
        "string",
        "skip",
        "WORD",
        "What to do if a budget's resource cannot be read here: 'skip' the test with the reason, or 'fail' it.",
        check=_one_of("skip", "fail"),
    ),
    Option(
        "summary",
        "string",
        "failed",
        "WORD",
        "Findings listed in the summary: 'failed' (all that are not ok), 'all' or 'none'.",
        check=_one_of("failed", "all", "none"),
    ),
    Option(
        "json",
        "string",
        "",
        "PATH",
        "Write findings and recordings to this file. A regular file is replaced in one step and keeps its mode, also "
        "through a symbolic link; a pipe or a device is written to directly.",
        ini=False,
    ),
    Option(
        "json-readings",
        "string",
        "failed",
        "WORD",
        "Findings whose readings the file of --leakcheck-json holds: 'failed' (all that are not ok) or 'all'.",
        check=_one_of("failed", "all"),
    ),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The resolved settings of a session; ``sources`` maps each other field to the place where its value was set."""

    active: bool = False
    iterations: int = 0
    warmup: int = 3
    max_time: float = 30.0
    min_time: float = 3.0
    isolate: bool = False
    ceiling: str = ""
    run: int = 10_000
    fail_on: tuple[str, ...] = ("leak", "over_budget", "unclosed")
    blame: tuple[str, ...] = ()
    vram: str = "device"
    missing: str = "skip"
    summary: str = "failed"
    json: str = ""
    json_readings: str = "failed"
    sources: Mapping[str, str] = field(default_factory=dict)

    def from_command_line(self, name: str) -> bool:
        return self.sources.get(name) == COMMAND_LINE


COMMAND_LINE: Final = "command line"
_DEFAULT: Final = "default"


def resolve(command_line: Mapping[str, Any], configuration: Mapping[str, Any], origin: str) -> Settings:
    """Resolve each option from the command line, the configuration or its default.

    Args:
        command_line: Values by `Option.key`, possibly as text; None if the flag was not given.
        configuration: Values by `Option.key`, which pytest has converted to the type of the option.
        origin: The name of the configuration file, for messages.

    Returns:
        Settings with every value checked.

    Raises:
        SettingError: A value is of the wrong type, out of range, or not one of the valid words.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for option in OPTIONS:
        value, source = option.default, _DEFAULT
        if command_line.get(option.key) is not None:
            value, source = command_line[option.key], COMMAND_LINE
        elif option.key in configuration:
            value, source = configuration[option.key], origin
        name = option.key.removeprefix("leakcheck").removeprefix("_") or "active"
        values[name], sources[name] = _check_value(option, value, source), source
    words = split_words(values["fail_on"])
    in_ci = any(os.environ.get(name) for name in ("CI", "BUILD_NUMBER"))
    automatic = ("leak", "over_budget", "unclosed", *(("inconclusive",) if in_ci else ()))
    values["fail_on"] = automatic if "auto" in words else words
    values["blame"] = split_words(values["blame"])
    return Settings(**values, sources=sources)


def _check_value(option: Option, value: Any, source: str) -> Any:
    shown = f"{option.flag}={value}" if source == COMMAND_LINE else f"{option.key} = {value!r}"
    try:
        if option.kind == "int":
            value = int(value)
        elif option.kind == "float":
            value = float(value)
    except (TypeError, ValueError):
        raise SettingError(f"{shown} ({source}): expects {_EXPECTED_TYPES[option.kind]}") from None
    wrong = option.check(value) if option.check else ""
    if wrong:
        raise SettingError(f"{shown} ({source}): {wrong}")
    return value


_EXPECTED_TYPES: Final = {"int": "a whole number", "float": "a number of seconds"}
