"""pyarrow: the registry of extension types keeps those that have been unregistered."""

from __future__ import annotations

import pyarrow as pa
import pytest

RELEASES = ("pyarrow==26.0.1",)


class Celsius(pa.ExtensionType):  # type: ignore[misc]  # pyarrow has no types
    """A temperature."""

    def __init__(self) -> None:
        super().__init__(pa.float64(), "leakcheck.celsius")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, _storage: object, _serialized: bytes) -> Celsius:
        return cls()


@pytest.mark.leakcheck
def test_leaky() -> None:
    kind = Celsius()
    pa.register_extension_type(kind)
    pa.unregister_extension_type(kind.extension_name)


@pytest.mark.leakcheck
def test_control() -> None:
    Celsius()
