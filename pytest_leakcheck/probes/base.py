"""What every probe may raise."""

from __future__ import annotations


class Unavailable(Exception):
    """This machine cannot read the counter; the message says why, and what would."""
