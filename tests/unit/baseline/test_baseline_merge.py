"""Nothing that a person or another session has written to the file of known leaks is lost by an update."""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_leakcheck.baseline import known_leaks
from pytest_leakcheck.baseline.known_leaks import Baseline, KnownLeak, KnownLeaks, Observed, read, to_text, update
from pytest_leakcheck.model.culprit import CreationPath, Culprit, Owner, Site, is_of_tests, own_line, own_owner
from pytest_leakcheck.model.finding import Finding, Verdict
from pytest_leakcheck.model.recording import Recording
from pytest_leakcheck.model.regular_file import locked

TODAY = "2026-11-26"


def leak(name: str, test: str = "t.py::test_a", rate: float = 1.0, *, file: str = "") -> Finding:
    where = CreationPath((Site(file, 3, f"make_{name}", ""),), Site(file, 3, f"make_{name}", "")) if file else None
    owner = Owner(f"shop.{name}", "module shop", (), "x", rate) if name else None
    verdict = Verdict("fd", "leak", slope=rate, iterations=17, colour="yellow")
    return Finding(test, (verdict,), {}, (), {}, Recording(test, ()), {}, Culprit("fd", where, owner=owner), known="x")


def entry(finding: str, **more: Any) -> dict[str, Any]:
    fields = {"resource": "fd", "verdict": "leak", "rate": 1.0, "owner": "o", "site": "s", "seen": TODAY}
    return {"finding": finding, **fields, "tests": ["t.py::x"], **more}


def written(path: Path, *entries: dict[str, Any], **more: Any) -> Path:
    path.write_text(json.dumps({"schema": 1, "known": entries, **more}))
    return path


def test_what_this_version_does_not_know_stays(tmp_path: Path) -> None:
    ticket = {"ticket": {"id": 7, "who": ["a", "b"]}}
    path = written(tmp_path / "known.json", entry("a", reason="ours", rest="x", **ticket), comment="see the wiki")
    updated = json.loads(to_text(update(read(path), Observed([leak("CACHE")]), TODAY).baseline))
    assert updated["comment"] == "see the wiki"
    (one,) = (one for one in updated["known"] if one["finding"] == "a")
    assert (one["ticket"], one["rest"], one["reason"]) == (ticket["ticket"], "x", "ours")
    assert len(updated["known"]) == 2
    # Nor does another update, or joining, change it.
    path.write_text(to_text(Baseline()))
    path.write_text(json.dumps(updated))
    assert json.loads(to_text(known_leaks.merge([read(path), read(path)]))) == updated


def test_entries_with_one_id_both_stay(tmp_path: Path) -> None:
    old, new = entry("a", only={"python": "<3"}, reason="old"), entry("a", only={"python": ">=3"}, reason="new")
    baseline = read(written(tmp_path / "known.json", old, new))
    change = update(baseline, Observed([leak("CACHE")]), TODAY)
    assert [one.reason for one in change.baseline.known if one.finding == "a"] == ["old", "new"]
    assert (change.added, change.changed, change.unchanged) == (1, 0, 2)
    assert known_leaks.merge([baseline, baseline]) == baseline


def test_an_entry_for_another_platform_is_not_replaced_by_the_leak_of_this_one(tmp_path: Path) -> None:
    fingerprint = leak("CACHE").fingerprint
    elsewhere = entry(fingerprint, owner="shop.CACHE", only={"platform": "win32"}, reason="of Windows")
    change = update(read(written(tmp_path / "known.json", elsewhere)), Observed([leak("CACHE")]), TODAY)
    assert [(one.finding, one.reason) for one in change.baseline.known] == [
        (fingerprint, "of Windows"),
        (fingerprint, ""),
    ]
    assert update(change.baseline, Observed([leak("CACHE")]), TODAY).baseline == change.baseline


@pytest.mark.parametrize("rate", ["NaN", "Infinity", "-Infinity", "1e999", "-1", "9" * 400, "9" * 5000])
def test_a_rate_that_would_hide_every_leak_is_refused(tmp_path: Path, rate: str) -> None:
    path = tmp_path / "known.json"
    path.write_text(json.dumps({"schema": 1, "known": [entry("a")]}).replace('"rate": 1.0', f'"rate": {rate}'))
    where = r"known\[0\]\.rate: " if len(rate) < 5000 else "not JSON: Exceeds the limit"
    with pytest.raises(known_leaks.BaselineError, match=where):
        read(path)


def test_what_cannot_be_written_again_is_refused(tmp_path: Path) -> None:
    deep = json.loads("[" * 500 + "]" * 500)
    path = written(tmp_path / "known.json", entry("a", ticket=deep))
    with pytest.raises(known_leaks.BaselineError, match="nested too deeply"):
        read(path)


@pytest.mark.parametrize("writers", [2, 8])
def test_sessions_that_end_at_once_lose_nothing(tmp_path: Path, writers: int) -> None:
    path = written(tmp_path / "known.json", entry("people", reason="theirs"))
    begin, go = os.pipe()

    def write(writer: int) -> None:
        os.close(go)
        os.read(begin, 1)
        for number in range(5):
            with locked(path) as file:
                found = Observed([leak(f"CACHE_{writer}_{number}")])
                file.replace(to_text(update(read(path), found, TODAY).baseline).encode())

    children = []
    for writer in range(writers):
        children.append(os.fork())
        if children[-1] == 0:
            try:
                write(writer)
            finally:
                os._exit(0)
    # All begin at once, as the last other end of the pipe is closed.
    os.close(go)
    for child in children:
        os.waitpid(child, 0)
    os.close(begin)
    owners = {one.owner for one in read(path).known}
    assert owners == {"o", *(f"shop.CACHE_{writer}_{number}" for writer in range(writers) for number in range(5))}
    assert [one.name for one in tmp_path.iterdir()] == ["known.json"]


def match_one_by_one(known: KnownLeaks, finding: Finding) -> KnownLeak | None:
    """What the index stands for: the fastest entry by id, owner or site, or if a name is uncertain, by test."""
    owner, line = own_owner(finding.culprit), own_line(finding.culprit)
    owner_name, site = owner.name if owner else "", known_leaks.site_of(finding) if line else ""
    uncertain = not owner and (line is None or is_of_tests(line.file))

    def is_named(one: KnownLeak) -> bool:
        if (owner or line) and one.finding == finding.fingerprint:
            return True
        is_owned, is_made = owner_name == one.owner != "", site == one.site != ""
        return is_owned or (is_made and not (owner and one.owner))

    entries = known.baseline.known
    listed = [one for one in entries if one.lists(finding.test) and (uncertain or one.is_uncertain)]
    found = [one for one in entries if is_named(one)] or listed
    return max(found, key=lambda one: (one.rate, one.finding), default=None)


def test_the_index_finds_what_a_search_finds() -> None:
    chance = random.Random(58)
    names, files = ("", "A", "B", "C"), ("", "/p/shop.py", "/p/test_shop.py")
    tests = ("t.py::a", "t.py::b", "u.py::a")
    matched = 0
    for _case in range(300):
        findings = [leak(chance.choice(names), chance.choice(tests), file=chance.choice(files)) for _one in range(6)]
        known = [
            replace(one, owner=chance.choice((one.owner, "")), tests=chance.choice((one.tests, ("t.py::*",))))
            for one in update(Baseline(), Observed(findings[:4]), TODAY).baseline.known
        ]
        chance.shuffle(known)
        leaks = KnownLeaks(Baseline(tuple(known)), TODAY)
        for finding in findings:
            expected = match_one_by_one(leaks, finding)
            assert leaks.match(finding).leak is expected
            matched += expected is not None
    assert 600 < matched < 1700
