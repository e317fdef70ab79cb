"""hmac: each digest leaves memory behind if CPython computes it itself, because OpenSSL lacks its algorithm.

Not yet run on the release that leaks.
"""

from __future__ import annotations

import hmac

import pytest

RELEASES = ("python==3.14.0",)

hmac._hashopenssl = None  # type: ignore[attr-defined]


@pytest.mark.leakcheck
def test_leaky() -> None:
    hmac.new(b"key", b"message", "sha256").digest()


@pytest.mark.leakcheck
def test_control() -> None:
    hmac.new(b"key", b"message", "sha256")
