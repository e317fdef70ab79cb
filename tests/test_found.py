"""The page of leaks in released packages says what was seen, and each reproduction stands alone."""

from __future__ import annotations

import ast
import builtins
import platform
import runpy
import subprocess
import sys
from typing import Any

import pytest

from projects import ROOT
from pytest_leakcheck.baseline.library_leaks import find_range, read_shipped

SCRIPT = str(ROOT / "ci" / "found.py")


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return runpy.run_path(SCRIPT)


def test_the_page_is_up_to_date(found: dict[str, Any]) -> None:
    assert found["PAGE"].read_text(encoding="utf-8") == found["page"](), "run: python ci/found.py --write"


def test_what_was_seen_is_of_the_last_release_that_leaks_and_shows_the_leak(found: dict[str, Any]) -> None:
    leaks, results = {leak.name: leak for leak in found["leaks"]()}, found["read_results"]()
    assert len({leaks[name].package for name in results}) >= 12
    assert len(results) >= 20
    for name, result in results.items():
        assert found["compare"](leaks[name], result, None) == "", name
        releases = [one.replace("python==", "CPython ").replace("==", " ") for one in leaks[name].releases]
        assert result.release in releases, name
        assert result.rate in result.report, name


def test_each_reproduction_binds_what_it_uses(found: dict[str, Any]) -> None:
    for leak in found["leaks"]():
        for text in (found["script"](leak), found["as_test"](leak)):
            tree = ast.parse(text)
            used = {one.id for one in ast.walk(tree) if isinstance(one, ast.Name)}
            bound = set(dir(builtins))
            for one in ast.walk(tree):
                if isinstance(one, ast.Import | ast.ImportFrom):
                    bound |= {(name.asname or name.name).partition(".")[0] for name in one.names}
                elif isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    bound.add(one.name)
                elif isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
                    bound.add(one.id)
                elif isinstance(one, ast.arg):
                    bound.add(one.arg)
            assert used <= bound, (leak.name, used - bound)


def test_a_script_shows_the_leak_without_pytest_and_no_leak_where_there_is_none(found: dict[str, Any]) -> None:
    encodings = next(leak for leak in found["leaks"]() if leak.name == "python-encodings-cache")
    known = next(leak for leak in read_shipped() if leak.name == encodings.name)
    script = found["script"](encodings)
    first, second = shown_by(script)
    leaks = find_range(known, platform.python_version()) is not None
    assert (second - first > encodings.calls) is leaks
    first, second = shown_by(script.replace("unknown.{name}", "unknown.name"))
    assert second - first < encodings.calls


def shown_by(script: str) -> list[int]:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return list(map(int, done.stdout.split()))
