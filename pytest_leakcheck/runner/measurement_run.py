"""Hold what the parts of a repetition share: its state, its time limit and its ceiling."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from math import inf
from pathlib import Path

from pytest_leakcheck.config.budget import Ceiling
from pytest_leakcheck.config.plan import SLOW_ITERATIONS, Effort, Plan
from pytest_leakcheck.model.resources import Exhausts, find_resource
from pytest_leakcheck.model.units import format_amount
from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.device import Vram
from pytest_leakcheck.probes.memory import PAGE
from pytest_leakcheck.runner.innocent_growth import InnocentGrowth
from pytest_leakcheck.runner.known_causes import KnownCauses
from pytest_leakcheck.runner.progress import ProgressReports
from pytest_leakcheck.runner.room import Room
from pytest_leakcheck.runner.sampler import Sampler
from pytest_leakcheck.runner.user_gauges import Phases
from pytest_leakcheck.runner.verdicts import Verdicts


class TimeLimit:
    """The time limit of a repetition, in seconds for all iterations together, and the time elapsed.

    Attributes:
        out_of_time: Whether the next iteration would end after the deadline if it took as long as
            the last one.
        shortest: Duration of the shortest iteration in seconds; infinity if none has run.
    """

    def __init__(self, effort: Effort) -> None:
        self._began, self._effort = clock.monotonic(), effort
        self.out_of_time = False
        # In arrays, because a float, or an int above 256, would be a block that the harness
        # allocates: the end of the last iteration and the duration of the shortest one, and the
        # number of iterations.
        self._times = array("d", (self._began, inf))
        self._iterations = array("q", (0,))
        self._aside = 0.0

    def iteration_done(self) -> None:
        now = clock.monotonic()
        seconds = now - self._times[0]
        self._iterations[0] += 1
        # The instruments are opened between two iterations, which counts as a part of the second
        # one.
        self._times[1] = min(self._times[1], seconds)
        self.out_of_time = now + seconds > self.deadline
        self._times[0] = now

    @property
    def deadline(self) -> float:
        """The time after which no further iteration may begin, by ``clock.monotonic``."""
        effort = self._effort
        if not effort.longest:
            return self._began + effort.max_time
        each = (self._times[0] - self._began - self._aside) / max(1, self._iterations[0])
        return self._began + max(
            effort.max_time, min(effort.longest, SLOW_ITERATIONS * each) + self._aside
        )

    def resume(self) -> None:
        """Continue after work that was no iteration."""
        self._times[0] = clock.monotonic()
        self.out_of_time = self._times[0] >= self.deadline

    @property
    def shortest(self) -> float:
        return self._times[1]

    def set_aside(self, seconds: float) -> None:
        """Do not count these seconds among those in which growth may end by itself."""
        self._aside += seconds

    @property
    def seconds(self) -> float:
        """Seconds since the repetition began."""
        return clock.monotonic() - self._began

    @property
    def measured_seconds(self) -> float:
        """As `seconds`, without what was set aside."""
        return self.seconds - self._aside

    @property
    def seconds_each(self) -> float:
        """Seconds per iteration, including the warm-up and series that were begun again."""
        return self.seconds / max(1, self._iterations[0])


class MeasurementRun:
    """The state that the parts of one repetition share.

    Attributes:
        causes: Those that earlier tests had, to which that of this one is added.
        gauges: The reading functions of the user's own counters; the caller may add some until the
            start level is read.
        sampler: The instruments; None before they are opened.
        limits: The level at which the process would die, by resource, in the unit of the resource.
    """

    def __init__(
        self,
        plan: Plan,
        gauges: dict[str, Callable[[], int]],
        innocent: InnocentGrowth,
        causes: KnownCauses | None = None,
    ) -> None:
        """Begin the time limit."""
        self.plan = plan
        self.causes = causes if causes is not None else KnownCauses()
        self.gauges = gauges
        self.phases = Phases()
        self.time = TimeLimit(plan.effort)
        self.innocent = innocent
        self.progress = ProgressReports(plan.effort.most)
        self.ceiling = ImposedCeiling(plan.ceiling)
        self.room = Room()
        self.verdicts = Verdicts()
        self.sampler: Sampler | None = None
        self.limits: dict[str, int] = {}

    def warm_up_done(self, done: int) -> None:
        """Count an iteration of the warm-up, of which so many are done."""
        self.time.iteration_done()
        self.progress.report_warm_up(done, self.plan.effort.warmup)


class ImposedCeiling:
    """The limits of one test, from `impose` to `lift`.

    `missing` says why one cannot be set, by resource.
    """

    def __init__(self, ceiling: Ceiling) -> None:
        self._sizes = ceiling.sizes
        self._lifting = ExitStack()
        self.missing: dict[str, str] = {}

    def impose(self) -> None:
        """Set the limits of this process, before the first line of the test."""
        self._set("descriptors", partial(_set_soft_limit, "RLIMIT_NOFILE"))
        self._set("memory", _limit_memory)

    def impose_on(self, device: Vram | None) -> None:
        """Set the limit of a device, once it is known; None if there is no device."""
        self._set("device", partial(_limit_device, device))

    def lift(self) -> None:
        """Remove the limits, so that a test that has used up its memory can still be judged."""
        self._lifting.close()

    @property
    def in_force(self) -> dict[str, int]:
        """The limits that could be set, by resource."""
        return {name: size for name, size in self._sizes.items() if name not in self.missing}

    def _set(self, exhausts: Exhausts, limit: Callable[[int], Callable[[], None]]) -> None:
        for name, size in self._sizes.items():
            if find_resource(name).exhausts == exhausts:
                try:
                    self._lifting.callback(limit(size))
                except (Unavailable, OSError, ValueError) as error:
                    self.missing[name] = f"its ceiling cannot be set: {error}"


def _limit_device(device: Vram | None, size: int) -> Callable[[], None]:
    if device is None:
        raise Unavailable("there is no device to limit")
    return device.limit(size)


def _limit_memory(size: int) -> Callable[[], None]:
    try:
        pages = [
            int(number)
            for number in Path("/proc/self/statm").read_text(encoding="ascii").split()[:2]
        ]
    except FileNotFoundError:
        raise Unavailable(
            "resident memory is read from /proc, which exists only on Linux"
        ) from None
    mapped, resident = (number * PAGE for number in pages)
    if size <= resident:
        has = format_amount(resident, "bytes")
        raise Unavailable(
            f"this process has {has} before the test starts, more than {format_amount(size, 'bytes')}"
        )
    # Memory that is mapped but not resident (libraries, reserved ranges) does not count against the
    # ceiling.
    return _set_soft_limit("RLIMIT_AS", mapped - resident + size)


def _set_soft_limit(name: str, size: int) -> Callable[[], None]:
    """Set a soft limit. Returns a function that restores the previous one."""
    try:
        import resource
    except ImportError:
        raise Unavailable("this system has no resource limits (RLIMIT)") from None
    number = getattr(resource, name)
    before = resource.getrlimit(number)
    resource.setrlimit(number, (size, before[1]))
    return lambda: resource.setrlimit(number, before)
