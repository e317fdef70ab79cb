"""Create a virtual environment per leak checker (peer), so that none runs next to the packages of another."""

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
_STAMP_NAME: Final = "installed.json"
_TIMEOUT_SECONDS: Final = 600


class Missing(Exception):
    """A checker cannot run on this machine; the text states why."""


def environment(folder: Path, interpreter: str, requires: Sequence[str]) -> Path:
    """Return the interpreter of an environment that has the requirements; create it if it does not exist.

    Raises:
        Missing: It could not be created.
    """
    wanted = json.dumps([interpreter, *requires])
    # The last requirement is the peer. The digest distinguishes two environments for the same peer.
    place = folder / f"{_distribution_name(requires[-1])}-{hashlib.sha256(wanted.encode()).hexdigest()[:6]}"
    python = place / "bin" / "python"
    stamp = place / _STAMP_NAME
    if not stamp.exists():
        # `--clear`: an environment without a stamp is incomplete.
        _run_or_raise([interpreter, "-m", "venv", "--clear", str(place)])
        # Editable, so that the code in the checkout is measured.
        words = [word for one in requires for word in (("--editable", str(ROOT)) if one == PROJECT else (one,))]
        _run_or_raise([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *words])
        stamp.write_text(wanted, encoding="utf-8")
    if PROJECT in requires:
        # Compile it here, because pip does not compile an editable package, and no run writes bytecode.
        _run_or_raise([str(python), "-m", "compileall", "-q", str(ROOT / "pytest_leakcheck")])
    return python


def debug_interpreter() -> str:
    """Return an interpreter that counts all references.

    Raises:
        Missing: There is no such interpreter on the PATH.
    """
    versions = [f"python3.{minor}" for minor in range(14, 9, -1)]
    for name in (version + suffix for version in versions for suffix in ("-dbg", "d")):
        found = shutil.which(name)
        if found and _succeeds([found, "-c", "import sys; sys.gettotalrefcount()"]):
            return found
    raise Missing("needs a debug interpreter, such as python3.11-dbg of Debian's package of that name")


def version(python: Path, requires: Sequence[str]) -> str:
    """Return the installed version of a checker and of its interpreter."""
    peer = _distribution_name(requires[-1])
    code = "import sys, platform, importlib.metadata as m; print(m.version(sys.argv[1]), platform.python_version())"
    asked = subprocess.run([str(python), "-c", code, peer], capture_output=True, text=True, check=True)
    installed, interpreter = asked.stdout.split()
    return f"{peer} {installed}{_describe_commit() if requires[-1] == PROJECT else ''} on Python {interpreter}"


def _describe_commit() -> str:
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    done = subprocess.run(git, capture_output=True, text=True, check=False)
    return f" (commit {done.stdout.strip()})" if done.returncode == 0 else ""


def _distribution_name(requirement: str) -> str:
    return "pytest-leakcheck" if requirement == PROJECT else re.split(r"[<>=]", requirement)[0]


def _succeeds(command: Sequence[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0


def _run_or_raise(command: Sequence[str]) -> None:
    print(" ".join(command), file=sys.stderr, flush=True)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_SECONDS)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise Missing(f"exit {done.returncode} of {' '.join(command)}: {lines[-1] if lines else 'no output'}")
