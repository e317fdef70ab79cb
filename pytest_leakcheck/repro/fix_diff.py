"""Diff an incident's leaky and fixed implementations."""

from __future__ import annotations

from difflib import unified_diff
from importlib.resources import files
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from leakcheck_incidents.catalog import Incident

_FIXED_FILE: Final = "fixed.py"
_LEAKY_FILE: Final = "leaky.py"


def difference(incident: Incident) -> str:
    """Return a unified diff from the leaky to the fixed file; empty if one is missing."""
    folder = files(f"leakcheck_incidents.{incident.code}")
    leaky, fixed = (folder.joinpath(name) for name in (_LEAKY_FILE, _FIXED_FILE))
    if not leaky.is_file() or not fixed.is_file():
        return ""
    before, after = (one.read_text(encoding="utf-8").splitlines(keepends=True) for one in (leaky, fixed))
    return "".join(unified_diff(before, after, f"{incident.code}/{_LEAKY_FILE}", f"{incident.code}/{_FIXED_FILE}"))
