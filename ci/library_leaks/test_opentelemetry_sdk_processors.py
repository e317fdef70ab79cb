"""opentelemetry-sdk: ``os.fork`` keeps each batch processor of spans, also after its shutdown."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

RELEASES = ("opentelemetry-sdk==1.20.0",)


@pytest.mark.leakcheck
def test_leaky() -> None:
    BatchSpanProcessor(InMemorySpanExporter()).shutdown()


@pytest.mark.leakcheck
def test_control() -> None:
    SimpleSpanProcessor(InMemorySpanExporter()).shutdown()
