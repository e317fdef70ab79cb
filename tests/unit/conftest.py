"""Unit tests are fast."""

from __future__ import annotations

import pytest

from pytest_leakcheck import panel


@pytest.fixture(autouse=True)
def _short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Descriptors that are kept on purpose need not be waited for; the waiting itself is tested with threads."""
    monkeypatch.setattr(panel, "_SETTLE_DESCRIPTORS", 0.002)
