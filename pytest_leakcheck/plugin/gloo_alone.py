"""Give tests of gloo ranks a group of one in a plain run, where no launcher starts ranks."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from pytest_leakcheck.config.markers import SCALING

_ALONE: Final = "leakcheck-alone"


@contextlib.contextmanager
def _process_group(**alone: Any) -> Iterator[None]:
    """Join the group of all ranks over gloo. A rank that fails leaves it without a word, so that it does not wait."""
    import torch.distributed as dist

    dist.init_process_group("gloo", **alone)
    yield
    # Where the test has ended well everywhere, this ends at once; where not, the process ends with it.
    with contextlib.suppress(Exception):
        dist.destroy_process_group()


class _Alone:
    """In a plain run, where no launcher starts ranks: a group of one, so that collective operations work as well."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        mark = item.get_closest_marker(SCALING)
        if mark is None or mark.kwargs.get("engine") != "gloo":
            return (yield)
        with tempfile.TemporaryDirectory(prefix="leakcheck-") as folder:
            meeting = Path(folder, "meeting").as_uri()
            with _process_group(init_method=meeting, rank=0, world_size=1):
                return (yield)


def stand_alone(config: pytest.Config) -> None:
    """Have tests of ranks run in a group of one, in this process."""
    if not config.pluginmanager.hasplugin(_ALONE):
        config.pluginmanager.register(_Alone(), _ALONE)
