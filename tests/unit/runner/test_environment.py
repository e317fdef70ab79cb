from __future__ import annotations

import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from pytest_leakcheck.runner.environment import find_commit, random_states

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def _no_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_SHA", "CI_COMMIT_SHA", "GIT_COMMIT"):
        monkeypatch.delenv(name, raising=False)


def repository(folder: Path, head: str) -> Path:
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text(head + "\n")
    below = folder / "sub" / "project"
    below.mkdir(parents=True)
    return below


def test_a_branch(tmp_path: Path) -> None:
    below = repository(tmp_path, "ref: refs/heads/main")
    assert find_commit(below) == ""
    (tmp_path / ".git" / "packed-refs").write_text(f"# pack-refs with: peeled\n{COMMIT} refs/heads/main\n")
    assert find_commit(below) == COMMIT
    newer = COMMIT[::-1]
    (tmp_path / ".git" / "refs" / "heads").mkdir(parents=True)
    (tmp_path / ".git" / "refs" / "heads" / "main").write_text(f"{newer}\n")
    assert find_commit(below) == newer


def test_no_branch_a_worktree_and_ci(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_commit(repository(tmp_path, COMMIT)) == COMMIT
    tree, git = tmp_path / "tree", tmp_path / ".git" / "worktrees" / "tree"
    for folder in (tree, git, tmp_path / ".git" / "refs" / "heads"):
        folder.mkdir(parents=True)
    (tree / ".git").write_text(f"gitdir: {git}\n")
    (git / "HEAD").write_text("ref: refs/heads/topic\n")
    (git / "commondir").write_text("../..\n")
    (tmp_path / ".git" / "refs" / "heads" / "topic").write_text(f"{COMMIT[::-1]}\n")
    assert find_commit(tree) == COMMIT[::-1]
    monkeypatch.setenv("GITHUB_SHA", "fedcba")
    assert find_commit(tree) == "fedcba"


def test_other_text_than_a_commit_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder from elsewhere may have a `.git` that refers to any file."""
    (tmp_path / "secret").write_text("password hunter2\n")
    below = repository(tmp_path, "ref: ../secret")
    assert find_commit(below) == ""
    (tmp_path / ".git" / "HEAD").write_text("password hunter2\n")
    assert find_commit(below) == ""
    monkeypatch.setenv("GIT_COMMIT", "hunter2")
    assert find_commit(below) == ""


def test_states_of_generators_that_are_in_use_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    monkeypatch.delitem(sys.modules, "numpy.random", raising=False)
    state = random.getstate()
    with random_states():
        random.random()
    assert random.getstate() == state
    assert "numpy.random" not in sys.modules


def test_the_state_of_another_generator_of_numpy_is_put_back() -> None:
    numpy_random: Any = np.random
    before = numpy_random.get_bit_generator()
    numpy_random.set_bit_generator(np.random.PCG64(1))
    try:
        # The old form of its state would warn, which is an error here.
        with random_states():
            drawn = numpy_random.random()
        assert numpy_random.random() == drawn
    finally:
        numpy_random.set_bit_generator(before)
