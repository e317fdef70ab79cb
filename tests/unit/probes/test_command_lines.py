"""No secret of a command line is shown, in any of the usual forms."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_leakcheck.attribution.handles import live_children
from pytest_leakcheck.probes.processes import mask_secrets
from pytest_leakcheck.watch.follower import command_of


@pytest.mark.parametrize(
    ("words", "masked"),
    [
        (["run", "--password=hunter2", "-v"], ["run", "--password=***", "-v"]),
        (["run", "--password=hun ter2"], ["run", "--password=***"]),
        (["run", "--db-Password", "hunter2", "-v"], ["run", "--db-Password", "***", "-v"]),
        (["run", "-token", "hun ter2"], ["run", "-token", "***"]),
        (
            ["env", "HF_TOKEN=hunter2", "AWS_SECRET_ACCESS_KEY=hunter2"],
            ["env", "HF_TOKEN=***", "AWS_SECRET_ACCESS_KEY=***"],
        ),
        (["psql", "postgres://me:hunter2@host/db?passwd=hunter2"], ["psql", "postgres://me:***@host/db?passwd=***"]),
        (["bash", "-c", "run --password=hunter2 -v; sleep 3"], ["bash", "-c", "run --password=*** -v; sleep 3"]),
        (["bash", "-c", "run --api-key 'hun ter2' -v"], ["bash", "-c", "run --api-key *** -v"]),
        (["curl", "-H", "X-Api-Key: hunter2"], ["curl", "-H", "X-Api-Key: ***"]),
        (["curl", "-d", '{"credential": "hun ter2", "n": 1}'], ["curl", "-d", '{"credential": ***, "n": 1}']),
        (["python", "-c", 'f(secret=\\"hunter2\\")'], ["python", "-c", "f(secret=***)"]),
    ],
)
def test_a_secret_is_masked(words: list[str], masked: list[str]) -> None:
    assert mask_secrets(words) == masked


@pytest.mark.parametrize(
    "words",
    [
        ["python", "-m", "pytest", "-k", "fast", "tests/test_tokens.py::test_a"],
        ["run", "--use-token", "--verbose", "--out=http://host:80/a@b"],
        ["run", "--epochs=3", "host:80", "me@host"],
        [],
    ],
)
def test_the_rest_stays(words: list[str]) -> None:
    assert mask_secrets(words) == words


@pytest.mark.parametrize("long", ["key" * 50_000, "a" * 150_000, "://a:" * 30_000, "--" * 70_000, "key= " * 30_000])
def test_a_long_word_takes_no_long_time(long: str) -> None:
    mask_secrets(["run", long])


@pytest.fixture
def child() -> Iterator[int]:
    """A process with secrets in its command line: one in the middle, one across the end of what is shown."""
    words = ["--password=hunter2", "x" * 90, f"https://me:{'hunter2' * 30}@host"]
    command = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()", *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_both_readers_mask(child: int) -> None:
    assert "hunter2" in Path(f"/proc/{child}/cmdline").read_text()
    shown = [live_children()[child], command_of(child)]
    for text in shown:
        assert "--password=*** x" in text
        assert "hunter" not in text
