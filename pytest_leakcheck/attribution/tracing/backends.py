"""Choose the backend that traces calls and lines: `sys.monitoring` if this Python has it, and otherwise its hooks."""

import sys

if sys.version_info >= (3, 12):
    from pytest_leakcheck.attribution.tracing.monitoring_backend import MonitoredCalls as Tracer
    from pytest_leakcheck.attribution.tracing.monitoring_backend import MonitoredLines as Lines
else:
    from pytest_leakcheck.attribution.tracing.setprofile_backend import ProfiledCalls as Tracer
    from pytest_leakcheck.attribution.tracing.setprofile_backend import TracedLines as Lines

__all__ = ["Lines", "Tracer"]
