"""What people do with the page in a real Chromium: copy a command, filter, sort, fold; and read it without scripts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pages import full_page
from pytest_leakcheck.model.culprit import CreationPath, Culprit, Site
from pytest_leakcheck.model.finding import Finding, Verdict
from pytest_leakcheck.model.recording import Recording, Series
from pytest_leakcheck.report.html.findings_page import page_of_report
from pytest_leakcheck.report.html.page import write_page
from pytest_leakcheck.report.json_file import Report, Session
from webdriver import CONTROL, MISSING, Window, browser

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)
VISIBLE_CARDS = "return [...document.querySelectorAll('.card')].filter((one) => one.checkVisibility()).map((one) => "


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(full_page(), tmp_path_factory.mktemp("page"), "page")


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Window]:
    with browser(tmp_path_factory.mktemp("profile")) as window:
        yield window


@pytest.fixture
def window(chromium: Window, page: Path) -> Window:
    chromium.size(1280, 900)
    chromium.open(page)
    return chromium


def cards(window: Window, what: str = "one.dataset.order") -> list[Any]:
    found: list[Any] = window.run(f"{VISIBLE_CARDS}{what})")
    return found


def test_a_command_is_copied(window: Window) -> None:
    assert window.run("return document.querySelectorAll('.copy:not([hidden])').length") == 3
    window.click("#cause-2 .copy")
    window.type("[type=search]", f"{CONTROL}v")
    assert window.run("return document.querySelector('[type=search]').value") == "pytest 'b'"


def test_cards_are_filtered_by_text_and_colour(window: Window) -> None:
    assert cards(window) == ["1", "2", "3"]
    window.type("[type=search]", "HEAP grows")
    assert cards(window) == ["2"]
    assert window.run("return document.querySelector('output').value") == "1 of 3 shown"
    assert window.run("return document.querySelector('tbody tr').checkVisibility()") is False
    window.open(Path(window.run("return location.pathname")))
    window.click("[value=bad]")
    assert cards(window) == ["2"]
    window.click("[value=unsure]")
    assert cards(window) == []


def test_cards_are_sorted(window: Window) -> None:
    for key, order in (("tests", "312"), ("resource", "321"), ("title", "312"), ("order", "123")):
        window.click(f"option[value={key}]")
        assert "".join(cards(window)) == order, key


def test_all_is_folded_and_opened(window: Window) -> None:
    assert set(cards(window, "one.open")) == {True}
    window.click(".fold")
    assert set(window.run("return [...document.querySelectorAll('details')].map((one) => one.open)")) == {False}
    window.click(".fold")
    assert set(window.run("return [...document.querySelectorAll('details')].map((one) => one.open)")) == {True}


def test_a_link_opens_its_card(window: Window) -> None:
    window.click(".fold")
    window.click("tbody a")
    assert window.run("return document.getElementById('cause-2').open") is True
    assert cards(window, "one.open") == [False, True, False]


def test_without_scripts_everything_can_be_read(chromium: Window, page: Path) -> None:
    chromium.devtools("Emulation.setScriptExecutionDisabled", value=True)
    try:
        chromium.open(page)
        read = "return document.querySelector('%s').checkVisibility()"
        assert chromium.run(read % "#cause-1 .lead") is True
        # What would do nothing does not show.
        assert chromium.run(read % ".controls") is False
        assert chromium.run(read % ".copy") is False
        assert chromium.run(read % ".section .entries") is False
        chromium.click(".section summary")
        assert chromium.run(read % ".section .entries") is True
    finally:
        chromium.devtools("Emulation.setScriptExecutionDisabled", value=False)


@pytest.mark.parametrize(("width", "height", "seen"), [(1280, 900, ".source mark"), (400, 800, ".lead")])
def test_the_worst_finding_needs_no_scrolling(
    chromium: Window, tmp_path: Path, width: int, height: int, seen: str
) -> None:
    """Of a session with as long a header as most have."""
    site = Site(str(tmp_path / "shop.py"), 2, "leak", "os.open()")
    (tmp_path / "shop.py").write_text("def leak():\n    KEPT.append(os.open('.', 0))\n", encoding="utf-8")
    culprit = Culprit("fd", CreationPath((site,), site), source="KEPT.append(os.open('.', 0))")
    verdict = Verdict("fd", "leak", 1.0, 17, 17, reason="it is so", colour="red")
    found = [
        Finding(f"tests/test_it.py::test_{at}", (verdict,), {}, (), {}, recording, {}, culprit)
        for at, recording in enumerate([Recording("", (Series("fd", tuple(range(18))),), limits={"fd": 1024})] * 40)
    ]
    versions = {"pytest-leakcheck": "1.0.0", "pytest": "9.0.2", "python": "3.13.1", "libc": "glibc 2.36"}
    session = Session("40 tests: 40 leak (1 cause)", (), "pytest --leakcheck " * 5, "ci-1", "0" * 40, 9.0, versions)
    chromium.size(width, height)
    chromium.open(write_page(page_of_report(Report(tuple(found), {}, session), "Leaks in shop"), tmp_path, "page"))
    assert cards(chromium) == ["1"]
    assert chromium.run(f"return document.querySelector('.card {seen}').getBoundingClientRect().bottom") < height
