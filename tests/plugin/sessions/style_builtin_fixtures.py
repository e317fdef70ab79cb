"""The fixtures of pytest itself."""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


def test_capsys(capsys: pytest.CaptureFixture[str]) -> None:
    print("said")
    assert capsys.readouterr().out == "said\n"


def test_capfd(capfd: pytest.CaptureFixture[str]) -> None:
    os.write(1, b"said")
    assert capfd.readouterr().out == "said"


@pytest.fixture
def logs(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    logging.getLogger("one").warning("in set-up")
    yield caplog
    assert [record.message for record in caplog.get_records("call")] == ["in the test"]


def test_records_of_the_phases(logs: pytest.LogCaptureFixture) -> None:
    logging.getLogger("one").warning("in the test")
    assert [record.message for record in logs.get_records("setup")] == ["in set-up"]


def test_tmp_path(tmp_path: Path) -> None:
    assert not list(tmp_path.iterdir())
    (tmp_path / "one").write_text("x")


def test_tmp_path_is_named(tmp_path: Path) -> None:
    assert tmp_path.name == "test_tmp_path_is_named0"


def test_a_folder_by_its_name(tmp_path_factory: pytest.TempPathFactory) -> None:
    tmp_path_factory.mktemp("exact", numbered=False)


def test_monkeypatch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONE", "1")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(os, "ONE", 1, raising=False)
    monkeypatch.setitem(sys.modules, "one", os)
    (tmp_path / "relative").write_text("x")
    assert os.listdir() == ["relative"]
    assert not hasattr(sys, "ONE")


def test_chdir_that_stays(tmp_path: Path) -> None:
    os.chdir(tmp_path)


def test_after_it() -> None:
    assert os.path.isdir(os.getcwd())


def test_a_warning_is_an_error() -> None:
    warnings.warn("said")


@pytest.mark.filterwarnings("default")
def test_a_warning_once() -> None:
    for _ in range(3):
        warnings.warn("said once")


def test_an_unraisable_exception() -> None:
    class Broken:
        def __del__(self) -> None:
            raise ValueError("in a finalizer")

    Broken()


def test_a_failing_thread() -> None:
    import threading

    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()


def test_signal_handler_that_stays() -> None:
    signal.signal(signal.SIGUSR2, lambda *_: None)


def test_properties(
    record_property: Callable[[str, object], None], record_testsuite_property: Callable[[str, object], None]
) -> None:
    record_property("one", 1)
    record_testsuite_property("two", 2)


def test_current_test() -> None:
    assert os.environ["PYTEST_CURRENT_TEST"].endswith("::test_current_test (call)")


def test_no_tracer() -> None:
    assert sys.gettrace() is None and sys.getprofile() is None


def test_collector() -> None:
    import gc

    assert gc.isenabled() and gc.get_threshold()[0] > 0


def test_low_descriptors() -> None:
    number = os.open(os.devnull, os.O_RDONLY)
    os.close(number)
    assert number < 64
