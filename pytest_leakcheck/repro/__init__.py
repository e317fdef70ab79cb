"""``pytest-leakcheck repro``: an incident's arms in processes of their own, followed while they run, told and drawn."""

from typing import Final

# Names, in the environment of an arm, the file to which it tells how far it is.
FEED: Final = "LEAKCHECK_FEED"
