"""Pillow: an image that was exported to Arrow is never freed."""

from __future__ import annotations

import pytest
from PIL import Image

RELEASES = ("pillow==11.2.1",)
RESOURCES = ("heap",)
TEXT = "each image whose __arrow_c_array__ was called keeps its pixels"


@pytest.mark.leakcheck
def test_leaky() -> None:
    Image.new("RGB", (50, 50)).__arrow_c_array__()


@pytest.mark.leakcheck
def test_control() -> None:
    Image.new("RGB", (50, 50)).tobytes()
