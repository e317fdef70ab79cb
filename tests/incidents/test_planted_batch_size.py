"""Regressions of incident 5 turn the tests of its fixed arm red, and refactorings do not."""

from __future__ import annotations

import pytest

from planting import Change, judge_change, red_findings
from projects import Project

_HOOK = "    def on_fit_start(self, trainer"
_LOG = "_LOG: Final = logging.getLogger(__name__)\n"
_END = "        try:\n            self._add(self._gauge.highest())\n"
_ROOM = ("--leakcheck-max-time=600",)

# Each with the finding that must be red, or the assertion of the test that must fail.
REGRESSIONS = [
    (
        Change(
            "the modules of all runs are kept",
            {
                "callback.py": [
                    (_LOG, f"{_LOG}_HISTORY: Final[list[pl.LightningModule]] = []\n"),
                    (
                        "        self._gauge.reset()\n",
                        "        self._gauge.reset()\n        _HISTORY.append(pl_module)\n",
                    ),
                ]
            },
            "test_per_run",
            _ROOM,
        ),
        ("test_per_run[fixed]", "object", "leak"),
    ),
    (
        Change(
            "the losses of all steps are kept",
            {
                "callback.py": [
                    (
                        "        self._factor: float | None = None\n",
                        "        self._factor: float | None = None\n        self._losses: list[object] = []\n",
                    ),
                    (
                        _HOOK,
                        "    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):\n"
                        f"        self._losses.append(outputs['loss'])\n\n{_HOOK}",
                    ),
                ]
            },
            "test_per_step",
            _ROOM,
        ),
        ("test_per_step[fixed]", "vram", "leak"),
    ),
    (
        Change(
            "each run adds a handler for a log file",
            {
                "callback.py": [
                    (
                        "        self._factor: float | None = None\n",
                        "        self._factor: float | None = None\n"
                        "        _LOG.addHandler(logging.FileHandler(f'{path}.log'))\n",
                    )
                ]
            },
            "test_per_run",
            _ROOM,
        ),
        ("test_per_run[fixed]", "fd", "leak"),
    ),
    (
        Change(
            "each run makes a backup of the store",
            {
                "store.py": [
                    (
                        "                beside.replace(self.path)\n",
                        "                beside.replace(self.path)\n"
                        "                import time\n"
                        "                self.path.with_name(f'{self.path.name}.{time.time_ns()}').write_text(content)\n",
                    )
                ]
            },
            "test_per_run",
            _ROOM,
        ),
        ("test_per_run[fixed]", "disk", "leak"),
    ),
    (
        Change(
            "the store keeps all runs",
            {"store.py": [("(*before.runs, run)[-KEPT:]", "(*before.runs, run)")]},
            "test_per_run",
            _ROOM,
        ),
        "<= 50",
    ),
    (
        Change(
            "an empty entry is kept of each run",
            {
                "callback.py": [
                    (_LOG, f"{_LOG}_ENTRIES: Final[list[object]] = []\n"),
                    (
                        "        self._gauge.reset()\n",
                        "        self._gauge.reset()\n        _ENTRIES.append({})\n",
                    ),
                ]
            },
            "test_per_run",
            _ROOM,
        ),
        ("test_per_run[fixed]", "block", "leak"),
    ),
    (
        Change(
            "the factor is clamped as by the write-up",
            {"policy.py": [("HIGHEST: Final = 1.0", "HIGHEST: Final = 0.8")]},
            "test_learning",
        ),
        ("test_learning[fixed]", "gauge:idle", "over_budget"),
    ),
    (
        Change(
            "peaks are cut off at the target",
            {"callback.py": [(_END, _END.replace("self._gauge.highest()", "min(0.9, self._gauge.highest())"))]},
            "test_learning",
        ),
        ("test_learning[fixed]", "gauge:idle", "over_budget"),
    ),
]
REFACTORINGS = [
    Change(
        "the run is recorded as training ends",
        {"callback.py": [("    def on_fit_end(", "    def on_train_end(")]},
        "test_heavy or test_learning or test_per",
        _ROOM,
    ),
    Change(
        "runs are a bounded queue",
        {
            "store.py": [
                (
                    "from collections.abc import Iterator\n",
                    "from collections import deque\nfrom collections.abc import Iterator\n",
                ),
                (
                    "            records[key, device] = Record(key, device, (*before.runs, run)[-KEPT:])\n",
                    "            records[key, device] = Record(key, device, tuple(deque((*before.runs, run), KEPT)))\n",
                ),
            ]
        },
        "test_heavy or test_learning or test_per",
        _ROOM,
    ),
]


@pytest.mark.laboratory
@pytest.mark.parametrize(("change", "red"), REGRESSIONS, ids=lambda one: getattr(one, "what", ""))
def test_a_regression_is_red(project: Project, change: Change, red: tuple[str, str, str] | str) -> None:
    ran = judge_change(project, "batch_size", change)
    assert red in (ran.one_line if isinstance(red, str) else red_findings(ran)), ran.text
    assert ran.status == 1


@pytest.mark.laboratory
@pytest.mark.parametrize("change", REFACTORINGS, ids=lambda change: change.what)
def test_a_refactoring_is_ok(project: Project, change: Change) -> None:
    ran = judge_change(project, "batch_size", change)
    assert {one["verdict"] for one in ran.findings} == {"ok"}, ran.text
    assert ran.status == 0, ran.text
