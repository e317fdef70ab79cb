"""Find the shell command that measures one test again, for the last row of its report."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest

from pytest_leakcheck.config.settings import Settings
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.plugin.stash import ARGUMENTS, PLAN, SETTINGS
from pytest_leakcheck.report.glyphs import in_quotes

# If the search for the cause ran out of time, the command allows this multiple of the time.
MORE_TIME: Final = 4


def rerun_command(finding: Finding, item: pytest.Item) -> str:
    """Return a command for the folder in which pytest was started; empty if it would only repeat the session's own."""
    given = _words_of_session(item.config)
    options, target = _target_of(item, given)
    culprit, plan, more = finding.culprit, item.stash.get(PLAN, None), ""
    if culprit is not None and culprit.ran_out_of_time and plan is not None and not plan.effort.time_without_timeout:
        more = plan.effort.advise_time(MORE_TIME * plan.effort.max_time)
    folder = item.config.invocation_params.dir
    if not more and (target in given or _normalize(target, folder) in (_normalize(word, folder) for word in given)):
        return ""
    if "isolated" in finding.recording.environment:
        options = ("--leakcheck-isolate", *options)
    words = (command_of(item.config.stash[SETTINGS]), more, *options, in_quotes(target))
    return " ".join(filter(None, words))


def command_of(settings: Settings) -> str:
    """Return how each command begins: without its scope, a test without a mark would not be judged."""
    return "pytest --leakcheck-scope=all" if settings.scope == "all" else "pytest --leakcheck"


def plain_node_id(item: pytest.Item) -> str:
    """Return the node id without the group names that ``--dist=loadgroup`` appends."""
    marks = item.iter_markers("xdist_group")
    groups = {str(mark.args[0] if mark.args else mark.kwargs.get("name", "default")) for mark in marks}
    return item.nodeid.removesuffix(f"@{'_'.join(sorted(groups))}")


def _words_of_session(config: pytest.Config) -> tuple[str, ...]:
    """Return what selects the tests on the command line of the session; options may be among it."""
    worker: dict[str, Any] = getattr(config, "workerinput", {})
    return tuple(worker.get("mainargv", ())) or config.stash.get(ARGUMENTS, ()) or tuple(map(str, config.args))


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
