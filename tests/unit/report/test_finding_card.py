"""What a card tells of a finding, and in which order cards stand on the page."""

from __future__ import annotations

import linecache
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_leakcheck.model.culprit import CreationPath, Culprit, Owner, Site, Step, digest_of
from pytest_leakcheck.model.finding import Colour, Finding, Outcome, Verdict
from pytest_leakcheck.model.recording import Recording, Series
from pytest_leakcheck.report.html.findings_page import card_of_finding, page_of_report, rerun_command, since
from pytest_leakcheck.report.html.page import render
from pytest_leakcheck.report.json_file import Report, Session

SHOP = "import os\n\n\ndef leak(kept):\n    kept.append(os.open('.', 0))\n    return kept\n"


def finding(
    test: str = "tests/test_shop.py::test_it",
    readings: tuple[int, ...] = tuple(range(18)),
    outcome: Outcome = "leak",
    *,
    colour: Colour = "red",
    released: tuple[int, ...] = (),
    culprit: Culprit | None = None,
) -> Finding:
    verdict = Verdict("fd", outcome, 1.0, 17, len(readings) - 1, reason="it is so", colour=colour)
    recording = Recording(test, (Series("fd", readings, released),), warmup=3, limits={"fd": 1024})
    return Finding(test, (verdict,), {}, (), {}, recording, {}, culprit)


def culprit_in(file: Path) -> Culprit:
    site = Site(str(file), 5, "leak", "os.open()")
    owner = Owner("shop.KEPT", "module shop", (Step("module shop", "KEPT", suspect=True),), "20 × int", 1.0)
    source = "kept.append(os.open('.', 0))"
    return Culprit(
        "fd", CreationPath((site,), site), owner=owner, source=source, digest=digest_of(SHOP.splitlines(True))
    )


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (finding(), "descriptors +1.0/iter since iteration 1 of 17 (after 3 of warm-up)"),
        # It rose once, fell back, and rises from the fourth on.
        (finding(readings=(5, 6, 5, 5, 6, 7, 8)), "descriptors +1.0/iter since iteration 4 of 6 (after 3 of warm-up)"),
        (
            finding(readings=(5,) * 7, outcome="unclosed", released=(0, 0, 2, 2, 2, 2)),
            "descriptors +1.0/iter since iteration 3 of 6",
        ),
        (finding(readings=(5, 6, 5)), ""),
        (finding(outcome="inconclusive"), ""),
        (finding(outcome="ok"), ""),
    ],
)
def test_since_when_it_grows(one: Finding, text: str) -> None:
    assert since(one).startswith(text)
    assert bool(since(one)) == bool(text)


def test_the_command_that_measures_it_again() -> None:
    session = Session(rerun="pytest --leakcheck-scope=all", more_time="--leakcheck-max-time=120")
    assert rerun_command(finding(), session) == 'pytest --leakcheck-scope=all "tests/test_shop.py::test_it"'
    assert rerun_command(finding("test_a.py::test[$x]"), Session()) == "pytest --leakcheck 'test_a.py::test[$x]'"
    assert rerun_command(finding("a loop in a script"), session) == ""
    late = Culprit("fd", unresolved={"owner": "the search ran out of time"}, ran_out_of_time=True)
    one = finding(culprit=late)
    one = replace(one, recording=replace(one.recording, environment={"isolated": "yes"}))
    assert rerun_command(one, session) == (
        'pytest --leakcheck-scope=all --leakcheck-max-time=120 --leakcheck-isolate "tests/test_shop.py::test_it"'
    )


def test_source_is_left_out_where_it_is_not_wanted_or_not_there(tmp_path: Path) -> None:
    shop = tmp_path / "shop.py"
    shop.write_text(SHOP, encoding="utf-8")
    hidden = card_of_finding(finding(culprit=culprit_in(shop)), Session(source=False))
    assert "kept.append" not in str(hidden)
    assert hidden.about == card_of_finding(finding(culprit=culprit_in(shop)), Session()).about
    assert "shop.py:5 in leak()" in hidden.parts[0].rows[0][1]
    shop.unlink()
    gone = card_of_finding(finding(culprit=culprit_in(shop)), Session())
    assert gone.parts[0].source == ()
    # The report itself has the line.
    assert "kept.append(os.open('.', 0))" in gone.parts[0].rows[0][1]


def test_an_excerpt_shows_python_that_has_not_changed(tmp_path: Path) -> None:
    def excerpt(name: str, line: int = 5, text: bytes = SHOP.encode()) -> int:
        path = tmp_path / name
        path.write_bytes(text)
        linecache.checkcache(str(path))
        culprit = culprit_in(path)
        assert culprit.where is not None
        site = replace(culprit.where.site, line=line)
        card = card_of_finding(finding(culprit=replace(culprit, where=CreationPath((site,), site))), Session())
        return len(card.parts[0].source)

    # From the function to the end: the two empty lines before it are left out.
    assert excerpt("shop.py") == 3
    # A line that is not there, another kind of file, one that has changed, and one that cannot be read.
    assert excerpt("shop.py", 99) == excerpt("secret.txt") == excerpt("changed.py", text=SHOP.encode() + b"#") == 0
    assert excerpt("broken.py", text=b"# coding: nope\n\xff\xff\n") == 0
    assert excerpt("large.py", text=SHOP.encode() + b"#" * 10 * 1024 * 1024) == 0


def test_the_page_of_a_file_shows_no_source_from_outside_the_folder_and_none_without_its_digest(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "shop.py").write_text(SHOP, encoding="utf-8")
    (inside / "link.py").symlink_to(outside / "shop.py")
    os.mkfifo(inside / "pipe.py")

    def shows(path: Path, **changes: Any) -> bool:
        report = Report((finding(culprit=replace(culprit_in(path), **changes)),), {})
        (card,) = page_of_report(report, "shop", folder=inside).cards
        return any(part.source for part in card.parts)

    assert shows(inside / "shop.py")
    assert shows(inside / ".." / "inside" / "shop.py", source="")
    assert not shows(inside / "shop.py", digest="")
    assert not shows(inside / "shop.py", digest=digest_of(["another"]))
    for elsewhere in (
        outside / "shop.py",
        inside / ".." / "outside" / "shop.py",
        inside / "link.py",
        inside / "pipe.py",
    ):
        assert not shows(elsewhere), elsewhere


def test_causes_stand_red_first_with_all_their_tests() -> None:
    shared = culprit_in(Path("/srv/shop.py"))
    known = replace(finding("t.py::test_known", colour="yellow"), known="abc123-fd")
    found = [
        finding("t.py::test_unsure", outcome="inconclusive", colour="yellow"),
        known,
        finding("t.py::test_once", outcome="over_budget"),
        finding("t.py::test_one", culprit=shared),
        finding("t.py::test_two", culprit=shared),
        finding("t.py::test_fine", outcome="ok", colour="green"),
    ]
    page = page_of_report(Report(tuple(found), {}), "shop")
    assert [card.badge for card in page.cards] == ["leak", "over budget", "known leak", "inconclusive"]
    assert [entry.name for entry in page.cards[0].tests] == ["t.py::test_one", "t.py::test_two"]
    assert page.cards[0].about[1] == "2 tests"
    counts = [("2 red causes", "bad"), ("2 yellow causes", "unsure"), ("1 green test", "good")]
    assert page.counts == tuple(counts)
    _causes, table, green = page.sections
    anchors = {test.rpartition("::")[2]: anchor for test, _tone, anchor, _cells in table.table}
    assert anchors == {"test_one": "cause-1", "test_two": "cause-1", "test_once": "cause-2"} | {
        "test_known": "cause-3",
        "test_unsure": "cause-4",
    }
    assert [cells[0][0] for _test, _tone, _anchor, cells in table.table] == [
        "over budget",
        "+1.0/iter",
        "+1.0/iter",
        "inconclusive",
        "+1.0/iter",
    ]
    assert [entry.name for entry in green.entries] == ["t.py::test_fine"]


def test_of_two_leaks_the_one_that_reaches_its_limit_first_is_the_worst() -> None:
    slow = finding("t.py::test_slow", tuple(range(18)))
    fast = finding("t.py::test_fast", tuple(range(0, 54, 3)))
    fast = replace(fast, verdicts=(replace(fast.verdict, slope=3.0),))
    unlimited = replace(finding("t.py::test_unlimited"), recording=replace(slow.recording, limits={}))
    page = page_of_report(Report((unlimited, slow, fast), {}), "shop")
    assert [card.tests[0].name for card in page.cards] == ["t.py::test_fast", "t.py::test_slow", "t.py::test_unlimited"]
    assert [card.charts[0].limit is not None for card in page.cards] == [True, True, False]


def test_what_the_session_says_is_on_the_page() -> None:
    session = Session(
        "2 tests: 2 ok",
        ("leakcheck: a note",),
        "pytest --token '***'",
        "host-1",
        "0123456789abcdef",
        3.2,
        {"pytest": "9"},
    )
    page = page_of_report(Report((finding(),), {}, session), "shop")
    assert page.summary == ("2 tests: 2 ok", "leakcheck: a note")
    assert dict(page.facts) == {
        "duration": "3.2 s",
        "host": "host-1",
        "commit": "0123456789ab",
        "versions": "pytest 9",
        "command": "pytest --token '***'",
    }
    # That of a killed session.
    assert page_of_report(Report((finding(),), {}), "shop").summary == ("1 test: 1 leak · repeating took 0.0 s",)


def of_500_tests() -> Report:
    """40 causes with 500 readings each, and 460 green tests."""
    series = tuple(range(500))
    culprit = culprit_in(Path("/srv/shop.py"))
    assert culprit.owner is not None
    red = [
        finding(
            f"tests/test_orders.py::test_{at}",
            series,
            culprit=replace(culprit, owner=replace(culprit.owner, name=f"shop.KEPT_{at}")),
        )
        for at in range(40)
    ]
    floor = replace(finding().verdict, outcome="ok", colour="green", floor=0.5)
    green = [replace(finding(f"tests/test_orders.py::test_it[{at}]"), verdicts=(floor,) * 10) for at in range(460)]
    return Report((*red, *green), {})


def test_a_page_of_500_tests_is_small() -> None:
    text = render(page_of_report(of_500_tests(), "Many"))
    assert text.count("would have caught") == 1
    assert text.count('class="card bad"') == 40
    assert len(text) < 1_000_000


@pytest.mark.laboratory
def test_a_page_of_500_tests_takes_less_than_a_second() -> None:
    report = of_500_tests()
    began = time.process_time()
    render(page_of_report(report, "Many"))
    assert time.process_time() - began < 1.0
