"""Define the options, and resolve their values to a frozen `Settings` that records the source of each value.

The command-line flags, the configuration keys and their documentation are generated from the table `OPTIONS`. No option
sets a budget. For iterations, time, isolation and ceilings (resource limits), the command line overrides markers, and
markers override the configuration file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from pytest_leakcheck.model import LeakcheckError

if TYPE_CHECKING:
    from pytest_leakcheck.config.budget import Unclosed

Kind: TypeAlias = Literal["bool", "int", "float", "string", "linelist"]
# By the type of the default.
_KINDS: Final[dict[type, Kind]] = {bool: "bool", int: "int", float: "float", str: "string", tuple: "linelist"}


class SettingError(LeakcheckError, ValueError):
    """An invalid option value; the message gives the option, the value, its source, and what is valid."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option: the flag ``--leakcheck-<name>`` and the configuration key ``leakcheck_<name>``.

    `written` is the name and what stands for its value; the name is empty for ``--leakcheck`` itself. The help ends with
    an example if the format is not obvious. The option can be set in the configuration file if `ini`, and on the command
    line if `flagged`. `check` returns what is wrong with a value; empty if it is valid.
    """

    written: str
    default: Any
    help: str
    ini: bool = True
    flagged: bool = True
    check: Callable[[Any], str] | None = None

    @property
    def name(self) -> str:
        return self.written.partition(" ")[0]

    @property
    def metavar(self) -> str:
        return self.written.partition(" ")[2]

    @property
    def kind(self) -> Kind:
        return _KINDS[type(self.default)]

    @property
    def flag(self) -> str:
        return f"--leakcheck-{self.name}" if self.name else "--leakcheck"

    @property
    def key(self) -> str:
        return f"leakcheck_{self.name.replace('-', '_')}" if self.name else "leakcheck"


# The words of ``--leakcheck-resources`` that stand for several resources.
GROUPS: Final = ("countable", "memory")
# The effort of a test where nothing else is set: iterations before the start level is read, seconds, and iterations of
# the production run.
WARMUP: Final = 3
MAX_TIME: Final = 30.0
MIN_TIME: Final = 3.0
RUN: Final = 10_000
# The maximum number of iterations that a user can set. The readings of each resource are stored in a column, which is
# allocated in advance. Each column takes 8 bytes per iteration; at this maximum, all columns take about 10 MB together.
MOST_ITERATIONS: Final = 100_000


def _at_least(least: float) -> Callable[[Any], str]:
    return lambda value: "" if value >= least else f"must be at least {least:g}"


def _check_iterations(value: Any) -> str:
    return _at_least(0)(value) or ("" if value <= MOST_ITERATIONS else f"must be at most {MOST_ITERATIONS:,}")


def _check_warmup(value: Any) -> str:
    wrong = "must be at least 1: the first iteration loads what later ones use, so it cannot be judged"
    return _check_iterations(value) if value >= 1 else wrong


def _check_positive(value: Any) -> str:
    return "" if value > 0 else "must be more than 0"


def _one_of(*words: str) -> Callable[[Any], str]:
    return lambda value: "" if value in words else f"must be one of {', '.join(words)}"


def _check_outcomes(value: Any) -> str:
    words = ("leak", "over_budget", "unclosed", "inconclusive", "nothing")
    given = split_words(value)
    wrong = [word for word in given if word not in (*words, "auto", "none")]
    if wrong:
        return f"{wrong[0]!r} is not one of auto, none, {', '.join(words)}"
    return "'none' cannot be combined with other words" if "none" in given and len(given) > 1 else ""


def _check_resources(value: Any) -> str:
    given = split_words(value)
    if not given:
        return "names no resource: write countable,memory for all that are judged by default"
    if set(given) <= set(GROUPS):
        return ""
    # Imported only if a resource is named, to keep other runs fast.
    from pytest_leakcheck.model.resources import RESOURCES

    wrong = [word for word in given if word not in GROUPS and word not in RESOURCES]
    return f"{wrong[0]!r} is not one of {', '.join((*GROUPS, *RESOURCES))}" if wrong else ""


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


def _parsed_by(parser: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if not value:
            return ""
        # Imported only if such an option is set, to keep other runs fast.
        from pytest_leakcheck.config import sampling

        try:
            getattr(sampling, parser)(value)
        except sampling.SamplingError as error:
            return str(error)
        return ""

    return check


def split_words(value: str) -> tuple[str, ...]:
    """Split a comma-separated list; surrounding spaces and empty words are dropped."""
    return tuple(word.strip() for word in value.split(",") if word.strip())


OPTIONS: Final = (
    Option("", False, "Check the marked tests for leaks, by repeating them."),
    Option(
        "scope WORD",
        "marked",
        "Tests to check: 'marked', or 'all', which also bounds the growth of each test without a mark. "
        "--leakcheck-scope=all needs no --leakcheck.",
        check=_one_of("marked", "all"),
    ),
    Option(
        "resources LIST",
        "countable,memory",
        "Resources whose growth is judged where no mark names any: 'countable' (descriptors, threads, processes, "
        "shared memory, temporary files, tasks), 'memory', or names of resources. Example: "
        "--leakcheck-resources=countable",
        check=_check_resources,
    ),
    Option(
        "cases WORD",
        "all",
        "Cases to check of a parametrised function without a mark: 'all', or 'one', the same in each session.",
        check=_one_of("all", "one"),
    ),
    Option(
        "sample SHARE",
        "",
        "Check a share of the tests, another one each day, or that of a turn; the others run once. Example: "
        "--leakcheck-sample=1/10 or 1/10@7",
        check=_parsed_by("parse_sample"),
    ),
    Option(
        "session-time TIME",
        "",
        "The time for checking tests in this session, or in each xdist worker; tests for which it does not "
        "suffice run once, and come first in the next session. Example: --leakcheck-session-time=10min",
        check=_parsed_by("parse_duration"),
    ),
    Option(
        "iterations N",
        0,
        "Judged iterations per test; 0 stops as soon as the verdict is known.",
        check=_check_iterations,
    ),
    Option("warmup N", WARMUP, "Iterations before the start level is read, at least 1.", check=_check_warmup),
    Option(
        "max-time S",
        MAX_TIME,
        "Seconds for all iterations of one test; with scaling_budget, for each of set-up, body and tear-down at "
        "each size.",
        check=_check_positive,
    ),
    Option(
        "min-time S",
        MIN_TIME,
        "Seconds that must pass before growth of memory is reported as a leak. An undecided test whose iterations "
        "are cheap runs at least this long.",
        check=_at_least(0),
    ),
    Option(
        "isolate",
        False,
        "Run each measured test alone in a separate process, with allocator settings that reduce noise.",
    ),
    Option(
        "ceiling LIMITS",
        "",
        "Run each measured test in a separate process under these limits, so that a leak fails in seconds, not "
        "hours. Example: --leakcheck-ceiling=fd=256,rss=1GiB",
        check=_check_ceiling,
    ),
    Option(
        "run N",
        RUN,
        "Number of iterations in the production run that this test represents; slow growth is judged over that many.",
        check=_at_least(1),
    ),
    Option(
        "fail-on LIST",
        "auto",
        "Outcomes that fail a test: leak,over_budget,unclosed,inconclusive. 'auto' means the first three, and in "
        "CI also inconclusive under an explicit budget; 'none' fails no test. 'nothing' fails a session in which "
        "no test was judged.",
        check=_check_outcomes,
    ),
    Option(
        "unclosed WORD",
        "warn",
        "What to do where only the garbage collector releases a resource that no mark names: 'warn', 'fail' or "
        "'allow'.",
        check=_one_of("warn", "fail", "allow"),
    ),
    Option(
        "rules",
        (),
        "Settings for the tests of a folder, a line each, of which the first that matches is used; 'off' leaves "
        "tests without a mark out. Example: tests/net/**: resources=fd,thread max_time=15",
        flagged=False,
    ),
    Option(
        "blame LIST",
        "",
        "Packages: growth fails a test only if its call path passes through one of them; the rest is third-party. "
        "Example: --leakcheck-blame=decode,train",
        check=_check_packages,
    ),
    Option(
        "library-leaks",
        True,
        "Report known leaks of installed packages, such as those of click 8, but fail no test for them.",
        flagged=False,
    ),
    Option(
        "library",
        (),
        "Further leaks of installed packages: a line each, with the versions that leak and the owner that the "
        "finding names. Example: click<9: click._compat._default_text_stdout",
        flagged=False,
    ),
    Option(
        "baseline PATH",
        "",
        "The file of known leaks, which fail no test as long as they do not grow, or a JSON report of an earlier "
        "session. Without it, leakcheck-baseline.json beside the configuration file is used if it exists.",
    ),
    Option("no-baseline", False, "Ignore the file of known leaks.", ini=False),
    Option("baseline-strict", False, "Fail the session if a leak of the file is fixed, so that its entry is removed."),
    Option(
        "update-baseline",
        False,
        "Write the leaks of this session to the file of known leaks, and drop those that are fixed.",
        ini=False,
    ),
    Option(
        "prune-baseline",
        False,
        "As --leakcheck-update-baseline, and drop tests that no longer exist; needs the whole suite.",
        ini=False,
    ),
    Option("force-update", False, "Allow the file of known leaks to be written in CI.", ini=False),
    Option(
        "vram WORD",
        "device",
        "VRAM source on machines without an accelerator: 'device' (unavailable) or 'accounted' (live CPU tensors).",
        check=_one_of("device", "accounted"),
    ),
    Option(
        "missing WORD",
        "skip",
        "What to do if a budget's resource cannot be read here: 'skip' the test with the reason, or 'fail' it.",
        check=_one_of("skip", "fail"),
    ),
    Option(
        "summary WORD",
        "failed",
        "Findings listed in the summary: 'failed' (all that are not ok), 'all' or 'none'.",
        check=_one_of("failed", "all", "none"),
    ),
    Option(
        "json PATH",
        "",
        "Write each finding with its recording to this file as it is made, one JSON object per line. An earlier file "
        "is overwritten when the session starts.",
        ini=False,
    ),
    Option(
        "json-readings WORD",
        "failed",
        "Findings whose readings the file of --leakcheck-json holds: 'failed' (all that are not ok) or 'all'.",
        check=_one_of("failed", "all"),
    ),
    Option(
        "html PATH",
        "",
        "Write an HTML page of all findings to this file at the end of the session. It loads nothing from the network.",
        ini=False,
    ),
    Option(
        "source",
        True,
        "Show the lines of source around a leak on the page; turn it off for pages that are published.",
        flagged=False,
    ),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The resolved settings of a session; ``sources`` maps each other field to the place where its value was set."""

    active: bool
    scope: str
    resources: tuple[str, ...]
    cases: str
    sample: str
    session_time: str
    iterations: int
    warmup: int
    max_time: float
    min_time: float
    isolate: bool
    ceiling: str
    run: int
    fail_on: tuple[str, ...]
    unclosed: Unclosed
    rules: tuple[str, ...]
    blame: tuple[str, ...]
    library_leaks: bool
    library: tuple[str, ...]
    baseline: str
    no_baseline: bool
    baseline_strict: bool
    update_baseline: bool
    prune_baseline: bool
    force_update: bool
    vram: str
    missing: str
    summary: str
    json: str
    json_readings: str
    html: str
    source: bool
    sources: Mapping[str, str]

    def from_command_line(self, name: str) -> bool:
        return self.sources.get(name) == COMMAND_LINE


COMMAND_LINE: Final = "command line"
_DEFAULT: Final = "default"


def resolve(command_line: Mapping[str, Any], configuration: Mapping[str, Any], origin: str) -> Settings:
    """Resolve and check each option from the command line, the configuration or its default, or raise `SettingError`.

    Values are by `Option.key`. Those of the command line may be text, or None if the flag was not given; pytest has
    converted those of the configuration to the type of the option. `origin` is the name of the configuration file.
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
        values[name], sources[name] = check_value(option, value, _shown(option, value, source)), source
    words = split_words(values["fail_on"])
    in_ci = any(os.environ.get(name) for name in ("CI", "BUILD_NUMBER"))
    automatic = ("leak", "over_budget", "unclosed", *(("inconclusive",) if in_ci else ()))
    if "auto" in words:
        words = (*automatic, *(word for word in words if word not in ("auto", *automatic)))
    values["fail_on"] = () if "none" in words else words
    values["resources"] = split_words(values["resources"])
    values["active"] |= values["scope"] == "all" and sources["scope"] == COMMAND_LINE
    values["blame"] = split_words(values["blame"])
    values["rules"], values["library"] = tuple(values["rules"]), tuple(values["library"])
    return Settings(**values, sources=sources)


def _shown(option: Option, value: Any, source: str) -> str:
    """Return an option as it was written, and where."""
    written = f"{option.flag}={value}" if source == COMMAND_LINE else f"{option.key} = {value!r}"
    return f"{written} ({source})"


def check_value(option: Option, value: Any, shown: str) -> Any:
    """Return a value, possibly given as text, as the type of the option; `shown` is the option as it was written.

    Raises:
        SettingError: The value is of the wrong type, out of range, or not one of the valid words.
    """
    try:
        if option.kind == "int":
            value = int(value)
        elif option.kind == "float":
            value = float(value)
    except (TypeError, ValueError):
        raise SettingError(f"{shown}: expects {_EXPECTED_TYPES[option.kind]}") from None
    wrong = option.check(value) if option.check else ""
    if wrong:
        raise SettingError(f"{shown}: {wrong}")
    return value


_EXPECTED_TYPES: Final = {"int": "a whole number", "float": "a number of seconds"}
