"""Clocks and `sleep` that tests cannot replace; the functions of `time` are for tests to fake.

freezegun replaces the functions of `time` in all modules, but not a `partial` of one, and leaves
`time.clock_gettime` alone. The plugin imports this module before any conftest.py. All processes of
a machine read the same monotonic clock.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Final

# From <linux/time.h>: the clock of the time stamps of files, which advances every few milliseconds.
# time-machine fakes CLOCK_REALTIME, but not this one.
_CLOCK_REALTIME_COARSE: Final = 5

# Seconds or nanoseconds since a fixed time; of `wall_time`, since the epoch.
monotonic: Callable[[], float]
wall_time: Callable[[], float]
wall_time_ns: Callable[[], int]

if sys.platform == "win32":
    # `time.monotonic` may advance only every 16 ms there.
    monotonic = partial(time.perf_counter)
    wall_time = partial(time.time)
    wall_time_ns = partial(time.time_ns)
else:
    _WALL_CLOCK: Final = (
        _CLOCK_REALTIME_COARSE if sys.platform.startswith("linux") else time.CLOCK_REALTIME
    )
    monotonic = partial(time.clock_gettime, time.CLOCK_MONOTONIC)
    wall_time = partial(time.clock_gettime, _WALL_CLOCK)
    wall_time_ns = partial(time.clock_gettime_ns, _WALL_CLOCK)

# Seconds of CPU time, of this process and of the current thread.
process_time: Callable[[], float] = partial(time.process_time)
thread_time: Callable[[], float] = partial(time.thread_time)
sleep: Callable[[float], None] = partial(time.sleep)
