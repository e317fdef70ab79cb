"""Write the outcomes of all tests to a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

CONFIG: pytest.Config
OUTCOMES: dict[str, list[str]] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes")


def pytest_configure(config: pytest.Config) -> None:
    global CONFIG
    CONFIG = config
    from hypothesis import settings

    settings.register_profile("short", max_examples=5)
    settings.load_profile("short")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.leakcheck:
        for item in items:
            item.add_marker(pytest.mark.leakcheck)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    category = CONFIG.hook.pytest_report_teststatus(report=report, config=CONFIG)[0]
    # A passed set-up or tear-down has no category.
    if category:
        OUTCOMES.setdefault(report.nodeid, []).append(f"{category} in {report.when}")


def pytest_unconfigure(config: pytest.Config) -> None:
    Path(config.option.outcomes).write_text(json.dumps(OUTCOMES))
