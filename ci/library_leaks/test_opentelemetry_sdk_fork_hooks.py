"""opentelemetry-sdk: each provider of metrics leaves a function behind that ``os.fork`` calls in the child."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource

RELEASES = ("opentelemetry-sdk==1.45.2",)


@pytest.mark.leakcheck
def test_leaky() -> None:
    MeterProvider().shutdown()


@pytest.mark.leakcheck
def test_control() -> None:
    Resource.create()
