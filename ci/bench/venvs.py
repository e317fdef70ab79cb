"""Create the virtual environments in which other packages are measured, and run commands in them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

from packaging.version import Version

ROOT: Final = Path(__file__).resolve().parents[2]
# Stands for this project in requirements; it is installed from the checkout.
PROJECT: Final = "."
_TIMEOUT_SECONDS: Final = 1800


class Missing(Exception):
    """Something cannot run on this machine; the text states why."""


class Absent(Missing):
    """A release of CPython is not on this machine, or lacks what is to be tried."""


def environment(
    folder: Path, interpreter: str, requires: Sequence[str], *, name: str = "", again: bool = False
) -> Path:
    """Return the interpreter of an environment in `folder` that has the requirements; raise `Missing` if that fails.

    It is created if it does not exist, or with `again`, for requirements that name no releases. The name of its folder
    begins with `name`, by default that of the last requirement.
    """
    wanted = json.dumps([interpreter, *requires])
    # The digest distinguishes two environments for the same package.
    place = folder / f"{name or distribution_name(requires[-1])}-{hashlib.sha256(wanted.encode()).hexdigest()[:6]}"
    python, stamp = place / "bin" / "python", place / "installed.json"
    if again or not stamp.exists():
        # `--clear`: an environment without a stamp is incomplete.
        call([interpreter, "-m", "venv", "--clear", str(place)])
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        # Editable, so that the code in the checkout is measured.
        call([*pip, *(word for one in requires for word in (("--editable", str(ROOT)) if one == PROJECT else (one,)))])
        stamp.write_text(wanted, encoding="utf-8")
    if PROJECT in requires:
        # Compile it here, because pip does not compile an editable package, and no run writes bytecode.
        call([str(python), "-m", "compileall", "-q", str(ROOT / "pytest_leakcheck")])
    return python


def inherited(*prefixes: str) -> dict[str, str]:
    """Return the environment without settings of pytest, of the interpreter and of CI, nor names with these prefixes."""
    left_out = ("PYTEST", "PYTHON", "CI", "BUILD_NUMBER", *prefixes)
    return {name: value for name, value in os.environ.items() if not name.startswith(left_out)}


@lru_cache(maxsize=1)
def interpreters() -> dict[str, str]:
    """Return the path of each CPython on the PATH or of pyenv, from 3.11 on, by its release, oldest first."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    code = "import sys, platform; print(sys.implementation.name, platform.python_version())"
    found: dict[str, str] = {}
    for folder in (*map(Path, os.get_exec_path()), *root.glob("versions/*/bin")):
        for path in folder.glob("python3.*"):
            if re.fullmatch(r"python3\.(1[1-9]|[2-9]\d)", path.name):
                asked = subprocess.run([str(path), "-c", code], capture_output=True, text=True, check=False)
                # A shim of pyenv fails for a release that is not chosen.
                if asked.stdout.startswith("cpython "):
                    found.setdefault(asked.stdout.split()[1], str(path))
    return dict(sorted(found.items(), key=lambda one: Version(one[0])))


def find_interpreter(release: str) -> str:
    """Return the path of this release of CPython; raise `Absent` if there is none."""
    if release not in interpreters():
        raise Absent(f"no CPython {release} here")
    return interpreters()[release]


def debug_interpreter() -> str:
    """Return an interpreter that counts all references; raise `Missing` if there is none on the PATH."""
    for name in (f"python3.{minor}{suffix}" for minor in range(14, 10, -1) for suffix in ("-dbg", "d")):
        if found := shutil.which(name):
            return found
    raise Missing("needs a debug interpreter, such as python3.11-dbg of Debian's package of that name")


def version(python: Path, requirement: str) -> str:
    """Return the installed version of a package and of its interpreter."""
    name = distribution_name(requirement)
    code = (
        "import sys, platform, importlib.metadata as m; print(m.version(sys.argv[1]), 'on', platform.python_version())"
    )
    asked = subprocess.run([str(python), "-c", code, name], capture_output=True, text=True, check=True)
    return f"{name} {asked.stdout.strip()}"


def distribution_name(requirement: str) -> str:
    """Return the name in a requirement."""
    return "pytest-leakcheck" if requirement == PROJECT else re.split(r"[<>=]", requirement)[0]


def call(command: Sequence[str]) -> None:
    """Run a command; raise `Missing` if it fails."""
    print(" ".join(command), file=sys.stderr, flush=True)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_SECONDS)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise Missing(f"exit {done.returncode} of {' '.join(command)}: {lines[-1] if lines else 'no output'}")


def run_command(
    command: list[str], folder: Path, variables: Mapping[str, str], timeout: float
) -> tuple[str, int | None]:
    """Run a command in its own session; return its output and its exit status, None if it ran out of time."""
    printed = folder / "output"
    # The output goes to a file, because a leaked child process would keep a pipe open, and reading would wait for the
    # end of that process.
    with printed.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        code: int | None = None
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(timeout)
        # Kill the whole session, because child processes outlive a run that failed before it could end them.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return printed.read_text(encoding="utf-8", errors="replace"), code
