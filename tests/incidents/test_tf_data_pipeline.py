"""Incident 1: what TensorFlow keeps, and what its consumer keeps, caught; the fixed dataset, silent.

TensorFlow is loaded in separate processes, and in few of them: it takes seconds, and half a gigabyte.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import leakcheck_incidents
from leakcheck_incidents import readme
from leakcheck_incidents.catalog import INCIDENTS
from leakcheck_incidents.tf_data_pipeline.episodes import synthetic_episodes
from leakcheck_incidents.tf_data_pipeline.pairs import PAIRS_OF_SPLIT, draw, frame_pairs, resized
from projects import UNNAMED, Outcome, Project
from pytest_leakcheck.model.units import parse_amount
from shell import shell

INCIDENT = INCIDENTS["tf_data_pipeline"]
FOLDER = Path(leakcheck_incidents.__file__).parent / INCIDENT.name
# What an epoch draws before it begins, in bytes.
STATE = 8 * PAIRS_OF_SPLIT
TESTS = ("-p", "leakcheck_incidents.material", "--pyargs", INCIDENT.tests)


@pytest.mark.laboratory
def test_both_arms_come_out_as_they_must(tmp_path: Path) -> None:
    done = shell("repro", INCIDENT.name, "--arm", "all", folder=tmp_path, limit=900)
    said = done.stdout
    assert done.returncode == 0, said + done.stderr
    assert "leaky arm: 2 of 2 as expected" in said
    assert "published arm: 1 of 1 as expected" in said
    assert "fixed arm: 6 of 6 as expected" in said
    # Of each pipeline: the 2 MiB that its epoch has drawn (2,055 KiB measured), and of each reader 3 threads.
    told = re.findall(r"(Test\w+): \w+ leak, ([\d.]+(?: MiB)?) per epoch", said)
    grows = {test: parse_amount(amount, "bytes") for test, amount in told}
    assert grows["TestEpochs"] == pytest.approx(STATE, rel=0.2)
    assert grows["TestPublishedFix"] == pytest.approx(STATE, rel=0.2)
    assert grows["TestIteratorsKept"] == 3
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


@pytest.fixture(scope="module")
def keras_on_tensorflow(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Beside Keras on torch, which the incident's tests choose by themselves."""
    project = Project(tmp_path_factory.mktemp("keras"))
    project.write("conftest.py", UNNAMED)
    return project.run(*TESTS, "-k", "TrainAndValidation or published", limit=900, KERAS_BACKEND="tensorflow")


@pytest.mark.laboratory
def test_a_validation_in_the_midst_of_a_training_epoch(keras_on_tensorflow: Outcome) -> None:
    leaky = keras_on_tensorflow.finding("TestTrainAndValidation::test_epoch[leaky]", "heap")
    assert leaky["verdict"] == "leak", keras_on_tensorflow.text
    assert leaky["slope"] == pytest.approx(2 * STATE, rel=0.2)
    for resource in ("thread", "heap", "object"):
        fixed = keras_on_tensorflow.finding("TestTrainAndValidation::test_epoch[fixed]", resource)
        assert fixed["verdict"] == "ok", keras_on_tensorflow.text


@pytest.mark.laboratory
def test_the_published_fix_holds_where_keras_runs_on_tensorflow(keras_on_tensorflow: Outcome) -> None:
    found = keras_on_tensorflow.finding("test_epoch[published]", "heap")
    assert found["verdict"] == "ok", keras_on_tensorflow.text


@pytest.mark.laboratory
def test_how_the_fixed_dataset_behaves(project: Project) -> None:
    command = ["--import-mode=importlib", "-q", str(Path(__file__).parent / "frame_pairs.py")]
    outcome = project.run(*command, leakcheck=False)
    assert outcome.status == 0, outcome.text
    assert re.search(r"^8 passed", outcome.text, re.MULTILINE), outcome.text


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
    outcome = project.run("-p", "fixed_tensorflow", *TESTS, "-k", "leaky or published", PYTHONPATH=str(project.folder))
    assert "not reproducible here: TensorFlow" in outcome.text
    assert "so this leak is fixed" in outcome.text
    # TensorFlow writes a few lines more as the process ends.
    assert re.search(r"^=+ 1 failed, 3 skipped, 3 deselected in ", outcome.text, re.MULTILINE), outcome.text
    # What the consumer keeps leaks in every version.
    assert outcome.finding("TestIteratorsKept::test_epoch[leaky]", "thread")["verdict"] == "leak"


def test_pairs_are_frames_at_an_offset() -> None:
    episodes = synthetic_episodes(8)
    assert {episode.height for episode in episodes} == {480, 360}
    assert {episode.length for episode in episodes} == {6, 1}
    epoch = draw(len(episodes), seed=3)
    made = list(frame_pairs(episodes, epoch, offset=2))
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
