"""What ranks on another machine write, and how it comes to the session's folder; without Ray, in one process."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.runner.processes import ray_agents
from pytest_leakcheck.runner.processes.ray_agents import Agent, Place, Remote
from pytest_leakcheck.runner.processes.supervisor import Board, BoardView, file_of

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows removes no folder with an open file")
PLACE = Place("b" * 56, "10.0.0.5", 4, is_here=False)


class RayError(Exception):
    """As Ray's own."""


class Ray:
    """In place of Ray: an agent is an object of this process, which answers unless it is `silent`."""

    silent = False
    strategies = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda *_node, **_soft: None)

    def remote(self, kind: type) -> Any:
        agent = kind()

        def method(name: str) -> Any:
            return SimpleNamespace(remote=lambda *given: (getattr(agent, name), given))

        handle = SimpleNamespace(**{name: method(name) for name in ("open", "write", "read", "end", "close")})
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda: handle))

    def get(self, asked: Any, **_: float) -> object:
        if self.silent:
            raise RayError("no answer")
        try:
            return asked[0](*asked[1])
        except Unavailable as error:
            failed = RayError("in a traceback of its own")
            failed.cause = error  # type: ignore[attr-defined]
            raise failed from None

    def wait(self, asked: list[Any], **_: float) -> tuple[list[Any], list[Any]]:
        return ([], asked) if self.silent else (asked, [])

    def kill(self, _agent: object) -> None:
        pass


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    ray = Ray()
    modules = {
        "ray": ray,
        "ray.exceptions": SimpleNamespace(RayError=RayError),
        "ray.util": ray,
        "ray.util.scheduling_strategies": ray.strategies,
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return ray


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files of a session of the project `here/mine`, of which `there/copy` is the copy."""
    folder, root, copy = tmp_path / "session", tmp_path / "here" / "mine", tmp_path / "there" / "copy"
    for one in (folder, root / "sub", copy / "sub", tmp_path / "tmp"):
        one.mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(Path, "cwd", lambda: copy)
    monkeypatch.chdir(root / "sub")
    start = {
        "root": str(root),
        "folder": str(folder),
        "path": [str(root / "src"), "/of/this/machine"],
        "basetemp": "/of/pytest",
        "options": [f"--leakcheck-task={folder}/start"],
    }
    (folder / "program.py").write_text("pass")
    (folder / "start").write_text(json.dumps(start))
    file_of(folder, "board").write_bytes(bytes(3 * Board.SIZE))
    return [str(folder / "program.py"), str(folder / "start")]


@pytest.mark.usefixtures("ray")
def test_a_rank_runs_in_the_copy_of_the_project_with_a_folder_of_its_own(program: list[str]) -> None:
    remote = Remote([1, 2], PLACE, program)
    said, there, cwd, variables = remote.way
    copy = Path.cwd()
    assert there == [f"{said}/program.py", f"{said}/start"]
    assert cwd == str(copy / "sub")
    assert variables["TMPDIR"].startswith(said)
    start = json.loads(Path(there[1]).read_text())
    assert start["path"] == [str(copy / "src"), *sys.path]
    assert (start["folder"], start["options"]) == (said, [f"--leakcheck-task={said}/start"])
    assert start["basetemp"].startswith(said)
    remote.close([])
    assert not Path(said).exists()


@pytest.mark.usefixtures("ray")
def test_what_ranks_write_there_is_in_the_folder_of_the_session(
    program: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    folder = Path(program[0]).parent
    remote, board = Remote([1], PLACE, program), BoardView(file_of(folder, "board"), 3)
    there = Path(remote.way[0])
    Board(file_of(there, "board"), 1).iteration = 7
    # The part of a rank on another node, which must not be copied.
    Board(file_of(there, "board"), 2).iteration = 9
    remote.look()
    assert board.steps == 7
    file_of(there, "messages", 1).write_text("a line\n")
    file_of(there, "stack", 1).write_text("a stack\n")
    (there / "1").write_text("an output\n")
    remote.close([])
    board.close()
    assert file_of(folder, "messages", 1).read_text() == "a line\n"
    assert file_of(folder, "stack", 1).read_text() == "a stack\n"
    assert capfd.readouterr().out == "an output\n"
    assert not there.exists()


def test_a_node_that_does_not_answer_is_lost(ray: Ray, program: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    remote = Remote([1], PLACE, program)
    ray.silent = True
    remote.look()
    assert not remote.is_lost
    monkeypatch.setattr(ray_agents, "_LOST_SECONDS", -1.0)
    remote.look()
    assert remote.is_lost
    remote.close([os.getpid()])  # asks nothing, or it would end this process


@pytest.mark.usefixtures("ray")
def test_another_release_on_the_node_is_named(program: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def open_there(agent: Agent, version: str) -> object:
        return real(agent, f"{version}.1")

    real = Agent.open
    monkeypatch.setattr(Agent, "open", open_there)
    with pytest.raises(
        Unavailable, match=r"^no rank can run on node bbbbbbbbbbbb \(10\.0\.0\.5\), which is on another ma"
    ):
        Remote([1], PLACE, program)
