"""Words of others in each medium: a parser of the medium finds the text itself, and nothing that it would obey."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from unittest import mock
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from projects import Project
from pytest_leakcheck.cli import main
from pytest_leakcheck.model import escaping
from pytest_leakcheck.model.culprit import CreationPath, Culprit, Owner, Remainder, Site, Step
from pytest_leakcheck.model.finding import Cause, Finding, Verdict
from pytest_leakcheck.model.recording import Recording, Series
from pytest_leakcheck.report import GUIDE
from pytest_leakcheck.report.finding_text import plain, styled_lines
from pytest_leakcheck.report.html.findings_page import page_of_report
from pytest_leakcheck.report.html.page import render
from pytest_leakcheck.report.json_file import Report, Session
from pytest_leakcheck.report.summary import Tally, annotate, summary_lines, summary_table

NASTY = (
    "::stop-commands::pwned",
    " \t::add-mask::a",
    "a ##[error]b",
    "##[group]",
    "\r::set-env name=A::b",
    "a\n::error::b",
    "\x1b]0;pwned\x07\x1b[31m",
    "\x9b31m\x00\x7f",
    "\u202eabc\u2066\u200b\u2028\u2029\ufeff",
    "\ud800",
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "javascript:alert(1)",
    "\"'><svg onload=alert(1)>",
    "]]><!--&lt;&#60;{{7*7}}{% raw %}",
    "pkg/__init__.py **a** _b_ ~~c~~ `d` $e$",
    "a|b\\|c\\\\|d",
    "`|<b>|`",
    "[a](javascript:b) ![c](d) [e]: f",
    "@octocat #1 www.example.org https://example.org me@example.org :tada:",
    "</code></td><td>",
    "| - | 1. # > = +",
    "%0A%3A%25",
)
WORDS = st.one_of(
    st.sampled_from(NASTY),
    st.text(max_size=40),
    st.lists(st.sampled_from("`|\\<>&*_[]()!#@:. \r\na"), max_size=20).map("".join),
)
TABLE = {"h3", "p", "table", "thead", "tbody", "tr", "th", "td", "code"}
MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


class Parsed(HTMLParser):
    """The tags, attributes and texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, _data: str) -> None:
        self.tags.append("!--")


def obeyed(text: str) -> list[str]:
    """Return the lines that the runner of GitHub takes for a command."""
    return [line for line in re.split(r"[\r\n]", text) if re.match(r"\s*::", line) or "##[" in line]


def cause_of(word: str) -> Cause:
    owner = Owner(word, word, (Step(word, word, suspect=True),), word, 1.0)
    return Cause(
        "0a1b2c-fd", "fd", "leak", "red", site=Site(f"/work/{word}.py", 7, word, word), owner=owner, tests=(word,)
    )


def finding_of(word: str) -> Finding:
    site, cause = Site(f"/work/{word}.py", 7, word, word), cause_of(word)
    culprit = Culprit(
        "fd", CreationPath((site,), site), owner=cause.owner, cycle=(word,), hint=word, source=word, native=(word,)
    )
    recording = Recording(word, (Series("fd", (1, 2, 3, 4)),), environment={word: word}, unavailable={"rss": word})
    verdict = Verdict("fd", "leak", reason=word, slope=1.0, colour="red", advice=word)
    held = {"fd": (Remainder(word, 2, word),)}
    return Finding(
        word, (verdict,), {"fd": word}, (), held, recording, {"fd": word}, culprit, snapshot=word, snapshot_error=word
    )


def check_terminal(word: str) -> None:
    assert escaping.printable(word).isprintable()
    assert not obeyed(escaping.break_commands(escaping.escape_controls(word)))


def check_log(word: str) -> None:
    finding = finding_of(word)
    with mock.patch.object(escaping, "_ON_GITHUB", True):
        block = plain(styled_lines(finding, command=word)).split("\n")
        listed = [escaping.printable(line) for _colour, line in summary_lines([finding], Tally([finding]), "all")]
    assert block
    assert listed
    for line in (*block, *listed):
        assert not obeyed(line)
        assert line.replace("\u200b", "").isprintable()


def check_markdown(word: str) -> None:
    summary = summary_table(f"4 tests: {word}", [cause_of(word)], Path("/work"))
    row = summary.splitlines()[-1]
    page = Parsed(MARKDOWN.render(summary))
    assert set(page.tags) <= TABLE
    assert page.tags.count("td") == 6, row
    assert not page.attributes
    text = escaping.escape_controls(word)
    assert text in "".join(page.texts) or not word.strip(), page.texts
    # GitHub makes links of these after it has rendered the rest.
    assert not re.search(r"(?i)://|www\.|\w@\w|[#@]\w|:\w+:", re.sub("&#\\d+;", "", row))


def check_annotation(word: str) -> None:
    (line,) = annotate([cause_of(word)], Path("/work"))
    assert line.isprintable()
    properties, message = re.fullmatch(r"::error ([^:]*)::(.*)", line).groups()  # type: ignore[union-attr]
    assert [one.partition("=")[0] for one in properties.split(",")] == ["file", "line", "title"]
    assert "%" not in re.sub("%(25|0D|0A)", "", message)


def page_of(word: str) -> Parsed:
    session = Session(word, (word,), word, word, word, 1.0, {word: word}, word, word)
    return Parsed(render(page_of_report(Report((finding_of(word),), {}, session), word)))


PLAIN = page_of("a")


def check_html(word: str) -> None:
    page = page_of(word)
    assert set(page.tags) <= set(PLAIN.tags)
    assert page.tags.count("script") == PLAIN.tags.count("script") == 1
    assert {name for name, _value in page.attributes} <= {name for name, _value in PLAIN.attributes}
    for name, value in page.attributes:
        own = rf"#[a-z]+-[0-9]+|data:,|[\w%.~()'-]*|{re.escape(GUIDE)}"
        assert name not in ("href", "src") or re.fullmatch(own, value or ""), value


CHECKS = (check_terminal, check_log, check_markdown, check_annotation, check_html)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("word", NASTY)
def test_each_medium_shows_the_words_and_obeys_none(word: str, check: Callable[[str], None]) -> None:
    check(word)


@settings(max_examples=1_000, deadline=None)
@given(WORDS)
def test_a_terminal_a_log_and_markdown_show_any_text(word: str) -> None:
    check_terminal(word)
    check_log(word)
    check_markdown(word)
    check_annotation(word)


@pytest.mark.laboratory
@settings(max_examples=20_000, deadline=None)
@given(WORDS)
def test_they_show_any_of_many_texts(word: str) -> None:
    for check in CHECKS[:-1]:
        check(word)


@pytest.mark.laboratory
@settings(max_examples=2_000, deadline=None)
@given(WORDS)
def test_a_page_shows_any_text(word: str) -> None:
    check_html(word)


SUITE = """
import os
import pytest

KEPT, RUNS = [], [0]

@pytest.mark.parametrize("word", WORDS, ids=WORDS)
def test_leaks(word):
    KEPT.append(os.open(os.devnull, os.O_RDONLY))

@pytest.mark.parametrize("word", WORDS, ids=[str(at) for at in range(len(WORDS))])
def test_fails_later(word, seen={}):
    seen[word] = seen.get(word, 0) + 1
    if seen[word] == 2:
        raise ValueError(f"aaaa bbbb cccc ddddd {word}")
"""


def test_a_session_on_github_prints_no_command_but_its_own(project: Project) -> None:
    words = [word for word in NASTY if word.isascii()]
    project.write("test_it.py", f"WORDS = {words!r}\n{SUITE}")
    summary = project.folder / "summary.md"
    ran = project.run(
        "--leakcheck-scope=all", "--leakcheck-resources=fd", "--junit-xml=junit.xml", "-k", "leaks or later", "-rN", "--no-header",
        "--leakcheck-html=page.html", GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(summary),
    )  # fmt: skip
    own = re.compile(r"::error file=test_it.py,(line=\d+,)?title=leak [0-9a-f]{6}::|::notice title=leakcheck::\d+ more")
    # The headings of pytest have the names of tests, and so have the lines of its short summary.
    of_pytest = re.compile("(FAILED )?test_it.py::|_+ ")
    assert [line for line in obeyed(ran.text) if not own.match(line) and not of_pytest.match(line)] == []
    assert ran.text.count("\n::error") == 1
    assert set(Parsed(MARKDOWN.render(summary.read_text())).tags) <= TABLE
    # pytest escapes what XML cannot contain.
    properties = ET.parse(project.folder / "junit.xml").findall(".//property")
    assert {one.get("name") for one in properties} >= {"leakcheck.site"}, properties
    assert Parsed((project.folder / "page.html").read_text()).tags.count("script") == 1


@pytest.mark.parametrize("word", ["\x1b]0;pwned\x07", "\x9b31m\x7f", "\u202e\u2028\u200b"])
def test_commands_show_what_a_file_says_and_print_no_control_characters(
    word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("finding", "owner", "site", "reason", "link")
    known = dict.fromkeys(names, word) | {
        "resource": "fd",
        "verdict": "leak",
        "rate": 1.0,
        "tests": [word],
        "seen": word,
    }
    (tmp_path / "known.json").write_text(json.dumps({"schema": 1, "known": [known]}))
    (tmp_path / "unknown.json").write_text(json.dumps({"schema": 1, "known": [known | {"tests": {word: word}}]}))
    (tmp_path / "report.json").write_text(json.dumps({"schema": 4, "resources": {word: 5}}) + "\n")
    for statuses, name, command in (
        ((0,), "known.json", ("baseline", "list")),
        ((2,), "unknown.json", ("baseline", "list")),
        ((2,), "report.json", ("report", "--no-open")),
        ((0,), "known.json", ("baseline", "merge")),
    ):
        assert main([*command, str(tmp_path / name)]) in statuses
        printed = "".join(capsys.readouterr())
        assert printed
        assert printed.replace("\n", "").isprintable(), printed
        if command[-1] == "merge":
            assert json.loads(printed)["known"][0]["reason"] == word
    assert main(["compare", *[str(tmp_path / "report.json")] * 2]) == 2
    assert "".join(capsys.readouterr()).replace("\n", "").isprintable()
