"""The hooks that a project or a plugin may implement."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_leakcheck.probes.custom_probe import Probe
    from pytest_leakcheck.probes.device import Device


@pytest.hookspec
def pytest_leakcheck_probes(config: pytest.Config) -> Iterable[Probe | Device]:  # type: ignore[empty-body]
    """Counters of your own, judged beside the plugin's: ``return [Probe("connection", read=pool.size)]``.

    A `Device` among them is what ``vram`` reads then, in place of the accelerators that it would find: one that the plugin
    does not know, or a simulated one.

    Called once, when pytest is configured, with or without ``--leakcheck``: each probe's ``<name>_budget`` is a marker in
    both cases. So it belongs in the ``conftest.py`` of the root folder or in a plugin, and should be quick.
    """
