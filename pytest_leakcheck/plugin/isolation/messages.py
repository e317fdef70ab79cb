"""What the session and a subprocess of it tell each other: the task, and the answer."""

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
    """The task of a child, beside the command line: a JSON object.

    Attributes:
        test: The node id, as it is collected here.
        file: Where it is collected from, from the folder that pytest was started in.
        folder: What both processes share; reports go there, a line of JSON each.
        basetemp: The folder of ``tmp_path``; None leaves it to pytest.
        encoding: That of the session's terminal.
        color: Whether that shows colours: ``yes`` or ``no``.
        parent: The process to die with; 0 for none.
        worker: What an xdist controller told the worker; None outside of one.
        sizing: To be run once, at this size (`points.Sizing`); None repeats it.
        arguments: The command line of the session, for a process that this one starts in turn.
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
    """What came back of one errand.

    Attributes:
        ended: What became of the process that was started here.
        told: By rank, what each process wrote: pairs of a kind and a value.
        stacks: By rank, where those were that had to be ended.
        failures: By rank, the exit status of those that failed, as their launcher saw it.
    """

    ended: supervisor.Ended
    told: tuple[tuple[tuple[str, Any], ...], ...]
    stacks: tuple[str, ...] = ()
    failures: Mapping[int, int] = field(default_factory=dict)


def culprits_of(answer: Answer) -> list[Culprit]:
    """Of the first rank that has any: they all run the same body."""
    found = ([decode(Culprit, value) for kind, value in told if kind == "culprit"] for told in answer.told)
    return next(filter(None, found), [])


def recording_of(told: Sequence[tuple[str, Any]]) -> Recording | None:
    """The first that a process has sent."""
    return next((decode(Recording, value) for kind, value in told if kind == "recording"), None)
