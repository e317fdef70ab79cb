"""Files and folders left in the temporary directory."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import tempfile
from pathlib import Path

from cases.case import Case, leak, unique

PREFIX = f"leakcheck-{os.getpid()}-"


def remove_all() -> None:
    """What this process has left, found by its name: a list of them would be another leak."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def wait_for_file(*, remove: bool) -> None:
    path = Path(tempfile.gettempdir(), unique("job"))
    command = ["sh", "-c", 'echo 0 >"$1"; echo done; read rest', "sh", str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        # The program makes the file while this waits.
        job.stdout.readline()
    if remove:
        path.unlink()


def folder_left() -> None:
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    (folder / "part").write_bytes(b"0")


def folder_removed() -> None:
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    (folder / "part").write_bytes(b"0")
    shutil.rmtree(folder)


def folder_left_on_error() -> None:
    with contextlib.suppress(ZeroDivisionError):
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        (folder / "part").write_bytes(bytes(1 // 0))
        shutil.rmtree(folder)


def folder_removed_on_error() -> None:
    with contextlib.suppress(ZeroDivisionError), tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
        (Path(folder) / "part").write_bytes(bytes(1 // 0))


def named_file_left() -> None:
    with tempfile.NamedTemporaryFile(prefix=PREFIX, delete=False) as file:
        file.write(b"for another program to read")


def named_file_deleted() -> None:
    with tempfile.NamedTemporaryFile(prefix=PREFIX) as file:
        file.write(b"for another program to read")


def made_and_left() -> None:
    descriptor, _name = tempfile.mkstemp(prefix=PREFIX)
    os.close(descriptor)


def made_and_removed() -> None:
    descriptor, name = tempfile.mkstemp(prefix=PREFIX)
    os.close(descriptor)
    os.unlink(name)


def pipe_left() -> None:
    path = Path(tempfile.gettempdir()) / unique("pipe")
    os.mkfifo(path)


def pipe_removed() -> None:
    path = Path(tempfile.gettempdir()) / unique("pipe")
    os.mkfifo(path)
    path.unlink()


def database_left() -> None:
    path = Path(tempfile.gettempdir()) / f"{unique('rows')}.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("create table rows (number)")


def database_removed() -> None:
    path = Path(tempfile.gettempdir()) / f"{unique('rows')}.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("create table rows (number)")
    path.unlink()


class Downloads:
    """A folder of the module, which is removed with its object."""

    folder: tempfile.TemporaryDirectory[str]

    @classmethod
    def begin(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory(prefix=PREFIX)

    @classmethod
    def end(cls) -> None:
        cls.folder.cleanup()

    @classmethod
    def add(cls) -> None:
        Path(cls.folder.name, unique("part")).touch()


class Elsewhere:
    """A folder that no probe lists, beside the temporary one."""

    folder = Path()

    @classmethod
    def make(cls) -> None:
        cls.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=Path(tempfile.gettempdir()).parent))

    @classmethod
    def remove(cls) -> None:
        shutil.rmtree(cls.folder)


def report_left_elsewhere() -> None:
    (Elsewhere.folder / unique("report")).write_text("for each run")


def report_replaced_elsewhere() -> None:
    (Elsewhere.folder / "report").write_text("of the last run")


def compiled_elsewhere() -> None:
    """As Python does when it imports a module, which it will then find."""
    folder = Elsewhere.folder / "__pycache__"
    folder.mkdir(exist_ok=True)
    (folder / f"{unique('module')}.pyc").write_bytes(b"0")


def cache_written_for_each_run() -> None:
    temporary = tempfile.NamedTemporaryFile(prefix=PREFIX, delete=False)
    temporary.close()
    Path(temporary.name).rename(Path(tempfile.gettempdir(), f"{PREFIX}{unique('cache')}"))


def cache_replaced() -> None:
    temporary = tempfile.NamedTemporaryFile(prefix=PREFIX, delete=False)
    temporary.close()
    Path(temporary.name).replace(Path(tempfile.gettempdir(), f"{PREFIX}cache"))


CASES = (
    leak("file_renamed", "disk", cache_written_for_each_run, cache_replaced, remove_all,
         line="tempfile.NamedTemporaryFile("),
    Case("temporary_directory_filled", clean=Downloads.add, setup=Downloads.begin, teardown=Downloads.end,
         doubt="its TemporaryDirectory removes the files; only a budget makes them a leak"),
    leak("file_of_a_program_left", "disk", lambda: wait_for_file(remove=False), lambda: wait_for_file(remove=True),
         remove_all, line="subprocess.Popen("),
    leak("folder_left", "disk", folder_left, folder_removed, remove_all, line="tempfile.mkdtemp("),
    leak("folder_left_on_error", "disk", folder_left_on_error, folder_removed_on_error, remove_all,
         line="tempfile.mkdtemp("),
    leak("named_file_left", "disk", named_file_left, named_file_deleted, remove_all,
         line="tempfile.NamedTemporaryFile("),
    leak("made_file_left", "disk", made_and_left, made_and_removed, remove_all, line="tempfile.mkstemp("),
    leak("named_pipe_left", "disk", pipe_left, pipe_removed, remove_all, line="os.mkfifo(path)"),
    leak("database_left", "disk", database_left, database_removed, remove_all, line="sqlite3.connect(path)"),
    leak("report_left_elsewhere", "disk", report_left_elsewhere, report_replaced_elsewhere, Elsewhere.remove,
         setup=Elsewhere.make, line=".write_text(", budget="disk"),
    Case("compiled_elsewhere", clean=compiled_elsewhere, setup=Elsewhere.make, teardown=Elsewhere.remove,
         budget="disk"),
)  # fmt: skip
