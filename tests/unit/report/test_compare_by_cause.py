"""Each cause of the later report stands in the comparison, whichever earlier cause it matches."""

from __future__ import annotations

from pytest_leakcheck.model.culprit import Culprit, Owner
from pytest_leakcheck.model.finding import Finding, Verdict
from pytest_leakcheck.model.recording import Recording
from pytest_leakcheck.report.compare_command import _compare


def leak(owner: str, rate: float, test: str = "t.py::test_a") -> Finding:
    culprit = Culprit("fd", None, owner=Owner(owner, "module lib", (), "int", rate)) if owner else None
    verdict = Verdict("fd", "leak", slope=rate, iterations=20, explicit=False, colour="yellow")
    return Finding(test, (verdict,), {}, (), {}, Recording(test, ()), {}, culprit)


def compared(earlier: list[Finding], later: list[Finding]) -> list[tuple[str, str, float]]:
    return sorted((change, cause.owner, was) for change, cause, was in _compare(earlier, later))


def test_each_of_two_causes_that_match_one_earlier_cause_is_listed() -> None:
    unnamed, fast, slow = leak("", 1.0), leak("lib.A", 3.0), leak("lib.B", 1.0)
    for later in ([fast, slow], [slow, fast]):
        assert compared([unnamed], later) == [("grown", "lib.A", 1.0), ("same", "lib.B", 1.0)]
    assert compared([unnamed], []) == [("not measured", "", 1.0)]


def test_a_cause_has_grown_if_it_has_in_one_of_its_tests() -> None:
    earlier = [leak("lib.A", 1.0), leak("lib.A", 1.0, "t.py::test_b")]
    later = [leak("lib.A", 3.0), leak("lib.A", 1.0, "t.py::test_b")]
    for some in (later, later[::-1]):
        assert compared(earlier, some) == [("grown", "lib.A", 1.0)]
