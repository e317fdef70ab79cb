"""Join the process group of gloo ranks; without ``--leakcheck``, this process is the only one of each test.

A rank is one of the processes that run a test together; gloo is a torch.distributed backend that connects them.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_leakcheck.config.markers import SCALING


@contextlib.contextmanager
def join_process_group(**options: Any) -> Iterator[None]:
    """Join the group of all ranks over gloo, and leave it after the body.

    If the body raises, the group is not destroyed, so that this rank does not wait for the others.
    """
    import torch.distributed as dist

    dist.init_process_group("gloo", **options)
    yield
    # It returns at once if the test ended well on every rank. An error is of no use, because the process ends anyway.
    with contextlib.suppress(Exception):
        dist.destroy_process_group()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Give each test with gloo ranks a group of one, if this module is registered as a plugin."""
    mark = item.get_closest_marker(SCALING)
    if mark is None or mark.kwargs.get("engine") != "gloo":
        return (yield)
    with tempfile.TemporaryDirectory(prefix="leakcheck-") as folder:
        meeting = Path(folder, "meeting").as_uri()
        with join_process_group(init_method=meeting, rank=0, world_size=1):
            return (yield)
