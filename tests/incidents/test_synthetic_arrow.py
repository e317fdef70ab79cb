"""Synthetic tables: the same arguments give the same rows, of the shape that was asked for, in bounded memory."""

from __future__ import annotations

import os
import tracemalloc
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from datasets import Dataset, load_from_disk

from leakcheck_incidents.synthetic import arrow_tables as arrow
from projects import Project

pytestmark = pytest.mark.laboratory


def rows_of(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = load_from_disk(str(folder)).with_format("arrow")[:].to_pylist()
    return rows


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_same_arguments_give_the_same_bytes(tmp_path: Path) -> None:
    table = arrow.Table(rows=17, shard_rows=5, embedded=True, seed=3)
    one, two = (arrow.write_table(table, tmp_path / name) for name in ("one", "two"))
    assert files_of(one) == files_of(two)
    other = arrow.write_table(arrow.Table(rows=17, shard_rows=5, embedded=True, seed=4), tmp_path / "other")
    assert [row["image"] for row in rows_of(other)] != [row["image"] for row in rows_of(one)]


def test_pictures_beside_the_table_are_those_within(tmp_path: Path) -> None:
    beside = rows_of(arrow.write_table(arrow.Table(rows=12), tmp_path / "beside"))
    within = rows_of(arrow.write_table(arrow.Table(rows=12, embedded=True), tmp_path / "within"))
    for there, here in zip(beside, within, strict=True):
        if there["image"] is None:
            assert here["image"] is None
            continue
        assert there["image"]["bytes"] is None
        assert Path(there["image"]["path"]).read_bytes() == here["image"]["bytes"]


def test_shards_nulls_and_nested_lists_are_where_they_are_said(tmp_path: Path) -> None:
    folder = arrow.write_table(arrow.Table(rows=23, shard_rows=10, nulls=4), tmp_path / "table")
    names = sorted(path.name for path in folder.glob("*.arrow"))
    assert names == [f"data-0000{shard}-of-00003.arrow" for shard in range(3)]
    lengths = [sum(batch.num_rows for batch in pa.ipc.open_stream(pa.memory_map(str(folder / name)))) for name in names]
    assert lengths == [10, 10, 3]
    rows = rows_of(folder)
    assert [row["id"] for row in rows] == list(range(23))
    assert [row["id"] for row in rows if row["image"] is None] == [3, 7, 11, 15, 19]
    assert [len(row["views"]) for row in rows] == [row % 3 for row in range(23)]
    assert [row["id"] for row in rows if any(None in view for view in row["views"])] == [7, 11, 19]


def test_pictures_have_the_size_that_was_asked_for_and_can_be_looked_at(tmp_path: Path) -> None:
    dataset = load_from_disk(
        str(arrow.write_table(arrow.Table(rows=3, file_size=1 << 16, nulls=0), tmp_path / "table"))
    )
    for row in dataset:
        assert row["image"].size == (148, 148)
    sizes = [path.stat().st_size for path in (tmp_path / "table" / "files").glob("*-0.png")]
    assert all(0.98 * (1 << 16) < size < 1.02 * (1 << 16) for size in sizes), sizes


def test_few_files_serve_many_rows(tmp_path: Path) -> None:
    folder = arrow.write_table(arrow.Table(rows=50, files=4, nested=False, nulls=0), tmp_path / "table")
    assert len(list((folder / "files").iterdir())) == 4
    assert len({row["image"]["path"] for row in rows_of(folder)}) == 4


@pytest.mark.parametrize("embedded", [False, True])
def test_no_rows_at_all(tmp_path: Path, *, embedded: bool) -> None:
    folder = arrow.write_table(arrow.Table(rows=0, embedded=embedded), tmp_path / "table")
    dataset = load_from_disk(str(folder))
    assert len(dataset) == 0
    assert dataset.features == arrow.Table().features


def test_what_is_interrupted_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def fail_later(*_arguments: Any) -> bytes:
        made.append(1)
        if len(made) > 5:
            raise OSError("no space left")
        return b"picture"

    monkeypatch.setattr(arrow, "picture", fail_later)
    with pytest.raises(OSError, match="no space left"):
        arrow.write_table(arrow.Table(), tmp_path / "table")
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    with pytest.raises(FileExistsError, match="already exists"):
        arrow.write_table(arrow.Table(), tmp_path / "table")
    assert os.listdir(tmp_path) == ["table"]  # noqa: PTH208 - names are compared


def peak_of(rows: int, folder: Path, batch_size: int) -> int:
    """Bytes of Python's and of Arrow's that writing takes at its highest: at most the sum of both marks."""
    table = arrow.Table(
        rows=rows, shard_rows=rows, file_size=1 << 18, nested=False, embedded=True, batch_size=batch_size
    )
    before = pa.default_memory_pool()
    own = pa.proxy_memory_pool(before)
    pa.set_memory_pool(own)
    tracemalloc.start()
    try:
        arrow.write_table(table, folder)
        return tracemalloc.get_traced_memory()[1] + int(own.max_memory())
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)


def peaks_of(folder: Path) -> list[int]:
    """Of tables of 16 and 64 rows, in small batches and in one; the first table is what imports are needed for."""
    peak_of(1, folder / "first", 1 << 20)
    return [peak_of(rows, folder / f"{rows}-by-{size}", size) for size in (1 << 20, 1 << 40) for rows in (16, 64)]


@pytest.mark.laboratory
def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    """And where the table is written in one batch, it does."""
    # A process of its own, because the marks count what any thread of the process allocates.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
        few, many, *together = alone.submit(peaks_of, tmp_path).result()
    assert many < few + (1 << 20), (few, many)
    few, many = together
    assert many > few + (48 << 18), (few, many)


def test_the_fixture_for_users(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        from datasets import load_from_disk

        def test_rows(synthetic_arrow):
            folder = synthetic_arrow(rows=6, seed=1)
            assert len(load_from_disk(str(folder))) == 6
            assert synthetic_arrow(rows=6, seed=1) == folder
            assert synthetic_arrow(rows=6, seed=2) != folder
        """,
    )
    assert "1 error" in project.run(leakcheck=False).last_line
    done = project.run("-p", "leakcheck_incidents.material", leakcheck=False)
    assert done.last_line == "1 passed", done.text


def test_a_dataset_is_what_it_says_it_is(tmp_path: Path) -> None:
    folder = arrow.write_table(arrow.Table(rows=4), tmp_path / "table")
    one = Dataset.from_file(str(next(folder.glob("*.arrow"))))
    assert one.features == arrow.Table().features == load_from_disk(str(folder)).features
