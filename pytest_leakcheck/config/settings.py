"""Options in, a frozen `Settings` out, each value with the place that it came from.

One table generates the command line, the configuration keys and the documentation. Two laws of precedence:
budgets (the contract) come from markers alone; effort is command line, then marker, then configuration.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from pytest_leakcheck.model.wrong_use import LeakcheckError

Kind: TypeAlias = Literal["bool", "int", "float", "string"]


class SettingError(LeakcheckError, ValueError):
    """An option that cannot be used: ``name = value (source): what is wrong; what is valid``."""


@dataclass(frozen=True, slots=True)
class Option:
    """One row: ``--leakcheck-<name>`` and ``leakcheck_<name>``.

    Attributes:
        name: Without the prefix; empty for ``--leakcheck`` itself.
        kind: The type, also of the configuration key.
        default: What holds where nothing is said.
        metavar: How the value is shown in help.
        help: One sentence, ending with an example where the form is not plain.
        ini: Whether it may stand in the configuration file.
        check: Says what is wrong with a value, or nothing.
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


# As `plan.MOST_ITERATIONS`; a plain run does not import that.
_MOST: Final = 100_000


def _at_least(least: float) -> Callable[[Any], str]:
    return lambda value: "" if value >= least else f"must be at least {least:g}"


def _up_to_most(value: Any) -> str:
    return _at_least(0)(value) or ("" if value <= _MOST else f"must be at most {_MOST:,}")


def _more_than_zero(value: Any) -> str:
    return "" if value > 0 else "must be more than 0"


def _one_of(*words: str) -> Callable[[Any], str]:
    return lambda value: "" if value in words else f"must be one of {', '.join(words)}"


def _outcomes(value: Any) -> str:
    words = ("leak", "over_budget", "unclosed", "inconclusive")
    wrong = [word for word in split_words(value) if word not in (*words, "auto")]
    return f"{wrong[0]!r} is not one of auto, {', '.join(words)}" if wrong else ""


def _packages(value: Any) -> str:
    wrong = [word for word in split_words(value) if not word.isidentifier()]
    return f"{wrong[0]!r} is not the name of a package or module: give top-level names, as imported" if wrong else ""


def _limits(value: Any) -> str:
    if not value:
        return ""
    # Loaded only where it is used: a plain run must stay light.
    from pytest_leakcheck.config.ceiling import CeilingError, read_option

    try:
        read_option(value)
    except CeilingError as error:
        return str(error)
    return ""


def split_words(value: str) -> tuple[str, ...]:
    """Comma-separated words, spaces dropped."""
    return tuple(word.strip() for word in value.split(",") if word.strip())


OPTIONS: Final = (
    Option("", "bool", False, "", "Repeat the tests that carry a budget, and judge what they retain."),
    Option("iterations", "int", 0, "N", "Judged iterations; 0 stops when the verdict is known.", check=_up_to_most),
    Option("warmup", "int", 3, "N", "Iterations before the start that levels are measured from.", check=_up_to_most),
    Option(
        "max-time",
        "float",
        30.0,
        "S",
        "Seconds for all iterations of one test; over an axis, for each step of a size.",
        check=_more_than_zero,
    ),
    Option(
        "isolate", "bool", False, "", "Run each measured test alone in a process of its own, with a quiet allocator."
    ),
    Option(
        "ceiling",
        "string",
        "",
        "LIMITS",
        "Run each measured test under these limits, in a process of its own: what takes hours comes in seconds. "
        "Example: --leakcheck-ceiling=fd=256,rss=1GiB",
        check=_limits,
    ),
    Option(
        "run",
        "int",
        10_000,
        "N",
        "Iterations of the run that a test stands for: growth is read by it.",
        check=_at_least(1),
    ),
    Option(
        "fail-on",
        "string",
        "auto",
        "LIST",
        "What turns a test red: leak,over_budget,unclosed,inconclusive. "
        "'auto' is the first three, and in CI inconclusive where a budget is explicit.",
        check=_outcomes,
    ),
    Option(
        "blame",
        "string",
        "",
        "LIST",
        "Packages: only growth that a frame of one of them has to do with is red, the rest is third-party. "
        "Example: --leakcheck-blame=decode,train",
        check=_packages,
    ),
    Option(
        "vram",
        "string",
        "device",
        "WORD",
        "What vram reads where there is no accelerator: 'device', nothing, so that its budget is unavailable; 'accounted', "
        "what live tensors on the CPU come to.",
        check=_one_of("device", "accounted"),
    ),
    Option(
        "missing",
        "string",
        "skip",
        "WORD",
        "A budget without an instrument here: 'skip' the test with the reason, or 'fail' it.",
        check=_one_of("skip", "fail"),
    ),
    Option(
        "summary",
        "string",
        "failed",
        "WORD",
        "Lines of the summary: 'failed', 'all' or 'none'.",
        check=_one_of("failed", "all", "none"),
    ),
    Option(
        "json",
        "string",
        "",
        "PATH",
        "Write findings and recordings to this file. A regular file is replaced as a whole and keeps its mode, also behind "
        "a symbolic link; a pipe or a device is written to.",
        ini=False,
    ),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """What holds for this session; ``sources`` says for each field where it was set."""

    active: bool = False
    iterations: int = 0
    warmup: int = 3
    max_time: float = 30.0
    isolate: bool = False
    ceiling: str = ""
    run: int = 10_000
    fail_on: tuple[str, ...] = ("leak", "over_budget", "unclosed")
    blame: tuple[str, ...] = ()
    vram: str = "device"
    missing: str = "skip"
    summary: str = "failed"
    json: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)

    def from_command_line(self, name: str) -> bool:
        return self.sources.get(name) == COMMAND_LINE


COMMAND_LINE: Final = "command line"
_DEFAULT: Final = "default"


def resolve(command_line: Mapping[str, Any], configuration: Mapping[str, Any], origin: str) -> Settings:
    """Join command line, configuration and defaults.

    Args:
        command_line: By `Option.key`; None where the flag was not given. Values may be text.
        configuration: By `Option.key`; the value where the key is set. Values are typed by pytest.
        origin: The configuration file, for messages.

    Returns:
        Settings with every value checked.

    Raises:
        SettingError: A value is of the wrong type or out of range.
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
        values[name], sources[name] = _checked(option, value, source), source
    words = split_words(values["fail_on"])
    in_ci = any(os.environ.get(name) for name in ("CI", "BUILD_NUMBER"))
    automatic = ("leak", "over_budget", "unclosed", *(("inconclusive",) if in_ci else ()))
    values["fail_on"] = automatic if "auto" in words else words
    values["blame"] = split_words(values["blame"])
    return Settings(**values, sources=sources)


def _checked(option: Option, value: Any, source: str) -> Any:
    shown = f"{option.flag}={value}" if source == COMMAND_LINE else f"{option.key} = {value!r}"
    try:
        if option.kind == "int":
            value = int(value)
        elif option.kind == "float":
            value = float(value)
    except (TypeError, ValueError):
        raise SettingError(f"{shown} ({source}): expects {_EXPECTED[option.kind]}") from None
    wrong = option.check(value) if option.check else ""
    if wrong:
        raise SettingError(f"{shown} ({source}): {wrong}")
    return value


_EXPECTED: Final = {"int": "a whole number", "float": "a number of seconds"}
