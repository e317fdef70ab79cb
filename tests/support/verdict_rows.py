"""Reports of pytest-leakcheck reduced to what repeats, and compared with rows that were recorded.

A row is the outcome of one test::

    {"verdict": "leak", "resource": "fd", "colour": "red", "slope": 1.0, "site": "descriptors.py file_kept calls open():
     FILES.append(open(os.devnull))", "owner": "cases.descriptors.FILES", "judged": {"fd": "leak", "thread": "ok", ...}}

``verdict`` and what follows it are of the worst verdict; ``judged`` has all of them. Where runs differ, a field is
``{"seen": [...]}`` with each value that was seen, and any of them is right. tests/golden/README.md says what is left out.
"""

from __future__ import annotations

import json
import linecache
import math
import platform
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from projects import ROOT

_BASE: Final = ROOT / "tests" / "golden" / "verdicts.json"
_OF_THIS_PYTHON: Final = _BASE.with_name(f"verdicts-{'.'.join(platform.python_version_tuple()[:2])}.json")
# A file beside verdicts.json has the rows that another Python gives otherwise.
FILE: Final = _OF_THIS_PYTHON if _OF_THIS_PYTHON.exists() else _BASE

Row: TypeAlias = dict[str, Any]
Rows: TypeAlias = dict[str, Row]

_FIELDS: Final = ("verdict", "colour", "resource", "slope", "site", "owner")
# Growth of memory differs between runs by tables that double, and by what other threads allocate.
_CLOSE: Final = 0.1
# Below a KiB a table that doubles weighs as much as what it lists. A list of semaphores gains 96 bytes in most iterations, and
# 2.5, 4.7 and 9.3 KiB in the 86th, 172nd and 343rd: 103 to 197 bytes per iteration, by the hundred that is looked at.
_CLOSE_IF_SMALL: Final = 0.5
_SMALL: Final = range(40, 1024)
_SEEN: Final = "seen"
_SECTIONS: Final = "sections"
_MADE: Final = "made"


@dataclass(frozen=True, slots=True)
class Difference:
    """A row, or a field of one, that is not what was recorded: None where a row is new or missing as a whole."""

    name: str
    field: str
    recorded: Any
    found: Any

    def __str__(self) -> str:
        if self.recorded is None and not self.field:
            return f"added    {self.name}: {_in_words(self.found)}"
        if self.found is None and not self.field:
            return f"removed  {self.name}: {_in_words(self.recorded)}"
        return f"changed  {self.name}: {self.field}: {_in_words(self.recorded)} -> {_in_words(self.found)}"


def reduce(findings: Iterable[Mapping[str, Any]]) -> Rows:
    """The rows of a report's ``findings``, by the part of the node id that follows the file."""
    by_test: dict[str, list[Mapping[str, Any]]] = {}
    for one in findings:
        by_test.setdefault(one["test"], []).append(one)
    return {test.partition("::")[2]: _row(of_test) for test, of_test in by_test.items()}


def by_parameter(rows: Rows) -> Rows:
    """The same by what is in brackets: of one test over many cases."""
    return {name.partition("[")[2].removesuffix("]"): row for name, row in rows.items()}


def _row(findings: Sequence[Mapping[str, Any]]) -> Row:
    # Only the worst has a fingerprint.
    worst = next(one for one in findings if one["fingerprint"] is not None)
    judged: dict[str, str] = {}
    for one in findings:
        resource = f"{one['resource']} peak" if one["peak"] else one["resource"]
        # A test over an axis has several verdicts on one resource, a law each.
        judged[resource] = f"{judged[resource]}, {one['verdict']}" if resource in judged else one["verdict"]
    if worst["verdict"] != "ok":
        # The repetition stops as soon as it is sure of one: what else was in order by then is a matter of time.
        judged = {name: outcomes for name, outcomes in judged.items() if outcomes != "ok"}
    judged = dict(sorted(judged.items()))
    row: Row = {"verdict": worst["verdict"], "colour": worst["colour"]}
    if worst["verdict"] == "ok":
        return row | {"judged": judged}
    row["resource"] = worst["resource"]
    if worst["verdict"] in ("inconclusive", "unavailable"):
        return row | {"judged": judged}
    unresolved = (worst["culprit"] or {}).get("unresolved", {})
    cycle = (worst["culprit"] or {}).get("cycle", ())
    others = (worst["culprit"] or {}).get("others", ())
    names = sorted(one["name"] for one in (worst["owner"], *others) if one)
    owner = " and ".join(names) if names else f"cycle of {', '.join(cycle)}" if cycle else None
    return row | {
        "slope": _rounded(worst["slope"]),
        "site": _site(worst["site"]) if worst["site"] else _unresolved(unresolved, "site"),
        "owner": owner or _unresolved(unresolved, "owner"),
        "judged": judged,
    }


def _site(site: Mapping[str, Any]) -> str:
    """The text of the line in place of its number: code that is moved as a whole gives the same row."""
    called = f" calls {site['call']}" if site["call"] else ""
    text = linecache.getline(site["file"], site["line"]).strip() or f"line {site['line']}"
    return f"{Path(site['file']).name} {site['function']}{called}: {text}"


def _unresolved(reasons: Mapping[str, str], what: str) -> str | None:
    """Why, without the figures."""
    return f"unresolved: {re.sub(r'[+-]?[0-9]+(?:[.,][0-9]+)*', '#', reasons[what])}" if what in reasons else None


def _rounded(number: float) -> float:
    """To two significant digits."""
    return round(number, 1 - math.floor(math.log10(abs(number)))) if number else 0.0


def merge(rows: Iterable[Rows]) -> Rows:
    """What was seen in any of several runs."""
    merged: Rows = {}
    for one in rows:
        for name, row in one.items():
            merged[name] = _merged(merged[name], row) if name in merged else row
    return merged


def _merged(one: Row, other: Row) -> Row:
    fields: Row = {name: _both(one.get(name), other.get(name)) for name in _FIELDS if name in one or name in other}
    resources = sorted({*one["judged"], *other["judged"]})
    judged = {name: _both(one["judged"].get(name), other["judged"].get(name)) for name in resources}
    return {**fields, "judged": judged}


def _both(one: Any, other: Any) -> Any:
    values = list(_values(one))
    for value in _values(other):
        if not _is_among(value, values):
            values.append(value)
    return values[0] if len(values) == 1 else {_SEEN: sorted(values, key=repr)}


def _values(recorded: Any) -> tuple[Any, ...]:
    return tuple(recorded[_SEEN]) if isinstance(recorded, dict) and _SEEN in recorded else (recorded,)


def _is_among(value: Any, values: Collection[Any]) -> bool:
    if isinstance(value, float):
        close = _CLOSE_IF_SMALL if int(value) in _SMALL else _CLOSE
        return any(isinstance(one, float) and math.isclose(value, one, rel_tol=close) for one in values)
    return value in values


def compare(recorded: Rows, found: Rows) -> list[Difference]:
    """What is added, removed or changed."""
    differences = [Difference(name, "", recorded[name], None) for name in recorded if name not in found]
    for name, row in found.items():
        if name not in recorded:
            differences.append(Difference(name, "", None, row))
            continue
        before, after = _flat(recorded[name]), _flat(row)
        differences += [
            Difference(name, key, before.get(key), value)
            for key in dict.fromkeys((*before, *after))
            for value in _values(after.get(key))
            if not _is_among(value, _values(before.get(key)))
        ]
    return sorted(differences, key=lambda one: (one.name, one.field))


def _is_same(recorded: Row | None, row: Row) -> bool:
    return recorded is not None and not compare({"": recorded}, {"": row})


def _flat(row: Row) -> dict[str, Any]:
    judged = {f"judged.{resource}": outcome for resource, outcome in row["judged"].items()}
    return {name: row[name] for name in _FIELDS if name in row} | judged


def _in_words(value: Any) -> str:
    if isinstance(value, dict) and _SEEN in value:
        return " or ".join(map(_in_words, value[_SEEN]))
    if isinstance(value, dict):
        parts = [f"{name} {_in_words(value[name])}" for name in _FIELDS[1:] if value.get(name) is not None]
        return "; ".join((_in_words(value["verdict"]), *parts))
    return "nothing" if value is None else str(value)


def varied(rows: Rows) -> dict[str, list[str]]:
    """The names of the rows that were not always the same, by field."""
    found: dict[str, list[str]] = {}
    for name, row in rows.items():
        for key, value in _flat(row).items():
            if len(_values(value)) > 1:
                found.setdefault(key, []).append(name)
    return found


def read(path: Path = FILE) -> dict[str, Rows]:
    """What was recorded, by section; nothing where there is no file."""
    own: dict[str, Rows] = json.loads(path.read_text(encoding="utf-8"))[_SECTIONS] if path.exists() else {}
    base = _read_base(path)
    return {name: base.get(name, {}) | own.get(name, {}) for name in dict.fromkeys((*base, *own))}


def _read_base(path: Path) -> dict[str, Rows]:
    """The rows that a file leaves out where its own are the same."""
    base = path.with_name(_BASE.name)
    return read(base) if path != base and base.exists() else {}


def made_with(path: Path = FILE) -> dict[str, dict[str, str]]:
    """By section: the versions with which it was made."""
    return dict(json.loads(path.read_text(encoding="utf-8"))[_MADE]) if path.exists() else {}


def is_made_here(section: str) -> bool:
    """Whether this Python is of the version that it was made with: lines and names of functions differ between them."""
    made = made_with().get(section, {}).get("python", "")
    return made.split(".")[:2] == platform.python_version().split(".")[:2]


def write(sections: Mapping[str, Rows], made: Mapping[str, Mapping[str, str]], path: Path = FILE) -> None:
    """A row per line, all sorted, so that a change of one row is a line of a diff."""
    parts = []
    base = _read_base(path)
    for section in sorted(made):
        same = base.get(section, {})
        rows = {name: row for name, row in sections[section].items() if not _is_same(same.get(name), row)}
        lines = [f"   {json.dumps(name)}: {_dumped(row)}" for name, row in sorted(rows.items())]
        parts.append(f'  "{section}": {{\n' + ",\n".join(lines) + "\n  }")
    versions = [f"  {json.dumps(section)}: {_dumped(made[section])}" for section in sorted(made)]
    text = f'{{\n "{_MADE}": {{\n' + ",\n".join(versions) + f'\n }},\n "{_SECTIONS}": {{\n' + ",\n".join(parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n }\n}\n", encoding="utf-8")


def _dumped(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False)
