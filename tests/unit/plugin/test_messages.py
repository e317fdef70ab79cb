from __future__ import annotations

from pathlib import Path

import pytest

from pytest_leakcheck.plugin.isolation.messages import Messages, Warned, read_lines, to_line


@pytest.mark.parametrize(
    "sent",
    [
        Messages(done=1),
        Messages(not_collected="test_\udc80\n"),
        Messages(warnings=(Warned("text", ("builtins", "UserWarning"), "a.py", 3, "", ("a.py", 3, "f")),)),
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


def test_a_field_of_the_wrong_type_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="a message of the subprocess cannot be read: done: expected int, got 'x'"):
        read_lines('{"done": "x"}\n')
