"""Diff an incident's leaky and fixed implementations."""

from __future__ import annotations

from difflib import unified_diff
from importlib.resources import files
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from leakcheck_incidents.catalog import Incident

_FIXED: Final = "fixed.py"
_LEAKY: Final = "leaky.py"


def difference(incident: Incident) -> str:
    """Return a unified diff of its two files; empty if it has none of its own."""
    folder = files(f"leakcheck_incidents.{incident.code}")
    leaky, fixed = (folder.joinpath(name) for name in (_LEAKY, _FIXED))
    if not leaky.is_file() or not fixed.is_file():
        return ""
    before, after = (one.read_text(encoding="utf-8").splitlines(keepends=True) for one in (leaky, fixed))
    return "".join(unified_diff(before, after, f"{incident.code}/{_LEAKY}", f"{incident.code}/{_FIXED}"))
