"""The documentation's site, as far as it can be checked without mkdocs, which ./ci/site runs."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import pytest_leakcheck
from projects import ROOT

SETTINGS = (ROOT / ".mkdocs.yml").read_text(encoding="utf-8")
PAGES = sorted((ROOT / "docs").glob("*.md"))
OTHERS = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
URLS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
FENCE = re.compile(r"(?ms)^```.*?^```$")


def test_each_page_is_in_the_navigation_once() -> None:
    listed = Counter(re.findall(r"(?m)^ +- .+: ([\w-]+\.md)$", SETTINGS))
    missing = [f"      - A few words: {page.name}" for page in PAGES if page.name not in listed]
    assert missing == [], "add to the nav of .mkdocs.yml, where its readers look"
    gone = [name for name in listed if not (ROOT / "docs" / name).is_file()]
    assert (gone, [name for name, times in listed.items() if times > 1]) == ([], [])


def anchors_of(text: str) -> set[str]:
    """Return the names that GitHub gives to the headings of a page, as the site does."""
    headings = re.findall(r"(?m)^#+ (.+)$", FENCE.sub("", text))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=lambda page: page.name)
def test_each_link_leads_to_a_file_and_to_a_heading_of_it(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\((?!https:)([^)#]*)#?([^)]*)\)", FENCE.sub("", text)):
        file = page.parent / target if target else page
        assert file.is_file(), target
        assert not anchor or anchor in anchors_of(file.read_text(encoding="utf-8")), f"{target}#{anchor}"


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=lambda page: page.name)
def test_each_row_of_a_table_is_one(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    lines = text.splitlines()
    columns = 0
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "inline":
            # A row that belongs to no table is shown as text. In code within a row, it is written as \|.
            assert not any("|" in part.content for part in token.children or () if part.type == "text"), token.content
        if token.type == "thead_open":
            columns = 0
        if token.type == "tr_open" and token.map is not None:
            row = lines[token.map[0]]
            cells = len(re.findall(r"(?<!\\)\|", row)) - 1
            columns = columns or cells
            assert cells == columns, row


def test_each_public_name_is_described() -> None:
    described = re.findall(r"(?m)^::: pytest_leakcheck\.(\w+)$", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"))
    assert sorted([*described, "__version__"]) == pytest_leakcheck.__all__


def test_the_project_has_one_address() -> None:
    """It stands in pyproject.toml; what repeats it is the same."""
    named = [
        ROOT / name for name in ("README.md", ".mkdocs.yml", "pyproject.toml", "pytest_leakcheck/report/__init__.py")
    ]
    raw = URLS["Source"].replace("//github.com", "//raw.githubusercontent.com")
    for path in (*named, *PAGES):
        text = path.read_text(encoding="utf-8")
        for url in re.findall(r"https://[^\s/]*github[^\s/]*/pytest-leakcheck[^\s)\"']*", text):
            assert url.startswith((URLS["Source"], URLS["Documentation"], raw)), f"{path.name}: {url}"
    assert f"site_url: {URLS['Documentation']}\nrepo_url: {URLS['Source']}\n" in SETTINGS
