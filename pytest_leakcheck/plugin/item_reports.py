"""Make, change and log the reports of measured items, and end each item.

At its turn, an item logs its first run, with the finding. In the second pass, only a red finding is
logged. If pytest-rerunfailures is to re-run the test, the first run counts as its first attempt.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

# The functions themselves: a test may replace those of the module.
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import pytest
from _pytest.outcomes import OutcomeException
from _pytest.runner import runtestprotocol

from pytest_leakcheck.config.settings import Settings
from pytest_leakcheck.judge.conclude_finding import Policy, Result, conclude, interrupted
from pytest_leakcheck.model import describe_error
from pytest_leakcheck.model.decoding import decode
from pytest_leakcheck.model.finding import WORST_FIRST, Finding
from pytest_leakcheck.plugin import keys
from pytest_leakcheck.plugin.inert import LeakError
from pytest_leakcheck.plugin.other_plugins import AllureResults
from pytest_leakcheck.plugin.pytest_versions import is_of_subtest
from pytest_leakcheck.plugin.undisturbed import OriginalFunctions
from pytest_leakcheck.probes.foreign_files import Unreadable, parse
from pytest_leakcheck.probes.runtime_counters import with_subclasses
from pytest_leakcheck.report.finding_text import WIDTH, Line, junit_properties, plain, styled_lines
from pytest_leakcheck.report.glyphs import in_quotes, printable
from pytest_leakcheck.report.json_file import to_line

if TYPE_CHECKING:
    from pytest_leakcheck.plugin.isolation.messages import Messages, RecordedWarning

# If the search for the cause ran out of time, the command allows this multiple of the time.
MORE_TIME: Final = 4


@dataclass(frozen=True)
class _Sent:
    """What a report must have to be logged; what plugins have added is not looked at."""

    SPARSE: ClassVar = True

    location: tuple[str, int | None, str]
    keywords: Mapping[str, Any]
    outcome: Literal["passed", "failed", "skipped", "rerun"]
    when: Literal["setup", "call", "teardown"]
    sections: tuple[tuple[str, str], ...]
    user_properties: tuple[tuple[Any, Any], ...]
    duration: float
    start: float
    stop: float
    wasxfail: str = ""
    leakcheck: str = ""
    leakcheck_red: str = ""
    leakcheck_known: str = ""
    leakcheck_unmeasured: str = ""


@dataclass(frozen=True)
class _Crash:
    """Where a test failed, as the short summary shows it."""

    path: str
    lineno: int
    message: str


def reports_of(item: pytest.Item, messages: Messages) -> list[pytest.TestReport]:
    """Restore the reports that a subprocess has sent, with the item's node id in this process.

    Raises:
        Unreadable: A report would break the session, because the test disturbed the process.
    """
    reports = []
    for data in messages.reports:
        try:
            reports.append(_restore(item, data))
        except Exception as error:  # noqa: BLE001 - whatever pytest or a plugin raises for a damaged report
            raise Unreadable(f"a report: {describe_error(error)}") from None
    return reports


def _restore(item: pytest.Item, data: dict[str, Any]) -> pytest.TestReport:
    with OriginalFunctions():
        data = _checked(item, data)
    report = item.config.hook.pytest_report_from_serializable(config=item.config, data=data)
    if not isinstance(report, pytest.TestReport):
        raise Unreadable("it is none of a test")
    if is_of_subtest(report):
        # The values were serialized as text; pytest's deserialization quotes them again, so restore
        # them unquoted.
        report.context.kwargs.update(data["_subtest.context"]["kwargs"])
    # What the terminal will do with it.
    str(report.longreprtext)
    if (crash := getattr(report.longrepr, "reprcrash", None)) is not None:
        decode(_Crash, vars(crash))
    return report


def _checked(item: pytest.Item, data: dict[str, Any]) -> dict[str, Any]:
    """Return what a child sent as a report of this item; raise `Unreadable` for other content."""
    sent = decode(_Sent, data)
    replacing = [name for name in data if name != "nodeid" and hasattr(pytest.TestReport, name)]
    if replacing:
        raise Unreadable(f"{replacing[0]} is a method")
    findings = [_as_of(item, parse(Finding, line)) for line in sent.leakcheck.splitlines()]
    for finding in findings:
        plain(styled_lines(finding, WIDTH, ""))
    # JSON has made lists of what plugins expect as tuples; pytest recognizes a skipped test by one.
    skipped = isinstance(data["longrepr"], list)
    longrepr = (
        decode(tuple[str, int | None, str], data["longrepr"]) if skipped else data["longrepr"]
    )
    # JUnit's XML relies on both.
    odd = sent.outcome == "failed" and longrepr is None
    odd |= sent.outcome == "skipped" and not (skipped or "wasxfail" in data)
    reruns = item.config.pluginmanager.hasplugin("rerunfailures")
    if odd or (sent.outcome == "rerun" and not reruns):
        raise Unreadable(f"{sent.outcome} without a reason")
    return data | {
        "nodeid": item.nodeid,
        "leakcheck": to_lines(findings, item.config.stash[keys.SETTINGS]),
        "location": sent.location,
        "longrepr": longrepr,
        "sections": list(sent.sections),
        "user_properties": list(sent.user_properties),
    }


def _as_of(item: pytest.Item, finding: Finding) -> Finding:
    recording = replace(finding.recording, test=item.nodeid)
    return replace(finding, test=item.nodeid, recording=recording)


def warn(item: pytest.Item, warned: Iterable[RecordedWarning]) -> None:
    """Log warnings from a child process; a category not imported here becomes `Warning`."""
    # A look-up by name could run the code of a module, or import one.
    imported = {(one.__module__, one.__qualname__): one for one in with_subclasses(Warning)}
    for warning in warned:
        category = imported.get(warning.category, Warning)
        message = warnings.WarningMessage(warning.text, category, warning.filename, warning.lineno)
        recorded = {
            "warning_message": message,
            "when": "runtest",
            "nodeid": warning.nodeid,
            "location": warning.location,
        }
        item.ihook.pytest_warning_recorded.call_historic(kwargs=recorded)


def make_report(
    item: pytest.Item,
    finding: Finding,
    sections: Iterable[tuple[str, str]] = (),
    when: Literal["call", "teardown"] = "call",
) -> pytest.TestReport:
    """Make the report on an item that ran elsewhere.

    A red finding fails the test, and an unreadable resource skips it. The report does not come from
    the hook that makes reports, because plugins that wrap it have not seen the set-up here.
    """

    def outcome() -> None:
        if finding.recording.stopped == "lost":
            pytest.fail(str(leak_error(finding, item)), pytrace=False)
        apply(finding, item)

    # JUnit's XML takes them from the report of the tear-down.
    item.user_properties += junit_properties(finding)
    call = pytest.CallInfo.from_call(
        outcome, when=when, reraise=(pytest.exit.Exception, KeyboardInterrupt)
    )
    report = pytest.TestReport.from_item_and_call(item, call)
    report.sections += sections
    report.duration = finding.recording.seconds
    attach(report, item, [finding], call)
    return report


def apply(finding: Finding, item: pytest.Item, settings: Settings | None = None) -> None:
    """Raise `LeakError` for a red finding; skip the test if a named resource could not be read."""
    if finding.colour == "red":
        raise leak_error(finding, item)
    # Under --leakcheck-fail-on=none, each test has the outcome that it has without the plugin.
    if finding.missing and (settings is None or settings.fail_on):
        raise pytest.skip.Exception(printable(finding.missing), _use_item_location=True)


def _apply_all(findings: Sequence[Finding], item: pytest.Item, settings: Settings) -> None:
    """Apply the worst finding; if several are red, raise one error with a report of each cause."""
    causes: dict[str, Finding] = {}
    for found in findings:
        if found.colour == "red":
            causes.setdefault(found.fingerprint, found)
    if len(causes) < 2:
        apply(worst_of(findings), item, settings)
        return
    lines: list[Line] = []
    for finding in causes.values():
        lines += [*([()] if lines else []), *leak_error(finding, item).lines]
    raise LeakError(plain(lines), tuple(lines))


def leak_error(finding: Finding, item: pytest.Item) -> LeakError:
    """Return the error that fails an item, with the report of its finding."""
    config, width = item.config, WIDTH
    if config.pluginmanager.hasplugin("terminalreporter"):
        # A longer line is hard to read.
        width = max(WIDTH, min(120, config.get_terminal_writer().fullwidth))
    lines = tuple(styled_lines(finding, width, rerun_command(finding, item)))
    return LeakError(plain(lines), lines)


def attach(
    report: pytest.TestReport,
    item: pytest.Item,
    findings: list[Finding],
    call: pytest.CallInfo[None] | None = None,
) -> None:
    """Store findings on an item's report, as text, and the lines of a `LeakError` of the `call`.

    pytest keeps all reports: objects of theirs would make every later collection of garbage slower.
    """
    red = [
        finding.verdict.outcome
        for finding in findings
        if finding.colour == "red" and finding.recording.stopped != "lost"
    ]
    # Only what is needed: with more attributes, the dict of each report that pytest keeps would
    # take 768 bytes more.
    if red:
        report.leakcheck_red = min(red, key=WORST_FIRST.index)  # type: ignore[attr-defined]
    if known := next((one.known for one in findings if one.known), ""):
        report.leakcheck_known = known  # type: ignore[attr-defined]
    with OriginalFunctions():
        report.leakcheck = to_lines(findings, item.config.stash[keys.SETTINGS])  # type: ignore[attr-defined]
    error = call.excinfo.value if call is not None and call.excinfo is not None else None
    if isinstance(error, LeakError):
        report.leakcheck_lines = error.lines  # type: ignore[attr-defined]
    # The short summary, JUnit and annotations show the crash message; on CI, pytest does not
    # shorten it.
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None and crash.message.startswith(("LeakError: ", "Failed: ")):
        crash.message = crash.message.partition("\n")[0]


def to_lines(findings: Iterable[Finding], settings: Settings) -> str:
    """Return findings as lines of the JSON report, in which they travel.

    The readings of a green finding are optional.
    """
    every = settings.json_readings == "all"
    return "".join(
        to_line(finding if every or finding.colour != "green" else _without_readings(finding))
        for finding in findings
    )


def _without_readings(finding: Finding) -> Finding:
    return replace(finding, recording=replace(finding.recording, series=()))


def findings_of(text: str, nodeid: str = "") -> list[Finding]:
    """Return the findings in a text of `to_lines`; they share a given `nodeid` to save memory."""
    found = [loads(line) for line in text.splitlines()]
    for entry in found:
        for part in (entry, entry["recording"]):
            if part["test"] == nodeid:
                part["test"] = nodeid
    return [decode(Finding, one) for one in found]


def report_findings(
    item: pytest.Item, findings: Iterable[Finding], results: Iterable[Result] = ()
) -> None:
    """Report the findings of a test that Ctrl-C ends, and verdicts on what was not judged.

    pytest logs no report of such a test. The findings are added to those of the session in the
    process that prints; another process ends without them.
    """
    session: Any = item.config.pluginmanager.getplugin("leakcheck-session")
    with OriginalFunctions(), contextlib.suppress(Exception):
        for finding in findings:
            session.add(finding)
        policy = Policy.of(item.config.stash[keys.SETTINGS], item.config.stash[keys.KNOWN])
        for result in results:
            session.add(conclude(interrupted(result), policy))


def rerun_command(finding: Finding, item: pytest.Item) -> str:
    """Return a command to run where pytest was started; empty if it repeats the session's own."""
    config, folder = item.config, item.config.invocation_params.dir
    # What selects the tests on the command line of the session; options may be among it.
    worker: dict[str, Any] = getattr(config, "workerinput", {})
    given = (
        tuple(worker.get("mainargv", ()))
        or config.stash.get(keys.ARGUMENTS, ())
        or tuple(map(str, config.args))
    )
    options, target = _target_of(item, given)
    culprit, plan, more = finding.culprit, item.stash.get(keys.PLAN, None), ""
    if (
        culprit is not None
        and culprit.ran_out_of_time
        and plan is not None
        and not plan.effort.time_without_timeout
    ):
        more = plan.effort.advise_time(MORE_TIME * plan.effort.max_time)
    if not more and (
        target in given
        or _normalize(target, folder) in (_normalize(word, folder) for word in given)
    ):
        return ""
    if "isolated" in finding.recording.environment:
        options = ("--leakcheck-isolate", *options)
    words = (command_of(config.stash[keys.SETTINGS]), more, *options, in_quotes(target))
    return " ".join(filter(None, words))


def command_of(settings: Settings) -> str:
    """Return how each command begins; without its scope, unmarked tests would not be judged."""
    return "pytest --leakcheck-scope=all" if settings.scope == "all" else "pytest --leakcheck"


def plain_node_id(item: pytest.Item) -> str:
    """Return the node id without the group names that ``--dist=loadgroup`` appends."""
    marks = item.iter_markers("xdist_group")
    groups = {
        str(mark.args[0] if mark.args else mark.kwargs.get("name", "default")) for mark in marks
    }
    return item.nodeid.removesuffix(f"@{'_'.join(sorted(groups))}")


def _target_of(item: pytest.Item, given: Iterable[str]) -> tuple[tuple[str, ...], str]:
    """Return options and the argument with which pytest finds this test again."""
    config = item.config
    inside = plain_node_id(item).partition("::")[2]
    folder, path = config.invocation_params.dir, item.path
    if path.is_relative_to(config.rootpath) or path.is_relative_to(folder):
        return (), f"{os.path.relpath(path, folder)}::{inside}"
    # The file belongs to an installed package.
    module = getattr(getattr(item, "module", None), "__name__", "")
    if module and (config.getoption("pyargs") or "--pyargs" in given):
        return ("--pyargs",), f"{module}::{inside}"
    return (), f"{path}::{inside}"


def _normalize(word: str, folder: Path) -> str:
    file, separator, inside = word.partition("::")
    return os.path.normpath(Path(folder, file)) + separator + inside


def end_item(
    item: pytest.Item, nextitem: pytest.Item | None, reports: list[pytest.TestReport]
) -> None:
    """Log the reports of a finished run, or run the item if there are none; log the item's end."""
    if reports:
        _tear_down(item, nextitem, reports)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
    else:
        runtestprotocol(item, nextitem=nextitem)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def _tear_down(
    item: pytest.Item, nextitem: pytest.Item | None, reports: list[pytest.TestReport]
) -> None:
    """Tear down fixtures that the next item does not need; put the outcome into the reports."""
    call, sections = _call_teardown(item, nextitem)
    if reports[-1].when == "teardown":
        sections = reports[-1].sections + sections
        if call.excinfo is not None and not reports[-1].failed:
            reports[-1] = _report_of_call(item, call)
    else:
        reports.append(_report_of_call(item, call))
    reports[-1].sections = sections


def tear_down_unlogged(
    item: pytest.Item, nextitem: pytest.Item | None, limit: contextlib.AbstractContextManager[None]
) -> None:
    """Tear down fixtures that the next item does not need, within a limit; discard the outcome."""
    captured = len(item._report_sections)
    with warnings.catch_warnings(record=True), contextlib.suppress(OutcomeException), limit:
        _call_teardown(item, nextitem, KeyboardInterrupt)
    del item._report_sections[captured:]


def _call_teardown(
    item: pytest.Item, nextitem: pytest.Item | None, reraise: type[BaseException] | None = None
) -> tuple[pytest.CallInfo[None], list[tuple[str, str]]]:
    """Tear down, and return what came of it, and the output as sections of a report."""
    state = item.session._setupstate
    captured = len(item._report_sections)
    capture = item.config.pluginmanager.getplugin("capturemanager")
    with (
        capture.item_capture("teardown", item) if capture is not None else contextlib.nullcontext()
    ):
        call = pytest.CallInfo.from_call(
            lambda: state.teardown_exact(nextitem), when="teardown", reraise=reraise
        )
    return call, [
        (f"Captured {key} {when}", text) for when, key, text in item._report_sections[captured:]
    ]


def log_leak(item: pytest.Item, finding: Finding) -> None:
    """Log a red finding as one more report of a logged item; a tear-down ends it for JUnit."""
    item.stash[keys.FINDINGS] = [finding]
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    call = pytest.CallInfo.from_call(lambda: apply(finding, item), when="call")
    end = pytest.CallInfo.from_call(lambda: None, when="teardown")
    for phase in (call, end):
        item.ihook.pytest_runtest_logreport(report=_report_of_call(item, phase))
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def worst_of(findings: Sequence[Finding]) -> Finding:
    """Return the first of the findings that is red, or else the first one."""
    return next((one for one in findings if one.colour == "red"), findings[0])


def with_findings(
    item: pytest.Item,
    reports: Sequence[pytest.TestReport],
    findings: Sequence[Finding],
    settings: Settings,
) -> list[pytest.TestReport]:
    """Add findings, at least one, to the reports of a run that passed."""
    changed = []
    for report in reports:
        if not is_of_subtest(report):
            if report.when == "call":
                report = _apply_findings(item, report, findings, settings)  # noqa: PLW2901 - only the call report is replaced
            known = {name for name, _value in report.user_properties}
            report.user_properties += [
                (name, value) for name, value in item.user_properties if name not in known
            ]
        changed.append(report)
    if any(report.failed for report in changed):
        AllureResults(item.config).conclude(changed)
    return changed


def _apply_findings(
    item: pytest.Item, report: pytest.TestReport, findings: Sequence[Finding], settings: Settings
) -> pytest.TestReport:
    """Attach findings to a call report; replace it for a red one, or an unreadable resource."""
    call = pytest.CallInfo.from_call(lambda: _apply_all(findings, item, settings), when="call")
    if call.excinfo is None:
        attach(report, item, [*findings])
        # ``--durations`` and JUnit show where the time of a session goes.
        report.duration = item.stash[keys.REPEATED]
        return report
    changed = _report_of_call(item, call)
    changed.sections, changed.start, changed.stop = report.sections, report.start, report.stop
    return changed


def _report_of_call(item: pytest.Item, call: pytest.CallInfo[None]) -> pytest.TestReport:
    """Make a report as pytest does, including its handling of expected failures."""
    manager = item.config.pluginmanager
    # Other plugins may request fixtures in this hook, but the fixtures are already torn down.
    makers = ("runner", "skipping", "leakcheck-repeater")
    others = [
        plugin
        for name, plugin in manager.list_name_plugin()
        if plugin is not None and name not in makers
    ]
    hook = manager.subset_hook_caller("pytest_runtest_makereport", others)
    report: pytest.TestReport = hook(item=item, call=call)
    return report


def rerunner_of(item: pytest.Item) -> Any:
    """Return the rerunfailures module if it re-runs the item; not in a process for one test."""
    plugin: Any = item.config.pluginmanager.getplugin("rerunfailures")
    needed = ("get_reruns_count", "pytest_runtest_protocol", "runtestprotocol")
    known = all(callable(getattr(plugin, name, None)) for name in needed)
    return (
        plugin
        if known and keys.PROCESS not in item.config.stash and plugin.get_reruns_count(item)
        else None
    )


def hand_to_rerunfailures(
    plugin: Any,
    item: pytest.Item,
    nextitem: pytest.Item | None,
    reports: Sequence[pytest.TestReport],
) -> bool:
    """Log a failed iteration as the first attempt, run the others; return False with subtests."""
    if any(is_of_subtest(report) for report in reports):
        return False
    original = plugin.runtestprotocol

    def first_attempt(*_args: object, **_kwargs: object) -> Sequence[pytest.TestReport]:
        plugin.runtestprotocol = original
        return reports

    # The plugin has no hook for an attempt that was made already, so its name for pytest's function
    # is replaced.
    plugin.runtestprotocol = first_attempt
    try:
        return plugin.pytest_runtest_protocol(item, nextitem) is True
    finally:
        plugin.runtestprotocol = original
