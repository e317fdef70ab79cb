"""The pure parts of the comparison with other checkers: reading a corpus, judging an output, the table."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from checkers import CHECKERS, Checker
from peers import Row, named, outcome_of, table
from subjects import Subject, read_cases, read_corpus

LEAKY = """
LABEL = "leaky"

OBJECT = r"kept[.]txt"
OWNER = "KEPT"
raise AssertionError("a subject is read, never imported, to describe it")

def iterate():
    KEPT.append(open("kept.txt"))  # LEAK
"""
SUBJECT = Subject("open_kept", True, "open_kept.py", (9,), (), "open_kept", thing=r"kept[.]txt", owner=r"\b(?:KEPT)\b")
CHECKER = Checker("one", ("one==1",), r"^LEAK:", "", undecided=r"^SKIPPED")
ROW = Row("one", "open_kept", True, "quiet", False, False, None, 10, 2.0, "")
PLAIN = replace(ROW, checker=CHECKERS[0].name, calls=1, seconds=0.5)


def test_a_corpus_is_read_leaky_first(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "calm.py").write_text('LABEL = "clean"\nHEAVY = True\n')
    (tmp_path / "open_kept.py").write_text(LEAKY)
    leaky, clean = read_corpus(tmp_path)
    assert leaky == replace(SUBJECT, path=(str(tmp_path),))
    assert (clean.name, clean.leaky, clean.lines, clean.heavy, clean.owner) == ("calm", False, (), True, "")


@pytest.mark.skipif(sys.platform != "linux", reason="the cases are made of Linux")
def test_our_own_cases_state_their_lines_and_owners() -> None:
    pytest.importorskip("anyio")
    pytest.importorskip("numpy", reason="some cases work with arrays")
    subjects = {subject.name: subject for subject in read_cases(Path(sys.executable))}
    leaky, fixed = subjects["tokens_kept-leaky"], subjects["tokens_kept-fixed"]
    lines = Path(leaky.path[0], "cases", leaky.file).read_text(encoding="utf-8").splitlines()
    assert [lines[number - 1] for number in leaky.lines] == ['    TOKENS.append(b"%07d" % next(NUMBERS))']
    assert (leaky.leaky, leaky.owner, leaky.heavy) == (True, r"\b(?:TOKENS)\b", False)
    assert (fixed.leaky, fixed.lines, fixed.owner) == (False, (), "")
    assert subjects["fork_left-leaky"].heavy
    assert sum(bool(subject.lines) for subject in subjects.values()) > 100


@pytest.mark.parametrize("text", ["", 'LABEL = "maybe"\n', 'LABEL = "leaky"\n'])
def test_a_module_that_says_too_little_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "odd.py").write_text(text)
    with pytest.raises(ValueError, match=r"odd[.]py: "):
        read_corpus(tmp_path)


@pytest.mark.parametrize(
    ("output", "code", "outcome"),
    [
        ("x\nLEAK: 3 files", 1, "found"),
        ("x\nLEAK: 3 files", 0, "found"),  # some report and exit 0
        ("LEAK: 3 files", None, "timeout"),
        ("LEAK: 3 files", -11, "error"),
        ("no LEAK: in the line", 0, "quiet"),
        ("SKIPPED [1]", 0, "undecided"),
        ("ImportError", 2, "error"),
    ],
)
def test_outcome(output: str, code: int | None, outcome: str) -> None:
    assert outcome_of(CHECKER, output, code) == outcome


def test_what_measures_without_judging_finds_nothing() -> None:
    assert outcome_of(replace(CHECKER, leak=""), "LEAK: 3 files", 0) == "quiet"


@pytest.mark.parametrize(
    ("report", "line", "thing", "owner"),
    [
        ("at /a/open_kept.py:9", True, False, False),
        ("at open_kept.py:9:", True, False, False),
        ('at File "/a/open_kept.py", line 9, in f', True, False, False),
        ("at /a/open_kept.py:90", False, False, False),
        ("17 x /tmp/kept.txt", False, True, False),
        ("17 x /tmp/other.txt", False, False, False),
        ("kept.txt.open_kept.py:9", True, False, False),  # a place in the subject's own file
        ("held by open_kept.KEPT", False, False, True),
        ("    KEPT.append(open())", False, False, True),
        ("KEPT:/a/open_kept.py:9 -> 3", True, False, False),
        ('File "/a/open_kept.py", line 9, in KEPT', True, False, False),
    ],
)
def test_what_a_report_names(report: str, *, line: bool, thing: bool, owner: bool) -> None:
    assert named(SUBJECT, report) == (line, thing, owner)
    assert not named(replace(SUBJECT, file="kept.py"), report)[0]


def test_what_a_subject_does_not_have_cannot_be_named() -> None:
    assert named(replace(SUBJECT, lines=(), thing="", owner=""), "anything") == (None, None, None)


def test_table() -> None:
    clean = replace(ROW, subject="calm", leaky=False, line=None, thing=None)
    rows = [
        PLAIN,
        replace(ROW, outcome="found", line=True, thing=True),
        replace(PLAIN, subject="calm", leaky=False, line=None, thing=None, seconds=1.0),
        replace(clean, outcome="found", calls=None),
        replace(clean, subject="slow", outcome="timeout", seconds=60.0),
        replace(ROW, subject="odd", outcome="undecided", calls=20),
    ]
    assert table(rows).splitlines()[2:] == [
        "| plain pytest | 0/1 | 0/1 | 0/1 | 0/1 |  | 0 | 0 | 1 | 1.0 |",
        # No ratio for what plain pytest was not run over: the median of 4 and 2.
        "| one | 1/2 | 1/2 | 1/2 | 1/2 |  | 1 | 1 | 10 | 3.0 |",
    ]


def test_entries_are_whole() -> None:
    assert CHECKERS[0].leak == "", "times are divided by those of the first, which judges nothing"
    assert len({checker.name for checker in CHECKERS}) == len(CHECKERS)
    assert all("def test_subject(" in checker.form for checker in CHECKERS)
