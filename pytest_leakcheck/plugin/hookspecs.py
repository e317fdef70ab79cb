"""Declare the hooks that a project or a plugin may implement."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_leakcheck.probes.custom_probe import Probe
    from pytest_leakcheck.probes.device import Device


@pytest.hookspec
def pytest_leakcheck_probes(config: pytest.Config) -> Iterable[Probe | Device]:  # type: ignore[empty-body]
    """Return your own counters, for example ``return [Probe("connection", read=pool.size)]``.

    The plugin judges them in addition to its own resources. If the returned list contains a `Device`, ``vram`` reads
    this device instead of the accelerators that it would find. Use this for a device that the plugin does not know, or
    for a simulated one.

    The hook is called once per process, when pytest is configured, with or without ``--leakcheck``. Therefore, the
    marker ``<name>_budget`` of each probe always exists. Implement the hook in the ``conftest.py`` of the root folder
    or in a plugin, and keep it fast.
    """
