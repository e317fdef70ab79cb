"""Keep allure-pytest from recording a test more often than in its first iteration and its logged run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

import pytest

_LISTENER: Final = "allure_listener"


class AllureResults:
    """The part of allure-pytest that records what tests do. Without ``--alluredir``, all methods do nothing."""

    def __init__(self, config: pytest.Config) -> None:
        self._managers: list[Any] = []
        self._listener: Any = config.pluginmanager.getplugin(_LISTENER)
        if self._listener is not None:
            # Steps and attachments reach the listener through a plugin manager of Allure's own.
            self._managers = [config.pluginmanager, sys.modules["allure_commons"].plugin_manager]

    def pause(self) -> None:
        """Record nothing until `resume`."""
        for manager in self._managers:
            if manager.is_registered(self._listener):
                manager.unregister(self._listener)

    def resume(self) -> None:
        for manager in self._managers:
            if not manager.is_registered(self._listener):
                manager.register(self._listener, _LISTENER)

    def forget_run(self) -> None:
        """Remove what the first iteration added to the result of the test, which the logged run adds again."""
        if self._listener is not None:
            result = self._listener.allure_logger.get_test(None)
            for name in ("steps", "attachments", "parameters", "labels", "links"):
                getattr(result, name, []).clear()

    def conclude(self, reports: Sequence[pytest.TestReport]) -> None:
        """Give the result of a test the outcome of its reports, which were not made through pytest's hook."""
        if self._listener is None:
            return
        result = self._listener.allure_logger.get_test(None)
        red = next((report for report in reports if report.failed), None)
        if result is not None and result.status is None:
            model = sys.modules["allure_commons.model2"]
            result.status = model.Status.PASSED if red is None else model.Status.FAILED
            if red is not None:
                result.statusDetails = model.StatusDetails(
                    message=red.longreprtext.partition("\n")[0], trace=red.longreprtext
                )

    def drop(self, nodeid: str) -> None:
        """Write no result of a test here, because the subprocess that ran the test has written one."""
        uuid = self._listener._cache.pop(nodeid) if self._listener is not None else None
        if uuid is not None:
            self._listener.allure_logger.drop_test(uuid)
