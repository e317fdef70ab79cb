"""Register the measuring hooks of a session with ``--leakcheck``."""

from __future__ import annotations

import os
import tempfile

import pytest

from pytest_leakcheck.attribution.call_paths import set_project
from pytest_leakcheck.attribution.tracing.traced_children import prepare_children, release_children
from pytest_leakcheck.config.settings import Settings
from pytest_leakcheck.plugin import fixture, timeout
from pytest_leakcheck.plugin.baseline_session import BaselineSession
from pytest_leakcheck.plugin.chosen_tests import Sampling
from pytest_leakcheck.plugin.collection import Collection
from pytest_leakcheck.plugin.github_actions import GithubActions
from pytest_leakcheck.plugin.item_protocol import ItemProtocol, ItemState
from pytest_leakcheck.plugin.progress_line import ProgressLine
from pytest_leakcheck.plugin.repeated_item import Repeater
from pytest_leakcheck.plugin.session_report import SessionReport
from pytest_leakcheck.plugin.shown_failures import FoldedFailures
from pytest_leakcheck.plugin.stash import PROCESS
from pytest_leakcheck.plugin.workers_line import WorkersLine
from pytest_leakcheck.plugin.xdist import is_distributed, is_worker, use_own_folder
from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.audit_events import leave_out
from pytest_leakcheck.runner.processes.private_tmpdir import remove_stale


def register(config: pytest.Config, settings: Settings) -> None:
    """Register the measuring hooks; a process that runs tests moves to its own temporary folder."""
    set_project(config.rootpath, settings.blame)
    # pytest removes the folders of `tmp_path` by itself.
    basetemp = config.getoption("basetemp", None)
    shared = os.environ.get("PYTEST_DEBUG_TEMPROOT") or tempfile.gettempdir()
    leave_out(os.path.realpath(basetemp) if basetemp else f"{os.path.realpath(shared)}/pytest-of-")
    if prepare_children():
        config.add_cleanup(release_children)
    if settings.vram == "accounted":
        from pytest_leakcheck.probes.custom_probe import account_for_tensors, remove_probes

        account_for_tensors()
        config.add_cleanup(remove_probes)
    if PROCESS not in config.stash:
        if not is_worker(config):
            remove_stale(clock.wall_time())
        if is_worker(config) or not is_distributed(config):
            use_own_folder(config)
    sampling = Sampling(config, settings) if PROCESS not in config.stash else None
    collection = Collection(settings, sampling)
    baseline = BaselineSession(config, settings, collection.collected)
    session = SessionReport(config, settings, baseline, sampling)
    config.pluginmanager.register(session, "leakcheck-session")
    if sampling is not None and not is_worker(config):
        if os.environ.get("GITHUB_ACTIONS") == "true":
            github = GithubActions(config, session.headline)
            session.listeners.append(github.add)
            config.pluginmanager.register(github, "leakcheck-github")
        line = WorkersLine(config, sampling) if is_distributed(config) else ProgressLine(config, sampling)
        session.listeners.append(line.add)
        config.pluginmanager.register(line, "leakcheck-progress")
        config.pluginmanager.register(FoldedFailures(config), "leakcheck-folded-failures")
    repeater = Repeater(settings)
    config.pluginmanager.register(collection, "leakcheck-collection")
    config.pluginmanager.register(repeater, "leakcheck-repeater")
    config.pluginmanager.register(timeout, "leakcheck-timer")
    config.pluginmanager.register(fixture, "leakcheck-fixture")
    config.pluginmanager.register(ItemProtocol(settings, repeater), "leakcheck-protocol")
    if sampling is not None:
        config.pluginmanager.register(sampling, "leakcheck-sampling")
    # The last one: of hooks that run first, its own runs first, so the others know whether the item is measured.
    config.pluginmanager.register(ItemState(), "leakcheck-state")
