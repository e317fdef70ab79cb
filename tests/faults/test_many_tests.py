"""The script that runs thousands of tests computes its figures from what the sessions log."""

from __future__ import annotations

import pytest

import many_tests


def test_figures_of_a_log() -> None:
    # 2 ms per test at first, 3 ms from the hundredth test on, and 100 bytes per test.
    rows, cpu = [], 0
    for number in range(1000):
        cpu += 3_000_000 if number >= 200 else 2_000_000
        rows.append((cpu, 10_000 + 100 * number))
    assert many_tests.hundreds(rows) == pytest.approx((2.0, 3.0))
    assert many_tests.rss_growth(rows) == pytest.approx(100)


@pytest.mark.laboratory
def test_a_small_session_is_judged(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["many_tests.py", "--tests=25"])
    many_tests.main()
    said = capsys.readouterr().out
    assert "tests judged ok       all of 25" in said
    json_bytes = int(said.rpartition("JSON per green test")[2].split()[0].replace(",", ""))
    assert 0 < json_bytes <= 2000
