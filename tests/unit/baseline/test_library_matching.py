"""Known leaks of installed packages: which finding fits which entry, and what a line may be."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import pytest

from pytest_leakcheck.baseline import library_leaks
from pytest_leakcheck.baseline.library_leaks import LibraryLeak, find_library_leak, fits, parse_lines
from pytest_leakcheck.model import InputError
from pytest_leakcheck.model.culprit import CreationPath, Culprit, Owner, Site, library_lines, standard_lines
from pytest_leakcheck.model.finding import Finding, Verdict
from pytest_leakcheck.model.recording import Recording

TEST = Site("/project/tests/test_it.py", 9, "test_reads", "read()")
OPEN = Site("/venv/lib/python3.12/site-packages/lib/files.py", 70, "File.open", "_open()")
STANDARD = Site("/usr/lib/python3.12/os.py", 225, "makedirs", "mkdir()")
OWNED = LibraryLeak("lib", "<2", "a cache keeps files", owner="lib.CACHE")
SITED = LibraryLeak("lib", "<2", "an opened file stays", resources=("fd",), site="lib/files.py:File.open")
FROZEN = Site("<frozen os>", 225, "makedirs", "mkdir()")
# A leak of CPython, which several series of releases have.
NESTED = Site("/usr/lib/python3.12/xml/etree/ElementTree.py", 9, "iterparse", "open()")
RANGES = ">=3.11,<3.12.7 | >=3.13,<3.13.1"
OF_CPYTHON = LibraryLeak(
    "python", RANGES, "a file stays", "python-x", ("fd",), site="xml/etree/ElementTree.py:iterparse"
)
EXAMPLE = "write click<9: click._compat._default_text_stdout"


def culprit(owner: str = "", *path: Site, has_time: bool = True) -> Culprit:
    return Culprit(
        "fd",
        CreationPath(path, path[0]) if path else None,
        owner=Owner(owner, "module lib", (), "x", 1.0) if owner else None,
        unresolved={} if owner else {"owner": "no container or value grew at this rate"},
        ran_out_of_time=not has_time,
    )


@pytest.mark.parametrize(
    ("pattern", "name", "same"),
    [
        ("lib.CACHE", "lib.CACHE", True),
        ("lib.CACHE", "lib.CACHE.data", True),
        ("lib.CACHE", "lib.CACHE[a str of 3]", True),
        ("lib.stdout", "lib.stdout closure cell 'cache'.data", True),
        ("lib.CACHE", "lib.CACHES", False),
        ("lib.CACHE", "other.lib.CACHE", False),
        ("lib.CACHE", "libxCACHE", False),
        ("lib.std*", "lib.stderr closure cell 'cache'.data", True),
        ("lib.*.data", "lib.CACHE.data", True),
    ],
)
def test_the_pattern_of_an_owner_fits_it_and_what_it_contains(pattern: str, name: str, *, same: bool) -> None:
    assert fits(replace(OWNED, owner=pattern), "fd", culprit(name)) is same


def test_a_line_of_a_package_says_enough_only_if_nothing_in_the_project_holds_the_growth() -> None:
    assert fits(SITED, "fd", culprit("", TEST, OPEN))
    assert fits(SITED, "fd", culprit("", TEST, OPEN, STANDARD))
    assert not fits(SITED, "heap", culprit("", TEST, OPEN))
    assert not fits(SITED, "fd", culprit("", TEST, replace(OPEN, function="File.close")))
    assert not fits(SITED, "fd", culprit("project.FILES", TEST, OPEN))
    # Any code may add to these.
    assert fits(SITED, "fd", culprit("os.register_at_fork", TEST, OPEN))
    assert not fits(SITED, "fd", culprit("os.register_at_fork", TEST))
    assert not fits(SITED, "fd", culprit("", TEST, OPEN, has_time=False))
    # A package that calls back into the project, whose own line leaks.
    assert not fits(SITED, "fd", culprit("", TEST, OPEN, replace(TEST, function="on_open")))
    assert not fits(SITED, "fd", culprit(""))


def test_an_entry_with_both_fits_by_its_owner_or_without_one_by_its_line() -> None:
    both = replace(SITED, owner="lib.CACHE")
    assert fits(both, "fd", culprit("lib.CACHE", TEST))
    assert fits(both, "fd", culprit("", TEST, OPEN))
    assert not fits(both, "fd", culprit("project.FILES", TEST, OPEN))
    assert not fits(both, "fd", culprit("", TEST))


def test_the_lines_of_packages_are_those_that_the_project_called_last() -> None:
    again = replace(OPEN, function="again")
    assert library_lines(culprit("", TEST, OPEN, STANDARD)) == (OPEN,)
    assert library_lines(culprit("", TEST, OPEN, TEST, STANDARD, again)) == (again,)
    assert library_lines(culprit("", TEST)) == library_lines(culprit()) == ()


def test_the_lines_of_the_standard_library_are_those_that_run_no_other_code() -> None:
    assert standard_lines(culprit("", TEST, NESTED)) == ("xml/etree/ElementTree.py:iterparse",)
    assert standard_lines(culprit("", TEST, OPEN, STANDARD, FROZEN)) == ("os.py:makedirs", "<frozen os>:makedirs")
    windows = replace(NESTED, file="C:\\Python312\\Lib\\xml\\etree\\ElementTree.py")
    assert standard_lines(culprit("", windows)) == ("xml/etree/ElementTree.py:iterparse",)
    for called in (TEST, OPEN, replace(TEST, file="/project/iterparse.py")):
        assert standard_lines(culprit("", TEST, NESTED, called)) == ()
    assert standard_lines(culprit()) == ()


def test_a_line_of_the_standard_library_tells_a_leak_of_cpython_as_one_of_a_package_does() -> None:
    assert fits(OF_CPYTHON, "fd", culprit("", TEST, NESTED))
    assert fits(OF_CPYTHON, "fd", culprit("", TEST, OPEN, NESTED))
    assert not fits(OF_CPYTHON, "heap", culprit("", TEST, NESTED))
    assert not fits(OF_CPYTHON, "fd", culprit("", TEST, NESTED, TEST))
    assert not fits(OF_CPYTHON, "fd", culprit("", TEST, NESTED, OPEN))
    # A file of that name in the project, or in a package.
    assert not fits(OF_CPYTHON, "fd", culprit("", replace(NESTED, file="/project/xml/etree/ElementTree.py")))
    package = "/usr/lib/python3.12/site-packages/xml/etree/ElementTree.py"
    assert not fits(OF_CPYTHON, "fd", culprit("", replace(NESTED, file=package)))
    # What the project holds is its own leak, and so may be what there was no time to find.
    assert not fits(OF_CPYTHON, "fd", culprit("project.FILES", TEST, NESTED))
    assert not fits(OF_CPYTHON, "fd", culprit("", TEST, NESTED, has_time=False))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Which distributions there are, by name; nothing is shipped."""
    versions: dict[str, str] = {}

    def version(name: str) -> str:
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(library_leaks, "version", version)
    monkeypatch.setattr(library_leaks, "read_shipped", tuple)
    return versions


def finding(cause: Culprit | None) -> Finding:
    return Finding("t.py::test_it", (Verdict("fd", "leak"),), {}, (), {}, Recording("t.py::test_it", ()), {}, cause)


@pytest.mark.parametrize(
    ("version", "matches"),
    [("1.9", True), ("2.0rc1", False), ("2.0", False), ("1.9.dev3+g12", True), ("unknown", False), ("", False)],
)
def test_only_releases_that_leak_match(installed: dict[str, str], version: str, *, matches: bool) -> None:
    if version:
        installed["lib"] = version
    found = find_library_leak(finding(culprit("lib.CACHE")), ("lib<2: lib.CACHE",))
    assert (found is not None) is matches


@pytest.mark.parametrize(
    ("version", "text"),
    [
        ("3.11.2", "a file stays; CPython 3.12.7 fixes it, no 3.11 does"),
        ("3.12.6", "a file stays; CPython 3.12.7 fixes it"),
        ("3.13.0", "a file stays; CPython 3.13.1 fixes it"),
        ("3.12.7", ""),
        ("3.13.1", ""),
        ("3.14.0", ""),
        # A build between two releases.
        ("3.13.0+", ""),
    ],
)
def test_a_leak_of_cpython_says_which_release_fixes_it(
    installed: dict[str, str], monkeypatch: pytest.MonkeyPatch, version: str, text: str
) -> None:
    # No distribution of that name counts.
    installed["python"] = "3.13.0"
    monkeypatch.setattr(library_leaks, "read_shipped", lambda: (OF_CPYTHON,))
    monkeypatch.setattr(library_leaks, "python_version", lambda: version)
    found = find_library_leak(finding(culprit("", TEST, NESTED)), ())
    assert (found.text if found else "") == text
    line = find_library_leak(finding(culprit("os.FILES")), ("python >=3.13,<3.13.1: os.FILES",))
    assert (str(line) if line else "") == (
        "python >=3.13,<3.13.1: os.FILES (leakcheck_library)" if version == "3.13.0" else ""
    )


def test_another_implementation_has_other_leaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_leaks, "read_shipped", lambda: (replace(OF_CPYTHON, versions=">=3.11,<99.0.0"),))
    assert find_library_leak(finding(culprit("", TEST, NESTED)), ()) is not None
    monkeypatch.setattr(library_leaks, "sys", SimpleNamespace(implementation=SimpleNamespace(name="pypy")))
    assert find_library_leak(finding(culprit("", TEST, NESTED)), ()) is None
    assert sys.implementation.name


def test_a_line_without_versions_is_of_all_releases(installed: dict[str, str]) -> None:
    assert find_library_leak(finding(culprit("lib.CACHE")), ("lib: lib.CACHE",)) is None
    installed["lib"] = "1.0"
    assert find_library_leak(finding(culprit("lib.CACHE")), ("lib: lib.CACHE",)) is not None
    assert find_library_leak(finding(culprit("os.FILES")), ("python: os.FILES",)) is not None


def test_what_is_said_of_a_line_of_the_user_is_the_line(installed: dict[str, str]) -> None:
    installed["lib"] = "1.0"
    lines = ("other: lib.CACHE", "lib <2 :  lib.C*")
    found = find_library_leak(finding(culprit("lib.CACHE")), lines)
    assert str(found) == "lib <2: lib.C* (leakcheck_library)"
    assert find_library_leak(finding(None), lines) is None
    assert find_library_leak(finding(culprit("", TEST, OPEN)), lines) is None


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("click", f"is not REQUIREMENT: OWNER: {EXAMPLE}"),
        ("click<9:", f"is not REQUIREMENT: OWNER: {EXAMPLE}"),
        (": click.CACHE", f"is not REQUIREMENT: OWNER: {EXAMPLE}"),
        ("click 9: click.CACHE", f"'click 9' is not a package with its versions: {EXAMPLE}"),
        ("click<<9: click.CACHE", f"'click<<9' is not a package with its versions: {EXAMPLE}"),
        (
            "click[x]<9: click.CACHE",
            f"'click[x]<9' has more than a package and its versions, which nothing would read: {EXAMPLE}",
        ),
        (
            "click<9: *",
            "'*' fits every owner: write that of the finding, as in click<9: click._compat._default_text_stdout",
        ),
    ],
)
def test_a_wrong_line_is_quoted_with_its_file_and_what_is_valid(line: str, wrong: str) -> None:
    with pytest.raises(InputError) as raised:
        parse_lines(("fine: fine.CACHE", line), "pytest.ini")
    assert str(raised.value) == f"leakcheck_library = {line!r} (pytest.ini): {wrong}"
