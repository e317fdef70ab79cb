from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_leakcheck.plugin.isolation.messages import Done, NotFound, Reported, Warned, from_line, to_line


@pytest.mark.parametrize(
    "message",
    [
        Done(),
        NotFound("test_\udc80\n"),
        Warned("text", ("builtins", "UserWarning"), "a.py", 3, "", ("a.py", 3, "f")),
        Reported({"when": "call", "sections": [["stdout", "said"]], "extra": {"a": [1.5, None]}}),
    ],
)
def test_a_message_is_a_line_and_comes_back(message: Done | NotFound | Warned | Reported) -> None:
    line = to_line(message)
    assert line.count("\n") == 1
    assert from_line(line) == message


def test_what_other_plugins_add_to_a_report_is_sent_as_far_as_json_has_it() -> None:
    sent = from_line(to_line(Reported({"path": Path("a"), "kept": {("a", 1): 2, "b": {3}}})))
    assert sent == Reported({"path": "a", "kept": {"b": "{3}"}})


def test_a_line_that_was_not_written_to_its_end_is_no_message() -> None:
    with pytest.raises(json.JSONDecodeError):
        from_line(to_line(NotFound("test_a"))[:-5])
