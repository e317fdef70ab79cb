"""The faults from outside: signals at seeded random moments, and reports that cannot be written."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from around import (
    FALSE_ALARM,
    HANG,
    LEFTOVERS,
    LOST_FINDING,
    NOT_JUDGED,
    RED,
    SESSION_ENDED,
    SILENT_PASS,
    SURVIVED,
    Row,
)
from sandbox import Ran, Sandbox, wait_until

# Seconds between the end of a test, or the start of the session, and the signal.
_MOMENTS: Final = (0.0, 1.0)
_LIMIT_SECONDS: Final = 90.0
_TEST_COUNT: Final = 12
_FOUR_DAYS: Final = 4 * 24 * 3600.0
_TESTS: Final = Path(__file__).parents[2] / "tests" / "faults" / "sessions" / "arms_under_signals.py"


@dataclass(frozen=True, slots=True)
class Event:
    """What happens to a session, which may end early if `ends`.

    The `target` gets the signals, one after the other: "session", "worker" (of xdist) or "child" (of an isolated test).
    `report` is the path of the JSON report, if not in the project.
    """

    name: str
    category: str
    signals: tuple[int, ...] = ()
    target: str = "session"
    options: tuple[str, ...] = ()
    report: str = ""
    ends: bool = True


_SIGNALS: Final = {"INT": (signal.SIGINT,), "TERM": (signal.SIGTERM,), "KILL": (signal.SIGKILL,)}
_STOP: Final = (signal.SIGSTOP, signal.SIGCONT)
_TWO: Final = ("-n2",)
EVENTS: Final = (
    *(Event(f"{name} to the session", "outside: session", sent) for name, sent in _SIGNALS.items()),
    *(
        Event(f"{name} to the session with -n2", "outside: xdist", sent, options=_TWO)
        for name, sent in _SIGNALS.items()
    ),
    *(
        Event(f"{name} to an isolated process", "outside: isolated process", sent, "child", ends=False)
        for name, sent in _SIGNALS.items()
    ),
    Event("HUP to the session", "outside: session", (signal.SIGHUP,)),
    Event("INT twice to the session", "outside: session", (signal.SIGINT, signal.SIGINT)),
    Event("KILL to a worker", "outside: worker", _SIGNALS["KILL"], "worker", _TWO, ends=False),
    Event("STOP to the session", "outside: stopped", _STOP, ends=False),
    Event("STOP to an isolated process", "outside: stopped", _STOP, "child", ends=False),
    Event("STOP to a worker", "outside: stopped", _STOP, "worker", _TWO, ends=False),
    Event("report on a full disk", "outside: report", report="/dev/full"),
    Event("report in a folder that cannot be written to", "outside: report", report="/proc/report.json"),
)


def run_seed(seed: int, folder: Path) -> Row:
    """Run one session, let the event of this seed happen at a random moment, and judge what is left."""
    event = EVENTS[seed % len(EVENTS)]
    chance = random.Random(seed)  # noqa: S311 - no cryptography
    sandbox = Sandbox(folder)
    sandbox.write("test_it.py", _TESTS.read_text(encoding="utf-8"))
    report = event.report or str(sandbox.report)
    options = ("--leakcheck", "--leakcheck-min-time=0", f"--leakcheck-json={report}", *event.options)
    plugins = ("xdist",) if event.options else ()
    process = sandbox.start(options, plugins=plugins)
    finished: set[str] = set()
    sent = ""
    if event.signals:
        # Counted in tests, since seconds would mean something else on a busy machine.
        tests, seconds = chance.randrange(_TEST_COUNT - 1), chance.uniform(*_MOMENTS)
        wait_until(lambda: process.poll() is not None or len(_find_finished(sandbox, process.pid)) >= tests, 60)
        wait_until(lambda: process.poll() is not None, seconds)
        target = process.pid
        if event.target != "session":
            wait_until(lambda: process.poll() is not None or bool(_find(event.target, sandbox, process.pid)), 60)
            found = _find(event.target, sandbox, process.pid)
            target = chance.choice(found) if found else 0
        finished = _find_finished(sandbox, process.pid)
        sent = _send(event, target, chance) if target and process.poll() is None else "ended before"
    ran = sandbox.finish(process, _LIMIT_SECONDS)
    result, detail = _judge(event, ran, finished)
    if result == SURVIVED:
        result, detail = _judge_next(sandbox)
    seen = f"status {ran.status}, {len(ran.verdicts)} findings{', ' + sent if sent else ''}"
    expected = "the findings so far" if event.ends else "all verdicts but that of the test that is hit"
    return Row(f"seed {seed}: {event.name}", event.category, "outside", expected, seen, result, detail)


def _send(event: Event, target: int, chance: random.Random) -> str:
    for number in event.signals:
        with suppress(ProcessLookupError):
            os.kill(target, number)
        if number == signal.SIGSTOP:
            time.sleep(chance.uniform(1, 2))
        elif len(event.signals) > 1:
            time.sleep(chance.uniform(0, 0.3))
    return f"sent to {event.target}"


def _find_finished(sandbox: Sandbox, session: int) -> set[str]:
    return {test for pid, kind, test, _ in sandbox.log() if pid == session and kind == "finished"}


def _find(kind: str, sandbox: Sandbox, session: int) -> list[int]:
    """Return the workers of xdist, or the processes of isolated tests."""
    word = b"sys.stdin.readline" if kind == "worker" else b"leakcheck_program"
    found = []
    for pid in sandbox.processes(session):
        with suppress(OSError):
            if pid != session and word in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def _judge(event: Event, ran: Ran, finished: set[str]) -> tuple[str, str]:
    if ran.status is None:
        return HANG, ran.last_words
    if event.report:
        return _judge_report(event, ran)
    if missing := sorted(finished - set(ran.verdicts)):
        return LOST_FINDING, ", ".join(missing)
    found = _judge_verdicts(event, ran) or (None if event.ends else _judge_rest(event, ran))
    if found is None and ran.processes:
        found = LEFTOVERS, f"process: {ran.processes[0]}"
    return found or (SURVIVED, "")


def _judge_verdicts(event: Event, ran: Ran) -> tuple[str, str] | None:
    """Return the first verdict that is wrong."""
    for name, verdicts in ran.verdicts.items():
        verdict = verdicts.get("fd", "none")
        if "leaky" in name and verdict == "ok":
            return SILENT_PASS, name
        hit = event.target == "child" and "isolated" in name
        if "clean" in name and verdict in RED and not hit:
            return FALSE_ALARM, f"{name}: {verdict}"
    return None


def _judge_rest(event: Event, ran: Ran) -> tuple[str, str] | None:
    """Return what is wrong where the session must go on."""
    if ran.status != 1 or not ran.whole or "INTERNALERROR" in ran.text:
        return SESSION_ENDED, f"status {ran.status}: {ran.last_words}"
    judged = [name for name, one in ran.verdicts.items() if one.get("fd") in ("ok", *RED)]
    # The test that was running in a killed process has no verdict, or is inconclusive.
    if len(judged) < (_TEST_COUNT if event.signals[0] == signal.SIGSTOP else _TEST_COUNT - 1):
        return NOT_JUDGED, f"{len(judged)} of {_TEST_COUNT} tests are judged: {', '.join(judged)}"
    return None


def _judge_report(event: Event, ran: Ran) -> tuple[str, str]:
    """A report that cannot be written costs no test, and is announced."""
    if ran.status not in (3, 4) or "Traceback" in ran.text or "INTERNALERROR" in ran.text:
        return SESSION_ENDED, f"status {ran.status}: {ran.last_words}"
    if event.report not in ran.text:
        return LOST_FINDING, f"the report is not mentioned: {ran.last_words}"
    return SURVIVED, ""


def _judge_next(sandbox: Sandbox) -> tuple[str, str]:
    """The next session in the same TMPDIR works, and removes what a session has left that was killed four days ago."""
    for path in sandbox.tmp.glob("leakcheck-*/**/"):
        os.utime(path, (time.time() - _FOUR_DAYS,) * 2)
    options = ("--leakcheck", "--leakcheck-min-time=0", f"--leakcheck-json={sandbox.report}", "-k", "0 or isolated")
    ran = sandbox.run(options, limit=_LIMIT_SECONDS, fresh=False)
    seen = {name: one.get("fd", "none") for name, one in ran.verdicts.items()}
    wrong = [name for name, verdict in seen.items() if verdict != ("leak" if "leaky" in name else "ok")]
    if ran.status != 1 or len(seen) != 4 or wrong:
        return NOT_JUDGED, f"the next session: {json.dumps(seen)}, {ran.last_words}"
    if ran.files:
        return LEFTOVERS, f"after the next session: {', '.join(ran.files)}"
    return SURVIVED, ""
