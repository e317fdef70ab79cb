"""pyarrow: the client of each ``CryptoFactory`` is kept."""

from __future__ import annotations

import pyarrow.parquet.encryption as pq
import pytest

RELEASES = ("pyarrow==26.0.1",)
RESOURCES = ("object",)
TEXT = "the KmsClient that a CryptoFactory has made outlives it"


class Client(pq.KmsClient):  # type: ignore[misc]  # pyarrow has no types
    """A client that wraps no key."""

    def wrap_key(self, _key: bytes, _name: str) -> str:
        return ""


@pytest.mark.leakcheck
def test_leaky() -> None:
    factory = pq.CryptoFactory(lambda _config: Client())
    settings = pq.EncryptionConfiguration("key", uniform_encryption=True)
    factory.file_encryption_properties(pq.KmsConnectionConfig(), settings)


@pytest.mark.leakcheck
def test_control() -> None:
    pq.CryptoFactory(lambda _config: Client())
