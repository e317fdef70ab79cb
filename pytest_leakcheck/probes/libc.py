"""The C library, loaded once: each load leaves a reference cycle, which was once reported as the leak of a test."""

from __future__ import annotations

import ctypes
from functools import cache


@cache
def load_libc() -> ctypes.CDLL:
    """Return the C library of this process; its functions set `ctypes.get_errno`."""
    return ctypes.CDLL(None, use_errno=True)


@cache
def load_holding_gil(kind: type[ctypes.PyDLL]) -> ctypes.PyDLL:
    """Return the C library with ``malloc`` and ``free``, by `ctypes.PyDLL`: no other Python thread runs in a call."""
    libc = kind(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.restype = None
    libc.free.argtypes = [ctypes.c_void_p]
    return libc
