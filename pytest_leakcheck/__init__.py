"""Does this test keep what it uses? A pytest plugin that repeats tests and judges what they retain.

In a test suite nothing needs to be imported: markers and the fixture ``leakcheck`` are there once the plugin is
installed. The names below are for annotations, for ``xfail(raises=LeakError)``, and for scripts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_leakcheck.config.budget import Budget
    from pytest_leakcheck.measurement import Measurement, measure
    from pytest_leakcheck.model.finding import Finding
    from pytest_leakcheck.model.recording import Recording, Series
    from pytest_leakcheck.model.verdict import Verdict
    from pytest_leakcheck.plugin.errors import LeakError
    from pytest_leakcheck.plugin.inert_fixture import Leakcheck
    from pytest_leakcheck.probes.custom_probe import Probe
    from pytest_leakcheck.probes.device import Device

__all__ = [
    "Budget",
    "Device",
    "Finding",
    "LeakError",
    "Leakcheck",
    "Measurement",
    "Probe",
    "Recording",
    "Series",
    "Verdict",
    "__version__",
    "measure",
]

_HOMES = {
    "Budget": "config.budget",
    "Device": "probes.device",
    "Finding": "model.finding",
    "LeakError": "plugin.errors",
    "Leakcheck": "plugin.inert_fixture",
    "Measurement": "measurement",
    "Probe": "probes.custom_probe",
    "Recording": "model.recording",
    "Series": "model.recording",
    "Verdict": "model.verdict",
    "measure": "measurement",
}


def __getattr__(name: str) -> Any:
    # Lazy: pytest loads this package for the entry point, and a plain run must not pay for what it does not use.
    if name == "__version__":
        from importlib.metadata import version

        return version("pytest-leakcheck")
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
