"""ssl: each access to ``SSLSocket.session`` or ``SSLObject.session`` leaves a copy of the session behind."""

from __future__ import annotations

import ssl
from contextlib import suppress

import pytest

RELEASES = ("python==3.11.2", "python==3.12.1", "python==3.13.0")


def connect() -> ssl.SSLObject:
    """Return the client's end of a connection without certificates."""
    contexts = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    contexts[0].check_hostname = False
    for context in contexts:
        context.verify_mode = ssl.CERT_NONE
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers("aNULL:@SECLEVEL=0")
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = contexts[0].wrap_bio(back, there), contexts[1].wrap_bio(there, back, server_side=True)
    for end in ends * 2:
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    return ends[0]


CLIENT = connect()


@pytest.mark.leakcheck
def test_leaky() -> None:
    assert CLIENT.session is not None


@pytest.mark.leakcheck
def test_control() -> None:
    assert CLIENT.session_reused is False


KEPT: list[ssl.SSLObject] = []


@pytest.mark.leakcheck
def test_kept() -> None:
    KEPT.append(connect())
