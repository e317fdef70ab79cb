"""Run arms: their command, their output in order, and an interrupt at the worst moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from leakcheck_incidents.catalog import INCIDENTS
from leakcheck_incidents.repro import run_arm as module
from leakcheck_incidents.repro.run_arm import Options, command_of, run_arms


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


# The leaky arm ends once its first half has been shown; the fixed arm has ended by then where both run at a time.
HALVES = """
import pathlib, sys, time
arm, seen = sys.argv[1], pathlib.Path(sys.argv[2])
print(f"{arm} begins \u00e9\u2014", flush=True)
while arm == "leaky" and not seen.exists():
    time.sleep(0.01)
print(f"{arm} ends", flush=True)
"""


@pytest.mark.parametrize("cores", [1, 2])
def test_output_is_shown_while_an_arm_runs_and_arm_after_arm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cores: int
) -> None:
    seen = tmp_path / "seen"
    shown: list[tuple[str, str]] = []

    def show(arm: str, text: str) -> None:
        shown.append((arm, text))
        if "begins" in "".join(text for _arm, text in shown):
            seen.touch()

    def command(_incident: object, arm: str, *_more: object) -> list[str]:
        return [sys.executable, "-X", "utf8", "-c", HALVES, arm, str(seen)]

    monkeypatch.setattr(module, "command_of", command)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    runs = run_arms(INCIDENTS["pyav_loader"], ("leaky", "fixed"), Options(), show)
    assert [(run.arm, run.status, run.report) for run in runs] == [("leaky", 0, None), ("fixed", 0, None)]
    text = "".join(text for _arm, text in shown)
    assert text == "leaky begins é—\nleaky ends\nfixed begins é—\nfixed ends\n"
    assert all(arm in text for arm, text in shown if text)


@pytest.mark.parametrize("cores", [1, 2])
def test_an_interrupt_just_as_an_arm_is_started_ends_it_and_makes_all_arms_partial(
    monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    started: list[psutil.Process] = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(psutil.Process(self.pid))
            # The caller does not have the started process's object yet.
            os.kill(os.getpid(), signal.SIGINT)

    # Also where the tests run as a shell's job in the background, which Ctrl-C does not reach.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    try:
        runs = run_arms(INCIDENTS["pyav_loader"], ("leaky", "fixed"), Options(), lambda _arm, _text: None)
    finally:
        signal.signal(signal.SIGINT, before)
    assert [(run.arm, run.interrupted) for run in runs] == [("leaky", True), ("fixed", True)]
    assert len(started) == cores
    assert not [one for one in started if one.is_running()]
    assert signal.getsignal(signal.SIGINT) is before
