"""Keep the findings of a session on disk while it runs, and make the JSON report of them at its end.

For a report ``findings.json``, the journal is ``findings.json.partial``: a line for the document, then one for each
finding. A session that is killed leaves it behind, and `json_file.read` reads it like a report. An earlier report is
moved aside to ``findings.json.old``, so that no one takes it for that of the killed session.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from json import dumps
from pathlib import Path

from pytest_leakcheck.model.cause import Causes
from pytest_leakcheck.model.decoding import encode
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.session import Session
from pytest_leakcheck.report.json_file import document, to_line, write
from pytest_leakcheck.report.output_file import append, is_replaceable


class Journal:
    """The journal of one report. Use it once: `begin`, `add` ..., `finish`.

    If the report is a pipe or a device, or the folder cannot be written to any more, the lines are kept in memory.
    """

    def __init__(self, report: Path) -> None:
        """Take the path of the report; nothing is written yet."""
        self._report = report
        self._aside = Path(f"{report}.old")
        self._mode: int | None = None
        self._lines: list[str] = []
        self._causes = Causes()
        self.path = Path(f"{report}.partial")

    def begin(self) -> None:
        """Move an earlier report aside, and write the first line."""
        if not is_replaceable(self._report):
            return
        with contextlib.suppress(OSError):
            self.path.write_text(dumps(encode(document((), partial=True))) + "\n", encoding="utf-8")
            # Tests may change the umask, so the mode of the report is chosen now.
            self._mode = self.path.stat().st_mode & 0o777
            if self._report.exists():
                self._report.resolve().replace(self._aside)

    def add(self, finding: Finding) -> None:
        self._lines.append(to_line(finding))
        self._causes.add(finding)
        if self._mode is None:
            return
        # Any error, because the test may have replaced what writing takes. The lines are then written with the next ones.
        with contextlib.suppress(Exception):
            append(self.path, "".join(f"{line}\n" for line in self._lines))
            self._lines.clear()

    def finish(self, session: Session | None = None) -> None:
        """Write the report and remove the journal, which is still there if that raises `OSError`."""
        lines = list(self._all_lines())
        earlier = self._mode is not None and self._aside.exists()
        if earlier:
            # Its mode, owner and place are those that the new report is to have.
            self._aside.replace(self._report.resolve())
        write(self._report, lines, self._causes.list(), session)
        if self._mode is not None:
            if not earlier:
                self._report.chmod(self._mode)
            self.path.unlink(missing_ok=True)

    def _all_lines(self) -> Iterator[str]:
        if self._mode is not None:
            with self.path.open(encoding="utf-8") as file:
                next(file, None)
                yield from (line.rstrip("\n") for line in file)
        yield from self._lines
