"""ipywidgets: a closed widget leaves the channels of its layout and its style open."""

from __future__ import annotations

import pytest
from ipywidgets import IntSlider

RELEASES = ("ipywidgets==8.1.9",)


@pytest.mark.leakcheck
def test_leaky() -> None:
    IntSlider().close()


@pytest.mark.leakcheck
def test_control() -> None:
    slider = IntSlider()
    for part in (slider, slider.layout, slider.style):
        part.close()
