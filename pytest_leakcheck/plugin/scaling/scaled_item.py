"""The near side of a test over an axis: each size in a process, or a world, of its own; then the law is judged.

Nothing of the test runs in this process. What downstream sees is the report of one run, the largest that was well, with
the finding in place of its body where that is red.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib.util import find_spec
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Final

import pytest

from pytest_leakcheck.attribution.tracing.peak_composition import IN_CHILDREN
from pytest_leakcheck.config.markers import SCALING, MarkError
from pytest_leakcheck.config.scaling_marker import Aim, Sweep, read_sweep
from pytest_leakcheck.config.settings import Settings
from pytest_leakcheck.judge.conclude_finding import conclude_sizes
from pytest_leakcheck.judge.judge_scaling import judge_points
from pytest_leakcheck.judge.result import RED
from pytest_leakcheck.model.culprit import Culprit
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.recording import Recording
from pytest_leakcheck.model.resources import GAUGE_PREFIX, RESIDENT
from pytest_leakcheck.model.scaling_points import NOT_READ, Law, Point, Scaled, Sizing
from pytest_leakcheck.model.verdict import Verdict
from pytest_leakcheck.plugin.errors import LeakError
from pytest_leakcheck.plugin.isolation.dispatch import START_UP, send
from pytest_leakcheck.plugin.isolation.messages import Answer, culprits_of, recording_of
from pytest_leakcheck.plugin.item_reports import attach, report_of, tear_down, warn
from pytest_leakcheck.plugin.session_report import glyphs_of
from pytest_leakcheck.plugin.stash import SWEEP
from pytest_leakcheck.plugin.xdist import is_worker
from pytest_leakcheck.report.finding_text import block
from pytest_leakcheck.runner.environment import describe_environment
from pytest_leakcheck.runner.processes import supervisor
from pytest_leakcheck.runner.processes.child_peak import ChildrenPeak

# Worlds of several processes side by side would starve each other: `_alone` sees to it. Where ``--dist=loadgroup`` is
# asked for, xdist is told as well, so that no worker waits for another.
_GROUP: Final = "leakcheck-worlds"
# A run is repeated to look into it if it took at most so many seconds.
_QUICK: Final = 12.0
_TOO_LONG: Final = "the run that looks into it took too long"
# In the stack of a rank that waits in a collective operation.
_COLLECTIVES: Final = "/torch/distributed/distributed_c10d.py"


def plan_sizes(item: pytest.Item) -> None:
    """Read the mark of a test as it is collected.

    Raises:
        MarkError: It cannot be read, or stands on something that takes no arguments.
    """
    if SWEEP in item.stash:
        return
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        raise MarkError(
            f"{SCALING}: only a function can take the size of an axis as an argument: write def test_it(shards)"
        )
    sweep = item.stash[SWEEP] = read_sweep(item.iter_markers(), item.fixturenames)
    if sweep.engine == "thread" and iscoroutinefunction(item.obj):
        raise MarkError(
            f'{SCALING}: engine="thread" runs a function in each rank, not a coroutine: write def {item.name}'
        )
    if sweep.engine and (item.config.pluginmanager.hasplugin("xdist") or is_worker(item.config)):
        item.add_marker(pytest.mark.xdist_group(_GROUP))


def run_sizes(item: pytest.Item, nextitem: pytest.Item | None, settings: Settings) -> None:
    """Run an item at each size of its axis, and log one report with the finding."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _Run(item, settings).reports():
        item.ihook.pytest_runtest_logreport(report=report)
    tear_down(item, nextitem, log=False)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


class _Run:
    """One test at all its sizes."""

    def __init__(self, item: pytest.Item, settings: Settings) -> None:
        self._item = item
        self._settings = settings
        self._sweep = item.stash[SWEEP]
        self._points: list[Point] = []
        self._culprits: list[Culprit] = []
        self._began = time.monotonic()

    def reports(self) -> list[pytest.TestReport]:
        """Run it. Returns what is to be logged in place of a run of its own."""
        why_not = supervisor.unsupported() or _missing_engine(self._sweep)
        if why_not:
            missing = [Verdict(aim.resource, "unavailable", reason=why_not) for aim in self._sweep.aims]
            return [_report(self._item, self._conclude([(verdict, None) for verdict in missing]))]
        last: list[pytest.TestReport] = []
        for size in self._sweep.sizes:
            answer, children = self._send(size)
            for value in (value for told in answer.told for kind, value in told if kind == "warning"):
                warn(self._item, value)
            own = _own_failure(self._item, f"{self._sweep.axis}={size}", answer)
            if own:
                return own
            recordings = [found for told in answer.told if (found := recording_of(told)) is not None]
            if _lost(answer) or len(recordings) < len(answer.told):
                return [self._report_lost(size, answer)]
            self._points.append(Point(size, tuple(recordings), children, round(answer.ended.seconds, 3)))
            self._culprits = culprits_of(answer)
            last = [report_of(self._item, value) for kind, value in answer.told[0] if kind == "report"]
        judged = [_judge(self._scaled(), aim) for aim in self._sweep.aims]
        finding = self._conclude(judged)
        if finding.verdict.resource == RESIDENT and finding.verdict.outcome in RED:
            # Where a counter is red as well, that is what is told, and it says more than what the memory is made of.
            self._culprits += self._look_into_memory()
            finding = self._conclude(judged)
        return [_report(self._item, finding, one.sections) if one.when == "call" else one for one in last]

    def _look_into_memory(self) -> list[Culprit]:
        """Once more, at a size that shows it, to see what its peak is made of; if that takes too long, at the least one."""
        least, telling = self._points[0], self._scaled().telling(_QUICK)
        for point in (telling, least) if telling is not least else (least,):
            if point.peak(RESIDENT, "per_rank") <= point.children:
                return [Culprit(RESIDENT, unresolved=dict.fromkeys(("site", "owner"), IN_CHILDREN))]
            answer, _children = self._send(point.size, naming=point.near_peak)
            if not _lost(answer):
                return [one for one in culprits_of(answer) if one.resource == RESIDENT]
        return [Culprit(RESIDENT, unresolved=dict.fromkeys(("site", "owner"), _TOO_LONG))]

    def _send(self, size: int, naming: int = 0) -> tuple[Answer, int]:
        sizing = Sizing(self._sweep.axis, size, self._sweep.resources, self._sweep.engine, naming)
        children = ChildrenPeak()
        watch = children.look if RESIDENT in sizing.resources and not sizing.of_processes else None
        with _alone(self._item.config) if sizing.of_processes else nullcontext():
            answer = send(self._item, supervisor.Patience(START_UP, self._settings.max_time), sizing, watch)
        return answer, children.peak

    def _report_lost(self, size: int, answer: Answer) -> pytest.TestReport:
        at, limit = f"{self._sweep.axis}={size}", self._settings.max_time
        reason = _why_lost(answer, at, limit)
        advice = f"mend what does not return, or give it more time: --leakcheck-max-time={4 * limit:g}"
        verdict = Verdict(
            self._sweep.aims[0].resource, "inconclusive", reason=reason, advice=advice if answer.ended.hung else ""
        )
        return _report(self._item, self._conclude([(verdict, None)], lost=True), _said(answer))

    def _scaled(self) -> Scaled:
        return Scaled(self._sweep.axis, self._sweep.engine, tuple(self._points))

    def _conclude(self, judged: Sequence[tuple[Verdict, Law | None]], *, lost: bool = False) -> Finding:
        recording = Recording(
            self._item.nodeid,
            (),
            seconds=round(time.monotonic() - self._began, 6),
            stopped="lost" if lost else "judged",
            environment=describe_environment(),
        )
        budgets: dict[str, str] = {}
        for aim in self._sweep.aims:
            budgets[aim.resource] = ", ".join(filter(None, (budgets.get(aim.resource), str(aim))))
        fail_on = (*self._settings.fail_on, *(("inconclusive",) if lost else ()))
        missing, reason = self._settings.missing, self._sweep.reason
        return conclude_sizes(recording, budgets, judged, self._scaled(), fail_on, missing, reason, self._culprits)


@contextmanager
def _alone(config: pytest.Config) -> Iterator[None]:
    """Among the workers of a session one world at a time, however they share the tests out."""
    if not is_worker(config):
        yield
        return
    import fcntl

    # The folder above a worker's own is that of the session.
    with Path(config._tmp_path_factory.getbasetemp().parent, _GROUP).open("w") as file:  # type: ignore[attr-defined]
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _missing_engine(sweep: Sweep) -> str:
    if sweep.engine == "gloo" and find_spec("torch") is None:
        return 'engine="gloo" starts ranks of torch.distributed, and torch is not installed here'
    return ""


def _judge(scaled: Scaled, aim: Aim) -> tuple[Verdict, Law | None]:
    missing = next(filter(None, (point.why_not(aim.resource) for point in scaled.points)), "")
    if missing:
        if missing == NOT_READ:
            missing = f"the test never called leakcheck.gauge({aim.resource.removeprefix(GAUGE_PREFIX)!r}, ...)"
        return Verdict(aim.resource, "unavailable", reason=missing), None
    peaks = scaled.peaks(aim.resource, aim.figure)
    lower, exact = aim.figure == "at_least", scaled.is_exact(aim.resource)
    verdict, law = judge_points(aim.resource, scaled.axis, scaled.sizes, peaks, aim.bound, lower=lower, exact=exact)
    return replace(verdict, kind=scaled.points[0].kind(aim.resource)), law


def _own_failure(item: pytest.Item, at: str, answer: Answer) -> list[pytest.TestReport]:
    """The reports of a run in which the test failed, or was skipped, for reasons of its own; there is no verdict then."""
    found: list[tuple[float, int, list[pytest.TestReport]]] = []
    for rank, told in enumerate(answer.told):
        reports = [report_of(item, value) for kind, value in told if kind == "report"]
        odd = [report.stop for report in reports if not report.passed or hasattr(report, "wasxfail")]
        if odd:
            found.append((odd[0], rank, reports))
    # A rank that went without a word is the cause of what the others then fail with.
    if not found or _silent(answer):
        return []
    # The first to fail: the others may have failed of that.
    _stop, rank, reports = min(found, key=lambda one: one[:2])
    where = at + (f", rank {rank} of {len(answer.told)}" if len(answer.told) > 1 else "")
    for report in reports:
        if report.failed:
            report.sections.insert(0, ("leakcheck", f"failed in a process of its own at {where}"))
    return reports


def _silent(answer: Answer) -> list[int]:
    """The ranks that ended without being told to, and without a last word."""
    return [
        rank
        for rank, told in enumerate(answer.told)
        if not answer.stacks[rank] and "done" not in [kind for kind, _value in told]
    ]


def _lost(answer: Answer) -> bool:
    """Whether a process, or a rank, did not come to its end."""
    return bool(answer.ended.error or answer.ended.hung or _silent(answer))


def _why_lost(answer: Answer, at: str, limit: float) -> str:
    """
    Args:
        answer: What came back.
        at: The axis and the size.
        limit: How long each step may take, in seconds.
    """
    ended, ranks = answer.ended, len(answer.told)
    if ended.error:
        return ended.reason
    if ended.hung:
        return f"hung at {at}: {_who(_stuck(answer), ranks)}no answer for {limit:g} s"
    silent = _silent(answer)
    if not silent:
        return f"the test's body did not run at {at}"
    status = answer.failures.get(silent[0], 0 if ranks > 1 else ended.status)
    return f"{_who(silent[:1], ranks)}{supervisor.describe_exit(status)} at {at}, before the end of the test"


def _who(numbers: Sequence[int], ranks: int) -> str:
    return f"rank {', '.join(map(str, numbers))} of {ranks} " if ranks > 1 else ""


def _stuck(answer: Answer) -> list[int]:
    """The ranks that have not come to their end; of those, the ones that do not merely wait for others."""
    stuck = [
        rank for rank, told in enumerate(answer.told) if "recording" not in [kind for kind, _value in told]
    ] or list(range(len(answer.told)))
    return [rank for rank in stuck if _COLLECTIVES not in answer.stacks[rank]] or stuck


def _said(answer: Answer) -> list[tuple[str, str]]:
    """What the processes wrote last: their own output, and where each one was."""
    sections = []
    failed = [value for told in answer.told for kind, value in told if kind in ("not collected", "missing")]
    said = "\n".join(failed) or answer.ended.said.strip()
    if said:
        sections.append(("Captured stderr of its processes", said))
    for rank, stack in enumerate(answer.stacks):
        if stack.strip():
            sections.append(
                (f"where rank {rank} was" if len(answer.stacks) > 1 else "where it was", supervisor.excerpt(stack))
            )
    return sections


def _report(item: pytest.Item, finding: Finding, sections: Sequence[tuple[str, str]] = ()) -> pytest.TestReport:
    """The report of the body, with the finding, and with these in place of what was captured."""

    def outcome() -> None:
        if finding.colour == "red":
            raise LeakError(block(finding, glyphs_of(item.config)))
        if finding.missing:
            pytest.skip(finding.missing)

    call = pytest.CallInfo.from_call(outcome, when="call", reraise=(pytest.exit.Exception, KeyboardInterrupt))
    report = pytest.TestReport.from_item_and_call(item, call)
    report.sections += sections
    report.duration = finding.recording.seconds
    report.user_properties += [
        (f"leakcheck.{verdict.resource}", f"{verdict.outcome} {law.order if law else ''}".strip())
        for verdict, law in zip(finding.verdicts, finding.laws, strict=True)
    ]
    attach(report, [finding])
    return report
