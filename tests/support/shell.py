"""The shell command, in a process and a folder of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def shell(*arguments: str, folder: Path, limit: float = 600) -> subprocess.CompletedProcess[str]:
    """Run ``pytest-leakcheck`` with these arguments, for at most `limit` seconds. What it writes goes to the folder."""
    command = [sys.executable, "-m", "pytest_leakcheck", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=limit)
