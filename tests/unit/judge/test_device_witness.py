"""The driver as a second witness: what it confirms, what it denies, and what it cannot see yet. Literal states."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_leakcheck.judge.device_witness import compare_counts, kept_in_reserve
from pytest_leakcheck.model.device_state import State

MIB = 1 << 20


def states(*devices: tuple[tuple[int, ...], tuple[int, ...]]) -> list[tuple[State, State]]:
    """Allocated, reserved and driver of each device, at the start and now, in MiB."""
    return [
        (State(f"cuda:{at}", *(n * MIB for n in before)), State(f"cuda:{at}", *(n * MIB for n in now)))
        for at, (before, now) in enumerate(devices)
    ]


@pytest.mark.parametrize(
    ("before", "now", "says", "text"),
    [
        ((10, 20, 500), (100, 100, 580), "confirmed", "the driver confirms it, +80.0 MiB"),
        ((10, 10, 500), (100, 100, 590), "confirmed", "the driver confirms it, +90.0 MiB"),
        # All of it fits into what was reserved: no driver can tell.
        ((10, 20, 500), (18, 20, 500), "unseen", "fits into the 10.0 MiB that were reserved and free"),
        ((10, 20, 500), (20, 20, 500), "unseen", "cannot see it yet"),
        # Of 90, 10 were free. The driver counts the same as before.
        (
            (10, 20, 500),
            (100, 100, 500),
            "denied",
            "it counts +0 B, but 80.0 MiB more must have been reserved",
        ),
        ((10, 20, 500), (100, 100, 540), "denied", "counts +41,943,040 B, but 80.0 MiB"),
        # It counts something, but less than at the start: another one's memory was given back meanwhile.
        ((10, 20, 500), (100, 100, 460), "denied", "counts -41,943,040 B"),
        # No driver was asked.
        ((10,), (100,), "alone", ""),
        ((10, 20), (100, 100), "alone", ""),
        # No growth.
        ((10, 20, 500), (10, 20, 500), "alone", ""),
    ],
)
def test_one_device(before: tuple[int, ...], now: tuple[int, ...], says: str, text: str) -> None:
    witness = compare_counts(states((before, now)))
    assert witness.says == says
    assert text in witness.text


def test_of_two_devices_the_one_that_grows_is_named() -> None:
    quiet = ((10, 20, 500), (10, 20, 500))
    witness = compare_counts(states(quiet, ((10, 10, 500), (100, 100, 590))))
    assert witness.says == "confirmed"
    assert witness.text == "cuda:1 +90.0 MiB; the driver confirms it, +90.0 MiB"


def test_another_process_on_the_quiet_device_confirms_nothing() -> None:
    crowded = ((10, 20, 500), (10, 20, 900))
    assert compare_counts(states(crowded, ((10, 10, 500), (100, 100, 500)))).says == "denied"


def test_a_device_without_a_second_witness_is_judged_alone() -> None:
    witness = compare_counts(states(((10,), (50,)), ((10, 10, 500), (100, 100, 590))))
    assert (witness.says, witness.text) == ("alone", "cuda:0 +40.0 MiB, cuda:1 +90.0 MiB")


def test_what_is_kept_in_reserve_is_told_apart_from_what_is_given_out() -> None:
    grown = states(((10, 20, 500), (10, 60, 540)))
    assert kept_in_reserve(grown, MIB) == "50.0 MiB of the 60.0 MiB reserved are free, 40.0 MiB more than at the start"
    assert kept_in_reserve(grown, 41 * MIB) == ""
    assert kept_in_reserve(states(((10,), (10,))), 1) == ""
    assert compare_counts(grown).says == "alone"


@given(st.integers(0, 1 << 34), st.integers(0, 1 << 34), st.integers(1, 1 << 34), st.integers(0, 1 << 34))
def test_an_allocator_that_takes_what_it_gives_out_is_never_denied(
    allocated: int, free: int, growth: int, driver: int
) -> None:
    """Whatever the reserve: what it cannot serve from there it takes from the driver, in whole segments of 2 MiB."""
    segment = 2 * MIB
    taken = -(-max(0, growth - free) // segment) * segment
    before = State("cuda:0", allocated, allocated + free, driver)
    now = State("cuda:0", allocated + growth, allocated + free + taken, driver + taken)
    says = compare_counts([(before, now)]).says
    assert says == ("confirmed" if taken else "unseen")


@given(st.integers(0, 1 << 34), st.integers(0, 1 << 20), st.integers(1 << 21, 1 << 34))
def test_a_driver_that_stands_still_denies_all_that_cannot_have_come_from_the_reserve(
    allocated: int, free: int, growth: int
) -> None:
    before = State("cuda:0", allocated, allocated + free, 1 << 30)
    now = State("cuda:0", allocated + growth, allocated + growth, 1 << 30)
    assert compare_counts([(before, now)]).says == "denied"
