"""h5py: reading strings as ``StringDType`` leaves memory behind."""

from __future__ import annotations

import h5py
import pytest

RELEASES = ("h5py==3.16.0",)
RESOURCES = ("heap",)
TEXT = "each string that is read as StringDType leaves its text behind"

FILE = h5py.File("strings", "w", driver="core", backing_store=False)
TEXTS = FILE.create_dataset("texts", (1,), dtype=h5py.string_dtype())
TEXTS[0] = "x" * 1000


@pytest.mark.leakcheck
def test_leaky() -> None:
    TEXTS.astype("T")[:]


@pytest.mark.leakcheck
def test_control() -> None:
    TEXTS.asstr()[:]
