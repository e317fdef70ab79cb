"""Define what a session and its subprocess exchange: the task, the messages and the answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any, ClassVar, Final

from pytest_leakcheck.model.culprit import Culprit
from pytest_leakcheck.model.decoding import encode
from pytest_leakcheck.model.recording import Recording, Sizing
from pytest_leakcheck.probes.foreign_files import Unreadable, parse
from pytest_leakcheck.runner.processes import supervisor

# A line for each warning, subtest and phase of the test.
_MAX_LINES: Final = 100_000


@dataclass(frozen=True, slots=True)
class Task:
    """The task of a child process, in addition to the command line: a JSON object.

    Attributes:
        test: The node id in the session, without xdist's group names.
        folder: The folder that both processes use; the child process writes its messages there, one
            line of JSON each.
        basetemp: The folder for ``tmp_path``; None if pytest chooses it.
        color: ``yes`` or ``no``.
        parent: The pid of the process whose end also ends the child process; 0 for none.
        worker: The `workerinput` that an xdist worker got from its controller; None outside of a
            worker.
        sizing: For a test that runs once to measure its peaks; None repeats the test.
        arguments: The command line of the session, for a process that the child process starts in
            turn.
        reports: The folder of the session's reports; empty if it writes none.
        not_forked: Why the process of a repeated test was started, and not forked by a server;
            empty if it was.
        server: For a server that forks the processes, the descriptor of its connection; 0 for none.
    """

    test: str
    file: str
    folder: str
    basetemp: str | None
    color: str
    parent: int
    worker: dict[str, Any] | None
    sizing: Sizing | None = None
    arguments: tuple[str, ...] = ()
    reports: str = ""
    not_forked: str = ""
    server: int = 0


@dataclass(frozen=True, slots=True)
class RecordedWarning:
    """A warning of the test: its text, because its arguments may be of any type.

    `category` has the module and the name of its class.
    """

    text: str
    category: tuple[str, str]
    filename: str
    lineno: int
    nodeid: str
    location: tuple[str, int, str] | None


@dataclass(frozen=True, slots=True)
class Messages:
    """What a process has sent.

    Each line that it writes has the new part of some fields; `read_lines` adds them up.

    Attributes:
        reports: The reports of the test, as pytest serializes them.
        recordings: The readings and peaks of a test that runs once.
        culprits: What is known of the causes of its peaks.
        not_collected: The error that pytest reports for a file that could not be collected.
        not_found: Above 0 if the test is not among the collected ones.
        done: Above 0 if the process reached its end.
    """

    SPARSE: ClassVar = True

    reports: tuple[dict[str, Any], ...] = ()
    warnings: tuple[RecordedWarning, ...] = ()
    recordings: tuple[Recording, ...] = ()
    culprits: tuple[Culprit, ...] = ()
    not_collected: str = ""
    not_found: int = 0
    done: int = 0


def to_line(messages: Messages) -> str:
    """Encode messages as one line of text."""
    # Plugins may have added values of any type to a report.
    value = {**encode(replace(messages, reports=())), "reports": messages.reports}
    return json.dumps(value, default=str, skipkeys=True) + "\n"


def read_lines(text: str) -> Messages:
    """Decode lines up to an incomplete one, which the process was writing when it ended.

    Raises:
        Unreadable: A line is not what `to_line` writes, because the test disturbed the process.
    """
    # The last part is empty, or incomplete.
    lines = text.split("\n")[:-1]
    if len(lines) > _MAX_LINES:
        raise Unreadable(f"more than {_MAX_LINES} lines")
    found = [Messages(), *(parse(Messages, line) for line in lines)]
    return Messages(
        *(_add_up([getattr(new, one.name) for new in found]) for one in fields(Messages))
    )


def _add_up(parts: list[Any]) -> Any:
    if isinstance(parts[0], tuple):
        return tuple(chain.from_iterable(parts))
    return "".join(parts) if isinstance(parts[0], str) else sum(parts)


def read_failures(text: str) -> dict[int, str]:
    """Decode what the launcher of ranks wrote, if anything; raise `Unreadable` as `read_lines`."""
    failures = parse(dict[str, str], text or "{}")
    if not all(rank.isdecimal() for rank in failures):
        raise Unreadable("failures: expected numbers of ranks")
    return {int(rank): how for rank, how in failures.items()}


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of running an item in one or more child processes.

    Attributes:
        messages: What each process has sent, by rank (its number among the processes that run the
            test together).
        stacks: The stack of each process that had to be ended, by rank; empty for the others.
        failures: How each rank that failed ended, as its launcher saw it.
        children: The peak memory of child processes, in bytes; 0 if it was not observed.
    """

    ended: supervisor.ProcessEnd
    messages: tuple[Messages, ...]
    stacks: tuple[str, ...]
    failures: Mapping[int, str]
    children: int

    @property
    def silent_ranks(self) -> list[int]:
        """The ranks that ended by themselves before they were done."""
        return [
            rank
            for rank, sent in enumerate(self.messages)
            if not self.stacks[rank] and not sent.done
        ]

    @property
    def is_lost(self) -> bool:
        """Whether a process did not reach its end."""
        return bool(self.ended.error or self.ended.hung or self.silent_ranks)

    @property
    def culprits(self) -> tuple[Culprit, ...]:
        """Those of the first rank that sent any; one is enough, because all run the same body."""
        return next((one.culprits for one in self.messages if one.culprits), ())
