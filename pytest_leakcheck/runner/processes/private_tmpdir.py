"""A temporary folder of a process's own: what others leave in the shared one is none of its doing.

It lies in a folder directly below the shared one, so that the path of a socket in it still fits, and is removed with all
that is in it. What a killed session leaves is removed by a later one after three days, as pytest does with its folders.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import sys
import tempfile
from pathlib import Path
from typing import Final

PREFIX: Final = "leakcheck-"
# In a folder of ours, the one that programs see.
_NAME: Final = "t"
_OURS: Final = re.compile(rf"{PREFIX}[a-z0-9_]{{8}}")
_VARIABLES: Final = ("TMPDIR", "TEMP", "TMP")
# The longest path of a socket, and the longest that the standard library makes below the temporary folder.
_SOCKET: Final = 107 if sys.platform.startswith("linux") else 103
_BELOW: Final = len("/pymp-12345678/listener-12345678")
_STALE: Final = 3 * 24 * 3600.0


def shared_folder() -> str:
    """The temporary folder that the environment names; empty where the program has set another for `tempfile`."""
    given, tempfile.tempdir = tempfile.tempdir, None
    found = tempfile.gettempdir()
    if given in (None, found):
        return found
    tempfile.tempdir = given
    return ""


def make_folder(shared: str) -> Path | None:
    """Make a folder there that can hold a temporary folder; None where a socket's path would fit no longer."""
    return Path(tempfile.mkdtemp(prefix=PREFIX, dir=shared)) if has_room(shared) else None


def has_room(shared: str) -> bool:
    """Whether the path of a socket fits in a folder of ours there, unless it does not fit as it is."""
    now = len(os.fsencode(shared)) + _BELOW
    return not now <= _SOCKET < now + len(f"/{PREFIX}12345678/{_NAME}")


def variables_for(folder: Path) -> dict[str, str]:
    """Make the temporary folder in a folder of ours, and say which variables name it."""
    own = folder / _NAME
    own.mkdir(mode=0o700, exist_ok=True)
    return dict.fromkeys(_VARIABLES, str(own))


def move_into(folder: Path) -> None:
    """Have this process, and those that it starts, put their temporary files there."""
    os.environ |= variables_for(folder)
    # It is looked for again, in the environment.
    tempfile.tempdir = None


def remove_stale(now: float) -> None:
    """Remove what killed sessions left in the temporary folder three days ago or earlier."""
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if _OURS.fullmatch(entry.name) and _is_stale(Path(entry.path), now - _STALE):
                shutil.rmtree(entry.path, ignore_errors=True)


def _is_stale(folder: Path, oldest: float) -> bool:
    try:
        found = [path.lstat() for path in (folder, folder / _NAME)]
    except OSError:
        return False
    own = os.geteuid() if hasattr(os, "geteuid") else found[0].st_uid
    return all(stat.S_ISDIR(one.st_mode) and one.st_uid == own and one.st_mtime < oldest for one in found)
