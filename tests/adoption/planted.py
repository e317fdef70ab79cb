"""A suite of 310 tests without a mark, with 12 causes of leaks that 60 of them reach, as text for a project's folder."""

from __future__ import annotations

from typing import Final

# The package under test. Each function that a test calls leaks once per call, or with `every=2` in each second call.
SHOP: Final = """
    import os
    import socket
    import tempfile
    import threading

    OPENED, SOCKETS, THREADS, ORDERS, NAMES, PAGES, DRAFTS, SEEN = [], [], [], [], [], [], [], []
    WAIT = threading.Event()

    def open_log():
        OPENED.append(os.open(__file__, os.O_RDONLY))

    def connect():
        SOCKETS.append(socket.socket())

    def watch():
        thread = threading.Thread(target=WAIT.wait, daemon=True)
        thread.start()
        THREADS.append(thread)

    def order():
        ORDERS.append({"items": []})

    def name(calls=[0]):
        calls[0] += 1
        NAMES.append(b"%09d" % calls[0])

    def render():
        PAGES.append(bytearray(3000))

    def draft():
        handle, path = tempfile.mkstemp(prefix="draft")
        os.close(handle)
        DRAFTS.append(path)

    def visit(calls=[0]):
        calls[0] += 1
        if calls[0] % 2:
            SEEN.append(os.open(__file__, os.O_RDONLY))

    class Client:
        history = []

        def send(self):
            self.history.append([self])
"""
# An installed package: its leaks are reached by a line of the test's own each time.
VENDOR: Final = """
    import os

    HANDLES, EVENTS, BUFFERS = [], [], []

    def acquire():
        HANDLES.append(os.open(__file__, os.O_RDONLY))

    def emit():
        EVENTS.append([])

    def fill():
        BUFFERS.append(bytearray(5000))
"""
# The owner of each cause, with the call that leaks and how many tests make it.
CAUSES: Final = {
    "shop.OPENED": ("shop.open_log()", 4),
    "shop.SOCKETS": ("shop.connect()", 4),
    "shop.THREADS": ("shop.watch()", 4),
    "shop.ORDERS": ("shop.order()", 6),
    "shop.NAMES": ("shop.name()", 6),
    "shop.PAGES": ("shop.render()", 6),
    "shop.DRAFTS": ("shop.draft()", 4),
    "shop.SEEN": ("shop.visit()", 4),
    "Client.history": ("shop.Client().send()", 6),
    "vendor.HANDLES": ("vendor.acquire()", 4),
    "vendor.EVENTS": ("vendor.emit()", 6),
    "vendor.BUFFERS": ("vendor.fill()", 6),
}
_LEAKY: Final = """
import shop
import vendor
"""
CLEAN: Final = """
    import time
    import unittest

    import pytest
    from hypothesis import given, settings
    from hypothesis import strategies as st

    @pytest.mark.parametrize("number", range(200))
    def test_sorted(number, tmp_path):
        (tmp_path / "numbers").write_text(str(number))
        assert sorted(range(number, -1, -1))[0] == 0

    @pytest.mark.parametrize("number", range(20))
    class TestShared:
        @pytest.fixture(scope="class")
        def shared(self): return {}

        def test_it(self, number, shared):
            shared["last"] = number

    @pytest.mark.parametrize("number", range(5))
    def test_slow(number):
        time.sleep(0.05)

    class TestProperties:
        @settings(max_examples=5, deadline=None)
        @given(st.integers())
        def test_of_one_class(self, number): assert number == int(str(number))

    class TestOtherProperties:
        @settings(max_examples=5, deadline=None)
        @given(st.text())
        def test_of_another(self, text): assert text == "".join(text)

    class TestUnit(unittest.TestCase):
        def setUp(self): self.numbers = [1]

        def test_unit(self): self.assertEqual(self.numbers, [1])

        @unittest.skip("not here")
        def test_left_out(self): raise AssertionError

    @pytest.mark.parametrize("numbers", [iter([1, 2]), iter([1]), (n for n in (1, 2, 3))])
    def test_used_up(numbers): assert next(numbers) == 1

    def test_only_once(runs=[]):
        runs.append(1)
        assert len(runs) == 1

    RUNS = []

    def test_only_four_times():
        RUNS.append(1)
        assert len(RUNS) < 5

    @pytest.mark.parametrize("number", range(3))
    def test_skips(number): pytest.skip("not on this machine")

    @pytest.mark.parametrize("number", range(3))
    def test_fails(number): assert number < 0

    @pytest.mark.xfail(reason="known defect", strict=True)
    def test_xfails(): assert 0

    @pytest.mark.parametrize("number", range(5))
    def test_module_state(number, numbers=set()): numbers.add(number)
"""


def leaky_tests() -> str:
    """Return a test file with the tests that reach the causes."""
    tests = [
        f"def test_{owner.replace('.', '_').lower()}_{number}(): {call}\n"
        for owner, (call, times) in CAUSES.items()
        for number in range(times)
    ]
    return _LEAKY + "\n" + "\n".join(tests)
