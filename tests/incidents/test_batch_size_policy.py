"""The policy that is used: it meets the target within seven runs, steps up no farther than is safe, and notices a new plant."""

from __future__ import annotations

import math
import random
import runpy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakcheck_incidents.batch_size import policy, rule
from leakcheck_incidents.batch_size.convergence import PLANTS, SEED, SOON, figures
from leakcheck_incidents.batch_size.plants import BEFORE, KINDS, Course, Kind, Plant, follow
from leakcheck_incidents.batch_size.runs import TARGET, WITHIN, Proposal, Run
from projects import ROOT

DOCS = ROOT / "docs"
GENERATED = runpy.run_path(str(ROOT / "ci" / "batch_size.py"))
# Without noise, and with as much as runs of one training differ by.
SURE = ["linear", "affine (fixed cost)", "quadratic", "any, noise 0.5 %", "changed to another"]

SHARES = st.floats(0, 0.7).flatmap(lambda fixed: st.tuples(st.just(fixed), st.floats(0, 1 - fixed)))


@st.composite
def plants(draw: st.DrawFn) -> Plant:
    fixed, square = draw(SHARES)
    return Plant(draw(st.floats(0.1, 1.0)), fixed, square)


@pytest.mark.parametrize("kind", SURE)
def test_it_is_within_2_percent_of_the_target_in_seven_runs_and_does_not_run_out_after_that(kind: str) -> None:
    ours = figures(policy.propose, KINDS[kind])
    assert len(ours.settled) == PLANTS
    assert ours.soon == PLANTS
    assert ours.settled[-1] <= SOON
    assert ours.ran_out_once_there == 0


@pytest.mark.parametrize("kind", SURE)
def test_the_rule_of_the_write_up_does_not_settle_on_half_of_the_same_plants(kind: str) -> None:
    theirs = figures(rule.propose, KINDS[kind])
    assert theirs.soon < PLANTS / 5
    assert theirs.median is None
    assert theirs.ran_out > 4 * figures(policy.propose, KINDS[kind]).ran_out


def test_with_noise_of_1_percent_nearly_all_settle_and_none_runs_out_once_there() -> None:
    ours = figures(policy.propose, KINDS["any, noise 1 %"])
    assert ours.soon >= 0.98 * PLANTS
    assert ours.ran_out_once_there == 0


@pytest.mark.parametrize("part", ["convergence", "examples", "initial"])
def test_the_tables_of_the_docs_are_up_to_date(part: str) -> None:
    assert GENERATED["PARTS"][part]() in (DOCS / "batch-size.md").read_text(encoding="utf-8"), (
        "run: python ci/batch_size.py"
    )


def test_the_plot_of_the_docs_is_up_to_date() -> None:
    assert GENERATED["plot"]() == (DOCS / "batch-size.svg").read_text(encoding="utf-8"), "run: python ci/batch_size.py"


def test_figures_are_of_the_seed() -> None:
    kind = KINDS["any, noise 1 %"]
    assert figures(policy.propose, kind, 20) == figures(policy.propose, kind, 20)
    assert figures(policy.propose, kind, 20) != figures(policy.propose, kind, 20, SEED + 20)


def test_a_course_is_settled_from_the_run_after_the_last_bad_one() -> None:
    good, bad = Run(0.5, 0.9), Run(0.5, None, oom=True)
    assert Course((good, good), (0.9, 0.9)).settled == 1
    assert Course((good, bad, good), (0.9, 0.9, 0.9)).settled == 3
    assert Course((good, good), (0.9, 0.95)).settled is None
    assert Course((good, bad), (0.9, 0.9)).settled is None
    assert Course((bad, good, bad), (1.2, 0.9, 0.95)).ran_out_once_there == 1
    assert Course((bad, good, bad), (1.2, 0.7, 0.95)).ran_out_once_there == 0


@given(plants(), st.lists(st.floats(0.02, 1.0), min_size=1, max_size=8))
def test_no_step_up_from_what_fits_runs_out(plant: Plant, factors: list[float]) -> None:
    """Whatever was tried before, on any plant that is a posynomial: the proof in the docstring, tried."""
    runs = [plant.run(factor, random.Random(0)) for factor in factors]
    known = policy.of_one_plant(runs)
    # All that was remembered is of one plant, and is recognised as such.
    assert known == runs
    highest = max((run.factor for run in runs if not run.oom), default=0.0)
    proposed = policy.propose(runs, 0.6).factor
    assert policy.LOWEST <= proposed <= policy.HIGHEST
    if proposed > highest > 0:
        assert plant.peak(proposed) <= policy.CEILING + 1e-9


@given(plants(), st.sampled_from([0.3375, 0.45, 0.6, 0.65]))
def test_without_noise_it_settles_on_any_plant_that_can_be_met(plant: Plant, initial: float) -> None:
    runs: list[Run] = []
    for _ in range(12):
        runs.append(plant.run(policy.propose(runs, initial).factor, random.Random(0)))
    assert all(run.on_target for run in runs[-3:])
    assert abs(plant.peak(runs[-1].factor) - TARGET) <= WITHIN


def test_it_says_why() -> None:
    assert policy.propose([], 0.6) == Proposal(0.6, "initial")
    ran_out = [Run(0.6, None, oom=True)]
    assert policy.propose(ran_out, 0.6).factor == pytest.approx(0.24)
    assert policy.propose(ran_out, 0.6).why == "ran out of memory at 0.600, and no factor is known to fit"
    assert policy.propose([Run(0.3, 0.5)], 0.6).why == "the largest safe step up"
    assert policy.propose([Run(0.3, 0.5), Run(0.5, 0.85)], 0.6).why == "by the line fitted to the runs"
    assert policy.propose([Run(0.5, 0.9)], 0.6).why == "on target"
    assert policy.propose([Run(0.95, 0.7)], 0.6) == Proposal(1.0, "at the bound of the allowed range")
    assert (
        policy.propose([Run(0.5, None, oom=True), Run(0.4, 0.62)], 0.6).why == "below the factor that ran out of memory"
    )


def test_what_says_nothing_is_passed_over() -> None:
    runs = [Run(0.3, 0.5), Run(0.5, 0.85)]
    assert policy.propose([*runs, Run(0.9, None)], 0.6) == policy.propose(runs, 0.6)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (Run(0.5, 0.9), Run(0.5, 0.7)),  # the same factor, and far less
        (Run(0.5, 0.9), Run(0.6, 0.7)),  # more, and far less
        (Run(0.3, 0.3), Run(0.4, 0.9)),  # steeper than the square
        (Run(0.5, None, oom=True), Run(0.6, 0.9)),  # what did not fit with less
        (Run(0.6, 0.4), Run(0.5, None, oom=True)),  # what fitted easily with more
    ],
)
def test_runs_that_no_plant_can_have_given_together_are_of_different_ones(before: Run, now: Run) -> None:
    assert policy.of_one_plant([before, now]) == [now]


def test_running_out_where_two_runs_prove_that_it_fits_is_another_plant() -> None:
    ran_out = Run(0.9, None, oom=True)
    flat, steep = [Run(0.3, 0.70), Run(0.6, 0.72)], [Run(0.3, 0.35), Run(0.6, 0.70)]
    assert policy.of_one_plant([*flat, ran_out]) == [flat[1], ran_out]
    assert policy.of_one_plant([*steep, ran_out]) == [*steep, ran_out]


def test_noise_is_no_new_plant() -> None:
    runs = [Run(0.5, 0.9 * (1 + noise)) for noise in (0.01, -0.02, 0.02, -0.01)]
    assert policy.of_one_plant(runs) == runs


def test_after_a_change_it_forgets_the_old_plant_and_meets_the_new_one() -> None:
    old, new = Plant(0.9), Plant(0.3, fixed=0.4)
    runs: list[Run] = []
    for number in range(BEFORE + SOON):
        plant = old if number < BEFORE else new
        runs.append(plant.run(policy.propose(runs, 0.6).factor, random.Random(0)))
    assert all(run.on_target for run in runs[BEFORE - 3 : BEFORE])
    assert runs[BEFORE].oom, "the first run on a plant of thrice the memory cannot know"
    assert runs[-1].on_target
    assert not any(run.oom for run in runs[-3:])


def test_a_plant_out_of_reach_is_held_at_a_bound() -> None:
    small = follow(policy.propose, Kind(lambda _chance: Plant(2.0)), 1)
    assert {run.factor for run in small.runs[-5:]} == {policy.HIGHEST}
    huge = follow(policy.propose, Kind(lambda _chance: Plant(0.001)), 1)
    assert {run.factor for run in huge.runs[-5:]} == {policy.LOWEST}


@pytest.mark.parametrize("tuned", [7, 16, 50])
def test_batches_of_few_samples_stand_at_the_largest_that_is_near_the_target(tuned: int) -> None:
    """Their steps are coarser than 2 %, so the target itself may not be there."""
    plant = Plant(0.71, fixed=0.2)
    runs: list[Run] = []
    for _ in range(20):
        batch = max(1, int(tuned * policy.propose(runs, 0.6).factor + 1e-9))
        runs.append(plant.run(batch / tuned, random.Random(0)))
    peaks = [run.peak for run in runs[-8:]]
    assert not any(run.oom for run in runs[-8:])
    assert all(peak is not None and TARGET - 1.1 / tuned <= peak <= policy.CEILING for peak in peaks)


def test_without_noise_the_line_through_two_runs_is_the_secant() -> None:
    slope, offset = policy._fit_line([(0.4, 0.60), (0.7, 0.84)], noise=0.0)
    assert slope == pytest.approx(math.log(0.84 / 0.60) / math.log(0.7 / 0.4))
    assert slope * math.log(0.7) + offset == pytest.approx(math.log(0.84 / TARGET))
