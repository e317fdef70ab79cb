"""What passes between an xdist controller and its workers, beside the findings that ride on test reports."""

from __future__ import annotations

from typing import Any, Final

import pytest

_KEY: Final = "leakcheck_encoding"


def is_worker(config: pytest.Config) -> bool:
    """Whether this process runs tests for a controller elsewhere."""
    return hasattr(config, "workerinput")


def told_encoding(config: pytest.Config) -> str | None:
    """In a worker, the encoding of the controller's terminal; None where none was told."""
    given: dict[str, Any] = getattr(config, "workerinput", {})
    return given.get(_KEY)


class Controller:
    """Registered on a controller only, since xdist's hooks are unknown without it."""

    @pytest.hookimpl
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[_KEY] = getattr(node.config.get_terminal_writer()._file, "encoding", None)
