"""concurrent.interpreters: a closed interpreter leaves its memory behind; not yet run on the release that leaks."""

from __future__ import annotations

import pytest

interpreters = pytest.importorskip("concurrent.interpreters")

RELEASES = ("python==3.14.0",)


@pytest.mark.leakcheck
def test_leaky() -> None:
    interpreters.create().close()


@pytest.mark.leakcheck
def test_control() -> None:
    interpreters.list_all()
