"""The file that a watch appends to, an event per line, and how it is read back: a line that was torn is kept and told."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from pytest_leakcheck.watch.events import Began, Event, EventError, Reading, Sample, from_json, to_json

# What memory must have moved by to be written again, in bytes: it moves in every sample.
_COARSE: Final = 1 << 20
# `json.dumps` would make one for each line.
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"))


class LedgerError(ValueError):
    """A file that is no ledger."""


class Ledger:
    """Appends events. Of a sample only the processes that have changed are written, so a quiet night is a small file."""

    def __init__(self, path: Path) -> None:
        """Raises `OSError` where it cannot be written."""
        self.path = path
        self._file = path.open("ab", buffering=0)
        self._written: dict[int, Reading] = {}
        if self._file.tell() and not _ends_with_newline(path):
            # The watch before was killed in the middle of a line; that line stays by itself.
            self._file.write(b"\n")

    def write(self, event: Event) -> None:
        """Append one event, whole: a single write, that only a crash of the machine can tear.

        Raises:
            OSError: The disk is full, say.
        """
        if isinstance(event, Sample):
            event = self._changed(event)
        self._file.write(_ENCODER.encode(to_json(event)).encode() + b"\n")

    def close(self) -> None:
        self._file.close()

    def _changed(self, sample: Sample) -> Sample:
        for pid in sample.gone:
            self._written.pop(pid, None)
        changed = {
            pid: reading
            for pid, reading in sample.processes.items()
            if (before := self._written.get(pid)) is None or _differ(before, reading)
        }
        self._written.update(changed)
        return replace(sample, processes=changed)


def read_ledger(path: Path) -> Iterator[Event | str]:
    """The events in order; for a line that cannot be read, a text that says which and why.

    Raises:
        LedgerError: The first line is no beginning of a watch.
        OSError: It cannot be read.
    """
    if not path.stat().st_size:
        raise LedgerError("no ledger of a watch: it is empty")
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                event = from_json(json.loads(line))
            except (ValueError, EventError) as error:
                if number == 1:
                    raise LedgerError(f"no ledger of a watch: {error}") from None
                torn = not line.endswith(b"\n")
                why = "is torn: the watch was killed while it wrote it" if torn else f"cannot be read: {error}"
                yield f"line {number} {why}"
                continue
            if number == 1 and not isinstance(event, Began):
                raise LedgerError("no ledger of a watch: it does not begin with one")
            yield event


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def _differ(before: Reading, after: Reading) -> bool:
    counts = (before.fds, before.threads) != (after.fds, after.threads)
    return counts or abs(after.rss - before.rss) >= _COARSE
