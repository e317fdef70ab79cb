"""Define what a session and its subprocess exchange: the task and the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_leakcheck.model.culprit import Culprit
from pytest_leakcheck.model.decoding import decode
from pytest_leakcheck.model.recording import Recording
from pytest_leakcheck.runner.processes import supervisor


@dataclass(frozen=True, slots=True)
class Task:
    """The task of a child process, in addition to the command line: a JSON object.

    Attributes:
        test: The node id in the session, without xdist's group names.
        file: The test file, relative to the folder that pytest was started in if it lies below that.
        folder: The folder that both processes use; the child process writes its messages there, one line of JSON each.
        basetemp: The folder of ``tmp_path``; None leaves it to pytest.
        encoding: The encoding of the session's terminal.
        color: ``yes`` if that terminal shows colors, or ``no``.
        parent: The process whose end also ends the child process; 0 for none.
        worker: The `workerinput` that an xdist worker got from its controller; None outside of a worker.
        sizing: The fields of the `Sizing` for a test that runs once for its peaks; None for one that is repeated.
        arguments: The command line of the session, for a process that the child process starts in turn.
    """

    test: str
    file: str
    folder: str
    basetemp: str | None
    encoding: str
    color: str
    parent: int
    worker: dict[str, Any] | None
    sizing: dict[str, Any] | None = None
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of running an item in one or more child processes.

    Attributes:
        ended: How the process that this one started ended.
        told: By rank, the messages of each process: pairs of a kind and a value.
        stacks: By rank, the stacks of a process that had to be ended; empty for the others.
        failures: The exit status of each rank that failed, as its launcher saw it.
    """

    ended: supervisor.Ended
    told: tuple[tuple[tuple[str, Any], ...], ...]
    stacks: tuple[str, ...] = ()
    failures: Mapping[int, int] = field(default_factory=dict)


def culprits_of(answer: Answer) -> list[Culprit]:
    """Return the culprits of the first rank that sent any; all run the same body."""
    found = ([decode(Culprit, value) for kind, value in told if kind == "culprit"] for told in answer.told)
    return next(filter(None, found), [])


def recording_of(told: Sequence[tuple[str, Any]]) -> Recording | None:
    """Return the first recording that a process sent; None if it sent none.

    Args:
        told: The messages of one process.
    """
    return next((decode(Recording, value) for kind, value in told if kind == "recording"), None)
