"""Describe a session as a whole: what was run, where, and what it printed of all tests together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Session:
    """What a report says of a session, beside its findings.

    Attributes:
        headline: The line that accounts for all tests.
        notes: The other lines of the summary that belong to no finding.
        command: The command line, without secrets.
        host: The name of the machine.
        commit: The commit that is checked out; empty if it is unknown.
        seconds: How long the session took.
        versions: Versions that the figures depend on, by name.
        rerun: The command that measures a test again, without its node id.
        more_time: The option that allows the search for a cause more time.
        source: Whether pages show lines of source.
    """

    SPARSE: ClassVar = True

    headline: str = ""
    notes: tuple[str, ...] = ()
    command: str = ""
    host: str = ""
    commit: str = ""
    seconds: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)
    rerun: str = "pytest --leakcheck"
    more_time: str = ""
    source: bool = True
