"""What ran out, by what failed: errors of the kernel by number, those of libraries and workers by their words."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping

import pytest

from leakcheck_incidents.synthetic.simulated_device import DeviceOutOfMemory, SimulatedDevice
from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.judge.exhaustion import exhausted_by, explain, first_line
from pytest_leakcheck.model.finding import Verdict
from pytest_leakcheck.model.recording import Series
from pytest_leakcheck.runner.diagnosis import failed_at

KIB = 1024
FULL = OSError(errno.EMFILE, "Too many open files")


class OutOfMemoryError(RuntimeError):
    """As torch calls it."""


WORKER = """Caught OSError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/usr/lib/python3/site-packages/torch/utils/data/_utils/worker.py", line 349, in _worker_loop
    data = fetcher.fetch(index)
  File "/home/me/project/loader.py", line 19, in __init__
    self.container = av.open(path)
  File "av/error.py", line 354, in <module>
OSError: [Errno 24] Too many open files: 'a.mp4'
"""


_MEMORY = ("heap", "object", "block", "arrow", "mmap", "rss")


@pytest.mark.parametrize(
    ("error", "gone"),
    [
        (OSError(errno.EMFILE, "Too many open files"), ("fd",)),
        (OSError(errno.ENFILE, "Too many open files in system"), ("fd",)),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), _MEMORY),
        (MemoryError(), _MEMORY),
        (RuntimeError("can't start new thread"), ("thread", "process")),
        (RuntimeError("received 0 items of ancdata"), ("fd",)),
        (RuntimeError(WORKER), ("fd",)),
        (OSError(WORKER), ("fd",)),
        (
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp:114] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
                "allocate 4194304 bytes. Error code 12 (Cannot allocate memory)"
            ),
            _MEMORY,
        ),
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."), ("vram",)),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes."), ("vram",)),
        # What may mean anything.
        (OSError(errno.ENOENT, "No such file or directory: 'Too many'"), ()),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), ()),
        (ValueError("out of memory"), ()),
        (AssertionError("[Errno 24]"), ()),
    ],
)
def test_what_ran_out(error: BaseException, gone: tuple[str, ...]) -> None:
    assert exhausted_by(error) == gone


def no_video() -> None:
    try:
        os.open("/dev/null/below", os.O_RDONLY)
    except OSError as error:
        error.errno = errno.EMFILE
        raise ValueError("no video") from None


def test_what_caused_a_failure_counts_as_well() -> None:
    with pytest.raises(ValueError, match="no video") as caught:
        no_video()
    assert exhausted_by(caught.value) == ("fd",)


def test_a_simulated_device_that_has_no_more_is_recognised() -> None:
    with pytest.raises(DeviceOutOfMemory) as caught:
        SimulatedDevice(1).allocate(2)
    assert exhausted_by(caught.value) == ("vram",)


def test_the_first_line_of_a_workers_failure_is_the_last_of_its_own() -> None:
    assert first_line(RuntimeError(WORKER)) == "RuntimeError: OSError: [Errno 24] Too many open files: 'a.mp4'"
    assert first_line(OSError(WORKER)) == "OSError: [Errno 24] Too many open files: 'a.mp4'"
    assert first_line(MemoryError()) == "MemoryError"
    assert first_line(ValueError("one\ntwo")) == "ValueError: one"


def test_the_line_that_failed_is_the_innermost_of_the_programs_own() -> None:
    site = failed_at(RuntimeError(WORKER))
    assert site is not None
    assert (site.file, site.line, site.function) == ("/home/me/project/loader.py", 19, "__init__")
    with pytest.raises(ValueError, match="no video") as caught:
        no_video()
    site = failed_at(caught.value)
    assert site is not None
    assert (site.file, site.function) == (__file__, "no_video")
    assert failed_at(ValueError("never raised")) is None


def test_a_function_that_hides_itself_is_not_the_line_that_failed() -> None:
    def reserve() -> None:
        __tracebackhide__ = True
        raise MemoryError

    def allocate() -> None:
        reserve()

    with pytest.raises(MemoryError) as caught:
        allocate()
    site = failed_at(caught.value)
    assert site is not None
    assert site.function.endswith("allocate")


class Loader:
    def read(self) -> OSError:
        return OSError(
            f'Traceback (most recent call last):\n  File "{__file__}", line {LINE_OF_READ}, in read\n    open()\n'
        )


LINE_OF_READ = Loader.read.__code__.co_firstlineno + 1


def test_a_line_that_a_worker_sent_has_the_class_of_its_function() -> None:
    site = failed_at(Loader().read())
    assert site is not None
    assert (site.line, site.function) == (LINE_OF_READ, "Loader.read")


# What an error says.


def failed(
    error: BaseException,
    *budgets: Budget,
    columns: dict[str, list[int]] | None = None,
    ceiling: Mapping[str, int] | None = None,
) -> Verdict | None:
    series = [Series(name, tuple(readings)) for name, readings in (columns or {}).items()]
    return explain(error, budgets, series, ceiling or {})


GROWING, STILL = [5, 7, 9, 11], [5, 5, 5, 5]


def test_a_resource_that_grew_until_it_ran_out_is_a_leak() -> None:
    verdict = failed(FULL, Budget("heap"), Budget("fd"), columns={"fd": GROWING, "heap": GROWING})
    assert verdict is not None
    assert (verdict.resource, verdict.outcome, verdict.level, verdict.slope) == ("fd", "leak", 6, 2.0)
    assert verdict.reason == "+2.0/iter over 3 iterations, then OSError: [Errno 24] Too many open files"


def test_the_first_budget_that_explains_the_error_is_judged() -> None:
    columns = {"rss": STILL, "heap": GROWING, "object": GROWING}
    verdict = failed(MemoryError(), Budget("rss"), Budget("object"), Budget("heap"), columns=columns)
    assert verdict is not None
    assert (verdict.resource, verdict.reason) == ("object", "+2.0/iter over 3 iterations, then MemoryError")


@pytest.mark.parametrize(
    ("error", "budget", "columns"),
    [
        (FULL, "thread", {"fd": GROWING, "thread": GROWING}),
        (FULL, "fd", {"fd": STILL}),
        (FULL, "fd", {"fd": [5]}),
        (FULL, "fd", {"thread": GROWING}),
        (FULL, "fd", None),
        (OSError(errno.ENOENT, "no such file"), "fd", {"fd": GROWING}),
        (ValueError("Too many open files"), "fd", {"fd": GROWING}),
    ],
)
def test_another_error_or_one_without_growth_is_not_explained(
    error: Exception, budget: str, columns: dict[str, list[int]] | None
) -> None:
    assert failed(error, Budget(budget), columns=columns) is None


def test_what_has_run_out_under_its_ceiling_is_over_budget() -> None:
    verdict = failed(FULL, Budget("fd"), columns={"fd": STILL}, ceiling={"rss": KIB, "fd": 64})
    assert verdict is not None
    assert (verdict.resource, verdict.outcome, verdict.level, verdict.iterations) == ("fd", "over_budget", 59, 3)
    assert verdict.reason == (
        "failed under the ceiling of 64 descriptors, before growth was detected: "
        "OSError: [Errno 24] Too many open files"
    )


def test_growth_under_a_ceiling_is_a_leak() -> None:
    verdict = failed(FULL, Budget("fd"), columns={"fd": GROWING}, ceiling={"fd": 64})
    assert verdict is not None
    assert verdict.outcome == "leak"


@pytest.mark.parametrize("columns", [None, {"heap": GROWING}])
def test_a_ceiling_may_be_reached_before_its_resource_is_read(columns: dict[str, list[int]] | None) -> None:
    verdict = failed(FULL, columns=columns, ceiling={"fd": 64})
    assert verdict is not None
    assert (verdict.outcome, verdict.level, verdict.iterations) == ("over_budget", 64, 0)


def test_a_ceiling_on_another_resource_explains_nothing() -> None:
    assert failed(FULL, Budget("fd"), columns={"fd": STILL}, ceiling={"rss": KIB}) is None
