"""Tests on Ray itself, which ./ci/ray installs; the gate leaves them out, because it is 283 MB."""

from __future__ import annotations

import importlib.metadata
import secrets
from collections.abc import Iterator

import pytest


def pytest_runtest_setup() -> None:
    # The name of this folder would be found as a package without files.
    try:
        importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("Ray is not installed: ./ci/ray installs it, and runs these tests")


@pytest.fixture(scope="session", autouse=True)
def on_ray() -> Iterator[None]:
    """Environment of the sessions: no usage is reported, no other program gets in, no token is written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        yield
