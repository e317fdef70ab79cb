from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pages import NASTY, full_page
from pytest_leakcheck.page.picture import draw_png, draw_svg
from pytest_leakcheck.page.render import render, write_page
from pytest_leakcheck.page.values import Arm, Chart, Curve, Page


class Reader(HTMLParser):
    """The elements of a page, and the text of all of them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data

    def values(self, name: str) -> list[str]:
        return [value for attribute, value in self.attributes if attribute == name]


@pytest.fixture(scope="module")
def text() -> str:
    return render(full_page())


def test_every_text_is_escaped(text: str) -> None:
    read = Reader(text)
    assert not {"script", "img", "iframe", "object"} & set(read.elements)
    assert read.text.count("<script>alert('x')</script>") >= 8
    assert not [name for name, _value in read.attributes if name.startswith("on")]


def test_nothing_is_referred_to_outside(text: str) -> None:
    read = Reader(text)
    references = [value for name in ("src", "href", "xlink:href", "data", "action") for value in read.values(name)]
    assert references
    assert all(one.startswith("#") or one == "data:," for one in references), references
    assert re.findall(r"url\((?!#)", text) == []
    assert "@import" not in text


def test_ids_are_unique_and_referred_to(text: str) -> None:
    read = Reader(text)
    ids = read.values("id")
    assert len(ids) == len(set(ids))
    used = {one[1:] for one in read.values("xlink:href") + read.values("href") if one.startswith("#")}
    used |= set(re.findall(r"url\(#([^)]+)\)", text))
    assert used
    assert used <= set(ids)


def test_colours_of_a_picture_are_the_page_s(text: str) -> None:
    (svg, *_rest) = re.findall(r"(?s)<svg.*?</svg>", text)
    assert {"var(--ink)", "var(--bad)", "var(--good)"} <= set(re.findall(r"var\(--\w+\)", svg))
    assert set(re.findall(r"#[0-9a-f]{6}\b", svg)) == set()


def test_what_a_page_has_and_has_not() -> None:
    plain = Reader(render(Page("Nothing"))).text
    assert "Nothing" in plain
    assert "Partial:" not in plain
    assert "What was changed" not in plain
    assert "Partial: this was interrupted" in Reader(render(Page("Half", partial=True))).text.replace("\n", " ")


def test_a_diff_is_told_line_by_line() -> None:
    read = Reader(render(Page("Diff", diff="--- a\n+++ b\n@@ -1 +1 @@\n-old\n+new\n same\n")))
    assert [one for one in read.values("class") if one in ("added", "taken", "place")] == [
        *["place"] * 3,
        "taken",
        "added",
    ]


def test_limit_is_drawn_where_the_curve_comes_near() -> None:
    chart = Chart("fd", "count", "iteration", (Curve("", ((0.0, 1.0), (1.0, 30.0))),), limit=100)
    assert "limit 100" in draw_svg(chart, "a")
    assert "limit" not in draw_svg(replace(chart, limit=1000), "a")


def test_a_counter_that_stands_still_is_a_level() -> None:
    """Ticks at fractions of a descriptor would tell of a noise that there is not."""
    svg = draw_svg(Chart("fd", "count", "iteration", (Curve("", ((0.0, 7.0), (9.0, 7.0))),)), "a")
    ticks = {one.strip() for one in re.findall(r"<text[^>]*>([^<]+)</text>", svg)}
    assert {"6", "7", "8"} & ticks
    assert not [one for one in ticks if "." in one]


def test_bytes_have_ticks_of_their_units() -> None:
    svg = draw_svg(Chart("heap", "bytes", "second", (Curve("", ((0.0, 0.0), (9.0, 5.0 * 2**20))),)), "a")
    assert {"2.0 MiB", "4.0 MiB"} <= set(re.findall(r"<text[^>]*>([^<]+)</text>", svg))


def test_a_picture_is_the_same_each_time() -> None:
    chart = full_page().charts[0]
    assert draw_svg(chart, "a") == draw_svg(chart, "a")


def test_the_png_is_one_of_all_charts(tmp_path: Path) -> None:
    written = write_page(full_page(), tmp_path / "new" / "folder", "it")
    assert written.png is not None
    assert written.png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    tall, short = written.png.read_bytes(), draw_png(full_page().charts)
    height = [int.from_bytes(one[20:24], "big") for one in (tall, short)]
    assert height[0] == 2 * height[1]
    with pytest.raises(ValueError, match="no charts"):
        draw_png([])


def test_a_page_without_charts_has_no_png(tmp_path: Path) -> None:
    written = write_page(Page("None", arms=(Arm(NASTY),)), tmp_path, "it")
    assert written.png is None
    assert [one.name for one in tmp_path.iterdir()] == ["it.html"]
