"""Fixtures for all tests."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import HealthCheck, settings

from projects import Project
from pytest_leakcheck.runner import phases
from pytest_leakcheck.runner.phases import Phase
from pytest_leakcheck.runner.settling import Settling

if TYPE_CHECKING:
    # At run time these would be loaded before pytest has prepared their asserts.
    from huggingface_hub import HfApi

    from leakcheck_incidents.synthetic.hub.loopback import LoopbackHub


# A process that a shell starts in the background ignores Ctrl-C, and so do all that it starts; some tests press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes is the machine's matter, and none of these properties is about time.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# A mutant that only chance finds would be red in one run and green in the next.
settings.register_profile("mutants", settings.get_profile("suite"), derandomize=True)
settings.load_profile("suite")


# The files of the gate that take longest. They begin first, so that no worker is left with one of them at the end.
SLOWEST: Final = (
    "test_corpus",
    "test_arms",
    "test_scaling",
    "test_vram",
    "test_worlds",
    "test_isolate",
    "test_docs",
    "test_naming",
    "test_baseline",
    "test_bounded_work",
)


# They need torch, which has no wheels, or none without gigabytes for GPUs, for each Python (`ci/core --all`).
NEED_TORCH: Final = (
    "incidents/as_written/test_batch_size.py",
    "incidents/as_written/test_pyav_loader.py",
    "incidents/test_batch_size.py",
    "incidents/test_batch_size_training.py",
    "incidents/test_simulated_device.py",
    "incidents/test_watched_workers.py",
    "libraries/test_storages.py",
    "libraries/test_tensors.py",
    "watch/test_lightning.py",
)
collect_ignore = [] if find_spec("torch") else [*NEED_TORCH]


def pytest_report_header() -> str | None:
    release = sys.version.split()[0]
    return f"left out, without torch on {release}: {', '.join(collect_ignore)}" if collect_ignore else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: place for place, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A user's project, still empty."""
    return Project(tmp_path)


@pytest.fixture
def project_here(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A user's project whose sessions may run in this process: `Project.run_here`."""
    # pytester removes the modules that such a session has imported first, and with them what their annotations name.
    importlib.import_module("pytest_leakcheck.baseline.known_leaks")
    for name in [*(one for one in os.environ if one.startswith(("PYTEST", "COV_"))), "CI", "BUILD_NUMBER"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    return Project(pytester.path, pytester)


@pytest.fixture(autouse=True)
def _short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, descriptors that are kept on purpose need not be waited for; the waiting is tested with threads."""
    monkeypatch.setattr(Settling, "seconds_alone", 0.002)
    monkeypatch.setattr(Settling, "seconds_held", 0.002)


@pytest.fixture(scope="module")
def frozen() -> Iterator[None]:
    """As in a program that has frozen its own objects: walking those of the whole suite would cost most of the time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held for good is waited for in vain: a shorter time says the same."""
    monkeypatch.setattr(Settling, "seconds", 0.01)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the phases that have begun, in order. Each must be one that may follow the one before it."""
    found: list[str] = []
    known = {name: one for name, one in vars(phases).items() if isinstance(one, type) and issubclass(one, Phase)}

    def recorded(begin: Callable[[Phase], Phase]) -> Callable[[Phase], Phase]:
        def record_and_begin(self: Phase) -> Phase:
            found.append(type(self).__name__)
            return begin(self)

        return record_and_begin

    for one in known.values():
        if "begin" in vars(one):
            monkeypatch.setattr(one, "begin", recorded(one.begin))
    yield found
    # A repetition that has ended is followed by none, and the next one begins with its warm-up.
    repetitions = [pair for pair in pairwise(found) if pair[1] != "WarmUp"]
    assert [(one, after) for one, after in repetitions if after not in known[one].follows] == []


@pytest.fixture
def api(loopback_hub: LoopbackHub) -> HfApi:
    # Loaded only here: most tests do without.
    from huggingface_hub import HfApi

    return HfApi(endpoint=loopback_hub.url, token=loopback_hub.token)
