"""The policy: it meets the target within seven runs, steps up no farther than is safe, and notices a changed plant."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import batch_size_rule
from batch_size_rule import EXAMPLES
from leakcheck_incidents import read_factors
from leakcheck_incidents.batch_size import policy
from leakcheck_incidents.batch_size.keys import build_key, initial
from leakcheck_incidents.batch_size.runs import Proposal, Run
from leakcheck_incidents.batch_size.store import Record, Store, StoreError


@dataclass(frozen=True)
class Plant:
    """A configuration whose peak meets the target at `meets`: a fixed, a square and a linear part, as shares of it."""

    meets: float
    fixed: float = 0.0
    square: float = 0.0

    def run(self, factor: float) -> Run:
        share = factor / self.meets
        peak = 0.9 * (self.fixed + self.square * share**2 + (1 - self.fixed - self.square) * share)
        return Run(factor, None if peak > 1 else peak)


SHARES = st.floats(0, 0.7).flatmap(lambda fixed: st.tuples(st.just(fixed), st.floats(0, 1 - fixed)))
PLANTS = st.builds(lambda meets, shares: Plant(meets, *shares), st.floats(0.1, 1.0), SHARES)


@given(PLANTS, st.lists(st.floats(0.02, 1.0), min_size=1, max_size=8))
def test_no_step_up_from_what_fits_runs_out(plant: Plant, factors: list[float]) -> None:
    """Whatever was tried before, on any plant that is a posynomial: the proof in the docstring, tried."""
    runs = [plant.run(factor) for factor in factors]
    assert policy.of_one_plant(runs) == runs
    highest = max((run.factor for run in runs if not run.oom), default=0.0)
    proposed = policy.propose(runs, 0.6).factor
    assert policy.LOWEST <= proposed <= policy.HIGHEST
    if proposed > highest > 0:
        peak = plant.run(proposed).peak
        assert peak is not None
        assert peak <= policy.CEILING + 1e-9


@given(PLANTS, st.sampled_from([0.3375, 0.45, 0.6, 0.65]))
def test_without_noise_it_settles_on_any_plant_that_can_be_met(plant: Plant, begin: float) -> None:
    runs: list[Run] = []
    for _ in range(12):
        runs.append(plant.run(policy.propose(runs, begin).factor))
    assert all(run.on_target for run in runs[-3:])


def test_after_a_change_it_forgets_the_old_plant_and_meets_the_new_one() -> None:
    runs: list[Run] = []
    for plant in (Plant(0.9), Plant(0.3, fixed=0.4)):
        for _ in range(8):
            runs.append(plant.run(policy.propose(runs, 0.6).factor))
        assert all(run.on_target for run in runs[-3:])
    assert runs[8].oom, "the first run on a plant of thrice the memory cannot know"


def test_it_says_why() -> None:
    assert policy.propose([], 0.6) == Proposal(0.6, "initial")
    ran_out = policy.propose([Run(0.6, None)], 0.6)
    assert ran_out.factor == pytest.approx(0.24)
    assert ran_out.why == "ran out of memory at 0.600, and no factor is known to fit"
    assert policy.propose([Run(0.3, 0.5)], 0.6).why == "the largest safe step up"
    assert policy.propose([Run(0.3, 0.5), Run(0.5, 0.85)], 0.6).why == "by the line fitted to the runs"
    assert policy.propose([Run(0.5, 0.9)], 0.6).why == "on target"
    assert policy.propose([Run(0.95, 0.7)], 0.6) == Proposal(1.0, "at the bound of the allowed range")
    assert policy.propose([Run(0.5, None), Run(0.4, 0.62)], 0.6).why == "below the factor that ran out of memory"


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (Run(0.5, 0.9), Run(0.6, 0.7)),  # more, and far less
        (Run(0.3, 0.3), Run(0.4, 0.9)),  # steeper than the square
        (Run(0.5, None), Run(0.6, 0.9)),  # what did not fit with less
        (Run(0.6, 0.4), Run(0.5, None)),  # what fitted easily with more
    ],
)
def test_runs_that_no_plant_can_have_given_together_are_of_different_ones(before: Run, now: Run) -> None:
    assert policy.of_one_plant([before, now]) == [now]


def test_a_key_gives_the_first_factor() -> None:
    key = build_key("HCRL CH", "gat (teacher)", "Knowledge-Distillation")
    assert key == "hcrl_ch_gat_teacher_knowledge_distillation"
    assert initial(key).factor == pytest.approx(0.4875)
    assert initial(key).why == "small data set, x0.75 knowledge distillation"
    assert initial("mine_gat_student") == Proposal(0.60, "unknown data set")


def test_a_factors_file_of_the_write_up_gives_its_factors(tmp_path: Path) -> None:
    path = tmp_path / "batch_size_factors.json"
    run = {"run_id": "r1", "timestamp": "2026-01-27", "peak_memory_pct": 0.82, "batch_size": 64, "success": True}
    path.write_text(json.dumps({"set_01_gat": {"config_key": "set_01_gat", "safety_factor": 0.55, "runs": [run]}}))
    assert read_factors(path) == {"set_01_gat": 0.55}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"a": {"safety_factor": 0.5, "runs": []}, "b": {"safety_factor": 55, "runs": []}}', "'b' is not"),
        ('{"a": {"safety_factor": 0.5}}', "'a' is not"),
        ('{"a": {"safety_factor": 0.5, "runs": [{"peak_memory_pct": 0.5}]}}', "'a' is not"),
        ('{"a": 0.5}', "'a' is not"),
        ('[{"key": "a", "device": "sim", "runs": []}]', "'key': 'a'"),
        ("{", "Expecting property name"),
    ],
)
def test_another_file_is_refused_with_what_is_right(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "batch_size_factors.json"
    path.write_text(content)
    with pytest.raises(ValueError, match="`safety_factor` above 0") as caught:
        read_factors(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert said in str(caught.value)
    assert "correct it, or begin without these factors" in str(caught.value)


def test_what_is_edited_in_the_store_counts_or_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "factors.json"
    store = Store(path)
    store.add("mine", "sim:0", Run(0.5, 0.62))
    # A field of the write-up is ignored, and the next write drops it.
    path.write_text(path.read_text().replace('"device"', '"safety_factor": 0.3,\n  "device"'))
    assert store.record("mine", "sim:0").propose().factor > 0.5
    store.add("mine", "sim:0", Run(0.6, 0.74))
    assert "safety_factor" not in path.read_text()
    path.write_text(path.read_text().replace("0.74", "0.9"))
    assert store.record("mine", "sim:0").propose() == Proposal(0.6, "on target")
    for wrong in ("-1", "6", '"0.6"', "NaN", "null"):
        path.write_text(content := path.read_text().replace("0.6,", f"{wrong},"))
        with pytest.raises(StoreError, match="delete it, or use another path"):
            store.read()
        path.write_text(content.replace(f"{wrong},", "0.6,"))


def test_processes_share_a_store(tmp_path: Path) -> None:
    path = tmp_path / "factors.json"
    add = f"[Store(Path({str(path)!r})).add('mine', 'sim:0', Run(0.5, 0.6)) for _ in range(12)]"
    imports = [
        "from pathlib import Path",
        "from leakcheck_incidents.batch_size.runs import Run",
        "from leakcheck_incidents.batch_size.store import Store",
    ]
    writers = [subprocess.Popen([sys.executable, "-c", "\n".join([*imports, add])]) for _ in range(3)]
    assert [writer.wait(120) for writer in writers] == [0, 0, 0]
    assert len(Store(path).record("mine", "sim:0").runs) == 36


def test_the_first_factor_is_given_or_follows_from_the_key() -> None:
    assert Record("set_02_vgae", "sim:0").propose().factor == 0.45
    assert Record("set_02_vgae", "sim:0").propose(0.38) == Proposal(0.38, "given")
    assert Record("set_02_vgae", "sim:0", (Run(0.3, 0.9),)).propose(0.38).factor == 0.3


@pytest.mark.laboratory
@pytest.mark.parametrize("part", ["momentum", "brought"])
def test_the_tables_of_the_docs_are_up_to_date(part: str) -> None:
    made: str = getattr(batch_size_rule, part)()
    assert made in batch_size_rule.PAGE.read_text(encoding="utf-8"), "run: python ci/bench/batch_size_rule.py"


def test_the_write_up_and_its_rule_contradict_each_other_as_the_readme_says() -> None:
    readme = (Path(policy.__file__).parent / "README.md").read_text(encoding="utf-8")
    agree = sum(f"{batch_size_rule.rule(was, peak):.3f}" == f"{said:.3f}" for was, peak, said in EXAMPLES)
    assert f"{agree} of its {len(EXAMPLES)} examples" in readme
    factor, runs = EXAMPLES[0][0], 0
    while abs(factor * 0.62 / EXAMPLES[0][0] - 0.9) > 0.01:
        factor, runs = batch_size_rule.rule(factor, factor * 0.62 / EXAMPLES[0][0]), runs + 1
    assert f"{runs} runs" in readme
