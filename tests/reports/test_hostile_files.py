"""A damaged or hostile file costs one clear line and exit code 2, and a big one has only the most important charts."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_leakcheck.cli import main
from pytest_leakcheck.report.html.view_model import MAX_CHARTS, Arm, Chart, Curve, Page, Tone, limit_charts

BEGAN = '{"at": 1.0, "watch": 1, "root": 1, "command": "x", "interval": 1.0}\n'
DEEP = "[" * 100_000 + "]" * 100_000
BIG = "9" * 400
SAMPLES = "".join(f'{{"at": {at}.0, "totals": {{"TOTAL": 3}}}}\n' for at in range(2, 20))
TOO_DEEP, TOO_LARGE = "damaged: its values are nested too deeply", "damaged: a number in it is too large"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f'{{"findings": {DEEP}}}', TOO_DEEP),
        (f'{BEGAN}{{"at": 2.0, "totals": {DEEP}}}\n', TOO_DEEP),
        (f'{BEGAN}{{"at": 2.0, "totals": {{"fd": {BIG}}}}}\n', TOO_LARGE),
        (f'{BEGAN}{{"at": {BIG}, "totals": {{"fd": 3}}}}\n', TOO_LARGE),
        (f'{BEGAN}{{"at": 2.0, "step": {BIG}, "totals": {{"fd": 3}}}}\n', TOO_LARGE),
        (BEGAN.replace("1.0", "1e999") + SAMPLES.replace("TOTAL", "fd"), TOO_LARGE),
        (BEGAN + SAMPLES.replace("TOTAL", "<script>"), "damaged ledger: unknown total '<script>'"),
    ],
    ids=["deep", "deep line", "total", "time", "step", "infinite", "unknown"],
)
def test_it_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    assert main(["report", "--no-open", str(path)]) == 2
    assert capsys.readouterr().err == f"pytest-leakcheck report: {path}: {said}\n"


def test_a_ledger_with_known_totals_is_a_page(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for total in ("fd", "vram:0"):
        path.write_text(BEGAN + SAMPLES.replace("TOTAL", total))
        assert main(["report", "--no-open", str(path)]) == 0


def arm(tone: Tone, count: int) -> Arm:
    curve = Curve("", ((0.0, 0.0), (1.0, 1.0)), tone)
    charts = tuple(Chart("fd: descriptors", "count", "iteration", (curve,)) for _ in range(count))
    return Arm(tone, tone, (f"{tone} verdict",), charts=charts)


def test_the_charts_of_red_and_yellow_tests_come_first() -> None:
    page = limit_charts(Page("x", ("summary",), (arm("good", 50), arm("unsure", 20), arm("bad", 30))))
    assert [len(one.charts) for one in page.arms] == [MAX_CHARTS - 50, 20, 30]
    assert page.summary == (
        "summary",
        "Charts: 60 of 100. Red ones come first, then yellow ones; all verdicts are in the text.",
    )
    assert [one.verdicts for one in page.arms] == [("good verdict",), ("unsure verdict",), ("bad verdict",)]


def test_a_page_with_fewer_charts_stays_as_it_is() -> None:
    page = Page("x", (), (arm("good", MAX_CHARTS),))
    assert limit_charts(page) is page
