"""Describe what a driver of Ray keeps, by Ray's own record of where each reference was created.

Ray keeps it if the variable `RECORD` of the environment is 1 as it starts, and shows it with ``ray
memory``. It has the innermost lines of the call, and no line of an object that came as an argument.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_leakcheck.attribution.call_paths import function_at, is_own
from pytest_leakcheck.model.culprit import Remainder, Site, short_file
from pytest_leakcheck.probes.ray_counters import RECORD, Reference, look_at_cluster

NO_RECORD: Final = f"start Ray with {RECORD}=1, which has Ray record it"
# Handles that Ray records: it makes an actor in another thread, and objects in other processes too.
RECORDED: Final = frozenset({"ray_refs", "ray_actors", "ray_objects"})
_SEPARATOR: Final = re.compile(r"\s*\|\s*|\n")
_LABEL: Final = re.compile(r"\(([^)]*)\)\s*(.*)")
_FRAME: Final = re.compile(r"(.+):([^:]+):(\d+)")
# Ray's words for what has created a reference.
_MADE_BY: Final[Mapping[str, str]] = {
    "put object": "ray.put()",
    "task call": "a call of a task",
    "actor call": "a call of an actor",
}
# The smallest share of what is new that the named line accounts for.
_MIN_RATIO: Final = 0.5


@dataclass(frozen=True, slots=True)
class Record:
    """One record: what created the reference, in words, and the lines, innermost first."""

    made_by: str
    sites: tuple[Site, ...]

    @property
    def site(self) -> Site | None:
        """The innermost line of the program; else of another package than Ray; None without one."""
        others = [one for one in self.sites if not _is_of_ray(one.file)]
        return next((one for one in others if is_own(one.file)), others[0] if others else None)


def parse_record(text: str) -> Record:
    """Parse the text of a record, as in ``(put object)  | /a/b.py:work:12 | /a/c.py:main:3``."""
    made_by, sites = "", []
    for part in filter(None, _SEPARATOR.split(text.strip())):
        if frame := _FRAME.fullmatch(part):
            file, function, line = frame[1], frame[2], int(frame[3])
            qualified = function_at(file, line)
            is_same = qualified.endswith(f".{function}")
            sites.append(Site(file, line, qualified if is_same else function))
        elif label := _LABEL.fullmatch(part):
            made_by = _MADE_BY.get(label[1], f"{label[1]} {label[2]}".strip())
    return Record(made_by, tuple(sites))


def _is_of_ray(file: str) -> bool:
    of_ray = getattr(sys.modules.get("ray"), "__file__", None)
    return of_ray is not None and Path(of_ray).parent in Path(file).parents


@dataclass(frozen=True, slots=True)
class Found:
    """What is known about new objects or actors: most of them were made at one line, and held so.

    Attributes:
        site: The line; None if Ray has recorded none for most of them.
        why: Why there is no line.
        elsewhere: The workers that alone hold most of them, as text; empty if this driver does too.
    """

    site: Site | None
    why: str
    elsewhere: str


def find_records(keys: Collection[str]) -> Found:
    """Look up these objects or actors, by id."""
    cluster = look_at_cluster()
    known = _by_key(cluster.references, keys)
    sites = Counter(site for rows in known.values() if (site := _site_of(rows)) is not None)
    away = [_describe_holders(rows) for rows in known.values() if not _is_held_here(rows)]
    most, wanted = sites.most_common(1), max(1.0, _MIN_RATIO * len(keys))
    site = most[0][0] if most and most[0][1] >= wanted else None
    recorded = any(row.record for rows in known.values() for row in rows)
    why = "" if site else "Ray has recorded no common line" if recorded else NO_RECORD
    if cluster.gap and not known:
        why = "Ray's record could not be read"
    elsewhere = Counter(away).most_common(1)[0][0] if len(away) >= wanted else ""
    return Found(site, _with_gap(why, cluster.gap), elsewhere)


def describe_new(keys: Mapping[str, str]) -> tuple[Remainder, ...]:
    """Group objects or actors (classes by id; empty for objects) by line and holder."""
    if not keys:
        return ()
    cluster = look_at_cluster()
    known = _by_key(cluster.references, keys)
    counts = Counter(
        (_describe(kind, known.get(key, ())), _describe_holders(known.get(key, ())))
        for key, kind in keys.items()
    )
    return tuple(
        Remainder(what, count, _with_gap(note, cluster.gap))
        for (what, note), count in counts.most_common()
    )


def _by_key(
    references: Iterable[Reference], keys: Collection[str]
) -> dict[str, tuple[Reference, ...]]:
    found: dict[str, tuple[Reference, ...]] = {}
    for one in references:
        if one.key in keys:
            found[one.key] = (*found.get(one.key, ()), one)
    return found


def _site_of(rows: Sequence[Reference]) -> Site | None:
    """Return the line that one of the processes has recorded: the owner has it."""
    return next(filter(None, (parse_record(row.record).site for row in rows)), None)


def _is_held_here(rows: Sequence[Reference]) -> bool:
    return any(row.holder == os.getpid() and row.kind != "BORROWED" for row in rows)


def _describe(kind: str, rows: Sequence[Reference]) -> str:
    records = [parse_record(row.record) for row in rows]
    record = next((one for one in records if one.site is not None), None)
    name = f"actor {kind}" if kind else "Ray object"
    if record is None or record.site is None:
        return f"{name}, line not recorded"
    site, by = record.site, "" if kind else f" of {record.made_by}"
    return f"{name}{by}, {short_file(site.file)}:{site.line} in {site.function}()"


def _describe_holders(rows: Sequence[Reference]) -> str:
    """Say which processes hold an object, and how: in Ray's words."""
    held = [row for row in rows if row.kind != "BORROWED"]
    words = []
    for row in sorted(held, key=lambda row: not row.is_driver):
        whose = "the driver" if row.holder == os.getpid() else f"worker {row.holder}"
        record = parse_record(row.record)
        came = f", {record.made_by}" if record.made_by and not record.sites else ""
        words.append(f"{whose} ({row.kind}{came})")
    return f"held by {' and '.join(words)}" if words else ""


def _with_gap(text: str, gap: str) -> str:
    return "; ".join(filter(None, (text, f"incomplete: {gap}" if gap else "")))
