"""A list that raises an error if the harness runs any of the program's code while looking at it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class Hostile(list[bytes]):
    """Says what is not so, and breaks where it is asked to compare, print or iterate."""

    armed = False

    def __len__(self) -> int:
        return self._refuse()

    def __eq__(self, other: object) -> bool:
        return bool(self._refuse())

    def __hash__(self) -> int:  # type: ignore[override]
        return self._refuse()

    def __repr__(self) -> str:
        return str(self._refuse())

    def __iter__(self) -> Iterator[bytes]:
        self._refuse()
        return iter(())

    def __getattribute__(self, name: str) -> Any:
        if Hostile.armed and name != "_refuse":
            raise AssertionError(f"asked for {name}")
        return object.__getattribute__(self, name)

    def _refuse(self) -> int:
        if Hostile.armed:
            raise AssertionError("code of the user's was run")
        return 0
