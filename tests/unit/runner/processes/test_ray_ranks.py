"""What the driver of ranks on Ray decides without Ray; tests/ray runs them."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.runner.processes.ray_agents import Place, without_ray
from pytest_leakcheck.runner.processes.ray_ranks import (
    _start_actors,
    _variables_of,
    start_up_seconds,
)

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a machine is known by what /proc says")


def place(node: str = "a" * 56, *, is_here: bool = True) -> Place:
    return Place(node, "10.0.0.5", 1, is_here)


def test_ranks_have_the_numbers_of_their_node() -> None:
    found = [*_variables_of([place("a" * 56), place("b" * 56), place("a" * 56)])]
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    assert [tuple(one[name] for name in names) for one in found] == [
        ("0", "0", "3", "2"),
        ("1", "0", "3", "1"),
        ("2", "1", "3", "2"),
    ]
    assert found[1]["LEAKCHECK_NODE"] == "bbbbbbbbbbbb (10.0.0.5)"
    assert "LEAKCHECK_APART" not in found[0]


def test_all_ranks_know_that_they_share_no_folder() -> None:
    found = [*_variables_of([place(), place("b" * 56, is_here=False)])]
    assert [one["LEAKCHECK_APART"] for one in found] == ["1", "1"]


def test_a_rank_gets_no_secret_of_ray() -> None:
    assert without_ray({"RAY_AUTH_TOKEN": "secret", "OF_THE_PROJECT": "yes"}) == {"OF_THE_PROJECT": "yes"}


def test_more_ranks_have_more_time_to_start() -> None:
    assert start_up_seconds(8) > start_up_seconds(1) + 30


class RayError(Exception):
    """As Ray's own."""


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """In place of Ray, a module that records what is called."""
    ray = MagicMock()
    modules = {
        "ray": ray,
        "ray.exceptions": SimpleNamespace(RayError=RayError),
        "ray.util": ray.util,
        "ray.util.scheduling_strategies": ray.util.scheduling_strategies,
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return ray


FAILED = RayError("worker startup\n repeatedly failed")


@pytest.mark.parametrize(("answers", "killed"), [([place(), place()], 0), ([place(), FAILED, place()], 1)])
def test_a_rank_is_started_once_more(ray: MagicMock, answers: list[object], killed: int) -> None:
    ray.get.side_effect = answers
    actors, places = _start_actors("group", 2, "folder")
    assert (len(actors), places) == (2, [place(), place()])
    assert ray.kill.call_count == killed
    assert ray.remote().options().remote.call_count == 2 + killed


def test_a_rank_that_never_starts_has_the_words_of_ray(ray: MagicMock) -> None:
    ray.get.side_effect = [place(), FAILED, FAILED]
    with pytest.raises(Unavailable) as caught:
        _start_actors("group", 2, "folder")
    said = "Ray did not start rank 1 of 2, tried twice: RayError: worker startup repeatedly failed"
    assert str(caught.value) == said
