"""Whatever ends a command that writes, its files are as before or as it was to leave them, and nothing else has changed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import writers

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks, mounts"),
    pytest.mark.laboratory,
]


@pytest.mark.parametrize(
    ("way", "times"),
    [("kill", 200), ("2", 3), ("8", 3), ("open", 60), ("disk", 20)],
    ids=["killed", "two at once", "eight at once", "no descriptor", "a disk of 64 KiB"],
)
# A session writes the file of known leaks, the report, the page, the step summary, and costs in pytest's cache.
@pytest.mark.parametrize("writer", ["session", "report", "watch"])
def test_nothing_is_lost_or_destroyed(tmp_path: Path, writer: str, way: str, times: int) -> None:
    command = [sys.executable, str(Path(writers.__file__)), way, writer, str(times), str(tmp_path)]
    if way == "disk":
        (tmp_path / "files").mkdir()
        mount = f'mount -t tmpfs -o size=64k none {tmp_path}/files || exit 77; exec "$@"'
        command = ["unshare", "-m", "sh", "-c", mount, "sh", *command]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if way == "disk" and (ran.returncode == 77 or "unshare" in ran.stderr):
        pytest.skip("nothing can be mounted here")
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["wrong"] == []
    # So many of the runs were cut off that the test has shown something.
    assert found["cut"] >= (times // 2 if way == "kill" else 0), found
