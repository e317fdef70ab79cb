"""Tracks, what they foretell, and the words for it: literal series, no processes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from pytest_leakcheck.watch.forecast import outlook_of, outlooks
from pytest_leakcheck.watch.history import History, Row, Track
from pytest_leakcheck.watch.status_text import counter_text, duration, lines

START = Row(1000.0, 1, 1, "python train.py", 1.0)
WORKER = "fd of pt_data_worker 2"


def history_of(fds: list[int], *, steps: bool = False, limit: int | None = None) -> History:
    """A root that stands still, and a worker whose descriptors these are."""
    history = History(START)
    if limit is not None:
        because = f"ulimit -n {limit:,}"
        limits = {"fd of python 1": (limit, because), WORKER: (limit, because), "rss": (1 << 30, "cgroup job")}
        history.add(Row(1000.0, limits=limits))
    for at, count in enumerate(fds):
        values = {"fd": 10 + count, "thread": 2, "process": 1, "rss": 1 << 20}
        values |= {"fd of python 1": 10, "rss of python 1": 1 << 19, WORKER: count, "rss of pt_data_worker 2": 1 << 19}
        history.add(Row(1000.0 + at, step=at * 3 if steps else None, values=values))
    return history


def ended(history: History) -> History:
    history.add(Row(history.last, ended="the process ended"))
    return history


def growth_of(history: History, name: str = "fd") -> str:
    return counter_text(outlooks(history)[name])[2]


def test_a_track_keeps_the_course_in_bounded_memory() -> None:
    track = Track()
    for at in range(100_000):
        track.add(float(at), at, 2 * at)
    assert len(track.at) <= 512
    gaps = {round(after - before) for before, after in zip(track.at, track.at[1:], strict=False)}
    assert len(gaps) == 1
    assert all(value == 2 * at for at, value in zip(track.at, track.values, strict=True))


def test_a_leak_and_when_it_ends() -> None:
    leaky = history_of([20 + 9 * at for at in range(60)], limit=1024)
    one = outlooks(leaky)["fd"]
    assert one.state == "grows"
    assert one.slope is not None
    assert one.slope.value == pytest.approx(9)
    assert one.left[0] == pytest.approx((1024 - (20 + 9 * 59)) / 9)
    ends = "runs out in ≈ 53 s (53 s to 53 s): pt_data_worker 2, ulimit -n 1,024"
    assert growth_of(leaky) == f"+9.00 per second (9.00 to 9.00); {ends}"

    fixed = ended(history_of([20] * 60, limit=1024))
    assert outlooks(fixed)["fd"].state == "flat"
    assert not outlooks(fixed)["fd"].left
    assert growth_of(fixed).startswith("no growth seen; would have caught ≥ 0.")


def test_with_steps_growth_and_the_time_left_are_told_per_step() -> None:
    leaky = history_of([20 + 9 * at for at in range(60)], steps=True, limit=1024)
    ends = "runs out in ≈ 53 s (53 s to 53 s), 158 steps: pt_data_worker 2, ulimit -n 1,024"
    assert growth_of(leaky) == f"+3.00 per step (3.00 to 3.00); {ends}"


def test_the_step_is_that_of_the_last_sample_also_where_tracks_are_thinned_out() -> None:
    long = history_of([20] * 3_006, steps=True)
    assert len(long.tracks["fd"].steps) < 600
    assert long.step == 9_015
    assert history_of([20] * 10).step is None


def test_what_comes_before_the_first_step_is_warm_up() -> None:
    """A training imports and starts its workers for a minute: that is no growth."""
    track = Track()
    for at in range(60):
        track.add(float(at), -1, 10 * at)
    for at in range(60):
        track.add(60.0 + at, at, 600)
    assert outlook_of("fd", track).state == "flat"


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
    assert (found.axis, found.slope is not None) == ("step", True)
    assert found.slope.value == pytest.approx(9 / 4, rel=0.05)  # type: ignore[union-attr]


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
        values = {"fd": 10, "thread": 1, "process": 0, "rss": 1 << 19, "fd of python 1": 10, "rss of python 1": 1 << 19}
        history.add(Row(1061.0 + at, values=values))
    one = outlooks(ended(history))["fd"]
    assert (one.state, one.now) == ("grows", 10 + 20 + 9 * 59)
    assert WORKER in outlooks(history)


def test_too_early_to_tell() -> None:
    assert growth_of(history_of([20, 29, 38])) == "too early to tell"
    assert growth_of(history_of([20 + 9 * at for at in range(12)])).startswith("not proved: +9.00 per second")
    assert growth_of(history_of([20])) == "too early to tell"
    assert list(lines(History(START)))


def test_the_lines_tell_all() -> None:
    history = history_of([20 + 9 * at for at in range(60)], limit=1024)
    new = {WORKER: {"/videos/a.mp4": 500, "pipe": 3}, "fd of python 1": {"/videos/a.mp4": 1}}
    history.add(Row(1059.0, new=new, notes=("sudo: no permission to read its descriptors; only its memory is read",)))
    text = "\n".join(map(str, lines(history)))
    assert "1 python train.py: 59 s, 60 samples" in text
    assert "  fd                            561        +531  +9.00 per second" in text
    assert "  fd of pt_data_worker 2        551        +531  +9.00 per second" in text
    assert "new     501 × /videos/a.mp4\n" in text
    assert "note    sudo: no permission" in text


def test_what_is_kept_of_processes_that_ended_is_bounded() -> None:
    history = History(START)
    for pid in range(10, 500):
        history.add(Row(float(pid), values={"fd": 3, f"fd of short {pid}": 3}, limits={f"fd of short {pid}": (9, "")}))
    assert list(history.values) == ["fd", "fd of short 499"]
    assert len(history.tracks) == 130
    assert len(history.limits) == 129


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (4.25, "4.2 s"), (59.6, "1 min"), (200, "3 min 20 s"), (7500, "2 h 5 min"), (90000, "1 d 1 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
