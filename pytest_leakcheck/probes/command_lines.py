"""Read the command lines of processes, and mask the secrets in them, because reports, ledgers and pages show them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

# Of a command line, reports show this much.
_MAX_COMMAND_CHARACTERS: Final = 200
_MASK: Final = "***"
# The lengths are bounded, so that the time is proportional to the length of the text.
_SENSITIVE: Final = r"(?:token|password|passwd|secret|key|credential)[\w.-]{0,64}"
_OPTION: Final = rf"(?<![\w.-])-[\w.-]{{0,64}}?{_SENSITIVE}"
_VALUE: Final = r"""(?:\\?"[^"]*"?|\\?'[^']*'?|\S+)"""
_OPTION_ALONE: Final = re.compile(_OPTION, re.IGNORECASE)
_WHOLE_WORD: Final = re.compile(rf"(-{{0,2}}[\w.-]{{0,64}}?{_SENSITIVE}=)(.+)", re.IGNORECASE | re.DOTALL)
_ASSIGNMENT: Final = re.compile(
    rf"""({_SENSITIVE}(?:["']?\s{{0,8}}=|["']\s{{0,8}}:|:\s)\s{{0,8}}){_VALUE}""", re.IGNORECASE
)
_OPTION_AND_VALUE: Final = re.compile(rf"({_OPTION}\s{{1,8}})(?!-){_VALUE}", re.IGNORECASE)
_URL: Final = re.compile(r"(://[^\s:/@]{0,256}:)[^\s@/]+(?=@)")


def read_command_line(process: str) -> list[str]:
    """Read the words of a command line, secrets included; empty if the process is gone or is just being started."""
    try:
        with open(f"/proc/{process}/cmdline", "rb") as file:
            return [word.decode(errors="replace") for word in file.read().split(b"\0") if word]
    except OSError:
        return []


def show_command(words: Iterable[str]) -> str:
    """Return a command line as reports show it: shortened, and without secrets."""
    return " ".join(mask_secrets(words))[:_MAX_COMMAND_CHARACTERS]


def mask_secrets(words: Iterable[str]) -> list[str]:
    """Replace the values of secrets in a command line by ``***``.

    A value is a secret if its name contains token, password, passwd, secret, key or credential, as in ``--name=value``,
    ``--name value`` and ``NAME=value``, also within the text of a script. The password of a URL is one as well.
    """
    masked: list[str] = []
    is_value = False
    for word in words:
        masked.append(_MASK if is_value and not word.startswith("-") else _mask_text(word))
        is_value = _OPTION_ALONE.fullmatch(word) is not None
    return masked


def _mask_text(text: str) -> str:
    if match := _WHOLE_WORD.fullmatch(text):
        return match[1] + _MASK
    for pattern in (_URL, _ASSIGNMENT, _OPTION_AND_VALUE):
        text = pattern.sub(rf"\g<1>{_MASK}", text)
    return text
