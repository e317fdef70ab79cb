"""Define what a session and its subprocess exchange: the task, the messages and the answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar, get_args

from pytest_leakcheck.model.culprit import Culprit
from pytest_leakcheck.model.decoding import decode, encode
from pytest_leakcheck.model.recording import Recording
from pytest_leakcheck.model.scaling_points import Sizing
from pytest_leakcheck.runner.processes import supervisor


@dataclass(frozen=True, slots=True)
class Task:
    """The task of a child process, in addition to the command line: a JSON object.

    Attributes:
        test: The node id in the session, without xdist's group names.
        file: The path of the test file; relative if it lies below the folder in which pytest was started.
        folder: The folder that both processes use; the child process writes its messages there, one line of JSON each.
        basetemp: The folder for ``tmp_path``; None if pytest chooses it.
        color: ``yes`` or ``no``: whether the session's terminal shows colors.
        parent: The pid of the process whose end also ends the child process; 0 for none.
        worker: The `workerinput` that an xdist worker got from its controller; None outside of a worker.
        sizing: For a test that runs once to measure its peaks; None repeats the test.
        arguments: The command line of the session, for a process that the child process starts in turn.
        reports: The folder of the session's reports; empty if it writes none.
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


@dataclass(frozen=True, slots=True)
class Reported:
    """A report of the test, as pytest serializes it."""

    report: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning that the test raised.

    Attributes:
        text: The message; the arguments of a warning may be of any type, so only their text is sent.
        category: The module and the qualified name of the class.
        location: The file, the line and the function that pytest names; None if it names none.
    """

    text: str
    category: tuple[str, str]
    filename: str
    lineno: int
    nodeid: str
    location: tuple[str, int, str] | None


@dataclass(frozen=True, slots=True)
class Measured:
    """The readings and peaks of a test that runs once."""

    recording: Recording


@dataclass(frozen=True, slots=True)
class CulpritFound:
    """What is known of the cause of one peak."""

    culprit: Culprit


@dataclass(frozen=True, slots=True)
class NotCollected:
    """The error that pytest reports for a file that could not be collected."""

    text: str


@dataclass(frozen=True, slots=True)
class NotFound:
    """The node id that was asked for, and is not among the collected tests."""

    test: str


@dataclass(frozen=True, slots=True)
class Done:
    """The last message of a process that reached its end."""


Message: TypeAlias = Reported | Warned | Measured | CulpritFound | NotCollected | NotFound | Done

M = TypeVar("M", bound=Message)
_KINDS: Final[Mapping[str, type[Message]]] = {kind.__name__: kind for kind in get_args(Message)}


def to_line(message: Message) -> str:
    """Encode a message as one line of text."""
    # Plugins may have added values of any type to a report.
    value = {"report": message.report} if isinstance(message, Reported) else encode(message)
    return json.dumps([type(message).__name__, value], default=str, skipkeys=True) + "\n"


def from_line(line: str) -> Message:
    """Decode a line; raise `ValueError` if it is incomplete, and `DecodeError` if a field has the wrong type."""
    kind, value = json.loads(line)
    return decode(_KINDS[kind], value)


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of running an item in one or more child processes.

    Attributes:
        messages: The messages of each process, by rank (its number among the processes that run the test together).
        stacks: The stacks of the processes, by rank, if the item ran only once to measure its peaks and they had to be
            ended; else empty.
        failures: The exit status of each rank that failed, as its launcher saw it.
    """

    ended: supervisor.Ended
    messages: tuple[tuple[Message, ...], ...]
    stacks: tuple[str, ...] = ()
    failures: Mapping[int, int] = field(default_factory=dict)


def select(messages: Iterable[Message], kind: type[M]) -> Iterator[M]:
    """Yield the messages of one kind."""
    return (one for one in messages if isinstance(one, kind))


def culprits_of(answer: Answer) -> list[Culprit]:
    """Return the culprits of the first rank that sent any. One rank is enough, because all run the same body."""
    found = ([one.culprit for one in select(messages, CulpritFound)] for messages in answer.messages)
    return next(filter(None, found), [])


def recording_of(messages: Iterable[Message]) -> Recording | None:
    """Return the first recording that a process sent; None if it sent none."""
    return next((one.recording for one in select(messages, Measured)), None)
