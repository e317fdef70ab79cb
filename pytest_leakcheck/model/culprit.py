"""What was found out about the growth of one resource: where it is made, who holds it, and what to do about it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from pytest_leakcheck.attribution.paths import Where
from pytest_leakcheck.model.owner import Owner
from pytest_leakcheck.model.site import Site


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
