"""Make a temporary folder for one process, apart from entries of other processes (`probes.folders.PRIVATE_FOLDER`).

It lies in a folder directly below the shared one, so that paths of sockets in it do not become too long. The session
removes it; a later session removes that of a killed one after three days, as pytest does with its own folders.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import stat
import sys
import tempfile
from pathlib import Path
from typing import Final

from pytest_leakcheck.probes.folders import PRIVATE_NAME, PRIVATE_PREFIX

_FOLDER_PATTERN: Final = re.compile(rf"{PRIVATE_PREFIX}[a-z0-9_]{{8}}")
_TMPDIR_VARIABLES: Final = ("TMPDIR", "TEMP", "TMP")
# The folder in which pytest makes those of ``tmp_path``.
_PYTEST_VARIABLE: Final = "PYTEST_DEBUG_TEMPROOT"
# Both in bytes: the maximum length of a Unix socket's path (`sun_path`), and the length of the longest suffix that the
# standard library (`multiprocessing`) appends to the temporary folder.
_MAX_SOCKET_PATH: Final = 107 if sys.platform.startswith("linux") else 103
_MAX_SUFFIX: Final = len("/pymp-12345678/listener-12345678")
_STALE_SECONDS: Final = 3 * 24 * 3600.0


def shared_folder() -> str:
    """Return the temporary folder of the environment; empty if the program has set `tempfile.tempdir` to another."""
    given, tempfile.tempdir = tempfile.tempdir, None
    found = tempfile.gettempdir()
    if given in (None, found):
        return found
    tempfile.tempdir = given
    return ""


def make_folder(shared: str) -> Path | None:
    """Create a folder in `shared` for the temporary folder; None if socket paths fit in `shared`, but not there."""
    return Path(tempfile.mkdtemp(prefix=PRIVATE_PREFIX, dir=shared)) if has_room(shared) else None


def has_room(shared: str) -> bool:
    """Return whether socket paths fit in a temporary folder below `shared`, or do not even fit in `shared` itself."""
    now = len(os.fsencode(shared)) + _MAX_SUFFIX
    return not now <= _MAX_SOCKET_PATH < now + len(f"/{PRIVATE_PREFIX}12345678/{PRIVATE_NAME}")


def variables_for(folder: Path) -> dict[str, str]:
    """Create the temporary folder inside `folder`; return the environment variables that select it, but for pytest."""
    own = folder / PRIVATE_NAME
    own.mkdir(mode=0o700, exist_ok=True)
    outside = os.environ.get(_PYTEST_VARIABLE, str(folder.parent))
    return {**dict.fromkeys(_TMPDIR_VARIABLES, str(own)), _PYTEST_VARIABLE: outside}


def remove_at_exit(folder: Path) -> None:
    """Remove a folder when this process ends, not a forked child: after what was imported later has cleaned up."""
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)


def remove_stale(now: float) -> None:
    """Remove folders that killed sessions left in the temporary folder at least three days ago."""
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if _FOLDER_PATTERN.fullmatch(entry.name) and _is_stale(Path(entry.path), now - _STALE_SECONDS):
                shutil.rmtree(entry.path, ignore_errors=True)


def _is_stale(folder: Path, oldest: float) -> bool:
    """Return whether a folder was left by a session of this user; one that was killed early left an empty folder."""
    try:
        inner = [folder / PRIVATE_NAME] if any(folder.iterdir()) else []
        found = [path.lstat() for path in (folder, *inner)]
    except OSError:
        return False
    own = os.geteuid() if hasattr(os, "geteuid") else found[0].st_uid
    return all(stat.S_ISDIR(one.st_mode) and one.st_uid == own and one.st_mtime < oldest for one in found)
