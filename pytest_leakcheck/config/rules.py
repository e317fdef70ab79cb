"""Resolve the settings of one test by the lines of ``leakcheck_rules``: the first whose pattern matches its file.

A line is ``PATTERN: WORDS``, for example ``tests/net/**: resources=fd,thread max_time=15``. A word is ``off``, which
leaves the files out of ``--leakcheck-scope=all``, or an option of `settings.OPTIONS` by its key without the prefix. A
rule overrides the configuration; marks and the command line override a rule.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from pytest_leakcheck.config.budget import did_you_mean
from pytest_leakcheck.config.settings import NUMBERS, OPTIONS, Settings, check_value, split_words
from pytest_leakcheck.model import InputError, invalid_at

# The options that may differ between the tests of a session.
_KEYS: Final = ("resources", *NUMBERS, "unclosed", "isolate", "ceiling", "scope")
# Words without a value, with what they set.
_WORDS: Final[Mapping[str, tuple[str, Any]]] = MappingProxyType({"off": ("scope", "off"), "isolate": ("isolate", True)})
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
    """Parse the lines of ``leakcheck_rules``, or raise `InputError`."""
    return tuple(_parse_rule(line) for line in lines)


def for_test(settings: Settings, test: str) -> Settings:
    """Return the settings of a test: those of the session, changed by the first rule that matches its node id."""
    if not settings.rules:
        return settings
    given: Mapping[str, Any] = next((one.values for one in parse_rules(settings.rules) if one.matches(test)), {})
    values = {name: value for name, value in given.items() if not settings.from_command_line(name)}
    return settings.changed(values, _SOURCE) if values else settings


def unused(settings: Settings, tests: Collection[str]) -> tuple[str, ...]:
    """Return the patterns that match none of these node ids."""
    rules = parse_rules(settings.rules)
    return tuple(one.pattern for one in rules if not any(one.matches(test) for test in tests))


def _parse_rule(line: str) -> Rule:
    pattern, _, words = map(str.strip, line.partition(":"))
    with invalid_at(f"{_SOURCE} = {line!r}"):
        if not pattern or not words:
            raise InputError("is not PATTERN: WORDS, as in tests/net/**: resources=fd,thread max_time=15")
        values = dict(map(_parse_word, words.split()))
    # In a path with a "/" at its end: "*" ends at "/", "**" does not. A folder matches all that it contains.
    parts = (re.escape(one).replace(r"\*", "[^/]*").replace(r"\?", "[^/]") for one in pattern.strip("/").split("/"))
    regex = "".join("(?:[^/]+/)*" if part == "[^/]*[^/]*" else f"{part}/" for part in parts)
    return Rule(pattern, re.compile(regex), MappingProxyType(values))


def _parse_word(word: str) -> tuple[str, Any]:
    name, equals, text = word.partition("=")
    if not equals and name in _WORDS:
        return _WORDS[name]
    if name not in _KEYS:
        valid = ("off", *_KEYS)
        raise InputError(f"{name!r} is not one of {', '.join(valid)}.{did_you_mean(name, valid)}")
    option = next(one for one in OPTIONS if one.field == name)
    if option.kind == "bool":
        raise InputError(f"{word!r} takes no value: write {name}")
    if not text:
        raise InputError(f"{name!r} needs a value: write {name}={option.metavar}")
    value = check_value(option, text, f"{name}={text}")
    return name, split_words(value) if name == "resources" else value
