"""Reports are reduced to rows, and what differs from a recorded row is reported, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from verdict_rows import (
    Row,
    by_parameter,
    compare,
    is_made_here,
    made_with,
    merge,
    read,
    reduce,
    varied,
    write,
)

LEAKY = "test_it.py::test_arm[file_kept-leaky]"
CLEAN = "test_it.py::test_arm[file_kept-fixed]"


def entry(test: str, resource: str, verdict: str, **changed: Any) -> dict[str, Any]:
    """As in the file of ``--leakcheck-json``, of what a row is made of."""
    colour = {"ok": "green", "inconclusive": "yellow"}.get(verdict, "red")
    common = {"fingerprint": None, "peak": False, "slope": 0.0, "site": None, "owner": None, "culprit": None}
    return {"test": test, "resource": resource, "verdict": verdict, "colour": colour, **common, **changed}


@pytest.fixture
def findings(tmp_path: Path) -> list[dict[str, Any]]:
    source = tmp_path / "readers.py"
    source.write_text("import os\n    FILES.append(open(name))\n")
    return [
        entry(LEAKY, "thread", "ok"),
        entry(
            LEAKY,
            "fd",
            "leak",
            fingerprint="b3ed83-fd-readers-open",
            slope=1.0,
            site={"file": str(source), "line": 2, "function": "read", "call": "open()"},
            owner={"name": "readers.FILES", "steps": []},
            culprit={"unresolved": {}, "cycle": []},
        ),
        entry(CLEAN, "fd", "ok", fingerprint="e72add-fd"),
        entry(CLEAN, "heap", "ok", slope=13.7),
    ]


def test_a_report_is_reduced_to_rows(findings: list[dict[str, Any]]) -> None:
    assert by_parameter(reduce(findings)) == {
        "file_kept-leaky": {
            "verdict": "leak",
            "colour": "red",
            "resource": "fd",
            "slope": 1.0,
            "site": "readers.py read calls open(): FILES.append(open(name))",
            "owner": "readers.FILES",
            "judged": {"fd": "leak"},
        },
        "file_kept-fixed": {"verdict": "ok", "colour": "green", "judged": {"fd": "ok", "heap": "ok"}},
    }


def test_what_is_not_resolved_has_its_reason_without_figures(findings: list[dict[str, Any]]) -> None:
    culprit = {
        "unresolved": {"site": "freed in another call (line 5: +61,440, own: -28672.5)"},
        "cycle": ["Log", "dict"],
    }
    findings[1] |= {"site": None, "owner": None, "culprit": culprit}
    row = reduce(findings)["test_arm[file_kept-leaky]"]
    assert row["site"] == "unresolved: freed in another call (line #: #, own: #)"
    assert row["owner"] == "cycle of Log, dict"


def test_a_site_that_has_moved_is_the_same(findings: list[dict[str, Any]], tmp_path: Path) -> None:
    before = reduce(findings)
    room = tmp_path / "room"
    room.mkdir()
    (room / "readers.py").write_text("import os\nimport sys\n\n    FILES.append(open(name))\n")
    findings[1]["site"] |= {"file": str(room / "readers.py"), "line": 4}
    assert compare(before, reduce(findings)) == []


def test_verdicts_on_one_resource_stand_side_by_side() -> None:
    """A test over an axis has one per law; a peak is another figure than what is kept."""
    row = reduce(
        [
            entry("test_it.py::test_n", "rss", "over_budget", fingerprint="a-rss", slope=20694357.3),
            entry("test_it.py::test_n", "rss", "ok"),
            entry("test_it.py::test_n", "vram", "ok", peak=True),
        ]
    )["test_n"]
    assert row["judged"] == {"rss": "over_budget, ok"}
    assert row["slope"] == 21000000.0
    row = reduce(
        [
            entry("test_it.py::test_n", "vram", "ok", fingerprint="a-vram"),
            entry("test_it.py::test_n", "vram", "ok", peak=True),
        ]
    )["test_n"]
    assert row["judged"] == {"vram": "ok", "vram peak": "ok"}


def test_figures_that_are_not_certain_are_left_out() -> None:
    row = reduce([entry("test_it.py::test_n", "heap", "inconclusive", fingerprint="a-heap", slope=1108.1)])["test_n"]
    assert row == {
        "verdict": "inconclusive",
        "colour": "yellow",
        "resource": "heap",
        "judged": {"heap": "inconclusive"},
    }


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("verdict", "over_budget"),
        ("colour", "yellow"),
        ("resource", "process"),
        ("slope", 2.0),
        ("site", {"file": "readers.py", "line": 1, "function": "close", "call": ""}),
        ("owner", {"name": "readers.CACHE", "steps": []}),
    ],
)
def test_each_change_is_reported(findings: list[dict[str, Any]], field: str, value: object) -> None:
    recorded = reduce(findings)
    findings[1][field] = value
    changed = compare(recorded, reduce(findings))
    assert {one.field for one in changed} >= {field}
    assert all(str(one).startswith("changed  test_arm[file_kept-leaky]: ") for one in changed)


def test_added_and_removed_rows_are_reported(findings: list[dict[str, Any]]) -> None:
    all_rows, some = reduce(findings), reduce(findings[:2])
    assert [str(one) for one in compare(all_rows, some)] == ["removed  test_arm[file_kept-fixed]: ok; colour green"]
    assert [str(one) for one in compare(some, all_rows)] == ["added    test_arm[file_kept-fixed]: ok; colour green"]
    assert compare(all_rows, all_rows) == []


def test_a_resource_that_is_no_longer_judged_is_reported(findings: list[dict[str, Any]]) -> None:
    changed = compare(reduce(findings), reduce(findings[:3]))
    assert [str(one) for one in changed] == ["changed  test_arm[file_kept-fixed]: judged.heap: ok -> nothing"]


def test_whatever_was_seen_is_right(findings: list[dict[str, Any]]) -> None:
    one = reduce(findings)
    findings[1] |= {"owner": {"name": "readers.CACHE", "steps": []}, "slope": 1.04}
    other = reduce(findings)
    merged = merge([one, other])
    assert varied(merged) == {"owner": ["test_arm[file_kept-leaky]"]}
    assert merged["test_arm[file_kept-leaky]"]["owner"] == {"seen": ["readers.CACHE", "readers.FILES"]}
    assert compare(merged, one) == compare(merged, other) == compare(merged, merged) == []
    findings[1]["owner"] = None
    (changed,) = compare(merged, reduce(findings))
    assert str(changed).endswith(": owner: readers.CACHE or readers.FILES -> nothing")


def test_a_file_has_a_row_per_line(findings: list[dict[str, Any]], tmp_path: Path) -> None:
    file = tmp_path / "golden" / "verdicts.json"
    assert not read(file)
    assert not made_with(file)
    rows = reduce(findings)
    write({"forms": {}, "cases": rows}, {"cases": {"python": "3.11.7"}, "forms": {}}, file)
    assert read(file) == {"forms": {}, "cases": rows}
    assert made_with(file) == {"forms": {}, "cases": {"python": "3.11.7"}}
    starts = [line.split('"')[1] for line in file.read_text().splitlines() if line.startswith("   ")]
    assert starts == sorted(rows)


def test_the_recorded_file_is_whole() -> None:
    """Sorted, as it was written, and with a row for whatever it has versions of."""
    sections = read()
    assert sections.keys() >= made_with().keys() >= {"cases", "forms"}
    rows: list[tuple[str, Row]] = [item for section in sections.values() for item in section.items()]
    assert all(row["judged"] and row["verdict"] and row["colour"] for _name, row in rows)
    assert "/tmp" not in json.dumps(sections)
    assert isinstance(is_made_here("cases"), bool)


def test_a_file_of_another_python_has_the_rows_that_differ(findings: list[dict[str, Any]], tmp_path: Path) -> None:
    base, other = tmp_path / "verdicts.json", tmp_path / "verdicts-3.14.json"
    rows = reduce(findings)
    write({"cases": rows, "forms": rows}, {"cases": {"python": "3.11.7"}, "forms": {"python": "3.11.7"}}, base)
    name = next(iter(rows))
    changed = {name: rows[name] | {"verdict": "unclosed"}}
    write({"cases": rows | changed, "forms": rows}, {"cases": {"python": "3.14.0"}}, other)
    assert json.loads(other.read_text())["sections"] == {"cases": changed}
    assert read(other) == {"cases": rows | changed, "forms": rows}
    assert read(base) == {"cases": rows, "forms": rows}
