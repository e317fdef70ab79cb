"""An environment per peer, so that none of them is measured beside another. In: requirements. Out: an interpreter."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from checkers import PROJECT

ROOT: Final = Path(__file__).resolve().parents[2]
_STAMP: Final = "installed.json"
_TIMEOUT: Final = 600


class Missing(Exception):
    """A checker cannot be run on this machine, and why."""


def environment(folder: Path, interpreter: str, requires: Sequence[str]) -> Path:
    """The interpreter of an environment that has the requirements; it is made unless it is there.

    Raises:
        Missing: It could not be made.
    """
    wanted = json.dumps([interpreter, *requires])
    # The last requirement is the peer; the digest keeps two that share it apart.
    place = folder / f"{_distribution(requires[-1])}-{hashlib.sha256(wanted.encode()).hexdigest()[:6]}"
    python = place / "bin" / "python"
    stamp = place / _STAMP
    if not stamp.exists():
        # What was left half made is made anew.
        _run([interpreter, "-m", "venv", "--clear", str(place)])
        # Editable, so that what is measured is what the checkout holds now.
        words = [word for one in requires for word in (("--editable", str(ROOT)) if one == PROJECT else (one,))]
        _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *words])
        stamp.write_text(wanted, encoding="utf-8")
    if PROJECT in requires:
        # As pip does for all that it installs; no run writes bytecode of its own.
        _run([str(python), "-m", "compileall", "-q", str(ROOT / "pytest_leakcheck")])
    return python


def debug_interpreter() -> str:
    """An interpreter that counts all references.

    Raises:
        Missing: None is on the path.
    """
    versions = [f"python3.{minor}" for minor in range(14, 9, -1)]
    for name in (version + suffix for version in versions for suffix in ("-dbg", "d")):
        found = shutil.which(name)
        if found and _succeeds([found, "-c", "import sys; sys.gettotalrefcount()"]):
            return found
    raise Missing("needs a debug interpreter, such as python3.11-dbg of Debian's package of that name")


def version(python: Path, requires: Sequence[str]) -> str:
    """What was installed for a checker, and for which interpreter."""
    peer = _distribution(requires[-1])
    code = "import sys, platform, importlib.metadata as m; print(m.version(sys.argv[1]), platform.python_version())"
    asked = subprocess.run([str(python), "-c", code, peer], capture_output=True, text=True, check=True)
    installed, interpreter = asked.stdout.split()
    return f"{peer} {installed}{_commit() if requires[-1] == PROJECT else ''} on Python {interpreter}"


def _commit() -> str:
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    done = subprocess.run(git, capture_output=True, text=True, check=False)
    return f" (commit {done.stdout.strip()})" if done.returncode == 0 else ""


def _distribution(requirement: str) -> str:
    return "pytest-leakcheck" if requirement == PROJECT else re.split(r"[<>=]", requirement)[0]


def _succeeds(command: Sequence[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0


def _run(command: Sequence[str]) -> None:
    print(" ".join(command), file=sys.stderr, flush=True)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise Missing(f"exit {done.returncode} of {' '.join(command)}: {lines[-1] if lines else 'no output'}")
