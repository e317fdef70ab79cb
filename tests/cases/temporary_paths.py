"""Files in a folder that is made for each call and removed after it, as `tmp_path` is: what is open there stays open."""

from __future__ import annotations

import mmap
import os
import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import IO

from cases.case import drain, kept, leak
from cases.leftovers import PREFIX, remove_all

FILES: list[IO[str]] = []
CONNECTIONS: list[sqlite3.Connection] = []
MAPS: list[mmap.mmap] = []


def file_kept(folder: Path) -> None:
    FILES.append(open(folder / "log", "w"))


def file_closed(folder: Path) -> None:
    with open(folder / "log", "w") as file:
        file.write("closed")


def database_kept(folder: Path) -> None:
    connection = sqlite3.connect(folder / "rows.db")
    connection.execute("create table rows (number)")
    CONNECTIONS.append(connection)


def map_file(folder: Path) -> mmap.mmap:
    (folder / "rows").write_bytes(bytes(4 * mmap.PAGESIZE))
    with open(folder / "rows", "r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def map_kept(folder: Path) -> None:
    MAPS.append(map_file(folder))


def copied_part_left(folder: Path) -> None:
    descriptor, part = tempfile.mkstemp(prefix=PREFIX)
    os.close(descriptor)
    shutil.copy(part, folder / "whole")


def moved_part(folder: Path) -> None:
    descriptor, part = tempfile.mkstemp(prefix=PREFIX)
    os.close(descriptor)
    shutil.move(part, folder / "whole")


CASES = (
    leak("tmp_path_file_kept", "fd", file_kept, file_closed, drain(FILES, lambda file: file.close()),
         line="open(folder /", owner=".FILES", folder=True),
    kept("tmp_path_database_kept", "fd", database_kept, drain(CONNECTIONS, sqlite3.Connection.close),
         line="sqlite3.connect(folder /", owner=".CONNECTIONS", folder=True),
    kept("tmp_path_map_kept", "fd mmap", map_kept, drain(MAPS, mmap.mmap.close),
         line="mmap.mmap(file.fileno()", owner=".MAPS", folder=True),
    leak("tmp_path_part_left", "disk", copied_part_left, moved_part, remove_all, line="tempfile.mkstemp(", folder=True),
)  # fmt: skip
