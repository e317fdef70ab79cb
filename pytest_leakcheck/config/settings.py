"""Define options, and resolve their values to `Settings`, which record the source of each value.

Flags, configuration keys and their documentation are generated from `OPTIONS`. No option sets a
budget. For iterations, time, isolation and ceilings (resource limits), the command line overrides
markers, and markers override the configuration file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from math import inf, ulp
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from pytest_leakcheck.model import InputError, invalid_at

if TYPE_CHECKING:
    from pytest_leakcheck.config.budget import Unclosed

_Kind: TypeAlias = Literal["bool", "int", "float", "string", "linelist"]
_KINDS: Final[dict[type, _Kind]] = {
    bool: "bool",
    int: "int",
    float: "float",
    str: "string",
    tuple: "linelist",
}


# Neither class here is a dataclass, which takes milliseconds to make: a run without ``--leakcheck``
# reads this module.
class Option:
    """One option: the flag ``--leakcheck-<name>`` and the configuration key ``leakcheck_<name>``.

    It is `written` as its name and its metavar; the name is empty for ``--leakcheck`` itself. The
    help ends with an example if the format is not obvious. `check` raises `InputError` if a value
    is invalid. `field` is the name of the value in `Settings`.
    """

    def __init__(
        self,
        written: str,
        default: Any,
        help_text: str,
        only: Literal["", "file", "flag"] = "",
        check: Callable[[Any], object] | None = None,
    ) -> None:
        name, _, self.metavar = written.partition(" ")
        self.default, self.help, self.check = default, help_text, check
        # Whether it can be set in the configuration file, and on the command line.
        self.ini, self.flagged = only != "flag", only != "file"
        self.kind: _Kind = _KINDS[type(default)]
        self.flag = f"--leakcheck-{name}" if name else "--leakcheck"
        self.field = name.replace("-", "_") or "active"
        self.key = f"leakcheck_{self.field}" if name else "leakcheck"


OPTIONS: Final[list[Option]] = []
# The mark of a test that runs at several sizes, which it takes as an argument;
# `config.scaling_marker` parses the mark.
SCALING: Final = "scaling_budget"
# The words of ``--leakcheck-resources`` that stand for several resources.
GROUPS: Final = ("countable", "memory")
# Defaults of the effort: iterations of warm-up, the most seconds, the least seconds before growth
# counts, and iterations of the production run.
WARMUP: Final = 3
MAX_TIME: Final = 30.0
MIN_TIME: Final = 3.0
RUN: Final = 10_000
# The word of ``--leakcheck-failures`` that stands for the default list of functions.
ALL_FAILURES: Final = "all"
_COMMAND_LINE: Final = "command line"
# The maximum number of iterations that a user can set. The readings of each resource are stored in
# a column, which is allocated in advance. Each column takes 8 bytes per iteration; at this maximum,
# all columns take about 10 MB together.
MOST_ITERATIONS: Final = 100_000
# The least and the most of each number that can be set, and the valid ones in words.
NUMBERS: Final[Mapping[str, tuple[float, float, str]]] = {
    "iterations": (0, MOST_ITERATIONS, f"a whole number from 0 to {MOST_ITERATIONS:,}"),
    "warmup": (1, MOST_ITERATIONS, f"a whole number from 1 to {MOST_ITERATIONS:,}"),
    "max_time": (ulp(0.0), inf, "a number of seconds above 0"),
    "min_time": (0.0, inf, "a number of seconds from 0"),
    "run": (1, inf, "a whole number from 1"),
}


def check_number(name: str, value: object) -> None:
    """Raise `InputError` if a value of `NUMBERS` is out of range or of the wrong type."""
    least, most, valid = NUMBERS[name]
    kinds = int if isinstance(least, int) else (int, float)
    if not isinstance(value, kinds) or isinstance(value, bool) or not least <= value <= most:
        raise InputError(f"must be {valid}")


def _one_of(*words: str) -> Callable[[Any], None]:
    def check(value: Any) -> None:
        if value not in words:
            raise InputError(f"must be one of {', '.join(words)}")

    return check


def _check_words(words: Iterable[str], valid: Collection[str]) -> None:
    for word in words:
        if word not in valid:
            raise InputError(f"{word!r} is not one of {', '.join(valid)}")


def _check_outcomes(value: Any) -> None:
    words = split_words(value)
    _check_words(
        words, ("auto", "none", "leak", "over_budget", "unclosed", "inconclusive", "nothing")
    )
    if "none" in words and len(words) > 1:
        raise InputError("'none' cannot be combined with other words")


def _check_resources(value: Any) -> None:
    words = split_words(value)
    if not words:
        raise InputError(
            "names no resource: write countable,memory for all that are judged by default"
        )
    if not set(words) <= set(GROUPS):
        # Imported only if a resource is named, to keep other runs fast.
        from pytest_leakcheck.model.resources import RESOURCES

        _check_words(words, (*GROUPS, *RESOURCES))


def _check_packages(value: Any) -> None:
    for word in split_words(value):
        if not word.isidentifier():
            raise InputError(
                f"{word!r} is not the name of a package or module: give top-level names, as imported"
            )


def parse_failures(value: object) -> tuple[str, ...]:
    """Return the names of functions and modules whose calls are to raise, or raise `InputError`."""
    words = (ALL_FAILURES,) if value is True else () if value is False else value
    valid = "write True for the default list, or names such as os.open or shop.client"
    if not isinstance(words, (list, tuple)):
        raise InputError(f"failures={value!r} is not a list of names: {valid}")
    for word in words:
        if not isinstance(word, str) or not all(part.isidentifier() for part in word.split(".")):
            raise InputError(f"{word!r} is not the name of a function or module: {valid}")
    return tuple(words)


def _check_failures(value: Any) -> None:
    parse_failures(split_words(value))


def _parsed_by(module: str, parser: str) -> Callable[[Any], None]:
    def check(value: Any) -> None:
        # Imported only if such an option is set, to keep other runs fast.
        if value:
            getattr(import_module(f"pytest_leakcheck.config.{module}"), parser)(value)

    return check


def split_words(value: str) -> tuple[str, ...]:
    """Split a comma-separated list; surrounding spaces and empty words are dropped."""
    return tuple(word.strip() for word in value.split(",") if word.strip())


def _option(written: str, default: Any, help_text: str, **others: Any) -> Any:
    OPTIONS.append(Option(written, default, help_text, **others))
    return default


class Settings:
    """The resolved values of a session; ``sources`` maps each to the place where it was set.

    The body of the class is the table of the options, with their defaults as users write them.
    """

    active: bool = _option("", False, "Check the marked tests for leaks, by repeating them.")
    scope: str = _option(
        "scope WORD",
        "marked",
        "Tests to check: 'marked', or 'all', which also bounds the growth of each test without a mark. "
        "--leakcheck-scope=all needs no --leakcheck.",
        check=_one_of("marked", "all"),
    )
    resources: tuple[str, ...] = _option(
        "resources LIST",
        "countable,memory",
        "Resources whose growth is judged where no mark names any: 'countable' (descriptors, threads, processes, "
        "shared memory, temporary files, tasks, what Ray keeps), 'memory', or names of resources. Example: "
        "--leakcheck-resources=countable",
        check=_check_resources,
    )
    cases: str = _option(
        "cases WORD",
        "all",
        "Cases to check of a parametrised function without a mark: 'all', or 'one', the same in each session.",
        check=_one_of("all", "one"),
    )
    sample: str = _option(
        "sample SHARE",
        "",
        "Check a share of the tests, another one each day, or that of a turn; the others run once. Example: "
        "--leakcheck-sample=1/10 or 1/10@7",
        check=_parsed_by("sampling", "parse_sample"),
    )
    session_time: str = _option(
        "session-time TIME",
        "",
        "The time for checking tests in this session, or in each xdist worker; tests for which it does not "
        "suffice run once, and come first in the next session. Example: --leakcheck-session-time=10min",
        check=_parsed_by("sampling", "parse_duration"),
    )
    iterations: int = _option(
        "iterations N", 0, "Judged iterations per test; 0 stops as soon as the verdict is known."
    )
    warmup: int = _option(
        "warmup N", WARMUP, "Iterations before the start level is read, at least 1."
    )
    max_time: float = _option(
        "max-time S",
        MAX_TIME,
        "Seconds for all iterations of one test; the default is extended to 180 for slow ones under a budget of memory. "
        "With scaling_budget, for each of set-up, body and tear-down at each size.",
    )
    min_time: float = _option(
        "min-time S",
        MIN_TIME,
        "Seconds that must pass before growth is reported as a leak, because a pool or a cache may become full. An "
        "undecided test whose iterations are cheap runs at least this long.",
    )
    isolate: bool = _option(
        "isolate",
        False,
        "Run each measured test alone in a separate process, with allocator settings that reduce noise.",
    )
    ceiling: str = _option(
        "ceiling LIMITS",
        "",
        "Run each measured test in a separate process under these limits, so that a leak fails in seconds, not "
        "hours. Example: --leakcheck-ceiling=fd=256,rss=1GiB",
        check=_parsed_by("budget", "parse_ceiling"),
    )
    failures: tuple[str, ...] = _option(
        "failures LIST",
        "",
        "Functions, or modules for all of theirs, whose calls raise in turn: each such failing path of a checked test is "
        "judged too. 'all' stands for a list of those that open, write, connect, start or parse. Example: "
        "--leakcheck-failures=os.open,shop.client",
        check=_check_failures,
    )
    run: int = _option(
        "run N",
        RUN,
        "Number of iterations in the production run that this test represents; slow growth is judged over that many.",
    )
    fail_on: tuple[str, ...] = _option(
        "fail-on LIST",
        "auto",
        "Outcomes that fail a test: leak,over_budget,unclosed,inconclusive. 'auto' means the first three, and in "
        "CI also inconclusive under an explicit budget; 'none' fails no test. 'nothing' fails a session in which "
        "no test was judged.",
        check=_check_outcomes,
    )
    unclosed: Unclosed = _option(
        "unclosed WORD",
        "warn",
        "What to do where only the garbage collector releases a resource that no mark names: 'warn', 'fail' or "
        "'allow'.",
        check=_one_of("warn", "fail", "allow"),
    )
    rules: tuple[str, ...] = _option(
        "rules",
        (),
        "Settings for the tests of a folder, a line each, of which the first that matches is used; 'off' leaves "
        "tests without a mark out. Example: tests/net/**: resources=fd,thread max_time=15",
        only="file",
    )
    blame: tuple[str, ...] = _option(
        "blame LIST",
        "",
        "Packages: growth fails a test only if its call path passes through one of them; the rest is third-party. "
        "Example: --leakcheck-blame=decode,train",
        check=_check_packages,
    )
    library_leaks: bool = _option(
        "library-leaks",
        True,
        "Report known leaks of installed packages and of CPython, such as those of click 8, but fail no test for them.",
        only="file",
    )
    library: tuple[str, ...] = _option(
        "library",
        (),
        "Further leaks of installed packages: a line each, with the versions that leak and the owner that the "
        "finding names. Example: click<9: click._compat._default_text_stdout",
        only="file",
    )
    baseline: str = _option(
        "baseline PATH",
        "",
        "The file of known leaks, which fail no test as long as they do not grow, or a JSON report of an earlier "
        "session. Without it, leakcheck-baseline.json beside the configuration file is used if it exists.",
    )
    no_baseline: bool = _option(
        "no-baseline", False, "Ignore the file of known leaks.", only="flag"
    )
    baseline_strict: bool = _option(
        "baseline-strict",
        False,
        "Fail the session if a leak of the file is fixed, so that its entry is removed.",
    )
    update_baseline: bool = _option(
        "update-baseline",
        False,
        "Write the leaks of this session to the file of known leaks, and drop those that are fixed.",
        only="flag",
    )
    prune_baseline: bool = _option(
        "prune-baseline",
        False,
        "As --leakcheck-update-baseline, and drop tests that no longer exist; needs the whole suite.",
        only="flag",
    )
    force_update: bool = _option(
        "force-update", False, "Allow the file of known leaks to be written in CI.", only="flag"
    )
    vram: str = _option(
        "vram WORD",
        "device",
        "VRAM source on machines without an accelerator: 'device' (unavailable) or 'accounted' (live CPU tensors).",
        check=_one_of("device", "accounted"),
    )
    missing: str = _option(
        "missing WORD",
        "skip",
        "What to do if a budget's resource cannot be read here: 'skip' the test with the reason, or 'fail' it.",
        check=_one_of("skip", "fail"),
    )
    summary: str = _option(
        "summary WORD",
        "failed",
        "Findings listed in the summary: 'failed' (all that are not ok), 'all' or 'none'.",
        check=_one_of("failed", "all", "none"),
    )
    json: str = _option(
        "json PATH",
        "",
        "Write each finding with its recording to this file as it is made, one JSON object per line. An earlier file "
        "is overwritten when the session starts.",
        only="flag",
    )
    json_readings: str = _option(
        "json-readings WORD",
        "failed",
        "Findings whose readings the file of --leakcheck-json holds: 'failed' (all that are not ok) or 'all'.",
        check=_one_of("failed", "all"),
    )
    html: str = _option(
        "html PATH",
        "",
        "Write an HTML page of all findings to this file at the end of the session. It loads nothing from the network.",
        only="flag",
    )
    source: bool = _option(
        "source",
        True,
        "Show the lines of source around a leak on the page; turn it off for pages that are published.",
        only="file",
    )

    def __init__(self, values: Mapping[str, Any], sources: Mapping[str, str]) -> None:
        self.__dict__.update(values)
        self.sources = sources

    def changed(self, values: Mapping[str, Any], source: str) -> Settings:
        """Return these settings with some values replaced, which were set at `source`."""
        return Settings({**vars(self), **values}, {**self.sources, **dict.fromkeys(values, source)})

    def from_command_line(self, name: str) -> bool:
        return self.sources.get(name) == _COMMAND_LINE


def resolve(
    command_line: Mapping[str, Any], configuration: Mapping[str, Any], origin: str
) -> Settings:
    """Resolve and check each option from the command line, the configuration or its default.

    Raise `InputError` if a value is invalid. Values are by `Option.key`. Those of the command line
    may be text, or None if the flag was not given; pytest has converted those of the configuration
    to the type of the option. `origin` is the name of the configuration file.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for option in OPTIONS:
        given = option.key in configuration
        value, source = (
            (configuration[option.key], origin) if given else (option.default, "default")
        )
        written = f"{option.key} = {value!r}"
        if command_line.get(option.key) is not None:
            value, source = command_line[option.key], _COMMAND_LINE
            written = f"{option.flag}={value}"
        values[option.field] = check_value(option, value, f"{written} ({source})")
        sources[option.field] = source
    words = split_words(values["fail_on"])
    in_ci = any(os.environ.get(name) for name in ("CI", "BUILD_NUMBER"))
    automatic = ("leak", "over_budget", "unclosed", *(("inconclusive",) if in_ci else ()))
    if "auto" in words:
        words = (*automatic, *(word for word in words if word not in ("auto", *automatic)))
    values["fail_on"] = () if "none" in words else words
    values["resources"] = split_words(values["resources"])
    values["active"] |= values["scope"] == "all" and sources["scope"] == _COMMAND_LINE
    values["blame"] = split_words(values["blame"])
    values["failures"] = split_words(values["failures"])
    values["rules"], values["library"] = tuple(values["rules"]), tuple(values["library"])
    return Settings(values, sources)


def check_value(option: Option, value: Any, written: str) -> Any:
    """Convert a value, which may be text, to the option's type, or raise `InputError`.

    Errors quote the value as `written`.
    """
    with invalid_at(written):
        if option.kind in ("int", "float"):
            with suppress(TypeError, ValueError):
                value = type(option.default)(value)
            check_number(option.field, value)
        elif option.check:
            option.check(value)
    return value
