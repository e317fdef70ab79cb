"""Threads of C code, which call Python and end, as those of a tf.data pipeline do. Tracing is stopped in their midst."""

from __future__ import annotations

import ctypes

from pytest_leakcheck.attribution.tracing import allocations as module

# However busy the machine is.
module._MAX_QUIET_SECONDS = 60.0  # type: ignore[misc]
libc, left = ctypes.CDLL(None), 0


def work(_argument: object) -> None:
    global left
    left -= 1
    if left > 0:
        start()


call = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(work)


def start() -> None:
    thread = ctypes.c_ulong()
    libc.pthread_create(ctypes.byref(thread), None, call, None)
    libc.pthread_detach(thread)


for _ in range(3):
    allocations = module.Allocations(1.0)
    allocations.open()
    kept: list[list[int]] = [[] for _ in range(200_000)]
    left = 400
    for _ in range(3):
        start()
    allocations.close()
print("ended")
