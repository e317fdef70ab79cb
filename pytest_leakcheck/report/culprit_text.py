"""Render a `Culprit`, the cause of a leak, as report rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final

from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.model.units import format_amount
from pytest_leakcheck.report.glyphs import Row, shorten, truncate

if TYPE_CHECKING:
    from pytest_leakcheck.model.culprit import Culprit, Site, Step, TestPhase, Where

_PHASE_NAMES: Final[dict[TestPhase, str]] = {"setup": "set-up", "call": "during the test", "teardown": "tear-down"}
# A `Step.via` with one of these prefixes refers to an entry of a container, not to an attribute or a variable.
_ENTRY_PREFIXES: Final = ("[", "key ", "element", "cache")
# Precedes the note on a reference.
ARROW: Final = "   <- "
# A text of a row that begins with this is a line of source.
SOURCE_INDENT: Final = "  "
# A reference path with more steps than this is shown without its middle.
_MAX_STEPS: Final = 8
_MAX_CALLERS: Final = 2


def origin_rows(culprit: Culprit, width: int) -> Iterator[Row]:
    """Yield the rows on where the resource is created and stored, and where it ran out."""
    yield from _made_rows(culprit, width)
    if culprit.native:
        yield "in C", " → ".join(reversed(culprit.native))
    for label, site in (("kept", culprit.kept), ("ran out", culprit.ran_out)):
        if site is not None:
            yield label, _format_site(site)
    if culprit.cycle:
        yield "cycle", f"released only by the garbage collector: {cycle_text(culprit)}"


def holder_rows(culprit: Culprit) -> Iterator[Row]:
    """Yield a row with the name of the owner, or why it is unknown."""
    if culprit.owner is not None:
        # Never shortened: readers search the source for this name.
        yield "held by", culprit.owner.name or culprit.owner.root
    elif "owner" in culprit.unresolved and culprit.unresolved["owner"] != culprit.unresolved.get("site"):
        yield "held by", f"not resolved: {culprit.unresolved['owner']}"


def headline(culprit: Culprit) -> tuple[str, str]:
    """Return the line to change as ``file:line``, and what it calls, or else the function that contains the line.

    If the line is unknown, the first text names the owner, and the second is empty. Without an owner, both are empty.
    """
    site, owner = culprit.site, culprit.owner
    if site is None:
        return (f"held by {owner.name or owner.root}" if owner is not None else ""), ""
    file = PurePath(site.file)
    # Any package has a file of this name.
    name = "/".join(file.parts[-2:]) if file.name == "__init__.py" else file.name
    return f"{name}:{site.line}", site.call or _format_function(site)


def place(site: Site) -> str:
    """Return ``file:line``: relative to the current folder, or with the parent folder if the file is elsewhere."""
    file = PurePath(site.file)
    try:
        shown = file.relative_to(Path.cwd())
    except (ValueError, OSError):
        shown = PurePath(*file.parts[-2:])
    return f"{shown}:{site.line}"


def cycle_text(culprit: Culprit) -> str:
    """Format the types in a reference cycle; of more than two, the first is repeated at the end."""
    cycle = culprit.cycle
    if len(cycle) == 1:
        return f"{cycle[0]} refers to itself"
    return " ↔ ".join(cycle) if len(cycle) == 2 else " → ".join((*cycle, cycle[0]))


def _format_site(site: Site) -> str:
    return f"{place(site)} in {_format_function(site)}"


def _format_function(site: Site) -> str:
    return site.function if site.function.startswith("<") else f"{site.function}()"


def _made_rows(culprit: Culprit, width: int) -> Iterator[Row]:
    """Yield the line that creates the resource, or else the reason and, for a peak, the line with the largest share."""
    where, share = culprit.where, culprit.share
    verb = "highest at" if culprit.at_peak else culprit.traits.verb
    if "site" in culprit.unresolved and (where is None or culprit.companion):
        yield verb, f"not resolved: {culprit.unresolved['site']}"
    if where is not None:
        if culprit.companion:
            companion = find_resource(culprit.companion)
            yield "", f"about as many {companion.plural} remain as {culprit.traits.plural}:"
            verb = companion.verb
        yield from _site_rows(where, culprit.source, verb, width)
    elif share is not None:
        yield from _site_rows(share.where, share.source, "largest", width)
        size, total = (format_amount(one, "bytes") for one in (share.size, share.total))
        yield "", f"Python allocated {size} of {total} there; the rest is not resolved"


def _site_rows(where: Where, source: str, verb: str, width: int) -> Iterator[Row]:
    # Imported only here: sessions without a leak do not need it.
    from pytest_leakcheck.attribution.call_paths import is_standard

    yield verb, shorten(_format_site(where.site), width)
    if source:
        yield "", SOURCE_INDENT + shorten(source, width - 2)
    at = where.path.index(where.site)
    # The innermost line outside the standard library comes first, because the standard library is rarely at fault.
    library = next((one for one in reversed(where.path) if not is_standard(one.file)), where.site)
    for inner in dict.fromkeys((library, where.made_in)):
        if inner != where.site:
            yield "", shorten(f"inside {place(inner)} {inner.call or _format_function(inner)}", width)
    for caller in where.path[:at][::-1][:_MAX_CALLERS]:
        yield "", shorten(f"called from {_format_site(caller)}", width)
    if where.process:
        yield "", f"in {where.process}"
    if where.fixture:
        # A path may contain the frame that runs the fixture without the one that tells the phase.
        phase = f"{_PHASE_NAMES[where.phase]}, " if where.phase else ""
        yield "", f"in fixture {where.fixture}, {phase}not in the test function itself"
    elif where.phase in ("setup", "teardown"):
        yield "", f"in {_PHASE_NAMES[where.phase]}, not in the test function itself"


def references(culprit: Culprit, width: int) -> Iterator[Row]:
    """Yield the lines of the path from the root of the owner to the retained object; nothing if it is unknown.

    The second text is a note on the reference to the growing container; there is room for it and for `ARROW`.
    """
    owner = culprit.owner
    if owner is None or not owner.steps:
        return
    # The count in "20 × bytes, ..." depends on how long the search for the owner ran, so only the rest is shown.
    _count, times, kind = owner.holds.partition(" × ")
    targets = [*(step.holder for step in owner.steps[1:]), kind if times else owner.holds]
    yield shorten(owner.root, width), ""
    grows = f"grows by {owner.gained:.1f}/iter" if owner.gained else "keeps it"
    count, half = len(owner.steps), _MAX_STEPS // 2
    shown = [*range(half), *range(count - half, count)] if count > _MAX_STEPS else range(count)
    for depth, at in enumerate(shown):
        if at > depth == half:
            yield f"{'  ' * depth}… {count - _MAX_STEPS} more references", ""
        note = grows if _is_marked(*owner.steps[at : at + 2], first=at == 0) else ""
        line, room = f"{'  ' * depth}└ {owner.steps[at].via} → ", width - (len(ARROW + note) if note else 0)
        yield shorten(line + truncate(targets[at], room - len(line)), room), note


def _is_marked(step: Step, following: Step | None = None, *, first: bool) -> bool:
    """Return whether to mark a reference: the suspect one, or, if that is an entry, the one to its container."""
    if following is not None and following.suspect and following.via.startswith(_ENTRY_PREFIXES):
        return True
    return step.suspect and (first or not step.via.startswith(_ENTRY_PREFIXES))
