"""ctypes: a cache keeps each class that ``ctypes.POINTER`` has been called with, and its pointer type."""

from __future__ import annotations

import ctypes

import pytest

RELEASES = ("python==3.11.2", "python==3.12.1", "python==3.13.0")


@pytest.mark.leakcheck
def test_leaky() -> None:
    class Point(ctypes.Structure):
        _fields_ = (("x", ctypes.c_int),)

    ctypes.POINTER(Point)


@pytest.mark.leakcheck
def test_control() -> None:
    class Point(ctypes.Structure):
        _fields_ = (("x", ctypes.c_int),)

    ctypes.sizeof(Point)


KEPT: list[type] = []


@pytest.mark.leakcheck
def test_kept() -> None:
    class Point(ctypes.Structure):
        _fields_ = (("x", ctypes.c_int),)

    KEPT.append(Point)
