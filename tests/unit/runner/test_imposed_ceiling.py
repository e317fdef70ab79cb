"""Ceilings: read from marks and options, set and lifted; each limit is seen to be hit, and to be gone."""

from __future__ import annotations

import os
import re
import resource
import sys
from pathlib import Path

import pytest

from leakcheck_incidents.synthetic.simulated_device import DeviceOutOfMemory, SimulatedDevice
from pytest_leakcheck.config.budget import Ceiling, parse_ceiling, read_ceiling
from pytest_leakcheck.model import InputError
from pytest_leakcheck.probes.device import Vram
from pytest_leakcheck.probes.own_descriptors import room_for_descriptors
from pytest_leakcheck.runner.measurement_run import ImposedCeiling

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of Linux")
MIB = 1 << 20


def test_limits_are_read_in_the_units_of_their_resources() -> None:
    ceiling = read_ceiling(fd=256, rss="1 GiB", vram=4096)
    assert ceiling == Ceiling({"fd": 256, "rss": 1 << 30, "vram": 4096})
    assert str(ceiling) == "fd 256, rss 1.0 GiB, vram 4.0 KiB"
    assert parse_ceiling("fd=256, rss=1GiB") == Ceiling({"fd": 256, "rss": 1 << 30})
    assert parse_ceiling("") == Ceiling()


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("fd", "'fd' is not a limit: write fd=256,rss=1GiB"),
        ("fd=many", "fd: 'many' is not a number: write 0 or 3"),
        ("rss=1 GB of it", "rss: '1 GB of it' is not a size"),
        ("thread=7", "thread=7: only fd, rss, vram can be limited"),
        ("fd=5", "fd=5 is too low for pytest itself: write 32 or more"),
        ("by=cgroup,fd=64", "by='cgroup': only fd, rss, vram can be limited"),
        # `int` refuses so many digits.
        (f"fd={'9' * 5000}", f"fd: '{'9' * 5000}' is not a number: write 0 or 3"),
        (f"rss={'9' * 5000}", f"rss: '{'9' * 5000}' is too large: at most 2**63 - 1"),
    ],
)
def test_a_limit_that_cannot_be_read_is_refused_in_words(option: str, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        parse_ceiling(option)


def test_only_keywords_are_taken() -> None:
    with pytest.raises(InputError, match="takes keyword arguments only"):
        read_ceiling(256)
    with pytest.raises(InputError, match=re.escape('names no resource: write fd=256, rss="1 GiB", vram="2 GiB"')):
        read_ceiling()


def test_descriptors_run_out_and_are_there_again_when_it_is_lifted() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = Path("/proc/self/fd").stat().st_size
    imposed = ImposedCeiling(Ceiling({"fd": held + 16}))
    kept: list[int] = []
    imposed.impose()
    try:
        assert imposed.missing == {}
        with pytest.raises(OSError, match="Too many open files"):
            kept.extend(os.open("/dev/null", os.O_RDONLY) for _ in range(64))
        with room_for_descriptors():
            os.close(os.open("/dev/null", os.O_RDONLY))
        imposed.lift()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
        os.close(os.open("/dev/null", os.O_RDONLY))
    finally:
        imposed.lift()
        for descriptor in kept:
            os.close(descriptor)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


def test_a_limit_above_what_the_system_allows_says_so() -> None:
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    imposed = ImposedCeiling(Ceiling({"fd": hard + 1}))
    imposed.impose()
    imposed.lift()
    assert imposed.missing["fd"].startswith("its ceiling cannot be set: ")


def test_a_device_is_limited_by_its_allocator() -> None:
    device = SimulatedDevice(100 * MIB)
    vram = Vram(lambda: [device])
    vram.open()
    imposed = ImposedCeiling(Ceiling({"vram": 10 * MIB}))
    imposed.impose()
    imposed.impose_on(vram)
    with pytest.raises(DeviceOutOfMemory):
        device.allocate(50 * MIB)
    imposed.lift()
    device.allocate(50 * MIB)
    without = ImposedCeiling(Ceiling({"vram": MIB}))
    without.impose_on(None)
    assert without.missing == {"vram": "its ceiling cannot be set: there is no device to limit"}
    assert without.in_force == {}
