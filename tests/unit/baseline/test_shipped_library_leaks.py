"""The known leaks of packages and of CPython that are shipped: each is complete and has a reproduction."""

from __future__ import annotations

import ast
import re

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from projects import ROOT
from pytest_leakcheck.baseline.library_leaks import INTERPRETER, LibraryLeak, find_range, read_shipped
from pytest_leakcheck.model.resources import RESOURCES

# A series of releases of CPython that leak, and the first one that does not.
SERIES = re.compile(r">=3\.\d+,<3\.\d+\.\d+")


def test_the_shipped_entries_are_complete() -> None:
    shipped = read_shipped()
    names = [leak.name for leak in shipped]
    assert len(names) >= 22
    assert names == sorted(set(names))
    for leak in shipped:
        assert leak.name.startswith(f"{leak.package}-")
        assert leak.resources
        assert set(leak.resources) <= set(RESOURCES)
        assert leak.owner or leak.site
        assert leak.text == leak.text.strip(" .")
        assert leak.link == "" or leak.link.startswith("https://github.com/")
        if leak.package == INTERPRETER:
            assert leak.link
            assert all(map(SERIES.fullmatch, leak.versions.split(" | "))), leak.name
            continue
        # A release that was not tried is not covered.
        assert {one.operator for one in SpecifierSet(leak.versions)} in ({"=="}, {">=", "<="}), leak.name


@pytest.mark.parametrize("leak", read_shipped(), ids=lambda leak: leak.name)
def test_each_shipped_entry_has_a_reproduction_of_its_first_and_its_last_release_or_of_each_series(
    leak: LibraryLeak,
) -> None:
    tree = ast.parse((ROOT / "ci" / "library_leaks" / f"test_{leak.name.replace('-', '_')}.py").read_text("utf-8"))
    constants = {ast.unparse(one.targets[0]): one.value for one in tree.body if isinstance(one, ast.Assign)}
    pinned = [Requirement(one) for one in ast.literal_eval(constants["RELEASES"])]
    assert {one.name for one in pinned} == {leak.package}
    releases = {str(one.specifier)[2:] for one in pinned}
    if leak.package == INTERPRETER:
        assert {find_range(leak, one) for one in releases} == {*leak.versions.split("|")}
    else:
        assert releases == {one.version for one in SpecifierSet(leak.versions)}
    tests = {one.name for one in tree.body if isinstance(one, ast.FunctionDef) and one.name.startswith("test_")}
    assert {"test_leaky", "test_control"} <= tests <= {"test_leaky", "test_control", "test_kept"}


def test_each_reproduction_has_an_entry() -> None:
    files = {path.stem for path in (ROOT / "ci" / "library_leaks").glob("test_*.py")}
    assert files == {f"test_{leak.name.replace('-', '_')}" for leak in read_shipped()}
