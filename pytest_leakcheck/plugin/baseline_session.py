"""Read the file of known leaks; at the session's end, compare it with the findings or update it."""

from __future__ import annotations

import datetime as dt
import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from pytest_leakcheck.baseline import known_leaks
from pytest_leakcheck.baseline.known_leaks import Baseline, BaselineError, KnownLeaks
from pytest_leakcheck.config.settings import Settings
from pytest_leakcheck.model.culprit import short_id
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.regular_file import FileError, check_replaceable, locked
from pytest_leakcheck.plugin import keys
from pytest_leakcheck.plugin.collection import selected_by
from pytest_leakcheck.plugin.other_plugins import is_worker
from pytest_leakcheck.report import json_file


class BaselineSession:
    """What a session does with a file of known leaks, in each process that measures."""

    def __init__(
        self,
        config: pytest.Config,
        settings: Settings,
        existing: Collection[str],
        left_out: list[str],
    ) -> None:
        """Store the known leaks on the config.

        `existing` are the node ids that will be collected, `left_out` those that others remove.

        Raises:
            pytest.UsageError: The file cannot be used, or cannot be written now.
        """
        self._config, self._settings = config, settings
        self._existing, self.left_out = existing, left_out
        self._path = Path(config.rootpath, settings.baseline or "leakcheck-baseline.json")
        self._writes = settings.update_baseline or settings.prune_baseline
        self._observed = known_leaks.Observed()
        self._lines: list[tuple[str, str]] = []
        self._is_report, self._notice = False, ""
        self._is_controller = not is_worker(config) and keys.PROCESS not in config.stash
        self._known = None if settings.no_baseline else self._read()
        config.stash[keys.KNOWN] = self._known
        if self._writes and self._is_controller:
            self._check_writing()

    def _read(self) -> KnownLeaks | None:
        exists = self._path.exists()
        if not exists and not self._writes:
            if not self._settings.baseline:
                return None
            source = f"--leakcheck-baseline={self._settings.baseline} ({self._settings.sources.get('baseline', '')})"
            raise pytest.UsageError(
                f"{source}: the file does not exist: write it with --leakcheck-update-baseline"
            )
        baseline = (
            self._read_file()
            if exists and (_has_content(self._path) or not self._writes)
            else Baseline()
        )
        return KnownLeaks(baseline, _today(), updating=self._writes)

    def _read_file(self) -> Baseline:
        """Read the known leaks from their file, or from the JSON report of an earlier session."""
        try:
            self._is_report = json_file.is_report(self._path)
            if not self._is_report:
                return known_leaks.read(self._path)
            report = json_file.read(self._path)
        except (OSError, BaselineError, json_file.ReportError) as error:
            where = "" if isinstance(error, BaselineError | FileError) else f"{self._path}: "
            raise pytest.UsageError(
                f"{where}{(isinstance(error, OSError) and error.strerror) or error}"
            ) from None
        self._notice = report.notice
        return known_leaks.baseline_of(report.findings)

    def _check_writing(self) -> None:
        wrong = ""
        if self._settings.no_baseline:
            wrong = " and --leakcheck-no-baseline exclude each other: leave one out"
        elif os.environ.get("CI") and not self._settings.force_update:
            wrong = (
                ": CI is set, and a file that is written in CI hides new leaks: run it locally and commit the file, or "
                "add --leakcheck-force-update"
            )
        elif self._is_report:
            wrong = f": {self._path} is a JSON report: name a file of known leaks, or none"
        elif self._settings.prune_baseline and (why := selected_by(self._config)):
            wrong = f" needs the whole suite, but {why} selects a part of it: leave it out"
        else:
            try:
                # What it contains has been read.
                check_replaceable(self._path, known_leaks.FILE)
            except FileError as error:
                wrong = f": {error}"
        if wrong:
            flag = "prune" if self._settings.prune_baseline else "update"
            raise pytest.UsageError(f"--leakcheck-{flag}-baseline{wrong}")

    def add(self, finding: Finding) -> None:
        if self._known is None:
            return
        if finding.known:
            self._observed.leaks.append(finding)
        self._observed.add_floors(finding, self._known)

    def finish(self, session: pytest.Session) -> None:
        """Compare the file with the findings, or write it; raise `LeakcheckError` if that fails."""
        if self._known is None or not self._is_controller:
            return
        ended = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        ended &= not (session.shouldstop or session.shouldfail)
        if not ended:
            # Tests that did not run cannot show that a leak is gone.
            self._observed.floors.clear()
            self._observed.of_faults.clear()
        elif not (selected_by(self._config) or self.left_out):
            self._observed.suite = self._existing
        if self._writes:
            self._write()
            return
        if outdated := known_leaks.find_outdated(self._known.baseline, self._observed):
            ids = ", ".join(map(short_id, outdated))
            self._notice = f"{ids}: an earlier version told fewer causes apart: update with --leakcheck-update-baseline"
        for leak in known_leaks.find_fixed(self._known.baseline, self._observed):
            advice = f": remove {short_id(leak.finding)} from {self._path.name}, or --leakcheck-update-baseline"
            name = leak.owner or leak.site or leak.tests[0]
            self._lines.append(("dim", f"fixed: {name}{'' if self._is_report else advice}"))
        if (
            self._lines
            and self._settings.baseline_strict
            and session.exitstatus == pytest.ExitCode.OK
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _write(self) -> None:
        with locked(self._path) as file:
            # Again: another session, or a person, may have changed it meanwhile.
            baseline = known_leaks.read(self._path) if _has_content(self._path) else Baseline()
            change = known_leaks.update(baseline, self._observed, _today())
            written = change.baseline
            if self._settings.prune_baseline:
                if self._observed.suite:
                    written = known_leaks.prune(written, self._existing, self._config.rootpath)
                else:
                    self._notice = "nothing was pruned, because not all tests have run"
            file.replace(known_leaks.to_text(written).encode(errors="backslashreplace"))
        pruned = len(change.baseline.known) - len(written.known)
        counts = {
            "added": change.added,
            "changed": change.changed,
            "replaced": change.replaced,
            "fixed": change.fixed,
            "pruned": pruned,
            "unchanged": change.unchanged - pruned,
        }
        done = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
        self._lines.append(("green", f"leakcheck: wrote {self._path}: {done or 'no leaks'}"))

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the lines of the summary as (color, text)."""
        if self._notice:
            yield "yellow", f"leakcheck: {self._path}: {self._notice}"
        yield from self._lines


def _has_content(path: Path) -> bool:
    """Return whether there is something to read. An empty file may be written to."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    return not stat.S_ISREG(status.st_mode) or status.st_size > 0


def _today() -> str:
    return dt.datetime.now(tz=dt.UTC).date().isoformat()
