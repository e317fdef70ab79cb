"""The rows of a report that name the cause: where it is made, who holds it, and what was not found out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final

from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.report.glyphs import Glyphs, shorten

if TYPE_CHECKING:
    from pytest_leakcheck.model.culprit import Culprit, Owner, Site, Step, TestPhase, Where

_PHASES: Final[dict[TestPhase, str]] = {"setup": "set-up", "call": "the test", "teardown": "tear-down"}
# How an entry of a container is referred to.
_ENTRY: Final = ("[", "key ", "element", "cache")
# Longer paths lose their middle.
_MOST_STEPS: Final = 8
_MOST_CALLERS: Final = 2


def rows(culprit: Culprit, width: int, glyphs: Glyphs) -> Iterator[tuple[str, str]]:
    """Label and text; a text is at most `width` wide, or may be wrapped."""
    made = find_resource(culprit.resource).verb
    if culprit.where is not None:
        yield from _where(culprit.where, culprit.source, made, width, glyphs)
    elif "site" in culprit.unresolved:
        yield made, f"not resolved: {culprit.unresolved['site']}"
    if culprit.native:
        yield "in C", f" {glyphs.arrow} ".join(reversed(culprit.native))
    if culprit.kept is not None:
        yield "kept", f"{place(culprit.kept)} in {_function(culprit.kept)}"
    if culprit.ran_out is not None:
        yield "ran out", f"{place(culprit.ran_out)} in {_function(culprit.ran_out)}"
    if culprit.cycle:
        yield "cycle", f"released only by the garbage collector: {cycle_text(culprit, glyphs)}"
    if culprit.owner is not None:
        yield from _trace(culprit.owner, width, glyphs)
    elif "owner" in culprit.unresolved and culprit.unresolved["owner"] != culprit.unresolved.get("site"):
        yield "held by", f"not resolved: {culprit.unresolved['owner']}"
    if culprit.hint:
        yield "hint", culprit.hint


def headline(culprit: Culprit) -> str:
    """The line to change, as short as it gets; empty where it is not resolved."""
    site = culprit.site
    if site is None:
        return ""
    return f"{PurePath(site.file).name}:{site.line} {site.call or _function(site)}"


def place(site: Site) -> str:
    """File and line: from the folder that we are in where it lies below it, else with the folder that it is in."""
    file = PurePath(site.file)
    try:
        shown = file.relative_to(Path.cwd())
    except (ValueError, OSError):
        shown = PurePath(*file.parts[-2:])
    return f"{shown}:{site.line}"


def cycle_text(culprit: Culprit, glyphs: Glyphs) -> str:
    """The types in it: two refer to each other, more than two go round."""
    cycle = culprit.cycle
    if len(cycle) == 1:
        return f"{cycle[0]} refers to itself"
    if len(cycle) == 2:
        return f" {glyphs.both} ".join(cycle)
    return f" {glyphs.arrow} ".join((*cycle, cycle[0]))


def _function(site: Site) -> str:
    return site.function if site.function.startswith("<") else f"{site.function}()"


def _where(where: Where, source: str, made: str, width: int, glyphs: Glyphs) -> Iterator[tuple[str, str]]:
    yield made, shorten(f"{place(where.site)} in {_function(where.site)}", width, glyphs)
    if source:
        yield "", "  " + shorten(source, width - 2, glyphs)
    at = where.path.index(where.site)
    if where.made_in != where.site:
        inner = where.made_in
        yield "", shorten(f"inside {place(inner)} {inner.call or _function(inner)}", width, glyphs)
    callers = where.path[:at][::-1]
    for caller in callers[:_MOST_CALLERS]:
        yield "", shorten(f"called from {place(caller)} in {_function(caller)}", width, glyphs)
    if where.fixture:
        yield "", f"in fixture {where.fixture}, {_PHASES[where.phase]}: the test itself is innocent"
    elif where.phase in ("setup", "teardown"):
        yield "", f"in {_PHASES[where.phase]}: the test itself is innocent"


def _trace(owner: Owner, width: int, glyphs: Glyphs) -> Iterator[tuple[str, str]]:
    """The references from the root to what is held, one below the other, the suspect one marked."""
    # Whole, since it is there to be searched for.
    yield "held by", owner.name or owner.root
    # How many of them came while it was looked for tells nothing.
    _count, times, kind = owner.holds.partition(" \N{MULTIPLICATION SIGN} ")
    targets = [*(step.holder for step in owner.steps[1:]), kind if times else owner.holds]
    steps = list(zip(owner.steps, targets, strict=False))
    if steps:
        yield "", shorten(owner.root, width, glyphs)
    grows = f"   <- grows by {owner.gained:.1f}/iter" if owner.gained else "   <- keeps it"
    marks = [grows if _is_marked(owner.steps, at) else "" for at in range(len(steps))]
    cut = len(steps) > _MOST_STEPS
    half = _MOST_STEPS // 2
    shown = [*range(half), *range(len(steps) - half, len(steps))] if cut else range(len(steps))
    for depth, at in enumerate(shown):
        if cut and depth == half:
            yield "", f"{'  ' * depth}{glyphs.dots} {len(steps) - _MOST_STEPS} references more"
        step, target = steps[at]
        line = f"{'  ' * depth}{glyphs.corner} {step.via} {glyphs.arrow} "
        room = width - len(line) - len(marks[at])
        shown_target = target if len(target) <= room else target[: max(0, room - 1)] + glyphs.dots
        yield "", shorten(line + shown_target, width - len(marks[at]), glyphs) + marks[at]


def _is_marked(steps: Sequence[Step], at: int) -> bool:
    """The suspect reference; where that is one of many entries, the one that leads to what has them."""
    following = steps[at + 1] if at + 1 < len(steps) else None
    if following is not None and following.suspect and following.via.startswith(_ENTRY):
        return True
    return steps[at].suspect and (at == 0 or not steps[at].via.startswith(_ENTRY))
