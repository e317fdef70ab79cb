"""Repeat tests and judge what they retain: a pytest plugin that finds leaks.

A test suite does not need to import this package: the markers and the fixture ``leakcheck`` are
available once the plugin is installed. The names below are for annotations, for
``xfail(raises=LeakError)`` and for scripts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_leakcheck.config.budget import Budget
    from pytest_leakcheck.measurement import Measurement, measure
    from pytest_leakcheck.model import LeakcheckError
    from pytest_leakcheck.model.finding import Finding, Verdict
    from pytest_leakcheck.model.recording import Recording, Series
    from pytest_leakcheck.plugin.inert import Leakcheck, LeakError
    from pytest_leakcheck.probes.catalog import Probe
    from pytest_leakcheck.probes.device import Device
    from pytest_leakcheck.runner.fault_injection import InjectedError

__all__ = [
    "Budget",
    "Device",
    "Finding",
    "InjectedError",
    "LeakError",
    "Leakcheck",
    "LeakcheckError",
    "Measurement",
    "Probe",
    "Recording",
    "Series",
    "Verdict",
    "__version__",
    "measure",
]

# Each public name and the submodule that defines it.
_DEFINING_MODULES = {
    "Budget": "config.budget",
    "Device": "probes.device",
    "Finding": "model.finding",
    "InjectedError": "runner.fault_injection",
    "LeakError": "plugin.inert",
    "Leakcheck": "plugin.inert",
    "LeakcheckError": "model",
    "Measurement": "measurement",
    "Probe": "probes.catalog",
    "Recording": "model.recording",
    "Series": "model.recording",
    "Verdict": "model.finding",
    "measure": "measurement",
}


def __getattr__(name: str) -> Any:
    # Import on first use: pytest imports this package in every run, because of its entry point, and
    # a run without ``--leakcheck`` must not spend time on modules that it does not use.
    if name == "__version__":
        from importlib.metadata import version

        return version("pytest-leakcheck")
    if name in _DEFINING_MODULES:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_DEFINING_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
