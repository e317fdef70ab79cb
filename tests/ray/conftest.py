"""What the sessions of these tests start Ray with."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def guarded_ray() -> Iterator[None]:
    """No usage is reported, no other program gets in, no token is written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        yield
