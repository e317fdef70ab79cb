"""Failures that are expected."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.mark.xfail(reason="known")
def test_known() -> None:
    assert 0


@pytest.mark.xfail(reason="known")
def test_not_any_more() -> None:
    pass


@pytest.mark.xfail(reason="known", strict=True)
def test_strict() -> None:
    assert 0


@pytest.mark.xfail(reason="known", strict=True)
def test_strict_but_passes() -> None:
    pass


@pytest.mark.xfail(raises=ValueError)
def test_raises() -> None:
    raise ValueError


@pytest.mark.xfail(run=False)
def test_is_not_run() -> None:
    raise SystemExit


def test_inside() -> None:
    pytest.xfail("seen inside")


def test_added(request: pytest.FixtureRequest) -> None:
    request.applymarker(pytest.mark.xfail(reason="added"))
    assert 0


@pytest.fixture
def broken() -> None:
    raise ValueError


@pytest.mark.xfail
def test_in_set_up(broken: None) -> None:
    pass


@pytest.fixture
def ends_badly() -> Iterator[None]:
    yield
    raise ValueError


@pytest.mark.xfail
def test_in_tear_down(ends_badly: None) -> None:
    pass
