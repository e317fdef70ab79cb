from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_leakcheck.model.decoding import decode, encode
from pytest_leakcheck.model.recording import NOT_READ, Figure, Point, Recording, Scaled, Series, Sizing, UserPhase

PROPERTY = settings(max_examples=50, deadline=None, derandomize=True)
COUNTERS = st.integers(-(2**63), 2**63 - 1)
SERIES = st.builds(
    Series,
    st.sampled_from(["fd", "thread", "heap", "gauge:frames"]),
    st.lists(COUNTERS, min_size=2, max_size=6).map(tuple),
    st.lists(COUNTERS, max_size=5).map(tuple),
)
TEXTS = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2)
RECORDINGS = st.builds(
    Recording,
    test=st.text(max_size=20),
    series=st.lists(SERIES, max_size=3).map(tuple),
    warmup=st.integers(0, 100),
    seconds=st.floats(0, 1e6),
    collector=st.sampled_from(["on", "off"]),
    stopped=st.sampled_from(["judged", "iterations", "time", "failed", "interrupted"]),
    limits=st.dictionaries(st.text(max_size=5), COUNTERS, max_size=2),
    unavailable=TEXTS,
    environment=TEXTS,
)


@PROPERTY
@given(RECORDINGS)
def test_a_recording_survives_a_trip_through_json(recording: Recording) -> None:
    assert decode(Recording, json.loads(json.dumps(encode(recording)))) == recording


# The peaks at each size of an axis.

MIB = 1 << 20


def rank(rss: int, *, exact: bool = True, **gauges: int) -> Recording:
    peaks = {"rss": rss * MIB, **{f"gauge:{name}": value for name, value in gauges.items()}}
    return Recording("t", (Series("rss", (1, 2)),), exact=exact, peaks=peaks, phases=(UserPhase("a", {"rss": 3}),))


@pytest.mark.parametrize(
    ("figure", "memory", "running"),
    [("total", 17, 12), ("per_rank", 8, 7), ("at_least", 17, 12)],
)
def test_figures_over_ranks(figure: Figure, memory: int, running: int) -> None:
    point = Point(2, (rank(4, running=5), rank(8, running=7)), children=5 * MIB)
    # Children are in the sum, and in no rank.
    assert point.peak("rss", figure) == memory * MIB
    assert point.peak("gauge:running", figure) == running


def test_threads_of_one_process_are_ranks_of_a_gauge() -> None:
    recording = Recording("t", (), peaks={"gauge:running@0": 5, "gauge:running@1": 7, "gauge:runs": 100})
    point = Point(2, (recording,))
    assert (point.peak("gauge:running", "total"), point.peak("gauge:running", "per_rank")) == (12, 7)


def test_a_peak_that_one_rank_has_not_is_none() -> None:
    point = Point(2, (rank(4), Recording("t", (), unavailable={"rss": "no /proc"})))
    assert (point.why_not("rss"), point.why_not("gauge:running")) == ("no /proc", NOT_READ)
    assert Point(1, (rank(4),)).why_not("rss") == ""


@pytest.mark.parametrize(
    ("peaks", "seconds", "size"),
    [
        ((25, 45, 85, 165), (1, 1, 1, 1), 4),
        ((64, 128, 256), (1, 1, 1), 2),
        # Growth that nowhere makes out half of it.
        ((100, 110, 120), (1, 1, 1), 4),
        # What would take too long is not run again.
        ((25, 45, 85), (1, 1, 20), 2),
        ((25, 45, 85), (20, 30, 70), 2),
        # On a slow machine, all sizes take long.
        ((25, 45, 85), (20, 20, 20), 4),
    ],
)
def test_memory_is_looked_into_where_it_has_come_with_the_size(
    peaks: tuple[int, ...], seconds: tuple[float, ...], size: int
) -> None:
    points = (
        Point(2**at, (rank(peak),), seconds=took) for at, (peak, took) in enumerate(zip(peaks, seconds, strict=True))
    )
    assert Scaled("n", "", tuple(points)).most_informative_point(quick=12.0).size == size


def test_memory_is_exact_where_all_of_it_was_read_between_calls() -> None:
    whole = Scaled("n", "", (Point(1, (rank(1),)), Point(2, (rank(2),))))
    assert whole.is_exact("rss")
    assert not Scaled("n", "", (*whole.points, Point(4, (rank(4, exact=False),)))).is_exact("rss")
    in_children = Scaled("n", "", (*whole.points, Point(4, (rank(4),), children=1)))
    assert (in_children.is_exact("rss"), in_children.is_exact("fd")) == (False, True)


def test_it_travels_as_json() -> None:
    scaled = Scaled("n", "gloo", (Point(1, (rank(1),), 3, 0.5), Point(2, (rank(1), rank(2)))))
    assert decode(Scaled, json.loads(json.dumps(encode(scaled)))) == scaled
    assert scaled.peaks("rss", "total") == (MIB + 3, 3 * MIB)


@pytest.mark.parametrize(("engine", "ranks"), [("", 1), ("thread", 1), ("process", 4), ("gloo", 4), ("ray", 4)])
def test_how_many_processes_a_world_has(engine: str, ranks: int) -> None:
    assert Sizing("n", 4, ("rss",), engine).ranks == ranks  # type: ignore[arg-type]
