"""The command of an arm: what it loads, and what it is told; and an interrupt at the worst moment."""

from __future__ import annotations

import os
import signal
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from leakcheck_incidents.catalog import INCIDENTS
from pytest_leakcheck.repro.arm import Options, command_of, run_arms


@pytest.mark.parametrize("name", INCIDENTS)
def test_it_runs_the_arm_of_that_incident_with_the_plugins_that_it_needs(name: str) -> None:
    incident = INCIDENTS[name]
    command = command_of(incident, "leaky", Options(), Path("report.json"))
    loaded = [word for option, word in pairwise(command) if option == "-p"]
    assert {"leakcheck_incidents.material", *incident.plugins} <= set(loaded)
    assert ("leakcheck_incidents.simulated" in loaded) == (name == "batch_size")
    option, tests, *rest = command[-4:]
    assert (option, rest) == ("-k", ["--pyargs", f"leakcheck_incidents.{name}"])
    assert tests.startswith("leaky and (")
    assert all(one.test in tests for one in incident.arms["leaky"])


def test_options_are_passed_on() -> None:
    options = Options(iterations=50, ceiling="fd=256", colour=True)
    assert options.is_changed
    assert not Options(width=100, colour=True).is_changed
    command = command_of(INCIDENTS["pyav_loader"], "fixed", options, Path("report.json"))
    assert {"--leakcheck-iterations=50", "--leakcheck-ceiling=fd=256", "--color=yes"} <= set(command)


@pytest.mark.parametrize("cores", [1, 2])
def test_an_interrupt_just_as_an_arm_is_started_ends_it_and_makes_all_arms_partial(
    monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    started: list[psutil.Process] = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(psutil.Process(self.pid))
            # Whoever started it does not know of it yet.
            os.kill(os.getpid(), signal.SIGINT)

    # Also where the tests run as a shell's job in the background, which Ctrl-C does not reach.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    try:
        runs = run_arms(INCIDENTS["pyav_loader"], ("leaky", "fixed"), Options(), lambda _events: None)
    finally:
        signal.signal(signal.SIGINT, before)
    assert [(run.arm, run.interrupted) for run in runs] == [("leaky", True), ("fixed", True)]
    assert len(started) == cores
    assert not [one for one in started if one.is_running()]
    assert signal.getsignal(signal.SIGINT) is before
