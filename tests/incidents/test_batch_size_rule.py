"""The write-up's rule, figure by figure: what it comes to, and where its own examples differ from it."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leakcheck_incidents.batch_size import keys, rule
from leakcheck_incidents.batch_size.choice import Settings, choose
from leakcheck_incidents.batch_size.examples import EXAMPLES
from leakcheck_incidents.batch_size.runs import Run

# Factor, peak (None: out of memory), what the write-up says, the rule before its clamp, and after. Worked out by hand.
TABLE = [
    ("0.489", "0.62", "0.531", "0.5142", "0.5142"),
    ("0.531", "0.74", "0.559", "0.5358", "0.5358"),
    ("0.559", "0.81", "0.577", "0.5617", "0.5617"),
    ("0.577", "0.86", "0.586", "0.5794", "0.5794"),
    ("0.586", "0.89", "0.589", "0.5866", "0.5866"),
    ("0.589", "0.90", "0.589", "0.5890", "0.5890"),
    ("0.589", "0.91", "0.588", "0.5884", "0.5884"),
    ("0.588", "0.89", "0.589", "0.5886", "0.5886"),
    ("0.589", "0.90", "0.589", "0.5890", "0.5890"),
    ("0.489", "0.82", "0.550", "0.4914", "0.4914"),
    ("0.550", "0.88", "0.556", "0.5512", "0.5512"),
    ("0.427", None, "0.277", "0.2770", "0.3000"),
    ("0.277", "0.89", "0.281", "0.2776", "0.3000"),
    ("0.281", "0.91", "0.279", "0.2804", "0.3000"),
    ("0.279", "0.90", "0.279", "0.2790", "0.3000"),
]
PEAKS = st.floats(0.01, 1.0)
FACTORS = st.floats(rule.LOWEST, rule.HIGHEST)


@pytest.mark.parametrize(("at", "row"), list(enumerate(TABLE)))
def test_each_example_beside_the_rule(at: int, row: tuple[str, str | None, str, str, str]) -> None:
    factor, peak, said, free, held = row
    one = EXAMPLES[at]
    assert one.run == Run(float(factor), None if peak is None else float(peak), oom=peak is None)
    assert one.said == float(said)
    assert rule.unclamped(one.run) == pytest.approx(float(free), abs=1e-12)
    assert rule.update(one.run) == pytest.approx(float(held), abs=1e-12)


def test_the_table_has_all_examples() -> None:
    assert len(EXAMPLES) == len(TABLE)


def test_of_its_fifteen_examples_four_are_as_the_rule_has_them_and_two_only_without_its_clamp() -> None:
    """All four are where the peak is within a hundredth of the target, so that hardly anything moves."""

    def rounded(text: str) -> str:
        return f"{Decimal(text):.3f}"

    stated = [row for row in TABLE if rounded(row[4]) == row[2]]
    unclamped = [row for row in TABLE if rounded(row[3]) == row[2] and row not in stated]
    assert [row[0] for row in stated] == ["0.589", "0.589", "0.588", "0.589"]
    assert [row[0] for row in unclamped] == ["0.427", "0.279"]


@pytest.mark.parametrize(
    ("peak", "share"),
    [
        (0.4999, 0.5),
        (0.5, 0.3),
        (0.6999, 0.3),
        (0.7, 0.1),
        (0.8499, 0.1),
        (0.85, 0.2),
        (0.9499, 0.2),
        (0.95, 0.5),
        (1, 0.5),
    ],
)
def test_bands(peak: float, share: float) -> None:
    assert rule.share(peak) == share
    assert rule.step(peak) == pytest.approx(0.3 * share * (0.9 - peak))


@pytest.mark.parametrize(("peak", "before", "after"), [(0.70, 0.018, 0.006), (0.85, 0.0015, 0.003)])
def test_the_rule_jumps_at_its_bands(peak: float, before: float, after: float) -> None:
    assert rule.step(peak - 1e-9) == pytest.approx(before, abs=1e-6)
    assert rule.step(peak) == pytest.approx(after, abs=1e-6)


def test_the_band_that_is_called_a_small_decrease_increases_below_the_target() -> None:
    assert rule.step(0.86) > 0


@given(FACTORS, PEAKS)
@example(0.8, 1.0)
def test_it_stays_within_its_clamp_and_moves_towards_the_target(factor: float, peak: float) -> None:
    after = rule.update(Run(factor, peak))
    assert rule.LOWEST <= after <= rule.HIGHEST
    assert (after - factor) * (0.9 - peak) >= 0


@given(FACTORS)
def test_running_out_takes_15_points_at_once(factor: float) -> None:
    assert rule.update(Run(factor, None, oom=True)) == max(rule.LOWEST, factor - 0.15)


def test_a_run_that_says_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="neither a peak nor out of memory"):
        rule.update(Run(0.5, None))


def test_a_linear_plant_takes_59_runs_by_the_rule_and_not_5_to_7() -> None:
    """Through its own first example: 62 % at a factor of 0.489."""
    factor, runs = 0.489, 0
    while abs(factor * 0.62 / 0.489 - 0.9) > 0.01:
        factor, runs = rule.update(Run(factor, factor * 0.62 / 0.489)), runs + 1
    assert (runs, f"{factor:.3f}") == (59, "0.702")


def test_a_plant_that_needs_all_of_the_tuned_batch_is_out_of_its_reach() -> None:
    factor = 0.6
    for _ in range(10_000):
        factor = rule.update(Run(factor, 0.9 * factor))
    assert factor == rule.HIGHEST
    assert 0.9 * factor == pytest.approx(0.72)


@pytest.mark.parametrize(
    ("key", "factor", "reason"),
    [
        ("hcrl_ch_gat_teacher_knowledge_distillation", 0.4875, "small data set, x0.75 knowledge distillation"),
        ("set_02_vgae_teacher_knowledge_distillation", 0.3375, "large data set, x0.75 knowledge distillation"),
        ("set_04_vgae_autoencoder", 0.4275, "large data set, x0.95 autoencoder"),
        ("hcrl_sa_gat_fusion", 0.44, "medium-sized data set, x0.80 fusion"),
        ("set_01_gat_curriculum", 0.585, "small data set, x0.90 curriculum"),
        ("mine_gat_student", 0.60, "unknown data set"),
        # The first that matches, and no other.
        ("set_03_gat_knowledge_distillation_fusion", 0.3375, "large data set, x0.75 knowledge distillation"),
    ],
)
def test_factors_to_begin_with(key: str, factor: float, reason: str) -> None:
    begin = keys.initial(key)
    assert begin.factor == pytest.approx(factor)
    assert begin.reason == reason


def test_no_figure_to_begin_with_reaches_the_clamp_and_one_that_did_would_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keys, "UNKNOWN", (0.95, "unknown data set"))
    assert keys.initial("mine") == keys.Initial(0.8, "unknown data set, clamped to 0.80")


def test_keys() -> None:
    key = keys.build_key("HCRL CH", "gat (teacher)", "Knowledge-Distillation")
    assert key == "hcrl_ch_gat_teacher_knowledge_distillation"
    assert keys.build_key("hcrl_ch", "gat_teacher", "knowledge_distillation") == key
    with pytest.raises(ValueError, match="a key needs a model"):
        keys.build_key("set_01", " -/ ", "autoencoder")


@given(st.integers(1, 100_000), st.floats(0, 1))
def test_a_batch_has_one_sample_at_least_and_never_more_than_was_tuned(tuned: int, factor: float) -> None:
    choice = choose("key", tuned, factor, "")
    assert 1 <= choice.batch_size <= tuned
    assert choice.batch_size - 1 <= tuned * factor


@given(st.integers(1, 100_000).flatmap(lambda tuned: st.tuples(st.just(tuned), st.integers(1, tuned))))
@example((49, 1))
# In floating point 14.999999999999998, and the least batch does not cover it up as it does for (49, 1).
@example((22, 15))
def test_a_factor_that_came_of_whole_samples_gives_them_back(sizes: tuple[int, int]) -> None:
    """Else a batch would lose a sample in each run in which nothing changes."""
    tuned, batch = sizes
    assert choose("key", tuned, batch / tuned, "").batch_size == batch


def test_what_cannot_be_chosen_is_refused() -> None:
    with pytest.raises(ValueError, match="not even one sample fits"):
        choose("key", 0, 0.6, "")
    for wrong in (0, -1, 1.01):
        with pytest.raises(ValueError, match="a share of the batch that fits"):
            Settings(safety_factor=wrong)
