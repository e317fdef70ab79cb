"""Exit statuses that the shell commands have in common. 0 and 1 are each command's own."""

from __future__ import annotations

from typing import Final

# What was asked for is none of what there is.
WRONG_USE: Final = 2
# It cannot be done here: something that it needs is missing.
CANNOT: Final = 3
# As a shell says of what SIGINT has ended.
INTERRUPTED: Final = 130
