"""The search for a cause: what it makes of what it finds."""

from __future__ import annotations

import sys

import pytest

from pytest_leakcheck.attribution.heap.owner_search import Holders, Sought
from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.model.culprit import Owner
from pytest_leakcheck.runner import diagnosis
from pytest_leakcheck.runner.repetition import Measuring
from repeats import repeat

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts exactly on Linux"),
    pytest.mark.usefixtures("frozen", "impatient"),
]


def test_an_owner_without_a_container_is_named_and_the_search_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a running frame, which holds what leaks by a local variable: there is no container to follow."""
    owner = Owner("frame of serve()", "frame of serve()", (), "FileIO", 0.0)
    searched: list[Sought] = []

    def search(sought: Sought, *_rest: object, deadline: float) -> Holders:  # noqa: ARG001 - as the original
        searched.append(sought)
        return Holders((owner,))

    monkeypatch.setattr(diagnosis, "search", search)
    # It grows as it is read, so that no line of the program makes it grow.
    ticks = iter(range(1_000_000))
    result = repeat(int, Budget("gauge:ticks", 0), gauges={"ticks": lambda: next(ticks)})
    assert searched
    assert result.culprit
    assert result.culprit.owner == owner
    assert set(result.culprit.unresolved) == {"site"}
    assert "please report this" not in result.culprit.unresolved["site"]


def test_growth_that_ends_before_the_search_has_neither_line_nor_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """What grows in the search in its place, such as the cache of a library, is a bystander."""
    kept: list[object] = []
    bystander: list[object] = []
    ended = False

    def work() -> None:
        (bystander if ended else kept).append([])

    def search(self: diagnosis.CauseSearch) -> bool:
        nonlocal ended
        ended = ends
        return done(self)

    done = diagnosis.CauseSearch.iteration_done
    monkeypatch.setattr(diagnosis.CauseSearch, "iteration_done", search)
    # The verdict stands, as if it had come a second time.
    monkeypatch.setattr(Measuring, "_may_withdraw", lambda _self: False)
    for ends in (True, False):
        ended = False
        gauges = {"kept": lambda: len(kept)}
        result = repeat(work, Budget("gauge:kept", 0), gauges=gauges)
        assert result.culprit
        if ends:
            reason = "+0.0 of +1.0/iter while traced: it depends on time, or has ended"
            assert result.culprit.unresolved == {"site": reason, "owner": reason}
            assert result.culprit.site is None
        else:
            assert result.culprit.site
            assert result.culprit.owner
