"""Tracks, what they foretell, and the words for it: literal series, no processes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from pytest_leakcheck.watch.events import Began, Came, Ended, Limits, News, Note, Reading, Sample
from pytest_leakcheck.watch.forecast import first_to_end, outlook_of, outlooks
from pytest_leakcheck.watch.history import History, Track
from pytest_leakcheck.watch.status_text import duration, growth_text, last_lines, lines, new_lines, process_rows, rows

BEGAN = Began(1000.0, 1, "python train.py", 1.0)


def history_of(fds: list[int], *, steps: bool = False, limit: int | None = None) -> History:
    """A root that stands still, and a worker whose descriptors these are."""
    history = History(BEGAN)
    history.absorb(Came(1000.0, {2: "pt_data_worker"}))
    if limit is not None:
        history.absorb(Limits(1000.0, {1: limit, 2: limit}, {"rss": 1 << 30}, {"rss": "cgroup job"}))
    for at, count in enumerate(fds):
        totals = {"fd": 10 + count, "thread": 2, "process": 1, "rss": 1 << 20}
        processes = {1: Reading(10, 1, 1 << 19), 2: Reading(count, 1, 1 << 19)}
        history.absorb(Sample(1000.0 + at, at * 3 if steps else None, totals, processes))
    return history


def test_a_track_keeps_the_course_in_bounded_memory() -> None:
    track = Track()
    for at in range(100_000):
        track.add(float(at), at, 2 * at)
    assert len(track.at) <= 512
    assert track.last == 199_998
    gaps = {round(after - before) for before, after in zip(track.at, track.at[1:], strict=False)}
    assert len(gaps) == 1
    assert all(value == 2 * at for at, value in zip(track.at, track.values, strict=True))


def test_a_leak_and_when_it_ends() -> None:
    leaky = history_of([20 + 9 * at for at in range(60)], limit=1024)
    one = outlooks(leaky)["fd"]
    assert one.state == "grows"
    assert one.per_second is not None
    assert one.per_second.value == pytest.approx(9)
    end = first_to_end(leaky)
    assert end is not None
    pid, its = end
    assert pid == 2
    assert its.expected_seconds == pytest.approx((1024 - (20 + 9 * 59)) / 9)
    (fd, *_rest) = rows(leaky)
    assert fd.growth == "+9.00 per second (9.00 to 9.00)"
    assert fd.ends == "≈ 53 s (53 s to 53 s): pt_data_worker 2, ulimit -n 1,024"

    fixed = history_of([20] * 60, limit=1024)
    assert outlooks(fixed)["fd"].state == "flat"
    assert first_to_end(fixed) is None
    (fd, *_rest) = rows(fixed, floor=True)
    assert fd.ends == ""
    assert fd.growth.startswith("no growth seen; would have caught ≥ 0.")


def test_with_steps_growth_is_told_per_step() -> None:
    one = outlooks(history_of([20 + 9 * at for at in range(60)], steps=True, limit=1024))["fd"]
    assert one.per_step is not None
    assert one.per_step.value == pytest.approx(3)
    assert growth_text(one) == "+3.00 per step (3.00 to 3.00)"


def test_the_step_is_that_of_the_last_sample_also_where_tracks_are_thinned_out() -> None:
    long = history_of([20] * 3_006, steps=True)
    assert len(long.totals["fd"].steps) < 600
    assert long.steps == 9_015
    assert history_of([20] * 10).steps is None


def test_what_comes_before_the_first_step_is_warm_up() -> None:
    """A training imports and starts its workers for a minute: that is no growth."""
    track = Track()
    for at in range(60):
        track.add(float(at), -1, 10 * at)
    for at in range(60):
        track.add(60.0 + at, at, 600)
    assert outlook_of("fd", track).state == "flat"
    # Without steps the later half is judged, and the same is undecided at best.
    unknown = Track()
    for moment, value in zip(track.at, track.values, strict=True):
        unknown.add(moment, -1, value)
    assert outlook_of("fd", unknown, floor=True).per_step is None


def test_a_floor_is_what_would_have_been_called() -> None:
    """Planted on the same noise a little above the floor, growth is called; a tenth of it is not."""
    rng = random.Random(3)
    noise = [20 + rng.choice((0, 0, 3, 9)) for _ in range(120)]
    quiet = outlook_of("fd", track_of(noise), floor=True)
    assert quiet.state == "flat"
    assert quiet.floor is not None
    assert 0.01 < quiet.floor < 1

    def planted(slope: float) -> str:
        return outlook_of("fd", track_of([value + int(slope * at) for at, value in enumerate(noise)])).state

    assert planted(1.2 * quiet.floor) == "grows"
    assert planted(0.1 * quiet.floor) != "grows"


def track_of(values: list[int]) -> Track:
    track = Track()
    for at, value in enumerate(values):
        track.add(1000.0 + at, -1, value)
    return track


def stepped_track(paces: list[int], count_at: Callable[[int], int]) -> Track:
    """A track with so many steps before each reading; `count_at` returns the counter at a step."""
    track, step = Track(), 0
    for at, pace in enumerate(paces):
        step += pace
        track.add(1000.0 + at, step, count_at(step))
    return track


SLOWER = [12] * 40 + [4] * 40


def test_a_training_run_that_becomes_slower_does_not_hide_its_growth() -> None:
    """The growth per reading falls to a third, and nine descriptors come at once in each fourth step."""
    found = outlook_of("fd", stepped_track(SLOWER, lambda step: 20 + step // 4 * 9))
    assert found.state == "grows"
    assert found.per_step is not None
    assert found.per_step.value == pytest.approx(9 / 4, rel=0.05)


def test_growth_that_stops_is_not_called_growth_where_the_pace_changes() -> None:
    def cache(step: int) -> int:
        return 20 + min(step, 240)

    def noise(step: int) -> int:
        return 20 + step * 7919 % 11

    for paces in (SLOWER, SLOWER[::-1], [12] * 80):
        for count_at in (cache, noise):
            assert outlook_of("fd", stepped_track(paces, count_at)).state != "grows", (paces[0], count_at)


@pytest.mark.parametrize("half_closed", [[], [281]])
def test_workers_that_end_with_the_training_do_not_hide_the_leak(half_closed: list[int]) -> None:
    """Also where a reading falls into the exit of the worker: its descriptors are closed, and it still counts."""
    history = history_of([20 + 9 * at for at in range(60)] + half_closed)
    for at in range(4):
        totals = {"fd": 10, "thread": 1, "process": 0, "rss": 1 << 19}
        history.absorb(Sample(1061.0 + at, None, totals, {1: Reading(10, 1, 1 << 19)}, (2,) if not at else ()))
    history.absorb(Ended(1065.0, "the process ended"))
    one = outlooks(history)["fd"]
    assert (one.state, one.now) == ("grows", 10 + 20 + 9 * 59)
    assert [row.name for row in process_rows(history)] == ["fd of pt_data_worker 2"]


def test_too_early_to_tell() -> None:
    assert rows(history_of([20, 29, 38]))[0].growth == "too early to tell"
    assert rows(history_of([20 + 9 * at for at in range(12)]))[0].growth.startswith("not proved: +9.00 per second")
    assert rows(history_of([20]))[0].growth == "too early to tell"
    assert list(lines(History(BEGAN)))


def test_the_last_lines_tell_all() -> None:
    history = history_of([20 + 9 * at for at in range(60)], limit=1024)
    history.absorb(News(1059.0, {2: {"/videos/a.mp4": 500, "pipe": 3}, 1: {"/videos/a.mp4": 1}}))
    history.absorb(Note(1059.0, "process 3 (sudo): no permission to read its descriptors; only its memory is read"))
    text = "\n".join(last_lines(history))
    assert "1 python train.py: 59 s, 60 samples" in text
    assert "new     501 × /videos/a.mp4\n" in text
    assert "fd of pt_data_worker 2: 551, +531, +9.00 per second" in text
    assert "note    process 3 (sudo)" in text


def test_an_early_look_says_when_it_was() -> None:
    history = history_of([20] * 60)
    history.absorb(News(1012.0, {2: {"/videos/a.mp4": 5}}))
    assert new_lines(history) == ["5 × /videos/a.mp4 after 12 s"]


def test_what_is_kept_of_processes_that_ended_is_bounded() -> None:
    history = History(BEGAN)
    for pid in range(10, 500):
        history.absorb(Came(1.0, {pid: "short"}))
        history.absorb(Sample(float(pid), None, {"fd": 3}, {pid: Reading(3, 1, 0)}))
        history.absorb(Sample(pid + 0.5, None, {"fd": 3}, {}, (pid,)))
    assert (history.came, history.went) == (490, 490)
    assert len(history.processes) <= 65
    assert len(history.names) <= 65


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (4.25, "4.2 s"), (59.6, "1 min"), (200, "3 min 20 s"), (7500, "2 h 5 min"), (90000, "1 d 1 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
