"""A suite of 310 tests without a mark, with 12 causes of leaks that 60 of them reach, beside the programs in `sessions`."""

from __future__ import annotations

from typing import Final

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


def leaky_tests() -> str:
    """Return a test file with the tests that reach the causes."""
    tests = [
        f"def test_{owner.replace('.', '_').lower()}_{number}(): {call}\n"
        for owner, (call, times) in CAUSES.items()
        for number in range(times)
    ]
    return _LEAKY + "\n" + "\n".join(tests)
