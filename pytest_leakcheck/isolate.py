"""The near side of an isolated test: starts a process for one item, and logs the reports that come back as if made here.

What downstream sees is what an in-process run shows: a skip, an xfail, the test's own failure, subtests, captured
output, a `LeakError`. A process that dies, hangs or does not find the test is a failed report that says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import pytest
from _pytest.runner import runtestprotocol

from pytest_leakcheck import fresh
from pytest_leakcheck.budget import Budget
from pytest_leakcheck.child import Task
from pytest_leakcheck.finding import Finding, conclude
from pytest_leakcheck.markers import effort_of
from pytest_leakcheck.plan import Plan
from pytest_leakcheck.protocol import FINDINGS, PLAN, keep_first_line
from pytest_leakcheck.report.block import block
from pytest_leakcheck.runner import Result, describe_environment
from pytest_leakcheck.series import Recording
from pytest_leakcheck.session import encoding_of, glyphs_of
from pytest_leakcheck.settings import Settings
from pytest_leakcheck.verdict import Verdict

# Imports, collection and fixtures of every scope come before the first iteration.
_START_UP: Final = 60.0
# The path first, so that the child imports what this process does, and nothing from the folder that it is started in.
_PROGRAM: Final = """\
import sys
sys.path[:] = [path for path in sys.path if path]
import json
with open(sys.argv[1], encoding="utf-8") as file:
    told = json.load(file)
sys.path[:], sys.argv[:] = told["path"], told["argv"]
import pytest
sys.exit(pytest.main(told["arguments"]))
"""


class IsolatingProtocol:
    """The hook that sends an item away; registered with ``--leakcheck`` in every process but the child itself."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        plan = self._plan(item)
        if plan is None or not plan.effort.isolate:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        why_not = fresh.unsupported()
        if why_not:
            self._skip(item, nextitem, plan, why_not)
        else:
            self._run(item, nextitem, plan)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _plan(self, item: pytest.Item) -> Plan | None:
        """The plan of a test that is judged; one that judges by the fixture makes its own, so here it is a mere name."""
        if PLAN in item.stash:
            return item.stash[PLAN]
        option = item.config.option
        if "leakcheck" not in getattr(item, "fixturenames", ()) or option.usepdb or option.trace or option.setuponly:
            return None
        return Plan(item.nodeid, (Budget("fd"),), effort_of(self._settings))

    def _skip(self, item: pytest.Item, nextitem: pytest.Item | None, plan: Plan, why_not: str) -> None:
        verdicts = tuple(Verdict(budget.resource, "unavailable", reason=why_not) for budget in plan.budgets)
        recording = Recording(plan.test, (), environment=describe_environment())
        item.stash[PLAN] = plan
        item.stash[FINDINGS] = [
            conclude(Result(plan, recording, verdicts, {}), self._settings.fail_on, self._settings.missing)
        ]
        runtestprotocol(item, nextitem=nextitem)

    def _run(self, item: pytest.Item, nextitem: pytest.Item | None, plan: Plan) -> None:
        if item.config.pluginmanager.hasplugin("timeout"):
            # The child has a timer of its own, which starts with the test.
            item.ihook.pytest_timeout_cancel_timer(item=item)
        with tempfile.TemporaryDirectory(prefix="leakcheck-") as name:
            folder = Path(name)
            start = fresh.Start(
                _command(item, folder),
                cwd=item.config.invocation_params.dir,
                environment=fresh.quiet_environment(_environment()),
                show=item.config.getoption("capture") == "no",
            )
            ended = fresh.run(start, folder, patience=2 * plan.effort.max_time + _START_UP)
            told = list(_read(folder))
        reports = [_report(item, value) for kind, value in told if kind == "report"]
        for value in (value for kind, value in told if kind == "warning"):
            _warn(item, value)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        phases = [report.when for report in reports if not isinstance(report, pytest.SubtestReport)]
        if "teardown" not in phases:
            self._log_lost(item, plan, ended, [one for one in told if one[0] not in ("report", "warning")], phases)
        _tear_down(item, nextitem, log="teardown" not in phases)

    def _log_lost(
        self, item: pytest.Item, plan: Plan, ended: fresh.Ended, told: list[tuple[str, Any]], phases: Sequence[str]
    ) -> None:
        finding = _lost(plan, ended, told, self._settings)
        text = block(finding, glyphs_of(item.config))
        call = pytest.CallInfo.from_call(
            lambda: pytest.fail(text, pytrace=False), when="teardown" if "call" in phases else "call"
        )
        # Not by the hook: plugins that wrap it have seen no set-up of this item here.
        report = pytest.TestReport.from_item_and_call(item, call)
        report.leakcheck = [finding.to_json()]  # type: ignore[attr-defined]
        keep_first_line(report)
        collected = [value for kind, value in told if kind == "not collected"]
        said = "\n".join(collected) or ("" if told else ended.said).strip()
        if said:
            report.sections.append(("Captured stderr of its process", said))
        item.ihook.pytest_runtest_logreport(report=report)


def _command(item: pytest.Item, folder: Path) -> list[str]:
    """Write what the child is to know, and say how it is started."""
    config = item.config
    worker = getattr(config, "workerinput", None)
    # The folder of the session's ``tmp_path``, as xdist does for its workers: kept and removed with it.
    factory = getattr(config, "_tmp_path_factory", None)
    in_main_thread = threading.current_thread() is threading.main_thread()
    task = Task(
        test=_own_id(item),
        file=_relative(item.path, config.invocation_params.dir),
        reports=str(folder / "reports"),
        folder=str(folder),
        basetemp=str(factory.mktemp("isolated") / "tmp") if factory is not None else None,
        encoding=encoding_of(config),
        color="yes" if _has_colors(config) else "no",
        # The signal that tells a child of the end of its parent is sent at the end of the thread that started it.
        parent=os.getpid() if in_main_thread else 0,
        worker=worker,
    )
    Path(folder, "task").write_text(fresh.to_line(asdict(task)), encoding="utf-8")
    arguments = ["-p", "pytest_leakcheck.child", f"--leakcheck-task={folder / 'task'}"]
    if config.pluginmanager.hasplugin("pytest_cov"):
        arguments.append("--no-cov")
    arguments += [
        word for name in config.invocation_params.plugins or () if isinstance(name, str) for word in ("-p", name)
    ]
    arguments += map(str, config.invocation_params.args)
    told = {"path": [str(path) for path in sys.path], "argv": sys.argv, "arguments": arguments}
    Path(folder, "start").write_text(fresh.to_line(told), encoding="utf-8")
    return [sys.executable, *_interpreter_flags(), "-c", _PROGRAM, str(folder / "start")]


def _own_id(item: pytest.Item) -> str:
    """The node id as a process without workers has it: ``--dist=loadgroup`` puts the names of groups behind it."""
    marks = item.iter_markers("xdist_group")
    groups = {str(mark.args[0] if mark.args else mark.kwargs.get("name", "default")) for mark in marks}
    return item.nodeid.removesuffix(f"@{'_'.join(sorted(groups))}")


def _relative(path: Path, folder: Path) -> str:
    # Where it can be: pytest takes what follows a "[" for parameters, in the name of a folder above too.
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


def _has_colors(config: pytest.Config) -> bool:
    return config.pluginmanager.hasplugin("terminalreporter") and config.get_terminal_writer().hasmarkup


def _interpreter_flags() -> list[str]:
    """``-W``, ``-X`` and others that this process was started with, as `multiprocessing` hands them on."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return flags


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def _read(folder: Path) -> Iterator[tuple[str, Any]]:
    """What the child has written, up to a line that it could not finish."""
    path = folder / "reports"
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            kind, value = fresh.from_line(line)
        except ValueError:
            return
        yield kind, value


def _report(item: pytest.Item, data: dict[str, Any]) -> pytest.TestReport:
    data["nodeid"] = item.nodeid
    report = item.config.hook.pytest_report_from_serializable(config=item.config, data=data)
    assert isinstance(report, pytest.TestReport)
    if isinstance(report, pytest.SubtestReport):
        # They travel as text, which pytest quotes once more as it reads them.
        report.context.kwargs.update(data["_subtest.context"]["kwargs"])  # type: ignore[attr-defined]
    return report


def _warn(item: pytest.Item, told: dict[str, Any]) -> None:
    """Show a warning of the child's; a category that this process does not know is shown as a plain one."""
    module, name = told["category"]
    category = getattr(sys.modules.get(module), name, None)
    if not (isinstance(category, type) and issubclass(category, Warning)):
        category = Warning
    # Told by its text: the arguments of a warning may be anything.
    message = warnings.WarningMessage(told["text"], category, told["filename"], told["lineno"])
    item.ihook.pytest_warning_recorded.call_historic(
        kwargs={
            "warning_message": message,
            "when": "runtest",
            "nodeid": told["nodeid"],
            "location": told["location"],
        }
    )


def _lost(plan: Plan, ended: fresh.Ended, told: list[tuple[str, Any]], settings: Settings) -> Finding:
    """The finding on a test whose process ended without a verdict; red in any case."""
    kinds = {kind for kind, _value in told}
    advice = "what the process wrote last is below; run the test by itself to see more"
    if ended.hung:
        advice = f"mend what does not return, or give it more time: --leakcheck-max-time={4 * plan.effort.max_time:g}"
    reason = ended.reason
    if "not collected" in kinds:
        reason = "could not be collected in a process of its own"
        advice = "its file must be importable in a fresh process: what that said is below"
    elif "missing" in kinds:
        reason = "not found again by a process of its own"
        advice = (
            "the test file makes an id that differs from one collection to the next (of a time, an address, a random "
            "number?): give its parameters fixed ids, or measure it without isolate"
        )
    first = plan.budgets[0].resource
    count = max(0, ended.iteration - 1)
    verdict = Verdict(first, "inconclusive", iterations=count, reason=reason, advice=advice)
    recording = Recording(
        plan.test,
        (),
        warmup=plan.effort.warmup,
        seconds=round(ended.seconds, 6),
        stopped="lost",
        environment={**describe_environment(), "isolated": "ended without a verdict"},
    )
    return conclude(Result(plan, recording, (verdict,), {}), (*settings.fail_on, "inconclusive"))


def _tear_down(item: pytest.Item, nextitem: pytest.Item | None, *, log: bool) -> None:
    """End what earlier tests left up for this one and those after it do not need."""
    state = item.session._setupstate
    call = pytest.CallInfo.from_call(lambda: state.teardown_exact(nextitem), when="teardown")
    report = pytest.TestReport.from_item_and_call(item, call)
    if log or report.failed:
        item.ihook.pytest_runtest_logreport(report=report)
