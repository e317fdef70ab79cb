"""Let the plugin read files inside a coroutine under blockbuster, which refuses calls that block an event loop.

These are functions and no context manager, because the objects of one would be counted.
"""

from __future__ import annotations

import sys
from typing import Any


def allow_blocking() -> Any:
    """Begin the plugin's own work, which reads files, while the event loop of a test is running.

    Return the switch for `forbid_blocking`; None if there is none, or if it is on already. blockbuster marks its own
    calls by the same switch, one for each thread. It has no public one.
    """
    blockbuster = sys.modules.get("blockbuster.blockbuster")
    switch: Any = getattr(blockbuster, "_skip", None)
    if getattr(switch, "value", None) is not False:
        return None
    switch.value = True
    return switch


def forbid_blocking(switch: Any) -> None:
    """End the plugin's own work."""
    if switch is not None:
        switch.value = False
