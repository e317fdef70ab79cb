"""Each incident in short, on the real libraries: a leaky arm is caught, and the fixed one is silent."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from leakcheck_incidents.catalog import INCIDENTS
from projects import UNNAMED, Project


@dataclass(frozen=True, slots=True)
class Short:
    """What to run of an incident.

    Attributes:
        tests: The tests of one leaky and one fixed arm, as pytest's ``-k`` takes them.
        leaky: Part of the leaky test's node id, its resource and its verdict.
        fixed: Part of the fixed test's node id, and its resource.
        options: Further options. Effort is in iterations, never in seconds.
    """

    tests: str
    leaky: tuple[str, str, str]
    fixed: tuple[str, str]
    options: tuple[str, ...] = ()


SHORT = {
    "tf_data_pipeline": Short(
        "TestEpochs and (leaky or fixed)",
        ("TestEpochs::test_epoch[leaky]", "heap", "leak"),
        ("TestEpochs::test_epoch[fixed]", "heap"),
        # Growth that would reach the limit within so many iterations need not last as long as a cache takes to fill.
        ("--leakcheck-iterations=30", "--leakcheck-max-time=600", "--leakcheck-run=1000000"),
    ),
    "pyav_loader": Short(
        "TestCollectorOn",
        ("TestCollectorOn::test_switch[leaky]", "fd", "unclosed"),
        ("TestCollectorOn::test_switch[fixed]", "fd"),
        ("--leakcheck-iterations=20", "--leakcheck-max-time=600"),
    ),
    "pyav_workers": Short(
        "fork-prefetch2-gc_off",
        ("leaky-fork-prefetch2-gc_off]", "fd", "leak"),
        ("fixed-fork-prefetch2-gc_off]", "fd"),
        ("--leakcheck-iterations=20", "--leakcheck-max-time=600"),
    ),
    "rollout_executor": Short(
        "test_as_it_was_met",
        ("test_as_it_was_met[leaky]", "gauge:in_flight", "over_budget"),
        ("test_as_it_was_met[fixed]", "gauge:in_flight"),
    ),
    "batch_size": Short(
        "test_per_step",
        ("test_per_step[leaky]", "fd", "leak"),
        ("test_per_step[fixed]", "vram"),
        ("--leakcheck-max-time=600",),
    ),
}
# Fewer and smaller shards than the incident takes: the leaky arm still grows five times as fast as allowed.
UPLOAD = """
    import pytest
    from datasets import load_from_disk
    from leakcheck_incidents.hub_upload.test_hub_upload import ALLOWED, FEW, FILES, pytestmark, upload, warm
    from leakcheck_incidents.hub_upload.test_hub_upload import _without_bars

    @pytest.fixture(scope="module")
    def dataset(synthetic_arrow):
        rows = FILES * FEW[-1]
        table = {"rows": rows, "files": FILES, "file_size": 1 << 19, "nested": False, "nulls": 0}
        return load_from_disk(str(synthetic_arrow(**table)))

    @pytest.mark.parametrize("upload", ["leaky", "fixed"], indirect=True)
    @pytest.mark.scaling_budget("shards", FEW, rss=ALLOWED)
    def test_peak(warm, dataset, shards):
        warm(dataset.select(range(FILES * shards)), "user/upload", shards)
"""


@pytest.mark.parametrize("name", SHORT)
def test_the_leaky_arm_is_red_and_the_fixed_one_is_green(project: Project, name: str) -> None:
    incident, short = INCIDENTS[name], SHORT[name]
    if incident.missing:
        pytest.skip(f"needs {', '.join(incident.missing)}")
    project.write("conftest.py", UNNAMED)
    ran = project.run("--pyargs", incident.tests, "-k", short.tests, *short.options, limit=900)
    test, resource, verdict = short.leaky
    assert ran.finding(test, resource)["verdict"] == verdict, ran.text
    assert ran.finding(*short.fixed)["verdict"] == "ok", ran.text
    assert ran.status == 1
    red = {one["test"] for one in ran.findings if one["colour"] == "red"}
    assert all("leaky" in one for one in red), ran.text


def test_the_peak_of_an_upload_grows_in_the_leaky_arm_alone(project: Project) -> None:
    project.write("conftest.py", UNNAMED)
    project.write("test_upload.py", UPLOAD)
    ran = project.run("-p", "leakcheck_incidents.material", limit=900)
    assert ran.verdicts == {("test_peak[leaky]", "rss"): "over_budget", ("test_peak[fixed]", "rss"): "ok"}, ran.text


def test_each_incident_is_run() -> None:
    assert {*SHORT, "hub_upload"} == set(INCIDENTS)
