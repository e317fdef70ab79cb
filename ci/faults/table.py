"""Format the rows of a campaign as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from around import AS_PLAIN, GOOD, SURVIVED, Row

_MODES: Final = ("in place", "isolated", "outside")


def format_table(rows: Sequence[Row]) -> str:
    """Return the counts by category, then a line for each run that did not survive."""
    categories = list(dict.fromkeys(row.category for row in rows))
    lines = [("category", "faults", "runs", SURVIVED, AS_PLAIN, "not"), ("---", *["---:"] * 5)]
    lines += [_count(category, [row for row in rows if row.category == category]) for category in categories]
    lines.append(_count("**all**", rows))
    text = _format(lines)
    if bad := [row for row in rows if row.result not in GOOD]:
        details = [("fault", "mode", "what", "expected", "seen", "detail"), ("---",) * 6]
        details += [(row.name, row.mode, row.result, row.expected, row.seen, row.detail[:160]) for row in bad]
        text += f"\n\n{_format(details)}"
    return text


def _count(name: str, rows: Sequence[Row]) -> tuple[str, ...]:
    survived = sum(row.result == SURVIVED for row in rows)
    as_plain = sum(row.result == AS_PLAIN for row in rows)
    faults = len({row.name for row in rows})
    return (
        name,
        f"{faults:,}",
        f"{len(rows):,}",
        f"{survived:,}",
        f"{as_plain:,}",
        f"{len(rows) - survived - as_plain:,}",
    )


def _format(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(_escape(cell) for cell in line)} |" for line in lines)


def _escape(cell: str) -> str:
    """Return text that neither breaks the table nor reaches the terminal as a control sequence."""
    shown = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in cell)
    return shown.replace("|", "\\|")
