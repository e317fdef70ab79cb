"""What a mark says, as a value; that a wrong one is an error is shown where it is collected (tests/plugin)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from pytest_leakcheck.config.scaling_marker import Sweep, read_sweep
from pytest_leakcheck.model import InputError


@dataclass(frozen=True)
class Mark:
    name: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


def read(*args: Any, takes: tuple[str, ...] = ("n",), **kwargs: Any) -> Sweep:
    return read_sweep([Mark("scaling_budget", args, kwargs)], takes)


def test_a_bound_alone_is_about_the_sum() -> None:
    sweep = read("n", [1, 2, 4], rss="O(1)", fd=3, reason="a pod has 2 GiB")
    assert (sweep.axis, sweep.sizes, sweep.engine, sweep.reason) == ("n", (1, 2, 4), "", "a pod has 2 GiB")
    assert [(aim.resource, aim.figure, str(aim)) for aim in sweep.aims] == [
        ("rss", "total", "O(1)"),
        ("fd", "total", "<= 3"),
    ]


def test_several_figures_of_one_resource() -> None:
    bounds = {"total": "<= max(64, n)", "per_rank": 64, "at_least": "64 - (n - 1)"}
    sweep = read("n", (1, 2, 4), engine="gloo", running=bounds, takes=("n", "leakcheck"))
    assert sweep.resources == ("gauge:running",)
    assert [str(aim) for aim in sweep.aims] == ["<= max(64, n)", "per rank <= 64", "at least 64 - (n - 1)"]


def test_the_closest_mark_wins() -> None:
    marks = [Mark("scaling_budget", ("n", [1, 2, 4]), {"fd": size}) for size in (1, 2)]
    assert [str(aim) for aim in read_sweep(marks, ["n"]).aims] == ["<= 1"]


@pytest.mark.parametrize(("name", "takes"), [("running", ("n",)), ("threads", ("n", "leakcheck"))])
def test_a_gauge_needs_the_fixture_and_a_name_unlike_a_resources(name: str, takes: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="no such resource"):
        read("n", [1, 2, 4], takes=takes, **{name: "O(1)"})
    assert read("n", [1, 2, 4], takes=("n", "leakcheck"), running="O(1)").resources == ("gauge:running",)
