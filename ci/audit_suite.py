"""Run a command, by default the suite, and print what the plugin has written or removed outside of its folders.

``python ci/audit_suite.py [COMMAND ...]``. It exits with 1 if there was any, or if the plugin has unpickled something. The
folders are those that SECURITY.md names: temporary ones with the plugin's prefixes, and those of pytest.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

RECORDER = Path(__file__).parent / "audit"
# Private temporary folders and files, also in a temporary folder that a test has chosen; those of pytest; what has no content.
_OURS = re.compile(
    rf"{re.escape(tempfile.gettempdir())}/(?:(?:[^/]+/)?leakcheck-|pytest-of-|audit-)[^/]*(?:/|$)"
    r"|/dev/(?:null|full)$|/proc/self/"
)


def outside(events: Iterable[list[str]], named: Iterable[Path] = ()) -> Counter[tuple[str, ...]]:
    """Count the events that no folder or option of SECURITY.md explains; `named` are what options name, and their folders."""
    allowed = {str(path) for path in named}
    found: Counter[tuple[str, ...]] = Counter()
    for event, *what in events:
        if event in ("subprocess.Popen", "os.posix_spawn"):
            continue
        if event.startswith(("socket.", "pickle.", "os.system", "os.exec")) or not all(
            _OURS.match(path) or path in allowed for path in what
        ):
            found[event, *what] += 1
    return found


def main(command: list[str]) -> int:
    """Run the command with the recorder in all its Python processes, and print a row per event."""
    with tempfile.TemporaryDirectory(prefix="audit-") as folder:
        to = Path(folder, "events")
        to.touch()
        path = os.pathsep.join(filter(None, (str(RECORDER), os.environ.get("PYTHONPATH"))))
        subprocess.run(command, env={**os.environ, "AUDIT_TO": str(to), "PYTHONPATH": path}, check=False)
        found = outside(map(json.loads, to.read_text(encoding="utf-8").splitlines()))
    for row, count in sorted(found.items()):
        print(count, *row)
    print(f"{len(found)} kinds of events outside of the folders in SECURITY.md")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or [sys.executable, "-m", "pytest", "-q"]))
