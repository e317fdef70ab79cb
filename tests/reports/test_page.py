from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from itertools import combinations, product
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from pages import full_page
from pytest_leakcheck.report import GUIDE
from pytest_leakcheck.report.html.page import (
    WIDTH,
    Card,
    Chart,
    Curve,
    Limit,
    Page,
    Section,
    lay_out,
    render,
    render_svg,
    write_page,
)


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


def test_nothing_is_referred_to_outside_but_the_guide_in_its_foot(text: str) -> None:
    read = Reader(text)
    references = [value for name in ("src", "href", "xlink:href", "data", "action") for value in read.values(name)]
    assert {"#cause-2", "data:,"} <= set(references)
    assert [one for one in references if not one.startswith("#") and one != "data:,"] == [GUIDE]
    assert re.findall(r"url\((?!#)", text) == []
    assert "@import" not in text


def test_pictures_share_no_ids_and_take_their_colours_from_the_page(text: str) -> None:
    (shared, _own) = re.findall(r"(?s)<svg.*?</svg>", text)
    assert Reader(text).values("id") == ["cause-1", "cause-2"]
    assert {"curve bad", "curve good", "fitted"} <= set(Reader(shared).values("class"))
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


def test_labels_name_the_values_of_each_curve_and_the_ends_of_the_axes() -> None:
    ends = (Curve("leaky", ((0.0, 32.0), (1.0, 30.0), (17.0, 185.0)), "bad"), Curve("fixed", ((0.0, 32.0),), "good"))
    picture = lay_out(Chart("fd", "count", "iteration", ends))
    assert [(one.kind, one.text) for one in picture.labels] == [
        ("name bad", "leaky  32 → 185 (+153)"),
        ("name good", "fixed  32 → 32 (+0)"),
        ("y", "30"),
        ("y", "185"),
        ("begin", "0"),
        ("x", "iteration"),
        ("y", "17"),
    ]
    # A small growth of a large heap.
    heap = Chart("heap", "bytes", "second", (Curve("", ((0.0, 40 * 2**20), (9.0, 40 * 2**20 + 2**14))),))
    assert lay_out(heap).labels[0].text == "40.0 MiB → 40.0 MiB (+16.0 KiB)"


def test_growth_goes_on_to_the_limit() -> None:
    def drawn(x: float, y: float) -> tuple[list[float], list[str], bool]:
        curve = Curve("", ((0.0, 0.0), (10.0, 10.0)), "bad")
        picture = lay_out(Chart("fd", "count", "iteration", (curve,), limit=Limit(x, y, "limit 1,024")))
        assert "limit 1,024" in [label.text for label in picture.labels if label.kind == "limit"]
        ticks = [label.text for label in picture.labels if label.kind == "y"]
        return [float(one) for one in re.findall(r"[\d.]+", picture.limit)], ticks, "l3 -6" in picture.axes

    # To scale: half of the way.
    (x0, y0, x1, y1), ticks, broken = drawn(20.0, 20.0)
    assert ((x1 - 64) / (x0 - 64), ticks, broken) == (2.0, ["0", "10", "20", "iteration", "10"], False)
    assert y1 == pytest.approx(140 - 2 * (140 - y0))
    # Far away, the axes are broken, and the readings stay as large.
    (x0, y0, x1, y1), ticks, broken = drawn(1000.0, 1000.0)
    assert (round((x0 - 64) / (x1 - 64), 3), ticks, broken) == (0.6, ["0", "10", "1000", "iteration", "10"], True)


@pytest.mark.parametrize("level", [0.0, 7.0])
def test_a_counter_that_stands_still_is_a_level(level: float) -> None:
    picture = lay_out(Chart("fd", "count", "iteration", (Curve("", ((0.0, level), (9.0, level))),)))
    assert [label.text for label in picture.labels if label.kind == "y"] == [f"{level:.0f}", "9"]
    (begin, end) = re.findall(r" ([\d.]+)", picture.lines[0].path)
    assert begin == end


def test_long_series_stay_short() -> None:
    def points(of: int) -> int:
        curve = Curve("", tuple((float(x), float(x % 7)) for x in range(of)))
        return lay_out(Chart("fd", "count", "iteration", (curve,))).lines[0].path.count("L") + 1

    assert points(600) == 600
    assert points(100_000) < 3 * WIDTH


def test_labels_are_in_the_picture_and_do_not_overlap() -> None:
    low, high = Curve("name " * 50, ((0.0, 1.0), (123456.7, 2.0**40 - 1))), Curve("flat", ((0.0, 1.0), (9.0, 1.0)))
    # Beyond the readings and among them, near and far.
    limits = [None, *(Limit(x, y, "limit " * 50) for x in (9.0, 2e5, 1e9) for y in (2.0**39, 2.0**41, 2.0**50))]
    for curves, limit in product(((low, high), (high,), (low,)), limits):
        labels = lay_out(Chart("heap", "bytes", "axis " * 50, curves, limit=limit)).labels
        widths = [6.2 * len(one.text) for one in labels]
        lefts = [one.x - {"y": 1, "x": 0.5}.get(one.kind, 0) * wide for one, wide in zip(labels, widths, strict=True)]
        boxes = [(left, left + wide, one.y) for one, left, wide in zip(labels, lefts, widths, strict=True)]
        assert all(left >= 0 and right <= WIDTH for left, right, _y in boxes)
        for (left, right, y), (other_left, other_right, other_y) in combinations(boxes, 2):
            assert right <= other_left or other_right <= left or abs(y - other_y) >= 10


def test_a_picture_file_is_xml_with_a_title_per_chart() -> None:
    charts = [chart for card in full_page().cards for chart in card.charts]
    root = ET.fromstring(render_svg(charts))
    found = [one.text for one in root.iter("{http://www.w3.org/2000/svg}text") if one.get("class") == "title"]
    assert len(found) == len(charts) == 2
    assert found[1] == charts[1].title


@pytest.mark.parametrize(("cards", "opened"), [(5, 5), (6, 1)])
def test_of_many_cards_only_the_first_is_open(cards: int, opened: int) -> None:
    text = render(Page("Many", sections=(Section(cards=(Card("one"),) * cards),)))
    shown = [" open>" in tag for tag in re.findall(r"<details class=\"card[^>]*>", text)]
    assert shown == [True] * opened + [False] * (cards - opened)


def test_one_file_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    assert write_page(full_page(), folder, "it") == folder / "it.html"
    assert [one.name for one in folder.iterdir()] == ["it.html"]
