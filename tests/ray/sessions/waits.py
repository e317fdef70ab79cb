"""A rank that waits for the end of its session."""

import os
import time

import pytest


@pytest.mark.scaling_budget("world_size", [1, 2, 4], engine="ray", rss="<= 200 MiB")
def test_wait(world_size: int) -> None:
    with open("pids", "a") as file:
        file.write(f"{os.getpid()} ")
    time.sleep(1000)
