"""Exit statuses shared by the shell commands; each command defines its own meaning of 0 and 1."""

from __future__ import annotations

from typing import Final

# The arguments are invalid, or they name something that does not exist or cannot be used.
WRONG_USE: Final = 2
# The command cannot do its work here: something that it needs is missing, such as a package or the process to watch.
CANNOT: Final = 3
# 128 + 2, the number of SIGINT: the status that a shell reports for a process that SIGINT ended.
INTERRUPTED: Final = 130
