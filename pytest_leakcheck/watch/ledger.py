"""Write and read the ledger of a watch: a file with one event per line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from pytest_leakcheck.model import LeakcheckError
from pytest_leakcheck.watch.events import Began, Event, EventError, Reading, Sample, from_json, to_json

# A process whose memory changes by fewer bytes is not written again, because memory changes in every sample.
_MIN_RSS_CHANGE_BYTES: Final = 1 << 20
# Created once: `json.dumps` with these separators would create an encoder for each line.
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"))


class LedgerError(LeakcheckError, ValueError):
    """A file that is not a ledger."""


class Ledger:
    """A file that the events of a watch are appended to; of a sample, only the processes that have changed."""

    def __init__(self, path: Path) -> None:
        """Open or create the file for appending; raise OSError if it cannot be written."""
        self.path = path
        self._file = path.open("ab", buffering=0)
        self._last_written: dict[int, Reading] = {}
        if self._file.tell() and not _ends_with_newline(path):
            # The previous watch was killed while it wrote its last line; end that line to keep the next event apart.
            self._file.write(b"\n")

    def write(self, event: Event) -> None:
        """Append one event as one line, in a single write call; raise OSError, for example if the disk is full."""
        if isinstance(event, Sample):
            event = self._keep_changed(event)
        self._file.write(_ENCODER.encode(to_json(event)).encode() + b"\n")

    def close(self) -> None:
        self._file.close()

    def _keep_changed(self, sample: Sample) -> Sample:
        for pid in sample.gone:
            self._last_written.pop(pid, None)
        changed = {
            pid: reading
            for pid, reading in sample.processes.items()
            if (before := self._last_written.get(pid)) is None or _has_changed(before, reading)
        }
        self._last_written.update(changed)
        return replace(sample, processes=changed)


def read_ledger(path: Path) -> Iterator[Event | str]:
    """Yield the events in order; for a line that cannot be read, such as an incomplete one, its number and the reason.

    Raise `LedgerError` if the file is empty, or its first line is not the start of a watch.
    """
    if not path.stat().st_size:
        raise LedgerError("not a watch ledger: the file is empty")
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                event = from_json(json.loads(line))
            except (ValueError, EventError) as error:
                if number == 1:
                    raise LedgerError(f"not a watch ledger: {error}") from None
                torn = not line.endswith(b"\n")
                why = "is incomplete: the watch was killed while it wrote it" if torn else f"cannot be read: {error}"
                yield f"line {number} {why}"
                continue
            if number == 1 and not isinstance(event, Began):
                raise LedgerError("not a watch ledger: it does not begin with the start of a watch")
            yield event


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def _has_changed(before: Reading, after: Reading) -> bool:
    counts = (before.fds, before.threads) != (after.fds, after.threads)
    return counts or abs(after.rss - before.rss) >= _MIN_RSS_CHANGE_BYTES
