"""Escape others' words for terminals, logs of GitHub jobs, workflow commands and Markdown.

Names of tests, files and types, messages of errors, and all that a file says may come from anybody.
HTML and XML are escaped by what writes them, jinja and pytest.
"""

from __future__ import annotations

import os
import re
import string
from typing import Final

# Kept at the start, since a test may change the environment.
_ON_GITHUB: Final = os.environ.get("GITHUB_ACTIONS") == "true"
# The runner obeys a line that begins like this, and one that contains this. U+200B has no width.
_COMMAND: Final = re.compile(r"^(\s*:)(?=:)|(##)(?=\[)")
_BREAK: Final = "\u200b"
_IN_MESSAGE: Final = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_IN_PROPERTY: Final = _IN_MESSAGE | str.maketrans({":": "%3A", ",": "%2C"})
# Each of these may have a meaning in Markdown; a reference to a character has none.
_IN_MARKDOWN: Final = {ord(one): f"&#{ord(one)};" for one in string.punctuation}


def printable(text: str) -> str:
    """Return a line as a terminal and the log of a job show it, and obey nothing in it.

    Control characters are replaced by their escapes, with all that is not seen or changes the
    direction of the text.
    """
    text = escape_controls(text)
    return break_commands(text) if _ON_GITHUB else text


def break_commands(line: str) -> str:
    """Return a line of the log of a job in which the runner finds no workflow command."""
    return _COMMAND.sub(rf"\g<0>{_BREAK}", line)


def escape_controls(text: str) -> str:
    """Replace each character that has no shape by its escape; a space stays."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def in_message(text: str) -> str:
    """Escape the message of a workflow command."""
    return escape_controls(text.translate(_IN_MESSAGE))


def in_property(text: str) -> str:
    """Escape a property of a workflow command."""
    return escape_controls(text.translate(_IN_PROPERTY))


def in_markdown(text: str) -> str:
    """Escape a text within a line of Markdown, such as a cell of a table."""
    return escape_controls(text).translate(_IN_MARKDOWN)
