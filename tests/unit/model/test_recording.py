from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_leakcheck.model.decoding import decode, encode
from pytest_leakcheck.model.recording import Recording, Series

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


def test_iterations_are_the_readings_after_the_first() -> None:
    assert Series("fd", (3, 3, 4)).iterations == 2


def test_a_series_is_found_by_its_resource() -> None:
    recording = Recording("t", (Series("fd", (1, 2)), Series("heap", (3, 4))))
    assert recording.find("heap") == Series("heap", (3, 4))
    assert recording.find("rss") is None
