"""The cause of a growth, as values: where it is made (`Site`, `Where`), what is held (`Held`), who holds it (`Owner`)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal, TypeAlias

TestPhase: TypeAlias = Literal["setup", "call", "teardown", ""]


@dataclass(frozen=True, slots=True)
class Culprit:
    """The answers for one resource; what could not be answered has a reason in `unresolved`.

    Attributes:
        resource: What grows.
        where: Where it is made; None where that is not resolved.
        kept: The line that puts it into its owner, where that is another one.
        owner: Who holds it.
        cycle: The types of a cycle that only the collector frees, in its order.
        unresolved: Why, for ``site`` and ``owner``.
        hint: Advice, where it has a known shape.
        iterations: How many were run to find this out.
        source: The text of the site's line.
        native: The functions of C that allocated it, innermost first, where they were asked for.
        ran_out: The line that failed when there was no more of it, in this process or in a worker of it.
    """

    resource: str
    where: Where | None = None
    kept: Site | None = None
    owner: Owner | None = None
    cycle: tuple[str, ...] = ()
    unresolved: Mapping[str, str] = field(default_factory=dict)
    hint: str = ""
    iterations: int = 0
    source: str = ""
    native: tuple[str, ...] = ()
    ran_out: Site | None = None

    @property
    def site(self) -> Site | None:
        """The line to change: that which makes it, or if that is not resolved, that which keeps it, or that failed."""
        return self.where.site if self.where else self.kept or self.ran_out

    @property
    def frames(self) -> tuple[Site, ...]:
        """All that is under suspicion: the call path, the line that keeps it, and that which failed."""
        others = (one for one in (self.kept, self.ran_out) if one is not None)
        return (*(self.where.path if self.where else ()), *others)


def fingerprint(test: str, resource: str, outcome: str, culprit: Culprit | None) -> str:
    """A name for the finding that is equal wherever the cause is: six hex digits, the resource, and where it is made.

    It knows the suspect frames alone: by the file's name, the function, what is called and the text of the line. So it
    stays the same on another machine, in another folder, and when lines above are added; and tests that fail for one
    cause share it. Where no cause is known it is that of the test.

    Args:
        test: The node id.
        resource: What grows.
        outcome: Of the verdict.
        culprit: What is known of the cause.
    """
    if culprit is None or culprit.where is None:
        owner = culprit.owner.name if culprit is not None and culprit.owner else ""
        return f"{_digest(owner or test, resource, outcome)}-{resource}"
    site, made_in = culprit.where.site, culprit.where.made_in
    frames = (_frame(site), culprit.source, _frame(made_in))
    name = (made_in.call or site.call or site.function).removesuffix("()").rpartition(".")[2].strip("<>")
    return f"{_digest(*frames, resource, outcome)}-{resource}-{PurePath(site.file).stem}-{name}".rstrip("-")


def _frame(site: Site) -> str:
    return f"{PurePath(site.file).name}:{site.function}:{site.call}"


def _digest(*parts: str) -> str:
    return hashlib.sha256("|".join(parts).encode(errors="backslashreplace")).hexdigest()[:6]


@dataclass(frozen=True, slots=True)
class Where:
    """Where something is made.

    Attributes:
        path: The call path from the test's own outermost frame, innermost last.
        site: The innermost line of it that is neither installed nor of the standard library: what can be changed. Where
            all of it is installed, the innermost.
        phase: The phase of the test; empty outside of pytest.
        fixture: The fixture whose code runs; empty in the test itself.
    """

    path: tuple[Site, ...]
    site: Site
    phase: TestPhase = ""
    fixture: str = ""

    @property
    def made_in(self) -> Site:
        """The innermost line of all."""
        return self.path[-1]


@dataclass(frozen=True, slots=True)
class Held:
    """So many survivors of one kind.

    Attributes:
        what: What they are, without what differs from one to the next.
        count: How many.
        note: What else is known of them: how old the oldest is, how much they hold; empty if nothing is.
    """

    what: str
    count: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One reference of a path.

    Attributes:
        holder: What refers, as ``module case``, ``Trainer``, ``list of 20``.
        via: By what, as ``_KEPT``, ``.history``, ``['uploads']``, ``closure cell 'items'``.
        suspect: Whether this is the reference that retains.
    """

    holder: str
    via: str
    suspect: bool = False


@dataclass(frozen=True, slots=True)
class Owner:
    """What keeps the things that are retained.

    Attributes:
        name: Short, and to be searched for in the source: ``case._KEPT``.
        root: Where the path begins; empty where the owner is known, but not what holds it.
        steps: The path, with the suspect reference marked.
        holds: What the owner holds of it, as ``20 × bytes, 3,033 B each``.
        gained: Entries per iteration; of a single value, bytes or characters.
    """

    name: str
    root: str
    steps: tuple[Step, ...]
    holds: str
    gained: float


@dataclass(frozen=True, slots=True)
class Site:
    """One line of a call path.

    Attributes:
        file: As the code object has it, mostly an absolute path.
        line: From 1.
        function: The function that the line is in; with its class from Python 3.11 on.
        call: What is called in that line, as ``name()``; empty where the line itself does it.
    """

    file: str
    line: int
    function: str
    call: str = ""


def touches(path: Sequence[Site], packages: Sequence[str]) -> bool:
    """Whether a frame is of one of these packages: a folder or a module of that name is in its path."""
    wanted = set(packages)
    return any(not wanted.isdisjoint((*PurePath(site.file).parts[:-1], PurePath(site.file).stem)) for site in path)
