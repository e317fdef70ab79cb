"""subprocess: the pipes of a ``Popen`` that fails before it starts its process stay open."""

from __future__ import annotations

import subprocess
from contextlib import suppress

import pytest

RELEASES = ("python==3.11.2",)


@pytest.mark.leakcheck
def test_leaky() -> None:
    with suppress(ValueError, KeyError):
        subprocess.Popen(["true"], stdout=subprocess.PIPE, group="no-such-group")


@pytest.mark.leakcheck
def test_control() -> None:
    with suppress(OSError):
        subprocess.Popen(["no-such-command"], stdout=subprocess.PIPE)


KEPT: list[object] = []


@pytest.mark.leakcheck
def test_kept() -> None:
    process = subprocess.Popen(["true"], stdout=subprocess.PIPE)
    process.wait()
    KEPT.append(process)
