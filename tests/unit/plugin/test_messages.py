from __future__ import annotations

from pathlib import Path

import pytest

from pytest_leakcheck.plugin.isolation.messages import Messages, RecordedWarning, read_failures, read_lines, to_line
from pytest_leakcheck.probes.foreign_files import Unreadable


@pytest.mark.parametrize(
    "sent",
    [
        Messages(done=1),
        Messages(not_collected="test_\udc80\n"),
        Messages(warnings=(RecordedWarning("text", ("builtins", "UserWarning"), "a.py", 3, "", ("a.py", 3, "f")),)),
        Messages(reports=({"when": "call", "sections": [["stdout", "said"]], "extra": {"a": [1.5, None]}},)),
    ],
)
def test_messages_are_a_line_and_come_back(sent: Messages) -> None:
    line = to_line(sent)
    assert line.count("\n") == 1
    assert read_lines(line) == sent


def test_what_other_plugins_add_to_a_report_is_sent_as_far_as_json_has_it() -> None:
    sent = read_lines(to_line(Messages(reports=({"path": Path("a"), "kept": {("a", 1): 2, "b": {3}}},))))
    assert sent == Messages(reports=({"path": "a", "kept": {"b": "{3}"}},))


def test_lines_add_up_to_the_one_that_was_not_written_to_its_end() -> None:
    lines = to_line(Messages(not_found=1)) + to_line(Messages(reports=({"a": 1},))) + to_line(Messages(done=1))
    assert read_lines(lines) == Messages(({"a": 1},), not_found=1, done=1)
    assert read_lines(lines[:-5]) == Messages(({"a": 1},), not_found=1)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"done": "x"}', "done: expected int, got 'x'"),
        ('{"done": 1', "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"reports": [{"a": ' + "[" * 60 + "]" * 60 + "}]}", "nested too deeply"),
        ('{"done": ' + "9" * 5000 + "}", "not JSON"),
        ('{"done": ' + "9" * 50 + "}", "done: expected a finite number"),
        (
            '{"recordings": [{"schema": 1, "test": "t", "series": [], "seconds": NaN}]}',
            "seconds: expected a finite number",
        ),
        (
            '{"recordings": [{"schema": 1, "test": "t", "series": [], "seconds": 1e999}]}',
            "seconds: expected a finite number",
        ),
        ("{}\n" * 100_000, "more than 100000 lines"),
    ],
    ids=range(9),
)
def test_a_line_of_something_else_is_refused(line: str, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        read_lines(f"{line}\n")


@pytest.mark.parametrize("text", ["[1]", '{"x": 1}', '{"0": 9}', '{"-1": 1}', "{", '{"0": 1e999}'])
def test_what_is_not_of_the_launcher_is_refused(text: str) -> None:
    assert read_failures('{"0": "died of SIGKILL"}') == {0: "died of SIGKILL"}
    assert read_failures("") == {}
    with pytest.raises(Unreadable):
        read_failures(text)
