"""Synthetic tables: the same arguments give the same rows, of the shape that was asked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from datasets import load_from_disk

from leakcheck_incidents.synthetic import arrow_tables as arrow
from projects import Project

pytestmark = pytest.mark.laboratory


def rows_of(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = load_from_disk(str(folder)).with_format("arrow")[:].to_pylist()
    return rows


def test_nulls_and_nested_lists_are_where_they_are_said(tmp_path: Path) -> None:
    rows = rows_of(arrow.write_table(arrow.Table(rows=23, nulls=4), tmp_path / "table"))
    assert [row["id"] for row in rows] == list(range(23))
    assert [row["id"] for row in rows if row["image"] is None] == [3, 7, 11, 15, 19]
    assert [len(row["views"]) for row in rows] == [row % 3 for row in range(23)]
    assert [row["id"] for row in rows if any(None in view for view in row["views"])] == [7, 11, 19]


def test_few_pictures_of_the_size_that_was_asked_for_serve_many_rows(tmp_path: Path) -> None:
    table = arrow.Table(rows=50, files=4, file_size=1 << 16, nested=False, nulls=0)
    folder = arrow.write_table(table, tmp_path / "table")
    sizes = [path.stat().st_size for path in (folder / "files").iterdir()]
    assert len(sizes) == 4
    assert all(0.98 * (1 << 16) < size < 1.02 * (1 << 16) for size in sizes), sizes
    dataset = load_from_disk(str(folder))
    assert dataset.features == table.features
    assert dataset[0]["image"].size == (148, 148)


def test_what_lies_beside_the_table_stays(tmp_path: Path) -> None:
    mine = tmp_path / f"table.{os.getpid()}"
    mine.mkdir()
    (mine / "golden").touch()
    arrow.write_table(arrow.Table(rows=1), tmp_path / "table")
    assert (mine / "golden").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table", mine.name]


def test_the_fixture_for_users(project: Project) -> None:
    done = project.run_test(
        """
        from datasets import load_from_disk

        def test_rows(synthetic_arrow):
            folder = synthetic_arrow(rows=6, seed=1)
            assert len(load_from_disk(str(folder))) == 6
            assert synthetic_arrow(rows=6, seed=1) == folder
            assert synthetic_arrow(rows=6, seed=2) != folder
        """,
        "-p",
        "leakcheck_incidents.material",
        leakcheck=False,
    )
    assert done.last_line == "1 passed", done.text
