"""opentelemetry-sdk: a set keeps the metric readers of each provider, also after its shutdown."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

RELEASES = ("opentelemetry-sdk==1.20.0",)


@pytest.mark.leakcheck
def test_leaky() -> None:
    MeterProvider([InMemoryMetricReader()]).shutdown()


@pytest.mark.leakcheck
def test_control() -> None:
    MeterProvider().shutdown()
