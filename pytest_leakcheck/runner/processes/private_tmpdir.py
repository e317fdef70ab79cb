"""Let a process use a temporary folder of its own, apart from entries of others (`probes.folders.PRIVATE_FOLDER`).

It lies in a folder directly below the shared one, so that paths of sockets in it do not become too long.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pytest_leakcheck.probes.folders import PRIVATE_NAME
from pytest_leakcheck.probes.own_folder import PREFIX

_TMPDIR_VARIABLES: Final = ("TMPDIR", "TEMP", "TMP")
# The folder in which pytest makes those of ``tmp_path``.
_PYTEST_VARIABLE: Final = "PYTEST_DEBUG_TEMPROOT"
# Both in bytes: the maximum length of a Unix socket's path (`sun_path`), and the length of the longest suffix that the
# standard library (`multiprocessing`) appends to the temporary folder.
_MAX_SOCKET_PATH: Final = 107 if sys.platform.startswith("linux") else 103
_MAX_SUFFIX: Final = len("/pymp-12345678/listener-12345678")


def shared_folder() -> str:
    """Return the temporary folder of the environment; empty if the program has set `tempfile.tempdir` to another."""
    given, tempfile.tempdir = tempfile.tempdir, None
    found = tempfile.gettempdir()
    if given in (None, found):
        return found
    tempfile.tempdir = given
    return ""


def has_room(shared: str) -> bool:
    """Return whether socket paths fit in a temporary folder below `shared`, or do not even fit in `shared` itself."""
    now = len(os.fsencode(shared)) + _MAX_SUFFIX
    return not now <= _MAX_SOCKET_PATH < now + len(f"/{PREFIX}12345678/{PRIVATE_NAME}")


def variables_for(folder: Path) -> dict[str, str]:
    """Create the temporary folder inside `folder`; return the environment variables that select it, but for pytest."""
    own = folder / PRIVATE_NAME
    own.mkdir(mode=0o700, exist_ok=True)
    outside = os.environ.get(_PYTEST_VARIABLE, str(folder.parent))
    return {**dict.fromkeys(_TMPDIR_VARIABLES, str(own)), _PYTEST_VARIABLE: outside}


@contextlib.contextmanager
def private_tmpdir(folder: Path | None) -> Iterator[None]:
    """Use a temporary folder inside `folder`, also in child processes; None changes nothing.

    What the program itself sets meanwhile stays.
    """
    if folder is None:
        yield
        return
    environment, ours = os.environ, variables_for(folder)
    theirs = {name: environment.get(name) for name in ours}
    before, tempfile.tempdir = tempfile.tempdir, None
    environment.update(ours)
    try:
        yield
    finally:
        for name, value in theirs.items():
            if environment.get(name) == ours[name]:
                if value is None:
                    del environment[name]
                else:
                    environment[name] = value
        if tempfile.tempdir in (None, ours["TMPDIR"]):
            tempfile.tempdir = before
