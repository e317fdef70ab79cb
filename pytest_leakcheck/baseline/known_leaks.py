"""Define the file of known leaks, ``leakcheck-baseline.json``, and convert it from and to text.

An entry is one cause. Its keys are sorted, and the entries by their id, so two branches that add different leaks merge
without a conflict, and two updates in a row write the same bytes.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from pytest_leakcheck.model import LeakcheckError
from pytest_leakcheck.model.decoding import DecodeError, decode, encode

# Keys that are written even if they are empty, for people to fill in.
_FOR_PEOPLE: Final = ("reason", "link", "expires")
_CONDITIONS: Final = ("python", "platform")


class BaselineError(LeakcheckError, ValueError):
    """The file of known leaks cannot be used; the message names the file, what is wrong, and what to do."""


@dataclass(frozen=True, slots=True)
class KnownLeak:
    """One cause of known leaks; people write `reason` (why it is not fixed yet), `link` and `expires`.

    Attributes:
        rate: Growth per iteration, in the unit of the resource.
        owner: The object that retains the growth; empty if it was never found.
        site: The line that creates the resource, as file and function; empty if it was never found.
        tests: The tests that reach it, sorted: node ids, or ``file::*`` for all tests of a file.
        seen: The date on which the entry was added.
        expires: The date from which the entry counts no more. Empty: never.
        package: The installed package that creates the resource; empty if it is the project.
        only: Where the entry counts: ``python`` (a version specifier) and ``platform`` (as in ``sys.platform``).
    """

    SPARSE: ClassVar = True

    finding: str
    resource: str
    verdict: str
    rate: float
    owner: str
    site: str
    tests: tuple[str, ...]
    seen: str
    reason: str = ""
    link: str = ""
    expires: str = ""
    package: str = ""
    only: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> frozenset[str]:
        """The finding id, the owner and the site, as far as they are known."""
        return frozenset(filter(None, (self.finding, self.owner, self.site)))

    def lists(self, test: str) -> bool:
        """Return whether the entry names a test, by its id or by its file."""
        return test in self.tests or f"{test.partition('::')[0]}::*" in self.tests


@dataclass(frozen=True, slots=True)
class Baseline:
    """The content of the file."""

    SCHEMA: ClassVar[int] = 1

    known: tuple[KnownLeak, ...] = ()


def read(path: Path) -> Baseline:
    """Read the file; raise `BaselineError` if it cannot be read, is no baseline, or has an invalid entry."""
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
        baseline = decode(Baseline, data)
    except OSError as error:
        raise BaselineError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        what = str(error) if isinstance(error, DecodeError) else f"not JSON: {error}"
        raise BaselineError(f"{path}: {what}. Restore the file, or delete it and write a new one") from None
    for at, leak in enumerate(baseline.known):
        _check(leak, f"{path}: known[{at}]")
    return baseline


def to_text(baseline: Baseline) -> str:
    """Return the text of the file."""
    known = sorted(baseline.known, key=lambda one: one.finding)
    content = {"schema": Baseline.SCHEMA, "known": [dict.fromkeys(_FOR_PEOPLE, "") | encode(leak) for leak in known]}
    return json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _check(leak: KnownLeak, where: str) -> None:
    if leak.expires:
        try:
            dt.date.fromisoformat(leak.expires)
        except ValueError:
            raise BaselineError(f"{where}.expires: {leak.expires!r} is not a date: write 2027-01-31") from None
    unknown = [key for key in leak.only if key not in _CONDITIONS]
    if unknown:
        raise BaselineError(f"{where}.only: {unknown[0]!r} is not one of {', '.join(_CONDITIONS)}")
    if "python" in leak.only:
        # pytest itself requires this package.
        from packaging.specifiers import InvalidSpecifier, SpecifierSet

        try:
            SpecifierSet(leak.only["python"])
        except InvalidSpecifier:
            raise BaselineError(f"{where}.only.python: {leak.only['python']!r} is no version: write >=3.12") from None
