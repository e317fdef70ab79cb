"""Let a process use a temporary folder of its own (`probes.folders.PRIVATE_FOLDER`).

It keeps entries apart from those of others. It lies in a folder directly below the shared one, so
that paths of sockets in it do not become too long.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from pytest_leakcheck.probes.folders import PRIVATE_NAME
from pytest_leakcheck.probes.own_folder import PREFIX

# Those that `tempfile` reads, in this order.
_TMPDIR_VARIABLES: Final = ("TMPDIR", "TEMP", "TMP")
# Both in bytes: the maximum length of a Unix socket's path (`sun_path`), and the length of the
# longest suffix that the standard library (`multiprocessing`) appends to the temporary folder.
_MAX_SOCKET_PATH: Final = 107 if sys.platform.startswith("linux") else 103
_MAX_SUFFIX: Final = len("/pymp-12345678/listener-12345678")


def shared_folder() -> str:
    """Return the environment's temporary folder; empty if `tempfile.tempdir` is set to another."""
    given = tempfile.tempdir
    found = _find_folder(tuple(map(os.environ.get, _TMPDIR_VARIABLES)))
    tempfile.tempdir = given or found
    return found if tempfile.tempdir == found else ""


@cache
def _find_folder(_variables: tuple[str | None, ...]) -> str:
    # Once for each environment, because `tempfile` makes a file in the folder to try it.
    tempfile.tempdir = None
    return tempfile.gettempdir()


def has_room(shared: str) -> bool:
    """Return whether socket paths fit in a folder below `shared`, or not even in `shared`."""
    now = len(os.fsencode(shared)) + _MAX_SUFFIX
    return not now <= _MAX_SOCKET_PATH < now + len(f"/{PREFIX}12345678/{PRIVATE_NAME}")


def variables_for(folder: Path) -> dict[str, str]:
    """Create the temporary folder inside `folder`; return the variables that select it.

    These are the first one, and others in use.
    """
    own = folder / PRIVATE_NAME
    own.mkdir(mode=0o700, exist_ok=True)
    return {
        name: str(own)
        for name in _TMPDIR_VARIABLES
        if name in os.environ or name == _TMPDIR_VARIABLES[0]
    }


@contextlib.contextmanager
def private_tmpdir(folder: Path) -> Iterator[Path]:
    """Use the temporary folder inside `folder`, also in child processes.

    What the program itself sets meanwhile stays.
    """
    environment, ours = os.environ, variables_for(folder)
    theirs = {name: environment.get(name) for name in ours}
    before = tempfile.tempdir
    tempfile.tempdir = before and str(folder / PRIVATE_NAME)
    environment.update(ours)
    try:
        yield folder / PRIVATE_NAME
    finally:
        for name, value in theirs.items():
            if environment.get(name) == ours[name]:
                if value is None:
                    del environment[name]
                else:
                    environment[name] = value
        if tempfile.tempdir in (None, str(folder / PRIVATE_NAME)):
            tempfile.tempdir = before
