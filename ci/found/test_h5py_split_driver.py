"""h5py: a file of the driver ``split`` leaves memory behind."""

from __future__ import annotations

import tempfile

import h5py
import pytest

RELEASES = ("h5py==3.16.0",)
RESOURCES = ("heap",)
TEXT = "each file that is opened with the driver split leaves memory behind"

PATH = tempfile.mkdtemp() + "/file"


@pytest.mark.leakcheck
def test_leaky() -> None:
    h5py.File(PATH, "w", driver="split").close()


@pytest.mark.leakcheck
def test_control() -> None:
    h5py.File(PATH, "w").close()
