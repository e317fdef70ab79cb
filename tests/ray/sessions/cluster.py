"""The conftest of a project whose tests share a cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import ray


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(
        "local",
        num_cpus=4,
        include_dashboard=False,
        object_store_memory=200 << 20,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield
    ray.shutdown()
