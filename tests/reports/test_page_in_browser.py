"""The page in a real Chromium: it fetches nothing, logs nothing, follows light and dark, and fits a phone."""

from __future__ import annotations

from pathlib import Path

import pytest

from pages import find_browser, full_page, visit
from pytest_leakcheck.report.html.page import write_page

BROWSER = find_browser()
needs_browser = pytest.mark.skipif(
    BROWSER is None, reason="needs chromium or google-chrome on the PATH, which pip cannot install"
)
pytestmark = needs_browser

# Looks at the page from outside, since its policy allows no other script than its own.
HARNESS = """<!doctype html><meta charset="utf-8"><iframe id="page" style="width: %dpx; height: 800px; border: 0" src="page.html"></iframe>
<pre id="told"></pre><script>
const frame = document.getElementById("page");
frame.addEventListener("load", () => {
  const inside = frame.contentDocument, root = inside.documentElement, seen = frame.contentWindow;
  const colour = (what, name) => seen.getComputedStyle(inside.querySelector(what))[name];
  document.getElementById("told").textContent = JSON.stringify({
    width: root.clientWidth, needed: root.scrollWidth, scripts: inside.scripts.length, images: inside.images.length,
    ground: colour("body", "backgroundColor"), ink: colour("h1", "color"),
    text: colour("figure svg text.y", "fill"), letters: colour("figure svg text", "fontSize"),
    scale: inside.querySelector("figure svg").getBoundingClientRect().width
      / inside.querySelector("figure svg").viewBox.baseVal.width,
    curve: colour("figure svg path.curve.bad", "stroke"),
  });
});
</script>"""
DARK = "--blink-settings=preferredColorScheme=0"
LIGHT = "--blink-settings=preferredColorScheme=1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("page")
    write_page(full_page(), made, "page")
    return made


def look(folder: Path, tmp_path: Path, width: int, *options: str) -> dict[str, object]:
    harness = folder / f"harness{width}.html"
    harness.write_text(HARNESS % width, encoding="utf-8")
    assert BROWSER is not None
    return visit(BROWSER, harness, tmp_path, *options).told()


def test_nothing_is_fetched_and_nothing_is_logged(folder: Path, tmp_path: Path) -> None:
    assert BROWSER is not None
    seen = visit(BROWSER, folder / "page.html", tmp_path)
    assert "An incident" in seen.dom
    assert seen.fetched == []
    assert seen.logged == []


def test_what_is_fetched_or_logged_would_be_seen(tmp_path: Path) -> None:
    planted = tmp_path / "planted.html"
    planted.write_text(
        '<img src="http://127.0.0.1:9/picture.png"><script>console.error("planted")</script>', encoding="utf-8"
    )
    assert BROWSER is not None
    seen = visit(BROWSER, planted, tmp_path)
    assert seen.fetched == ["http://127.0.0.1:9/picture.png"]
    assert any("planted" in line for line in seen.logged)


@pytest.mark.parametrize("width", [320, 390, 1200])
def test_it_fits(folder: Path, tmp_path: Path, width: int) -> None:
    seen = look(folder, tmp_path, width)
    assert seen["needed"] == seen["width"]
    assert (seen["scripts"], seen["images"]) == (1, 0)


def test_what_does_not_fit_would_be_seen(folder: Path, tmp_path: Path) -> None:
    text = (folder / "page.html").read_text(encoding="utf-8")
    # Cells do not wrap, and this table does not scroll by itself.
    wide = f"<table><tr><td>{'wide ' * 99}</td></tr></table></main>"
    (tmp_path / "page.html").write_text(text.replace("</main>", wide), "utf-8")
    seen = look(tmp_path, tmp_path, 390)
    assert seen["needed"] != seen["width"]


def test_letters_of_a_picture_can_be_read_on_a_phone(folder: Path, tmp_path: Path) -> None:
    seen = look(folder, tmp_path, 390)
    assert float(str(seen["letters"]).removesuffix("px")) * float(str(seen["scale"])) >= 8


def test_light_and_dark_reach_the_pictures(folder: Path, tmp_path: Path) -> None:
    light, dark = look(folder, tmp_path, 390, LIGHT), look(folder, tmp_path, 390, DARK)
    assert (light["ground"], dark["ground"]) == ("rgb(255, 255, 255)", "rgb(13, 17, 23)")
    for seen in (light, dark):
        assert seen["text"] == seen["ink"]
    assert light["text"] != dark["text"]
    assert light["curve"] != dark["curve"]
