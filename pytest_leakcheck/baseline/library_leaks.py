"""Match a finding with known leaks of installed packages and of CPython.

They are those of ``known_libraries.json``, and the user's own. The file is read, and versions are
compared, only when a finding has to be matched.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version
from typing import ClassVar, Final

from pytest_leakcheck.model import InputError
from pytest_leakcheck.model.culprit import (
    Culprit,
    library_lines,
    own_owner,
    short_file,
    standard_lines,
)
from pytest_leakcheck.model.decoding import decode
from pytest_leakcheck.model.finding import Finding

PATH: Final = Path(__file__).with_name("known_libraries.json")
# The package of an entry on CPython itself.
INTERPRETER: Final = "python"
_OPTION: Final = "leakcheck_library"
_EXAMPLE: Final = "click<9: click._compat._default_text_stdout"


@dataclass(frozen=True, slots=True)
class LibraryLeak:
    """One known leak of an installed package, or of CPython: of the package ``python``.

    Attributes:
        versions: A version specifier (PEP 440): the releases that leak. Of CPython, there is one
            for each series of releases that leak, separated by ``|``; what each is below is a
            release that fixes the leak.
        text: What leaks, in one sentence without a full stop.
        name: Also that of the reproduction in ``ci/library_leaks``; empty for a user's line.
        resources: The resources that grow; empty for any.
        owner: A pattern of the object that retains the growth, for findings that name it. It also
            fits what this object contains. ``*`` stands for any characters. Empty if nothing in
            Python retains it.
        site: A pattern of a line of the package on the call path, as ``file:function``, for
            findings without an owner, or with one that any code may add to, such as
            ``os.register_at_fork``. Of CPython, it is a line of the standard library that runs no
            other code. Empty if the owner is always found.
    """

    SPARSE: ClassVar = True

    package: str
    versions: str
    text: str
    name: str = ""
    resources: tuple[str, ...] = ()
    owner: str = ""
    site: str = ""
    link: str = ""

    def __str__(self) -> str:
        return f"{self.text} ({self.link})" if self.link else self.text


@dataclass(frozen=True, slots=True)
class LibraryLeaks:
    """The content of ``known_libraries.json``."""

    SCHEMA: ClassVar[int] = 1

    leaks: tuple[LibraryLeak, ...]


@lru_cache(maxsize=1)
def read_shipped() -> tuple[LibraryLeak, ...]:
    """Return the leaks that this release of pytest-leakcheck knows."""
    return decode(LibraryLeaks, json.loads(PATH.read_text(encoding="utf-8"))).leaks


@lru_cache(maxsize=4)
def parse_lines(lines: tuple[str, ...], source: str = "configuration") -> tuple[LibraryLeak, ...]:
    """Parse ``REQUIREMENT: OWNER`` lines of ``leakcheck_library``, or raise `InputError`."""
    return tuple(_parse_line(line, f"{_OPTION} = {line!r} ({source})") for line in lines)


def find_library_leak(finding: Finding, lines: tuple[str, ...]) -> LibraryLeak | None:
    """Find the known leak behind the worst verdict; valid ``leakcheck_library`` lines go first."""
    culprit, resource = finding.culprit, finding.verdict.resource
    if culprit is None:
        return None
    leaks = (*parse_lines(lines), *read_shipped())
    found = next(
        (leak for leak in leaks if fits(leak, resource, culprit) and is_installed(leak)), None
    )
    return (
        replace(found, text=f"{found.text}; {fixed}")
        if found and (fixed := _say_what_fixes(found))
        else found
    )


def fits(leak: LibraryLeak, resource: str, culprit: Culprit) -> bool:
    """Return whether a leak may cause a resource's growth, whatever release is installed."""
    if leak.resources and resource not in leak.resources:
        return False
    # After a name comes what it contains: ".data", "['key']" or " closure cell 'cache'".
    if (
        culprit.owner is not None
        and leak.owner
        and re.match(rf"{_to_regex(leak.owner)}(?!\w)", culprit.owner.name)
    ):
        return True
    if own_owner(culprit) is not None:
        return False
    # If there was no time to find the owner, it may be in the project, which would be a leak of its
    # own.
    if not leak.site or culprit.ran_out_of_time:
        return False
    if leak.package == INTERPRETER:
        sites = standard_lines(culprit)
    else:
        sites = tuple(f"{short_file(line.file)}:{line.function}" for line in library_lines(culprit))
    return any(re.fullmatch(_to_regex(leak.site), site) for site in sites)


def is_installed(leak: LibraryLeak) -> bool:
    """Return whether a release that leaks is installed here."""
    if leak.package == INTERPRETER:
        return (
            sys.implementation.name == "cpython" and find_range(leak, python_version()) is not None
        )
    try:
        return find_range(leak, version(leak.package)) is not None
    except PackageNotFoundError:
        return False


def find_range(leak: LibraryLeak, release: str) -> str | None:
    """Return the specifier that contains a release; None if that release does not leak."""
    # pytest itself requires this package.
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion

    series = leak.versions.split("|")
    try:
        return next(
            (one for one in series if SpecifierSet(one).contains(release, prereleases=True)), None
        )
    except InvalidVersion:
        # Its version is not of PEP 440's form, so it cannot be compared with an entry.
        return None


def _say_what_fixes(leak: LibraryLeak) -> str:
    """Return which release of CPython fixes a shipped leak; empty for any other package."""
    if leak.package != INTERPRETER or not leak.name:
        return ""
    here = python_version()
    fixed, series = str(find_range(leak, here)).rpartition("<")[2].strip(), here.rpartition(".")[0]
    return f"CPython {fixed} fixes it" + (
        "" if fixed.startswith(f"{series}.") else f", no {series} does"
    )


def _to_regex(pattern: str) -> str:
    return ".*".join(map(re.escape, pattern.split("*")))


def _parse_line(line: str, shown: str) -> LibraryLeak:
    # pytest itself requires this package.
    from packaging.requirements import InvalidRequirement, Requirement

    given, colon, owner = (part.strip() for part in line.partition(":"))
    if not (given and colon and owner):
        raise InputError(f"{shown}: is not REQUIREMENT: OWNER: write {_EXAMPLE}")
    try:
        wanted = Requirement(given)
    except InvalidRequirement:
        raise InputError(
            f"{shown}: {given!r} is not a package with its versions: write {_EXAMPLE}"
        ) from None
    if wanted.extras or wanted.marker or wanted.url:
        raise InputError(
            f"{shown}: {given!r} has more than a package and its versions, which nothing would read: write {_EXAMPLE}"
        )
    if not owner.strip("*. "):
        raise InputError(
            f"{shown}: {owner!r} fits every owner: write that of the finding, as in {_EXAMPLE}"
        )
    return LibraryLeak(
        wanted.name, str(wanted.specifier), f"{given}: {owner}", owner=owner, link=_OPTION
    )
