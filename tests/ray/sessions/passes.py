"""A world that comes to its end."""

import os

import pytest

SIZES = [1, 2, 4]


@pytest.mark.scaling_budget("world_size", SIZES, engine="ray", rss="<= 200 MiB")
def test_world(world_size: int) -> None:
    assert os.environ["WORLD_SIZE"] == str(world_size)
    # Variables of the session, and not of the cluster.
    assert os.environ["OF_THE_SESSION"] == "yes"
