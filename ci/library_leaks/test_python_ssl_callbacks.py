"""ssl: an ``SSLContext`` stays if a callback for pre-shared keys refers to it, because the collector does not see that."""

from __future__ import annotations

import ssl
import sys

import pytest

RELEASES = ("python==3.13.0", "python==3.14.0")

pytestmark = pytest.mark.skipif(sys.version_info < (3, 13), reason="it has no callbacks for pre-shared keys")

KEPT: list[ssl.SSLContext] = []


def new_context() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)


@pytest.mark.leakcheck
def test_leaky() -> None:
    context = new_context()
    # mypy reads this as for 3.11.
    context.set_psk_server_callback(lambda _identity: bytes(context.options))  # type: ignore[attr-defined,unused-ignore]


@pytest.mark.leakcheck
def test_control() -> None:
    context = new_context()
    context.set_psk_server_callback(lambda _identity: b"")  # type: ignore[attr-defined,unused-ignore]


@pytest.mark.leakcheck
def test_kept() -> None:
    KEPT.append(new_context())
