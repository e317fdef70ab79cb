"""Tests whose children send each kind of message."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable

import pytest

KEPT: list[int] = []
COUNT = int(os.environ["COUNT"])


@pytest.mark.fd_budget(0)
@pytest.mark.parametrize("n", range(COUNT))
def test_leak(n: int, record_property: Callable[[str, object], None]) -> None:
    warnings.warn("careful", ResourceWarning)
    record_property("kind", [1, None])
    print("said")
    KEPT.append(os.open(__file__, os.O_RDONLY))


@pytest.mark.fd_budget(0)
@pytest.mark.parametrize("n", range(COUNT))
def test_fails(n: int) -> None:
    try:
        {}["a"]  # type: ignore[index]
    except KeyError as error:
        raise ValueError("b") from error


if "WORLDS" in os.environ:

    @pytest.mark.fd_budget(0)
    @pytest.mark.parametrize("n", range(COUNT))
    def test_skips(n: int) -> None:
        pytest.skip("not here")

    @pytest.mark.scaling_budget("world_size", [1, 2, 4], engine="process", rss="<= 900 MiB")
    @pytest.mark.parametrize("n", range(COUNT))
    def test_world(n: int, world_size: int) -> None:
        assert world_size
