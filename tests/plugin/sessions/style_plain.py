"""Functions, classes and modules as pytest runs them without a plugin."""

from __future__ import annotations

from types import ModuleType

import pytest


def test_passes() -> None:
    pass


def test_fails() -> None:
    assert 0


def test_skips() -> None:
    pytest.skip("not here")


def test_errors(missing_fixture: None) -> None:
    pass


@pytest.mark.skip(reason="never")
def test_is_skipped() -> None:
    pass


def test_imports() -> None:
    pytest.importorskip("no_such_module_of_anyone")


def test_raises_system_exit() -> None:
    raise SystemExit(3)


class TestClass:
    shared: list[int]

    def setup_method(self) -> None:
        self.one = 1

    def teardown_method(self) -> None:
        del self.one

    def test_method(self) -> None:
        assert self.one == 1

    @classmethod
    def setup_class(cls) -> None:
        cls.shared = [1]

    def test_shared(self) -> None:
        assert self.shared == [1]

    @staticmethod
    def test_static() -> None:
        pass


READY: bool


def setup_module(module: ModuleType) -> None:
    module.READY = True  # type: ignore[attr-defined]


def test_module_is_ready() -> None:
    assert READY  # noqa: F821 - the module has it once it is set up
