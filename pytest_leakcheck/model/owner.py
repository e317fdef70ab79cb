"""Who holds what is retained, and by which references: values, for the report."""

from __future__ import annotations

from dataclasses import dataclass


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
