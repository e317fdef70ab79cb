"""One rank of two does not come to its end."""

import os
import time
from collections.abc import Callable

import pytest

from pytest_leakcheck.plugin.inert import Leakcheck

ACTS: dict[str, Callable[[], object]] = {
    "is_killed": lambda: os.kill(os.getpid(), 9),
    "hangs": lambda: time.sleep(1000),
    "raises": lambda: int("rank one is broken"),
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.scaling_budget("world_size", [2, 4, 8], engine="ray", rss="<= 200 MiB")
def test_rank(world_size: int, leakcheck: Leakcheck, act: str) -> None:
    with open("pids", "a") as file:
        file.write(f"{os.getpid()} ")
    if leakcheck.rank == 1:
        print("rank one has begun")
        with open(f"began-{act}", "w") as file:
            file.write(str(time.time()))
        ACTS[act]()
    elif act == "is_killed":
        time.sleep(60)


def test_next() -> None:
    """When the test before is reported."""
