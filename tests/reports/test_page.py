from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from pages import full_page
from pytest_leakcheck.report.html.charts import WIDTH, Line, fit, lay_out
from pytest_leakcheck.report.html.render import render, render_svg, write_page
from pytest_leakcheck.report.html.view_model import Card, Chart, Curve, Entry, Page, Section


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
    assert not {"img", "iframe", "object"} & set(read.elements)
    assert read.elements.count("script") == 1
    assert read.text.count("<script>alert('x')</script>") >= 25
    assert not [name for name, _value in read.attributes if name.startswith("on")]


def test_the_policy_allows_the_one_script_and_the_one_style_alone(text: str) -> None:
    policy = next(value for value in Reader(text).values("content") if value.startswith("default-src"))
    directives = dict(part.split(" ", 1) for part in policy.split("; "))
    assert directives["default-src"] == directives["base-uri"] == directives["form-action"] == "'none'"
    for name in ("script", "style"):
        (content,) = re.findall(rf"(?s)<{name}>(.*?)</{name}>", text)
        digest = b64encode(sha256(content.encode()).digest()).decode()
        assert directives[f"{name}-src"] == f"'sha256-{digest}'"
    assert "style" not in {name for name, _value in Reader(text).attributes}


def test_nothing_is_referred_to_outside(text: str) -> None:
    read = Reader(text)
    references = [value for name in ("src", "href", "xlink:href", "data", "action") for value in read.values(name)]
    assert {"#cause-2", "data:,"} <= set(references)
    assert all(one.startswith("#") or one == "data:," for one in references), references
    assert re.findall(r"url\((?!#)", text) == []
    assert "@import" not in text


def test_pictures_share_no_ids_and_take_their_colours_from_the_page(text: str) -> None:
    (shared, _own) = re.findall(r"(?s)<svg.*?</svg>", text)
    assert Reader(text).values("id") == ["cause-1", "cause-2"]
    assert {"curve bad", "curve good", "limit bad", "fitted"} <= set(Reader(shared).values("class"))
    assert not {"style", "fill", "stroke", "color"} & {name for name, _value in Reader(shared).attributes}


def test_what_a_page_has_and_has_not() -> None:
    plain = Reader(render(Page("Nothing"))).text
    assert "Nothing" in plain
    assert "Partial:" not in plain
    assert "Partial: interrupted or not finished" in Reader(render(Page("Half", partial=True))).text.replace("\n", " ")


def test_a_diff_is_told_line_by_line() -> None:
    read = Reader(render(Page("Diff", sections=(Section(diff="--- a\n+++ b\n@@ -1 +1 @@\n-old\n+new\n same\n"),))))
    assert [one for one in read.values("class") if one in ("added", "taken", "place")] == [
        *["place"] * 3,
        "taken",
        "added",
    ]


def texts(chart: Chart) -> list[str]:
    return [label.text for label in lay_out(chart).labels]


def test_limit_is_drawn_where_the_curve_comes_near() -> None:
    chart = Chart("fd", "count", "iteration", (Curve("", ((0.0, 1.0), (1.0, 30.0))),), limit=100)
    assert "limit 100" in texts(chart)
    assert lay_out(chart).limit
    assert "limit" not in " ".join(texts(replace(chart, limit=1000)))
    assert not lay_out(replace(chart, limit=1000)).limit


@pytest.mark.parametrize("level", [0.0, 7.0])
def test_a_counter_that_stands_still_is_a_level(level: float) -> None:
    """Ticks at fractions of a descriptor would show noise that does not exist."""
    chart = Chart("fd", "count", "iteration", (Curve("", ((0.0, level), (9.0, level))),))
    ticks = [label.text for label in lay_out(chart).labels if label.kind == "y"]
    assert {f"{level:.0f}", f"{level + 1:.0f}"} < set(ticks)
    assert all(one.isdecimal() for one in ticks)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 5 * 2**20, ["0", "2 MiB", "4 MiB"]),
        (0, 700, ["0", "200 B", "400 B", "600 B"]),
        (2**30, 3 * 2**30, ["1 GiB", "2 GiB", "3 GiB"]),
        # A small growth of a large heap: neighbouring ticks must not read the same.
        (40 * 2**20, 40 * 2**20 + 2**14, ["40,960 KiB", "40,965 KiB", "40,970 KiB", "40,975 KiB"]),
        (40 * 2**20, 40 * 2**20, ["38 MiB", "39 MiB", "40 MiB", "41 MiB", "42 MiB"]),
        (0, 0, ["0", "0.2 KiB", "0.4 KiB", "0.6 KiB", "0.8 KiB", "1.0 KiB"]),
    ],
)
def test_bytes_have_round_ticks_in_binary_units(low: float, high: float, ticks: list[str]) -> None:
    chart = Chart("heap", "bytes", "second", (Curve("", ((0.0, low), (9.0, high))),))
    assert [label.text for label in lay_out(chart).labels if label.kind == "y"] == ticks


def test_short_series_have_markers_and_long_ones_stay_short() -> None:
    def line_of(points: int) -> Line:
        curve = Curve("", tuple((float(x), float(x % 7)) for x in range(points)))
        return lay_out(Chart("fd", "count", "iteration", (curve,))).lines[0]

    assert line_of(40).markers.count("h0") == 40
    assert line_of(41).markers == ""
    assert line_of(1000).path.count("L") == 999
    assert line_of(100_000).path.count("L") < 3 * WIDTH


def test_names_stand_at_the_ends_of_their_curves_and_do_not_overlap() -> None:
    ends = (Curve("leaky", ((0.0, 0.0), (9.0, 100.0)), "bad"), Curve("fixed", ((0.0, 0.0), (9.0, 97.0)), "good"))
    picture = lay_out(Chart("fd", "count", "iteration", ends))
    leaky, fixed = (label for label in picture.labels if label.kind.startswith("name"))
    assert (leaky.text, leaky.kind, fixed.text, fixed.kind) == ("leaky", "name bad", "fixed", "name good")
    assert fixed.y - leaky.y >= 12


def test_long_names_are_shortened_to_the_picture() -> None:
    picture = lay_out(Chart("fd", "count", "axis " * 50, (Curve("name " * 50, ((0.0, 1.0), (1.0, 2.0))),)))
    long = [label.text for label in picture.labels if label.text.endswith("…")]
    assert len(long) == 2
    assert all(len(one) < WIDTH / 6 for one in long)
    assert fit("\x00a\nb", 100) == " a b"
    # They are twice as wide.
    assert len(fit("漢" * 50, 100)) < len(fit("x" * 50, 100)) < 17


def test_a_picture_file_is_xml_with_a_title_per_chart() -> None:
    charts = [chart for card in full_page().cards for chart in card.charts]
    root = ET.fromstring(render_svg(charts))
    found = [one.text for one in root.iter("{http://www.w3.org/2000/svg}text") if one.get("class") == "title"]
    assert len(found) == len(charts) == 2
    assert found[1] == charts[1].title


def test_a_page_of_500_tests_is_small() -> None:
    """The whole page of 500 tests with 40 causes is made by ci/bench/html_page.py."""
    series = tuple((float(at), 1e8 + 3000.0 * at) for at in range(500))
    chart = Chart("heap", "bytes", "iteration", (Curve("", series, "bad"),))
    cards = (Card("heap grows", "bad", charts=(chart,)),) * 40
    lines = (Entry("tests/test_orders.py::test_it[parameter]", "would have caught fd 1 in 6 iter", "good"),) * 460
    text = render(Page("Many", sections=(Section("Causes", cards=cards), Section("Green", entries=lines, folded=True))))
    assert text.count("</svg>") == 40
    assert len(text) < 1_000_000


def test_the_first_cards_are_open_and_the_others_show_their_headings() -> None:
    text = render(Page("Many", sections=(Section(cards=(Card("one"),) * 7),)))
    opened = [" open>" in tag for tag in re.findall(r"<details class=\"card[^>]*>", text)]
    assert opened == [True] * 5 + [False] * 2


def test_one_file_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    assert write_page(full_page(), folder, "it") == folder / "it.html"
    assert [one.name for one in folder.iterdir()] == ["it.html"]
