from __future__ import annotations

import os
import re
import sys
import time
from html import escape, unescape

import pytest

from pytest_leakcheck.measurement import measure
from pytest_leakcheck.model import InputError
from pytest_leakcheck.model.resources import RESOURCES
from pytest_leakcheck.plugin.inert import LeakError
from pytest_leakcheck.runner.settling import Settling

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts exactly on Linux")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settling, "seconds", 0.01)


def test_a_leak_is_found_and_raised_by_check_with_the_report() -> None:
    kept: list[int] = []

    def keep() -> None:
        kept.append(os.open("/dev/null", os.O_RDONLY))

    found = measure(keep, fd=0)
    for descriptor in kept:
        os.close(descriptor)
    assert found.finding.verdict.outcome == "leak"
    with pytest.raises(LeakError) as raised:
        found.check()
    assert str(raised.value) == str(found)
    assert str(found).startswith("fd +1.0/iter ")
    assert "test_a_leak_is_found_and_raised_by_check_with_the_report.<locals>.keep" in str(found)


def test_a_prompt_shows_a_line_and_a_notebook_a_card() -> None:
    kept: list[int] = []

    def keep() -> None:
        kept.append(os.open("/dev/null", os.O_RDONLY))

    leaky, clean = measure(keep, fd=0), measure(lambda: None, fd=0)
    for descriptor in kept:
        os.close(descriptor)
    assert re.fullmatch(r"<Measurement of test_\S+keep: fd \+1\.0/iter — \S+ \S+ \(\d+ iterations\)>", repr(leaky))
    assert re.fullmatch(r"<Measurement of test_\S+<lambda>: fd ok \(13 iterations\)>", repr(clean))
    for found, badge in ((leaky, "leak"), (clean, "ok")):
        # A frame without rights; the page in it is an attribute, which ends at a quotation mark.
        frame = re.fullmatch(r'<iframe srcdoc="([^"]+)" sandbox [^<>]+></iframe>', found._repr_html_())
        assert frame is not None
        page = unescape(frame[1])
        assert (page.count("<h3"), f">{badge}<" in page) == (1, True)
        assert escape(found.finding.test) in page


def test_what_is_clean_passes_check() -> None:
    found = measure(lambda: os.close(os.open("/dev/null", os.O_RDONLY)), fd=0, thread=None)
    found.check()
    assert [verdict.outcome for verdict in found.finding.verdicts] == ["ok", "ok"]


def test_without_levels_all_that_is_judged_by_default_is() -> None:
    found = measure(int)
    judged = {verdict.resource for verdict in found.finding.verdicts}
    # Arrow's pool, devices and clusters of Ray are judged where there are any.
    elsewhere = {name for name, one in RESOURCES.items() if one.of_cluster} | {"arrow", "vram"}
    assert judged - {"arrow"} == {name for name, one in RESOURCES.items() if one.default} - elsewhere
    assert found.finding.colour == "green"


def test_a_level_that_cannot_be_read_is_named() -> None:
    with pytest.raises(
        InputError, match=r"fds=0: no such resource\. Did you mean 'fd'\? Valid resources are fd, thread"
    ):
        measure(int, fds=0)  # type: ignore[call-arg]
    with pytest.raises(InputError, match=r"heap='much': 'much' is not a size"):
        measure(int, heap="much")


def test_what_the_function_raises_is_raised() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with pytest.raises(ZeroDivisionError):
        measure(fail, fd=0)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_level_of_what_is_not_there_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "tensorflow", "jax"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    found = measure(int, fd=0, vram=0, iterations=13)
    assert {one.resource: one.outcome for one in found.finding.verdicts} == {"fd": "ok", "vram": "unavailable"}
    with pytest.raises(LeakError, match="vram unavailable: no accelerator"):
        found.check()


def test_advice_on_time_names_the_argument() -> None:
    advice = measure(lambda: time.sleep(0.02), fd=0, max_time=0.01).finding.verdict.advice
    assert advice.startswith("allow about ten times as long: max_time=")
