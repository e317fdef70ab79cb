"""Append text to a file while tests run that may fill the disk, close descriptors or remove the file."""

from __future__ import annotations

from errno import ENOENT
from io import FileIO
from pathlib import Path


class AppendedFile:
    """A file that is opened for each text, so that it holds no descriptor that a test could close or take over.

    A named pipe stays open, because its reader would take a close for the end.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pipe: FileIO | None = None
        self._unwritten = b""

    def begin(self) -> None:
        """Create the file or empty it, or raise `OSError`. Opening a pipe waits until a process reads from it."""
        file = self.path.open("wb", buffering=0)
        if self.path.is_fifo():
            self._pipe = file
        else:
            file.close()

    def write(self, text: str) -> None:
        """Append a text. If that raises `OSError`, the next call begins with what is not written yet."""
        # File names on a page may contain bytes that are not UTF-8. The error handler turns each into an escape.
        self._unwritten += text.encode("utf-8", errors="backslashreplace")
        if self._pipe is not None:
            self._write_all(self._pipe)
            return
        if not self.path.exists():
            # A new file would lack what was written before.
            raise FileNotFoundError(ENOENT, "the file or its folder was removed while the tests ran")
        with self.path.open("ab", buffering=0) as file:
            self._write_all(file)

    def close(self) -> None:
        """Let the reader of a pipe see the end."""
        if self._pipe is not None:
            self._pipe.close()

    def _write_all(self, file: FileIO) -> None:
        # A full disk may take a part: only what it has taken is removed.
        while self._unwritten:
            self._unwritten = self._unwritten[file.write(self._unwritten) :]
