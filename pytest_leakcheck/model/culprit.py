"""Describe the cause of a resource's growth, as values.

`Where` and `Site` describe where the retained resource is created. `Held` describes what survives the iterations, and
`Owner` the object that references it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal, TypeAlias

TestPhase: TypeAlias = Literal["setup", "call", "teardown", ""]


@dataclass(frozen=True, slots=True)
class Culprit:
    """The known cause of the growth of one resource.

    Attributes:
        resource: The resource that grows.
        where: Where it is created; None if unresolved.
        kept: The line that stores it in its owner, if that differs from the line that creates it.
        owner: The object that retains it; None if unresolved.
        cycle: The type names of a reference cycle that only the garbage collector frees, in the order of the cycle.
        unresolved: Why the ``site`` or the ``owner`` (the possible keys) could not be found.
        hint: Advice, if the cause matches a known pattern; else empty.
        iterations: The number of iterations run to find the cause.
        source: The source text of the line `site`.
        native: The C functions that allocated it, innermost first; empty unless native stacks were traced.
        ran_out: The line that failed when the resource ran out, in this process or in one of its worker processes.
        share: The line with the largest share of a memory peak. It is the cause only if `where` is that line too.
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
    share: Share | None = None

    @property
    def site(self) -> Site | None:
        """The line to change: where the resource is created, or else where it is stored, or else where it ran out."""
        return self.where.site if self.where else self.kept or self.ran_out

    @property
    def frames(self) -> tuple[Site, ...]:
        """All suspect lines: the call path, the line that stores the resource and the line that failed."""
        others = (one for one in (self.kept, self.ran_out) if one is not None)
        return (*(self.where.path if self.where else ()), *others)


def fingerprint(test: str, resource: str, outcome: str, culprit: Culprit | None) -> str:
    """Return an identifier of the cause: six hex digits, the resource and the place where it is created.

    The digits are a hash of the resource, the outcome, the line to change and the innermost line of the call path. Each
    line is represented by its file name, function and called function, the line to change also by its source text. The
    identifier is therefore the same on another machine, in another folder and after lines are added above. Tests that
    fail for the same cause share it. If the creating line is unknown, the hash uses the name of the owner, or else the
    test.

    Args:
        test: The node id.
        resource: The resource that grows.
        outcome: The outcome of the verdict.
        culprit: The known cause, if any.
    """
    if culprit is None or culprit.where is None:
        owner = culprit.owner.name if culprit is not None and culprit.owner else ""
        return f"{_hash_parts(owner or test, resource, outcome)}-{resource}"
    site, made_in = culprit.where.site, culprit.where.made_in
    frames = (_frame_key(site), culprit.source, _frame_key(made_in))
    name = (made_in.call or site.call or site.function).removesuffix("()").rpartition(".")[2].strip("<>")
    return f"{_hash_parts(*frames, resource, outcome)}-{resource}-{PurePath(site.file).stem}-{name}".rstrip("-")


def _frame_key(site: Site) -> str:
    return f"{PurePath(site.file).name}:{site.function}:{site.call}"


def _hash_parts(*parts: str) -> str:
    return hashlib.sha256("|".join(parts).encode(errors="backslashreplace")).hexdigest()[:6]


@dataclass(frozen=True, slots=True)
class Where:
    """The place where a retained resource is created.

    Attributes:
        path: The call path from the outermost frame of the test to the creating frame, innermost last.
        site: The line to change: the innermost one that belongs neither to an installed package nor to the standard
            library, or the innermost of all if there is none.
        phase: The phase of the test; empty outside of pytest.
        fixture: The fixture whose code runs; empty in the test itself.
        process: The child processes in which it runs, as text; empty if it is the measured process.
    """

    path: tuple[Site, ...]
    site: Site
    phase: TestPhase = ""
    fixture: str = ""
    process: str = ""

    @property
    def made_in(self) -> Site:
        """The innermost line of the call path."""
        return self.path[-1]


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a memory peak that Python allocated on one line.

    Attributes:
        where: The line.
        size: Bytes that were allocated there and were held at the peak.
        total: Bytes of the peak.
        source: The source text of the line.
    """

    where: Where
    size: int
    total: int
    source: str = ""


@dataclass(frozen=True, slots=True)
class Held:
    """The survivors of one kind: what still exists after the iterations that created it.

    Attributes:
        what: A description common to all of them, such as a file name pattern or a type.
        count: The number of survivors.
        note: A further detail, such as the age of the oldest or their total size; may be empty.
    """

    what: str
    count: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One reference on the path from a root object to the retained resource.

    Attributes:
        holder: The referrer, such as ``module case``, ``Trainer`` or ``list of 20``.
        via: The name of the reference, such as ``_KEPT``, ``.history``, ``['uploads']`` or ``closure cell 'items'``.
        suspect: Whether this reference retains the resource.
    """

    holder: str
    via: str
    suspect: bool = False


@dataclass(frozen=True, slots=True)
class Owner:
    """The object that retains the resource.

    Attributes:
        name: A short name to search the source for, such as ``case._KEPT``.
        root: A description of the object at which the reference path begins.
        steps: The reference path, with the suspect reference marked.
        holds: The retained contents, such as ``20 × bytes, 3,033 B each``.
        gained: Entries added per iteration; for a single growing value, bytes or characters; 0 if unknown.
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
        file: The file name of the code object, usually an absolute path.
        line: The line number, from 1.
        function: The function that contains the line; qualified with its class from Python 3.11 on.
        call: The function called in that line, as ``name()``; empty if the line itself creates the resource.
    """

    file: str
    line: int
    function: str
    call: str = ""


def touches(path: Sequence[Site], packages: Sequence[str]) -> bool:
    """Return whether any frame of a call path belongs to one of the packages.

    A frame belongs to a package if its file path contains a folder or module of that name.
    """
    wanted = set(packages)
    return any(not wanted.isdisjoint((*PurePath(site.file).parts[:-1], PurePath(site.file).stem)) for site in path)
