"""opentelemetry-sdk: each provider of traces leaves a function behind that ``os.fork`` calls in the child."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

RELEASES = ("opentelemetry-sdk==1.45.2",)


@pytest.mark.leakcheck
def test_leaky() -> None:
    TracerProvider(shutdown_on_exit=False).shutdown()


@pytest.mark.leakcheck
def test_control() -> None:
    Resource.create()
