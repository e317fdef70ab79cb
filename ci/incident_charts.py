"""Write the charts of docs/incidents.md: run the leaky and the fixed arm of each incident, and plot the readings.

Usage: python ci/incident_charts.py [INCIDENT ...]

Writes docs/incidents/INCIDENT.svg for each INCIDENT. The default is all incidents, which takes minutes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from leakcheck_incidents.catalog import INCIDENTS
from leakcheck_incidents.repro.check_expectations import check_arm
from leakcheck_incidents.repro.command import BOTH
from leakcheck_incidents.repro.incident_page import page_of_arms
from leakcheck_incidents.repro.run_arm import run_arm
from pytest_leakcheck.report.html.page import render_svg

DOCS: Final = Path(__file__).parents[1] / "docs" / "incidents"


def main() -> None:
    """Write the chart of each incident; exit with the failed checks if an arm does not give the expected verdicts."""
    DOCS.mkdir(exist_ok=True)
    for name in sys.argv[1:] or INCIDENTS:
        incident = INCIDENTS[name]
        results = [check_arm(incident, run_arm(incident, arm, sys.stdout)) for arm in BOTH]
        if not all(result.is_as_it_must for result in results):
            sys.exit(f"{name}: {[check.text for result in results for check in result.checks if not check.right]}")
        # The charts of the leaky arm contain the curves of the fixed one.
        leaky = page_of_arms(incident, results, "").sections[0]
        charts = [chart for card in leaky.cards for chart in card.charts]
        (DOCS / f"{name}.svg").write_text(render_svg(charts), encoding="utf-8")


if __name__ == "__main__":
    main()
