"""Findings grouped by cause."""

from __future__ import annotations

from dataclasses import replace

from pytest_leakcheck.model.culprit import CreationPath, Culprit, Owner, Site
from pytest_leakcheck.model.decoding import encode
from pytest_leakcheck.model.finding import Causes, Finding, Verdict
from pytest_leakcheck.model.recording import Recording

SITE = Site("/x/site-packages/library.py", 3, "add_row")
OWNER = Owner("library.ROWS", "module library", (), "", 1.0)


def finding(test: str, slope: float, *, colour: str = "red", found: bool = True, outcome: str = "leak") -> Finding:
    where = CreationPath((SITE,), SITE) if found else None
    culprit = Culprit("object", where, owner=OWNER)
    verdict = Verdict("object", outcome, slope=slope, colour=colour)  # type: ignore[arg-type]
    return Finding(test, (verdict,), {}, (), {}, Recording(test, ()), {}, culprit)


def test_tests_that_share_a_cause_share_an_entry() -> None:
    found = [
        finding("a", 0.0, colour="green", outcome="ok"),
        finding("b", 2.0, colour="yellow", outcome="unclosed"),
        finding("c", 7.0, found=False),
        finding("d", 14.0),
        finding("d", 9.0),
    ]
    red, yellow = Causes(found).list()
    assert (red.tests, red.slowest, red.fastest, red.site, red.owner) == (("c", "d"), 7.0, 14.0, SITE, OWNER)
    assert (yellow.outcome, yellow.tests) == ("unclosed", ("b",))
    assert red.finding == yellow.finding == found[3].fingerprint
    assert encode(red)["verdict"] == "leak"


def test_why_a_level_and_a_peak_are_missing_is_stated_once() -> None:
    level = Verdict("vram", "unavailable", reason="no accelerator", explicit=True)
    found = replace(finding("test_it", 0.0), verdicts=(level, replace(level, peak=True)))
    assert found.missing == "vram: no accelerator"


def test_a_known_leak_has_the_id_of_its_entry() -> None:
    one = replace(finding("a", 1.0, colour="yellow"), known="0a1b2c-object-library")
    (cause,) = Causes([one]).list()
    assert (cause.finding, cause.known) == ("0a1b2c-object-library", True)
