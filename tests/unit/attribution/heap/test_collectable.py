"""How long an object is waited for that another thread still holds."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import pytest

from leaks import Item
from pytest_leakcheck.attribution.heap import collectable
from pytest_leakcheck.attribution.heap.collectable import Watched


def test_what_a_thread_holds_is_waited_for_a_second_with_ten_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is twice as long as the one before."""
    pauses: list[float] = []
    fake = SimpleNamespace(monotonic=lambda: sum(pauses), sleep=pauses.append)
    begun, ends = threading.Event(), threading.Event()

    def work(_item: Item) -> None:
        begun.set()
        ends.wait()

    item = Item()
    thread = threading.Thread(target=work, args=(item,))
    thread.start()
    begun.wait()
    monkeypatch.setattr(collectable, "clock", fake)
    try:
        held = Watched(item).find_holder(sys._getframe())
    finally:
        ends.set()
        thread.join()
    assert held is not None
    assert held.may_end
    assert len(pauses) == 10
    assert sum(pauses) == pytest.approx(1.0, rel=0.1)
