"""Run the shell command as ``python -m pytest_leakcheck``."""

from __future__ import annotations

import sys

from pytest_leakcheck.cli import main

if __name__ == "__main__":
    sys.exit(main())
