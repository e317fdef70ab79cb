"""Resolve the settings of one test by the lines of ``leakcheck_rules``: the first whose pattern matches its file.

A line is ``PATTERN: WORDS``, for example ``tests/net/**: resources=fd,thread max_time=15``. A word is ``off``, which
leaves the files out of ``--leakcheck-scope=all``, or an option of `settings.OPTIONS` by its key without the prefix. A
rule overrides the configuration; marks and the command line override a rule.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from pytest_leakcheck.config.budget import did_you_mean
from pytest_leakcheck.config.settings import OPTIONS, SettingError, Settings, check_value, split_words

# The options that may differ between the tests of a session.
_KEYS: Final = (
    "resources",
    "iterations",
    "warmup",
    "max_time",
    "min_time",
    "unclosed",
    "isolate",
    "ceiling",
    "run",
    "scope",
)
# Words without a value, with what they set.
_WORDS: Final[Mapping[str, tuple[str, Any]]] = MappingProxyType({"off": ("scope", "off"), "isolate": ("isolate", True)})
_EXAMPLE: Final = "tests/net/**: resources=fd,thread max_time=15"
_SOURCE: Final = "leakcheck_rules"


@dataclass(frozen=True, slots=True)
class Rule:
    """One line; `files` matches the path of a file below the root directory, with ``/`` appended."""

    pattern: str
    files: re.Pattern[str]
    values: Mapping[str, Any]

    def matches(self, test: str) -> bool:
        return self.files.match(f"{test.partition('::')[0]}/") is not None


@lru_cache(maxsize=4)
def parse_rules(lines: tuple[str, ...]) -> tuple[Rule, ...]:
    """Parse the lines of ``leakcheck_rules``.

    Raises:
        SettingError: A line has no pattern or no words, or a word is unknown or has an invalid value.
    """
    return tuple(_parse_rule(line) for line in lines)


def for_test(settings: Settings, test: str) -> Settings:
    """Return the settings of a test: those of the session, changed by the first rule that matches its node id."""
    if not settings.rules:
        return settings
    rule = next((one for one in parse_rules(settings.rules) if one.matches(test)), None)
    if rule is None:
        return settings
    values = {name: value for name, value in rule.values.items() if not settings.from_command_line(name)}
    return replace(settings, **values, sources={**settings.sources, **dict.fromkeys(values, _SOURCE)})


def unused(settings: Settings, tests: Collection[str]) -> tuple[str, ...]:
    """Return the patterns that match none of these node ids."""
    rules = parse_rules(settings.rules)
    return tuple(one.pattern for one in rules if not any(one.matches(test) for test in tests))


def _parse_rule(line: str) -> Rule:
    pattern, colon, words = line.partition(":")
    pattern = pattern.strip()
    if not colon or not pattern or not words.strip():
        raise SettingError(f"{_SOURCE} = {line!r}: is not PATTERN: WORDS, as in {_EXAMPLE}")
    try:
        values = dict(_parse_word(word) for word in words.split())
    except SettingError as error:
        raise SettingError(f"{_SOURCE} = {line!r}: {error}") from None
    return Rule(pattern, re.compile(_to_regex(pattern)), MappingProxyType(values))


def _parse_word(word: str) -> tuple[str, Any]:
    name, equals, text = word.partition("=")
    if not equals and name in _WORDS:
        return _WORDS[name]
    if name not in _KEYS:
        valid = (*(one for one in _WORDS if one not in _KEYS), *_KEYS)
        raise SettingError(f"{name!r} is not one of {', '.join(valid)}.{did_you_mean(name, valid)}")
    option = next(one for one in OPTIONS if one.key == f"leakcheck_{name}")
    if option.kind == "bool":
        raise SettingError(f"{word!r} takes no value: write {name}")
    if not text:
        raise SettingError(f"{name!r} needs a value: write {name}={option.metavar}")
    value = check_value(option, text, f"{name}={text}")
    return name, split_words(value) if name == "resources" else value


def _to_regex(pattern: str) -> str:
    """Return a regular expression for a path, or the folder that contains it: ``*`` ends at ``/``, ``**`` does not."""
    return "".join(_segments(pattern.strip("/").split("/")))


def _segments(segments: Iterable[str]) -> Iterable[str]:
    for segment in segments:
        if segment == "**":
            yield "(?:[^/]+/)*"
        else:
            yield re.sub(r"\\([*?])", lambda match: "[^/]*" if match[1] == "*" else "[^/]", re.escape(segment)) + "/"
