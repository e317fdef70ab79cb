"""Incident 1: what TensorFlow keeps, and what its consumer keeps, caught; the fixed dataset, silent.

TensorFlow is loaded in separate processes, and in few of them: it takes seconds, and half a gigabyte.
"""

from __future__ import annotations

import re
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import leakcheck_incidents
from leakcheck_incidents import readme
from leakcheck_incidents.catalog import INCIDENTS
from leakcheck_incidents.tf_data_pipeline.episodes import HEIGHTS, WIDTH, synthetic_episodes
from leakcheck_incidents.tf_data_pipeline.memory import ShuffleMemory
from leakcheck_incidents.tf_data_pipeline.pairs import PAIRS_OF_SPLIT, SHAPE, drawn_pairs, resized
from projects import UNNAMED, Project
from pytest_leakcheck.model.units import parse_amount
from shell import shell

INCIDENT = INCIDENTS["tf_data_pipeline"]
FOLDER = Path(leakcheck_incidents.__file__).parent / INCIDENT.name
# What an epoch draws before it begins, in bytes.
STATE = 8 * PAIRS_OF_SPLIT
TESTS = ("--pyargs", INCIDENT.tests)


@pytest.mark.laboratory
def test_both_arms_come_out_as_they_must(tmp_path: Path) -> None:
    done = shell("repro", INCIDENT.name, "--arm", "all", folder=tmp_path, limit=900)
    said = done.stdout
    assert done.returncode == 0, said + done.stderr
    for arm, expectations in INCIDENT.arms.items():
        assert f"{arm} arm: {len(expectations)} of {len(expectations)} as expected" in said
    # Of each pipeline: the 2 MiB that its epoch has drawn (2,054 KiB measured).
    told = re.findall(r"(Test\w+): heap leak, ([\d.]+ \w+) per epoch", said)
    # That of the first arm that runs the test.
    grows = {test: parse_amount(amount, "bytes") for test, amount in reversed(told)}
    assert grows["TestEpochs"] == pytest.approx(STATE, rel=0.2)
    assert grows["TestTrainAndValidation"] == pytest.approx(2 * STATE, rel=0.2)
    # The nested pipeline, and its functions.
    assert grows["TestNestedSource"] == pytest.approx(125 << 10, rel=0.2)
    # The pipeline of a retained iterator, with six pairs and its threads; README.md has the figure.
    assert grows["TestIteratorsKept"] == pytest.approx(6.3 * 2**20, rel=0.2)
    assert re.search(r"also growing +thread \+3\.0/iter", said)
    # The path from a module of TensorFlow to the list that grows by the three functions of each pipeline.
    path = said[said.index("held by ") :]
    assert re.match(
        r"held by +tensorflow\.python\.framework\.ops\._default_graph_stack.*?\._py_funcs_used_in_graph\n"
        r".*?_py_funcs_used_in_graph → list.*?<- grows by 3\.0/iter\n",
        path,
        re.DOTALL,
    ), path[:800]
    assert "held by      fixture kept" in said
    assert readme.steady(readme.report(FOLDER)) == readme.steady(readme.first_block(said)), "see readme.py"


@pytest.mark.laboratory
def test_the_published_fix_holds_where_keras_runs_on_tensorflow(project: Project) -> None:
    project.write("conftest.py", UNNAMED)
    ran = project.run(*TESTS, "-k", "published and TestEpochs", limit=900, KERAS_BACKEND="tensorflow")
    assert ran.finding("TestEpochs::test_epoch[published]", "heap")["verdict"] == "ok", ran.text


@pytest.mark.laboratory
def test_how_the_fixed_dataset_behaves(project: Project) -> None:
    command = ["--import-mode=importlib", "-q", str(Path(__file__).parent / "frame_pairs.py")]
    outcome = project.run(*command, leakcheck=False)
    assert outcome.status == 0, outcome.text
    assert re.search(r"^15 passed", outcome.text, re.MULTILINE), outcome.text


@pytest.mark.laboratory
def test_a_tensorflow_that_is_fixed_is_told_in_words(project: Project) -> None:
    """As from 2.22 on: what a pipeline's dataset needs is kept by the dataset, and not by the graph."""
    project.write(
        "fixed_tensorflow.py",
        """
        import os
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
        import tensorflow as tf
        from tensorflow.python.framework import ops

        def from_generator(*arguments, given=tf.data.Dataset.from_generator, **named):
            dataset = given(*arguments, **named)
            registered = ops.get_default_graph()._py_funcs_used_in_graph
            dataset.functions = registered.copy()
            registered.clear()
            return dataset

        tf.data.Dataset.from_generator = staticmethod(from_generator)
        """,
    )
    project.write("conftest.py", UNNAMED)
    outcome = project.run("-p", "fixed_tensorflow", *TESTS, "-k", "leaky", PYTHONPATH=str(project.folder))
    assert "not reproducible here: TensorFlow" in outcome.text
    assert "so this leak is fixed" in outcome.text
    # TensorFlow writes a few lines more as the process ends.
    assert re.search(r"^=+ 1 failed, 3 skipped, 12 deselected in ", outcome.text, re.MULTILINE), outcome.text
    # What the consumer keeps leaks in every version.
    assert outcome.finding("TestIteratorsKept::test_epoch[leaky]", "heap")["verdict"] == "leak"


def test_pairs_are_frames_at_an_offset() -> None:
    episodes = synthetic_episodes(8)
    assert {episode.height for episode in episodes} == {480, 360}
    assert {episode.length for episode in episodes} == {6, 1}
    epoch: Any = drawn_pairs(episodes, seed=3)(1)
    made = list(epoch)
    expected = []
    for number in epoch.order:
        frames = resized(episodes[number].frames())
        assert frames.shape[1:] == (256, 256, 3)
        expected += [(frames[first], frames[first + 2]) for first in range(len(frames) - 2)]
    assert len(made) == len(expected) == 6 * 4
    mirrored = 0
    for pair, both, chance in zip(made, expected, epoch.draws, strict=False):
        mirrored += chance < 0.5
        assert np.array_equal(pair, np.stack(both)[:, :, :: -1 if chance < 0.5 else 1])
    assert 0 < mirrored < len(made)


def shuffled_mean(buffer: int) -> float:
    """The mean displacement by a shuffle buffer of 4,000 items, simulated as tf.data documents it."""
    chance = np.random.default_rng(buffer)
    held, moved = list(range(buffer)), 0
    for place in range(4_000):
        at = int(chance.integers(len(held)))
        moved += abs(held[at] - place)
        held[at] = buffer + place
    return moved / 4_000


def test_the_memory_of_a_shuffle_buffer() -> None:
    pair = ShuffleMemory(prod(SHAPE))
    assert pair.item == 393_216
    assert pair.held(30) == 38 * 393_216
    for budget in (9 * 393_216, 10**8, 1 << 30):
        largest = pair.largest_buffer(budget)
        assert pair.held(largest) <= budget < pair.held(largest + 1)
    with pytest.raises(ValueError, match="a buffer of 1 needs 3,538,944 bytes"):
        pair.largest_buffer(9 * 393_216 - 1)
    for buffer in (2, 30):
        assert ShuffleMemory.displacement(buffer) == pytest.approx(shuffled_mean(buffer), rel=0.1)


def test_the_figures_of_the_readme_are_computed() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    pair = ShuffleMemory(prod(SHAPE))
    rows = [tuple(map(str.strip, row)) for row in re.findall(r"(?m)^\| (\d+) MB \| (\d+) \| (\d+) \|$", text)]
    assert len(rows) == 4
    for budget, buffer, displacement in rows:
        assert int(buffer) == pair.largest_buffer(int(budget) * 10**6)
        assert int(displacement) == round(pair.displacement(int(buffer)))
    for pairs, megabytes in ((30, "11.8"), (500, "196.6"), (256, "100.7")):
        assert f"{pairs * pair.item / 10**6:.1f}" == megabytes
        assert f"{megabytes} MB" in text
    frames = {
        f"{millions} MB": millions * 10**6 / (WIDTH * height * 3)
        for millions, height in zip((28, 20), HEIGHTS, strict=True)
    }
    assert {name: f"{count:.1f}" for name, count in frames.items()} == {"28 MB": "30.4", "20 MB": "28.9"}
    assert [f"{WIDTH * height:,}" for height in HEIGHTS] == ["307,200", "230,400"]
    for figure in ("30.4", "28.9", "307,200", "230,400"):
        assert figure in text
