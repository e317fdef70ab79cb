"""Render findings as terminal text, JSON and HTML; measure and judge nothing."""

from __future__ import annotations

from typing import Final

# What to do about a finding, by kind: a page for people and for coding agents.
GUIDE: Final = "https://pytest-leakcheck.github.io/pytest-leakcheck/agents/"
