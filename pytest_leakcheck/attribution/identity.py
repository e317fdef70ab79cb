"""Which descriptors, threads and children are there now and were not at the start, grouped so that a person can read it."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pytest_leakcheck.probes.collector import open_targets
from pytest_leakcheck.probes.processes import descendants

_NUMBERED: Final = re.compile(r"^(socket|pipe):\[\d+\]$")
_ANONYMOUS: Final = re.compile(r"^anon_inode:\[?([^\]]+)\]?$")
_COUNTER: Final = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Held:
    """So many survivors of one kind."""

    what: str
    count: int


@dataclass(frozen=True, slots=True)
class Identities:
    """The identities behind the scarce counters at one moment."""

    fds: Mapping[int, str]
    threads: Mapping[int, str]
    children: Mapping[int, str]


def take_identities() -> Identities:
    """Read them now: descriptors of this process, its Python threads, the live processes below it."""
    threads = {thread.ident or 0: thread.name for thread in threading.enumerate()}
    children = {pid: _command(pid) for pid in descendants(os.getpid())} if sys.platform.startswith("linux") else {}
    return Identities(open_targets(), threads, children)


def survivors(before: Identities, after: Identities) -> dict[str, tuple[Held, ...]]:
    """What is new, by resource; a number that was reused for another target counts as new."""
    fds = [target for fd, target in after.fds.items() if before.fds.get(fd) != target]
    threads = [name for ident, name in after.threads.items() if ident not in before.threads]
    children = [command for pid, command in after.children.items() if pid not in before.children]
    return {
        "fd": group(map(describe_target, fds)),
        "thread": group(_COUNTER.sub("N", name) for name in threads),
        "process": group(children),
    }


def group(kinds: Iterable[str]) -> tuple[Held, ...]:
    """Count equal descriptions, most frequent first."""
    return tuple(Held(what, count) for what, count in Counter(kinds).most_common())


def describe_target(target: str) -> str:
    """What a descriptor points to, without the numbers that differ from one to the next."""
    if match := _NUMBERED.match(target):
        return match[1]
    if match := _ANONYMOUS.match(target):
        return match[1]
    if target.startswith("/memfd:"):
        return f"memfd {target[7:].removesuffix(' (deleted)')}"
    return target


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(200).split(b"\0")
    except OSError:
        return "gone"
    return " ".join(word.decode(errors="replace") for word in words if word) or "just started"
