from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path

import pytest

from pytest_leakcheck.model.decoding import DecodeError, decode, encode
from pytest_leakcheck.model.regular_file import FileError
from pytest_leakcheck.watch.history import Ledger, Row, read_histories, read_ledger
from pytest_leakcheck.watch.status_text import page_of_ledger

START = Row(1000.0, 1, 42, "python train.py", 1.0)


def sample(at: float, fds: int, rss: int = 0) -> Row:
    return Row(at, values={"fd": fds, "rss": rss, "fd of python 42": fds, "rss of python 42": rss})


def written(path: Path, *rows: Row) -> Path:
    with closing(Ledger(path)) as ledger:
        for row in rows:
            ledger.write(row)
    return path


@pytest.mark.parametrize(
    "row",
    [
        START,
        Row(1.5, step=7, values={"fd": 1, "vram:0": 5, "fd of worker \udcff 3": -1}, limits={"rss": (5, "cgroup x")}),
        Row(1.0, new={"fd of python 42": {"/dev/null": 3, 'a"b\n': 1}}, notes=("a note",)),
        Row(1.0, ended="stopped"),
    ],
)
def test_a_row_comes_back_equal(row: Row) -> None:
    assert decode(Row, json.loads(json.dumps(encode(row)))) == row


def test_only_what_changed_is_written_and_all_is_read(tmp_path: Path) -> None:
    gone = Row(5, values={"fd": 0, "rss": 0})
    samples = [sample(1, 5), sample(2, 5, rss=1000), sample(3, 6, rss=1000), sample(4, 6, rss=2 << 20), gone]
    path = written(tmp_path / "a", START, *samples)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()][1:]
    assert [line.get("values") for line in lines] == [
        {"fd": 5, "rss": 0, "fd of python 42": 5, "rss of python 42": 0},
        {"rss": 1000},
        {"fd": 6, "fd of python 42": 6},
        {"rss": 2 << 20, "rss of python 42": 2 << 20},
        {"fd": 0, "rss": 0, "fd of python 42": -1, "rss of python 42": -1},
    ]
    (history,) = read_histories(path)
    assert history.samples == 5
    assert list(history.tracks["fd"].values) == [5, 5, 6, 6, 0]
    assert list(history.tracks["fd of python 42"].values) == [5, 5, 6, 6]
    assert history.values == {"fd": 0, "rss": 0}


def test_a_second_watch_is_appended(tmp_path: Path) -> None:
    path = written(tmp_path / "a", START, sample(1, 5), Row(2.0, ended="over"))
    written(path, START, sample(9, 7))
    first, second = read_histories(path)
    assert (first.samples, first.ended) == (1, "over")
    assert (second.samples, second.ended) == (1, "")
    assert page_of_ledger(path).partial


def test_a_torn_line_is_named_and_costs_only_itself(tmp_path: Path) -> None:
    path = written(tmp_path / "a", START, sample(1, 5), sample(2, 6))
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    (history,) = read_histories(path)
    assert history.samples == 1
    assert [note.partition(": ")[0] for note in history.notes] == ["line 3 cannot be read"]

    # What is appended later does not become part of it.
    written(path, START, sample(9, 7), Row(10.0, ended="over"))
    first, second = read_histories(path)
    assert path.read_bytes().startswith(whole[:-20] + b"\n")
    assert (first.samples, second.samples) == (1, 1)
    assert [note.partition(": ")[0] for note in first.notes] == ["line 3 cannot be read"]


@pytest.mark.parametrize(
    "text", ["{}\n", "\n{}\n", "[]", "1", '{"at": 1, "notes": ["a"]}\n', '{"at": 1, "watch": 99}\n', "\x00\n"]
)
def test_what_is_no_ledger_says_so(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DecodeError, match="not a watch ledger"):
        list(read_ledger(path))


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_somebody_has_planted_under_the_name_is_refused(tmp_path: Path, kind: str) -> None:
    path, other = tmp_path / "watch-1.jsonl", tmp_path / "other"
    other.write_text("as it was")
    if kind == "link":
        path.symlink_to(other)
    else:
        os.mkfifo(path)
    with pytest.raises(FileError, match=r"is not a watch ledger; name another|a named pipe, not a regular file"):
        Ledger(path, follow=False)
    assert other.read_text() == "as it was"
