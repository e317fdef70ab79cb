"""``python -m leakcheck_incidents.batch_size``: what it shows and changes, and how it says that it cannot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from leakcheck_incidents.batch_size.__main__ import main
from leakcheck_incidents.batch_size.records import Entry
from leakcheck_incidents.batch_size.runs import Run
from leakcheck_incidents.batch_size.store import Store

LIGHT, HEAVY = "set_01_gat_student", "set_02_gat_knowledge_distillation"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "factors.json")
    for at, peak in enumerate((0.897, 0.9, 0.903)):
        store.add(LIGHT, "NVIDIA H200", Entry(f"run-{at}", at, Run(0.75, peak), 96))
    store.add(HEAVY, "simulated", Entry("first", 1, Run(0.5, None, oom=True), 64, "out of memory"))
    return store


def factors(store: Store, *arguments: str) -> int:
    return main(["--store", str(store.path), *arguments])


def test_the_table(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert factors(store, "show") == 0
    assert capsys.readouterr().out.splitlines() == [
        "configuration                      device       factor  runs  failed  average  highest  variance  converged",
        "set_01_gat_student                 NVIDIA H200  0.750   3     0       90.0%    90.3%    6e-06     yes",
        "set_02_gat_knowledge_distillation  simulated    0.200   1     1       -        -        -         no",
    ]


def test_for_programs(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert factors(store, "show", "--json") == 0
    light, heavy = json.loads(capsys.readouterr().out)
    assert (light["key"], light["device"], light["safety_factor"]) == (LIGHT, "NVIDIA H200", 0.75)
    assert light["statistics"] | {"variance": None} == {
        "num_runs": 3,
        "successful_runs": 3,
        "average_peak": pytest.approx(0.9),
        "max_peak": 0.903,
        "variance": None,
        "converged": True,
    }
    assert light["initial_factor_reason"] == "small data set"
    assert [run["run_id"] for run in light["runs"]] == ["run-0", "run-1", "run-2"]
    assert heavy["runs"][0] == {
        "run_id": "first",
        "timestamp": 1,
        "factor": 0.5,
        "peak": None,
        "oom": True,
        "batch_size": 64,
        "notes": "out of memory",
    }


def test_reset(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert factors(store, "reset", HEAVY) == 0
    assert capsys.readouterr().out == f"{HEAVY}: deleted for 1 device type\n"
    assert set(store.read()) == {(LIGHT, "NVIDIA H200")}
    assert factors(store, "reset", HEAVY) == 2
    assert capsys.readouterr().err == (
        f"python -m leakcheck_incidents.batch_size: reset {HEAVY}: no such configuration; {store.path} has {LIGHT}\n"
    )


def test_export_and_import(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "copy.json"
    assert factors(store, "export", str(copy)) == 0
    other = Store(tmp_path / "other.json")
    other.add(LIGHT, "NVIDIA H200", Entry("another", 9, Run(0.75, 0.9), 96))
    for _ in range(2):
        # A second time it is the same.
        assert factors(other, "import", str(copy)) == 0
        assert [one.run_id for one in other.record(LIGHT, "NVIDIA H200").entries] == [
            "run-0",
            "run-1",
            "run-2",
            "another",
        ]
    assert other.record(HEAVY, "simulated") == store.record(HEAVY, "simulated")
    assert capsys.readouterr().out.splitlines() == [f"{copy}: 2 records", *[f"{other.path}: 2 records imported"] * 2]


def test_import_makes_a_store(store: Store, tmp_path: Path) -> None:
    new = Store(tmp_path / "new.json")
    assert factors(new, "import", str(store.path)) == 0
    assert new.read() == store.read()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["import", "FOLDER/none.json"],
            "No such file or directory; give a file that `python -m leakcheck_incidents.batch_size export`",
        ),
        (["import", "FOLDER/foreign.json"], "not a store of batch-size factors; give a file that"),
        (["export", "FOLDER/no/where.json"], "cannot be written: No such file or directory; use a file in a writable"),
        (
            ["--store", "FOLDER/none.json", "show"],
            "no such store: FOLDER/none.json. A training run writes it; set its path with",
        ),
    ],
)
def test_wrong_use(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    (tmp_path / "foreign.json").write_text("{}")
    assert factors(store, *(one.replace("FOLDER", str(tmp_path)) for one in arguments)) == 2
    assert said.replace("FOLDER", str(tmp_path)) in capsys.readouterr().err


def test_a_store_that_cannot_be_read_is_told(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    store.path.write_text(store.path.read_text().replace('"version": 1', '"version": 7'))
    assert factors(store, "show") == 2
    assert "of version 7" in capsys.readouterr().err


def test_nothing_learnt_yet(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    for key in (LIGHT, HEAVY):
        store.reset(key)
    assert factors(store, "show") == 0
    assert capsys.readouterr().out == f"{store.path}: nothing learned yet\n"


def test_it_takes_neither_torch_nor_lightning_and_says_what_it_needs(store: Store) -> None:
    program = """
import sys
sys.modules.update(dict.fromkeys({blocked}))
from leakcheck_incidents.batch_size.__main__ import main
sys.exit(main(["--store", sys.argv[1], "show"]))
"""
    for blocked, status, said in (
        (["torch", "lightning"], 0, "set_01_gat_student"),
        (
            ["filelock"],
            3,
            "python -m leakcheck_incidents.batch_size: needs filelock: pip install 'pytest-leakcheck[batch]'",
        ),
    ):
        command = [sys.executable, "-c", program.format(blocked=blocked), str(store.path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == status, done.stderr
        assert said in done.stdout + done.stderr
