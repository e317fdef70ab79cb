"""Describe the place of a measurement (versions, commit, process); keep random generators."""

from __future__ import annotations

import os
import platform
import re
import sys
from contextlib import ExitStack, suppress
from itertools import chain
from os import _exit, getpid, write
from pathlib import Path
from typing import Final

# What CI systems check out, which may have no branch.
_COMMIT_VARIABLES: Final = ("GITHUB_SHA", "CI_COMMIT_SHA", "GIT_COMMIT")
_COMMIT: Final = re.compile(r"[0-9a-f]{4,64}")
_LINK: Final = "gitdir: "
_REFERENCE: Final = "ref: "
# The generators of random numbers that all tests share: the module, what reads and sets the state.
_GENERATORS: Final[tuple[tuple[str, str, str, dict[str, bool]], ...]] = (
    ("random", "getstate", "setstate", {}),
    # The old form of a state warns if the generator is not the default one.
    ("numpy.random", "get_state", "set_state", {"legacy": False}),
    ("torch", "get_rng_state", "set_rng_state", {}),
)


def random_states() -> ExitStack:
    """Return a context that puts the states of now back at its end, of generators in use."""
    states = ExitStack()
    for name, getter, setter, options in _GENERATORS:
        # The module may not be loaded, or be the stand-in of a test.
        with suppress(Exception):
            module = sys.modules[name]
            states.callback(getattr(module, setter), getattr(module, getter)(**options))
    return states


def describe_environment(device: str = "") -> dict[str, str]:
    """Return the versions that figures depend on, by name; `device`: the source of its figures."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "libc": " ".join(platform.libc_ver()),
        **({"vram": device} if device else {}),
    }


def find_commit(folder: Path) -> str:
    """Read the commit of a folder or one above it from git's files; empty if it is unknown.

    Git itself would be a child process.
    """
    given = map(os.environ.get, _COMMIT_VARIABLES)
    try:
        found = next(filter(None, chain(given, map(_commit_of, (folder, *folder.parents)))), "")
    except (OSError, UnicodeError):
        return ""
    # The files of a folder from elsewhere may refer to any other file.
    return found if _COMMIT.fullmatch(found) else ""


def _commit_of(folder: Path) -> str:
    git = folder / ".git"
    if git.is_file():
        # A worktree: the file names its folder.
        git = (folder / git.read_text(encoding="utf-8").strip().removeprefix(_LINK)).resolve()
    if not (git / "HEAD").is_file():
        return ""
    head = (git / "HEAD").read_text(encoding="utf-8").strip()
    if not head.startswith(_REFERENCE):
        return head
    name = head.removeprefix(_REFERENCE)
    common = git / "commondir"
    shared = (
        (git / common.read_text(encoding="utf-8").strip()).resolve() if common.is_file() else git
    )
    if (shared / name).is_file():
        return (shared / name).read_text(encoding="utf-8").strip()
    packed = shared / "packed-refs"
    lines = packed.read_text(encoding="utf-8").splitlines() if packed.is_file() else ()
    return next((line.partition(" ")[0] for line in lines if line.endswith(f" {name}")), "")


class ForkGuard:
    """The process in which a measurement began."""

    def __init__(self) -> None:
        self._pid = getpid()

    def exit_if_forked(self, status: int = 0) -> None:
        """End a process other than the original at once: no tear-down, exit handler or report."""
        if getpid() == self._pid:
            return
        text = (
            f"pytest-leakcheck: process {getpid()} was forked in a measured test (of process {self._pid}) and returned "
            "from it; only the process that started the measurement may continue, so this one exits: call os._exit() "
            "in the child, inside the test\n"
        )
        try:
            write(2, text.encode())
        finally:
            _exit(status)
