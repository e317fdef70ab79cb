"""Each rank holds what it may; 64 are allowed in all, and no fewer than are lost by rounding down."""

import os
import sys
import threading

import psutil
import pytest

from pytest_leakcheck.plugin.inert import Leakcheck

CAP = 64


@pytest.mark.parametrize("leaky", [True, False], ids=["leaky", "fixed"])
@pytest.mark.scaling_budget(
    "world_size",
    [1, 2, 4],
    engine="ray",
    in_flight={"total": "<= max(64, world_size)", "at_least": "64 - (world_size - 1)"},
    rss={"total": "<= 64 MiB + 8 MiB * world_size", "per_rank": "<= 80 MiB"},
)
def test_rollouts(world_size: int, leakcheck: Leakcheck, *, leaky: bool) -> None:
    assert threading.current_thread() is threading.main_thread()
    numbers = [int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")]
    assert numbers == [leakcheck.rank, leakcheck.rank, world_size, world_size]
    held = [bytearray(b"x") * (1 << 20) for _ in range(CAP if leaky else max(1, CAP // world_size))]
    leakcheck.gauge("in_flight", lambda: len(held))


def test_the_session_has_neither_loaded_nor_started_ray() -> None:
    assert "ray" not in sys.modules
    assert "RAY_AUTH_TOKEN" not in os.environ
    assert psutil.Process().children(recursive=True) == []
