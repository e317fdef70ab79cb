"""``vram_budget`` in whole sessions: never green without a device, accounted where that is asked for, and honest about devices
that fail. The devices here are models, and every report on them says so.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from projects import UNNAMED, Outcome, Project

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts exactly on Linux")

TRAINING = "arms_of_training.py"
# What one graph keeps, in bytes: linear, ReLU and linear give 32 x 64, 32 x 64 and 32 floats, the square needs its input,
# and the mean is a number. The first layer's own output is not needed once the ReLU is there.
GRAPH = 4 * (32 * 64 + 32 * 64 + 32 + 1)


@pytest.fixture
def training(project: Project) -> Project:
    project.copy(TRAINING, "test_training.py")
    return project


def test_without_a_device_no_test_that_bounds_vram_is_green(training: Project) -> None:
    training.write("conftest.py", UNNAMED)
    ran = training.run("-rA", "-v", "-k", "leaky or another or defaults")
    assert not re.search(r"PASSED.*test_(leaky|another)", ran.text)
    assert not re.search(r"test_(leaky|another)\w* PASSED", ran.text)
    skipped = next(line for line in ran.text.splitlines() if line.startswith("SKIPPED"))
    assert re.match(r"SKIPPED \[1\] test_training.py:\d+: vram: no accelerator: torch", skipped)
    assert "--leakcheck-vram=accounted would count live tensors on the CPU" in skipped
    # The others are judged first, and a red wins.
    assert ran.verdicts["test_another_leak", "fd"] == "leak"
    assert "test_another_leak LEAK" in ran.text
    assert ran.verdicts["test_defaults", "fd"] == "ok"
    assert ("test_defaults", "vram") not in ran.verdicts, "it was not asked for, and nothing here uses it"


@pytest.fixture(scope="module")
def accounted(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    project = Project(tmp_path_factory.mktemp("accounted"))
    project.copy(TRAINING, "test_training.py")
    return project.run("--leakcheck-vram=accounted", "--leakcheck-summary=all", "-k", "not peak")


def test_a_loop_that_keeps_its_loss_is_caught_at_one_graph_per_step_and_the_fixed_one_is_green(
    accounted: Outcome,
) -> None:
    leaky = accounted.finding("test_leaky", "vram")
    assert (leaky["verdict"], leaky["kind"], leaky["slope"]) == ("leak", "accounted", GRAPH)
    assert leaky["iterations"] <= 22
    fixed = accounted.finding("test_fixed", "vram")
    assert (fixed["verdict"], fixed["kind"], fixed["level"]) == ("ok", "accounted", 0)
    assert fixed["floor"] <= 512


def test_it_is_named_by_line_shape_owner_and_graph(accounted: Outcome) -> None:
    leaky = accounted.finding("test_leaky", "vram")
    lines = Path(__file__).with_name("sessions").joinpath(TRAINING).read_text(encoding="utf-8").splitlines()
    assert lines[leaky["site"]["line"] - 1].strip() == "loss = model(torch.randn(32, 64)).pow(2).mean()"
    assert leaky["owner"]["name"] == "test_training.history"
    kept = leaky["culprit"]["kept"]
    assert lines[kept["line"] - 1].strip() == "history.append(step())"
    (held,) = (one for one in leaky["held"] if "with its graph" in one["what"])
    assert held["what"] == "Tensor () float32 cpu with its graph"
    # The input of the first layer, the output of its ReLU, and that of the second: 32 x 64 twice, and 32 x 1.
    assert "MeanBackward0; its graph keeps" in held["note"]
    assert f"3 tensors of {GRAPH - 4:,} B: 2 of (32, 64) float32, 1 of (32, 1) float32" in held["note"]
    assert "store loss.item() or loss.detach()" in leaky["culprit"]["hint"]


def test_every_line_that_tells_of_it_says_accounted(accounted: Outcome) -> None:
    told = [line for line in accounted.text.splitlines() if re.search(r"\bvram\b", line) and "::" not in line]
    told = [line for line in told if not re.match(r"\s+(finding|advice) |.*--leakcheck|rootdir|command", line)]
    assert len(told) >= 8
    assert [line for line in told if "accounted" not in line] == []


def test_a_cycle_of_tensors_is_unclosed(accounted: Outcome) -> None:
    cycle = accounted.finding("test_cycle", "vram")
    assert (cycle["verdict"], cycle["slope"]) == ("unclosed", 4000)
    assert cycle["culprit"]["cycle"] == ["Cyclic"]
    assert accounted.verdicts["test_cycle_allowed", "vram"] == "ok"


@pytest.mark.laboratory
def test_a_peak_within_one_run_is_held_to_its_bound(training: Project) -> None:
    accounted = training.run("--leakcheck-vram=accounted", "-k", "peak")
    high = next(one for one in accounted.findings if one["test"].endswith("::test_peak") and one["peak"])
    assert (high["verdict"], high["kind"], high["level"]) == ("over_budget", "accounted", 4 << 20)
    assert high["site"]["call"] == "zeros()"
    low = next(one for one in accounted.findings if one["test"].endswith("::test_low_peak") and one["peak"])
    assert (low["verdict"], low["level"]) == ("ok", 4 << 20)


@pytest.fixture(scope="module")
def devices(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    project = Project(tmp_path_factory.mktemp("devices"))
    project.copy("conftest_with_devices.py", "conftest.py")
    project.copy("arms_on_devices.py", "test_devices.py")
    return project.run("--leakcheck-summary=all", CI="1")


def test_the_leak_on_the_second_of_two_devices_is_red_and_the_device_named(devices: Outcome) -> None:
    leak = devices.finding("test_leak_on_the_second", "vram")
    assert (leak["verdict"], leak["kind"], leak["slope"]) == ("leak", "simulated", 1 << 20)
    assert re.search(r"sim:1 \+(\d+\.0 MiB) by the allocator, \+\1 by the driver", leak["reason"])
    assert "sim:0" not in leak["reason"]
    assert leak["site"]["function"].endswith("allocate")
    assert "test_leak_on_the_second" in [one["function"] for one in leak["culprit"]["where"]["path"]]
    assert devices.verdicts["test_quiet", "vram"] == "ok"


def test_the_drivers_count_overrules_nothing_and_shows_what_other_libraries_take(devices: Outcome) -> None:
    unseen = devices.finding("test_unseen_by_the_driver", "vram")
    assert unseen["verdict"] == "leak"
    assert re.search(r"sim:0 \+\d+\.0 MiB by the allocator, \+0 B by the driver", unseen["reason"])
    other = devices.finding("test_of_another_library", "vram")
    assert other["verdict"] == "ok"
    assert re.search(r"sim:0 \+0 B by the allocator, \+\d+\.0 MiB by the driver", other["reason"])


def test_a_device_that_is_lost_meanwhile_is_never_green_and_the_rest_is_judged(devices: Outcome) -> None:
    lost = devices.finding("test_lost", "vram")
    assert lost["verdict"] == "inconclusive"
    assert "the device was lost by iteration 10: RuntimeError: CUDA error: the launch timed out" in lost["reason"]
    assert lost["colour"] == "red", "in CI, under a budget"
    assert devices.verdicts["test_lost", "fd"] == "ok"
    assert devices.verdicts["test_lost_and_a_leak", "fd"] == "leak"
    assert devices.finding("test_lost_and_a_leak", "vram")["verdict"] in ("inconclusive", "unavailable")


SCALED = """
    import pytest
    import torch

    @pytest.mark.scaling_budget("layers", [4, 16, 64], vram="O(1)")
    def test_grows(layers):
        kept = [torch.zeros(1 << 20) for _ in range(layers)]

    @pytest.mark.scaling_budget("layers", [4, 16, 64], vram="O(1)")
    def test_flat(layers):
        for _ in range(layers):
            torch.zeros(1 << 20)

    @pytest.mark.scaling_budget("world_size", [1, 2, 4], engine="gloo",
                                vram={"total": "<= 33 MiB", "per_rank": "<= 9 MiB"})
    def test_world(world_size):
        kept = torch.zeros(2 << 20)
"""


@pytest.mark.laboratory
def test_over_sizes_and_in_each_rank(project: Project) -> None:
    project.write("test_scaled.py", SCALED)
    ran = project.run("--leakcheck-vram=accounted", "--leakcheck-summary=all", limit=240)
    grows = ran.finding("test_grows", "vram")
    assert (grows["verdict"], grows["kind"]) == ("over_budget", "accounted")
    assert grows["slope"] == 4 << 20
    assert [one["peak"] for one in grows["points"]] == [size * (4 << 20) for size in (4, 16, 64)]
    assert ran.verdicts["test_flat", "vram"] == "ok"
    world = [one for one in ran.findings if one["test"].endswith("test_world")]
    assert [one["verdict"] for one in world] == ["ok", "ok"]
    assert [one["peak"] for one in world[0]["points"]] == [size * (8 << 20) for size in (1, 2, 4)]
    assert {one["kind"] for one in world} == {"accounted"}


def test_what_is_neither_a_probe_nor_a_device_is_refused(project_here: Project) -> None:
    project_here.write("conftest.py", "def pytest_leakcheck_probes(config): return ['sim:0']")
    ran = project_here.run_here(leakcheck=False)
    assert ran.status == 4
    assert "'sim:0' is neither a Probe nor a Device" in ran.text
