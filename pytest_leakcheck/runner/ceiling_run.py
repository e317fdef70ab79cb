"""Run a test under a ceiling (a set of limits) until the resource that it leaks runs out, and report that leak.

The limits are in force only while code of the test runs. Otherwise pytest or the measurement could fail in place of the
test, and the process would end without a finding.
"""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_leakcheck.attribution.live_handles import live_children
from pytest_leakcheck.config.ceiling import Ceiling
from pytest_leakcheck.judge.ceiling_outcome import CeilingOutcome, Failure, ceiling_of, towards
from pytest_leakcheck.judge.exhaustion import causes, exhausted_by, first_line
from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.model.verdict import Verdict
from pytest_leakcheck.probes.device import Vram
from pytest_leakcheck.runner.imposed_ceiling import ImposedCeiling

if TYPE_CHECKING:
    from pytest_leakcheck.model.culprit import Site

_TRACEBACK_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
# With this many free descriptors or fewer, a worker process can no longer do anything.
_MIN_USABLE_DESCRIPTORS: Final = 4


class CeilingRun:
    """The ceiling of one test, from before the first iteration to the end; `failure` is None until the test has failed.

    Run the test's own code in a ``with`` block of this object: the limits are in force there, and nowhere else.
    """

    def __init__(self, ceiling: Ceiling, *, drives_on: bool) -> None:
        """Take the limits; `drives_on`: the caller reports failing iterations, so the test may run until it fails."""
        self._ceiling = ceiling
        self._drives_on = drives_on
        self._imposed = ImposedCeiling(ceiling)
        self._iterations = 0
        self._suspended = False
        self.failure: Failure | None = None

    def __enter__(self) -> None:
        if self.failure is None and not self._suspended:
            self._imposed.resume()

    def __exit__(self, *_: object) -> None:
        self._imposed.lift()

    @property
    def group(self) -> Path | None:
        return self._imposed.group

    def begin(self) -> None:
        """Find out whether the limits can be imposed, before the first iteration; a cgroup is in force from now on."""
        self._imposed.impose()
        self._imposed.lift()

    def next_iteration(self) -> None:
        self._iterations += 1

    def limit_device(self, device: Vram | None) -> None:
        self._imposed.impose_on(device)
        self._imposed.lift()

    def limits(self) -> dict[str, int]:
        """Return the limits of the ceiling, by resource; empty once the test has failed under them."""
        return dict(self._ceiling.sizes) if self.failure is None else {}

    def drives_on(self, red: Verdict | None) -> bool:
        """Return whether to continue after the diagnosis until the leak makes the test fail."""
        if red is None or red.outcome != "leak" or not self._drives_on:
            # ``unclosed`` growth, for example, exhausts nothing while the garbage collector runs and releases it.
            return False
        return self.failure is None and ceiling_of(self._ceiling.sizes, red.resource) is not None

    def suspend(self) -> None:
        """Run without the limits for the diagnosis, which needs iterations that run to their end."""
        self._suspended = True

    def resume(self) -> None:
        """Run under the limits again, unless the test has failed under them already."""
        self._suspended = False

    def is_reached(self, error: BaseException) -> bool:
        """Return whether an iteration failed at a limit; if so, the test runs without the limits from now on."""
        if self.failure is not None:
            return False
        gone, said, child = exhausted_by(error), first_line(error), ""
        reached = next((name for name in self._ceiling.sizes if not set(gone).isdisjoint(towards(name))), None)
        of_each = next((name for name in self._ceiling.sizes if find_resource(name).exhausts == "descriptors"), None)
        if reached is None and of_each is not None and (child := _child_at_limit(self._ceiling.sizes[of_each])):
            # The parent process may get any error, because its connection to the worker breaks.
            reached, said = of_each, f"{said}, while {child}"
        if reached is None:
            return False
        self.failure = Failure(reached, self._iterations + 1, said, failed_at(error), in_child=bool(child))
        return True

    @property
    def may_go_on(self) -> bool:
        return self.failure is None or not self.failure.in_child

    def grown_towards(self, error: BaseException) -> tuple[str, ...]:
        if self.failure is not None and self.failure.in_child:
            return towards(self.failure.resource)
        return exhausted_by(error)

    def outcome(self) -> CeilingOutcome:
        return CeilingOutcome(self._ceiling.sizes, self._iterations, self.failure, self._imposed.missing)


def _child_at_limit(size: int) -> str:
    """Describe a child process that has nearly reached this limit on descriptors; empty if there is none."""
    if not sys.platform.startswith("linux"):
        return ""
    for pid, command in live_children().items():
        with contextlib.suppress(OSError):
            held = Path(f"/proc/{pid}/fd").stat().st_size
            if held >= size - _MIN_USABLE_DESCRIPTORS:
                return f"child {command} had {held} descriptors open"
    return ""


def failed_at(error: BaseException) -> Site | None:
    """Return the innermost line of the program's own code that failed; for a worker's error, the worker's line."""
    from pytest_leakcheck.attribution.call_paths import is_harness, is_own
    from pytest_leakcheck.attribution.object_inspection import name_of
    from pytest_leakcheck.attribution.tracing.source_code import function_at
    from pytest_leakcheck.model.culprit import Site

    # The traceback of a worker arrives as text: File "/a/b.py", line 12, in function.
    # It has the name of the function without that of its class, which the source tells.
    from_text = [
        Site(
            file,
            int(line),
            qualified if (qualified := function_at(file, int(line))).endswith(f".{function}") else function,
        )
        for file, line, function in _TRACEBACK_FRAME.findall(str(error))
    ]
    raised: list[Site] = []
    for cause in causes(error):
        trace = cause.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            raised.append(Site(code.co_filename, trace.tb_lineno, name_of(code)))
            trace = trace.tb_next
    for path in (from_text, raised):
        # Extension modules compiled from Python may carry a relative path of the machine that built them.
        own = [one for one in path if Path(one.file).is_absolute() and is_own(one.file) and not is_harness(one.file)]
        if own:
            return own[-1]
    return None
