from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_leakcheck.watch.events import (
    Began,
    Came,
    Ended,
    Event,
    EventError,
    Limits,
    News,
    Note,
    Reading,
    Sample,
    from_json,
    to_json,
)
from pytest_leakcheck.watch.ledger import Ledger, LedgerError, read_ledger
from pytest_leakcheck.watch.ledger_page import page_of_ledger, read_histories

BEGAN = Began(1000.0, 42, "python train.py", 1.0)


def sample(at: float, fds: int, rss: int = 0, step: int | None = None) -> Sample:
    totals = {"fd": fds, "thread": 1, "process": 0, "rss": rss}
    return Sample(at, step, totals, {42: Reading(fds, 1, rss)})


def written(path: Path, *events: Event) -> Path:
    with closing(Ledger(path)) as ledger:
        for event in events:
            ledger.write(event)
    return path


@pytest.mark.parametrize(
    "event",
    [
        BEGAN,
        Sample(1.5, None, {"fd": 1}),
        Sample(1.5, None, {"fd": 1}, {}, (3,)),
        Sample(1.5, 7, {"fd": 1, "vram:0": 5}, {3: Reading(-1, 2, 3)}, (4, 5)),
        Came(1.0, {7: "python", 8: "worker \udcff"}),
        Limits(1.0, {7: 1024}, {"rss": 5}, {"rss": "cgroup x"}),
        News(1.0, {7: {"/dev/null": 3, 'a"b\n': 1}}),
        Note(1.0, "a note"),
        Ended(1.0, "stopped"),
    ],
)
def test_an_event_comes_back_equal(event: Event) -> None:
    assert from_json(json.loads(json.dumps(to_json(event)))) == event


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.sampled_from(["at", "totals", "watch", "new", "came", "limits", "gone"]), inner)
        ),
    )
)
def test_anything_else_is_no_event(data: object) -> None:
    with pytest.raises(EventError):
        assert from_json(data) is None


def test_only_processes_that_changed_are_written(tmp_path: Path) -> None:
    samples = [sample(1, 5), sample(2, 5, rss=1000), sample(3, 6), sample(4, 6, rss=2 << 20)]
    path = written(tmp_path / "a", BEGAN, *samples)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()][1:]
    assert [line.get("processes") for line in lines] == [
        {"42": [5, 1, 0]},
        {},
        {"42": [6, 1, 0]},
        {"42": [6, 1, 2 << 20]},
    ]
    (history,) = read_histories(path)
    assert list(history.totals["fd"].values) == [5, 5, 6, 6]
    assert list(history.processes[42]["fd"].values) == [5, 5, 6, 6]


def test_a_second_watch_is_appended(tmp_path: Path) -> None:
    path = written(tmp_path / "a", BEGAN, sample(1, 5), Ended(2.0, "over"))
    written(path, BEGAN, sample(9, 7))
    first, second = read_histories(path)
    assert (first.samples, first.ended) == (1, "over")
    assert (second.samples, second.ended) == (1, "")


def test_a_torn_line_is_named_and_costs_only_itself(tmp_path: Path) -> None:
    path = written(tmp_path / "a", BEGAN, sample(1, 5), sample(2, 6))
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    (history,) = read_histories(path)
    assert history.samples == 1
    assert history.notes == ["line 3 is incomplete: the watch was killed while it wrote it"]
    assert page_of_ledger(path).partial

    # What is appended later does not become part of it.
    written(path, BEGAN, sample(9, 7), Ended(10.0, "over"))
    first, second = read_histories(path)
    assert path.read_bytes().startswith(whole[:-20] + b"\n")
    assert (first.samples, second.samples) == (1, 1)
    assert first.notes[0].startswith("line 3 cannot be read: ")


@pytest.mark.parametrize("text", ["", "{}\n", '{"at": 1, "note": "a"}\n', '{"at": 1, "watch": 99}\n', "\x00\n"])
def test_what_is_no_ledger_says_so(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(LedgerError, match="not a watch ledger"):
        list(read_ledger(path))
