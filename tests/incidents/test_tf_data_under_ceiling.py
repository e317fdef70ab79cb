"""Incident 1 under a ceiling of memory: the leaky dataset ends a training run by want of memory, the fixed one does not."""

from __future__ import annotations

import pytest

from projects import UNNAMED, Project

# What an epoch draws here is larger than in the incident, so that the memory ends before growth is certain.
RUN = """
    import os

    os.environ.update(KERAS_BACKEND="torch", TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0")

    from importlib import import_module
    from itertools import islice

    import numpy as np
    import pytest
    import tensorflow as tf


    class Epoch:
        def __init__(self):
            self.draws = np.ones(12 << 20)

        def __iter__(self):
            yield from range(10)


    @pytest.fixture(scope="module", params=["leaky", "fixed"])
    def train(request):
        module = import_module(f"leakcheck_incidents.tf_data_pipeline.{request.param}")
        return module.GeneratorDataset(lambda epoch: Epoch(), tf.TensorSpec((), tf.int64), buffer=4)


    @pytest.mark.leakcheck(iterations=50, max_time=600, resources=["rss"])
    @pytest.mark.leakcheck_ceiling(rss="2 GiB")
    def test_epoch(train):
        assert len(list(islice(train, 2))) == 2
"""


@pytest.mark.laboratory
def test_the_leaky_dataset_runs_out_of_memory_and_the_fixed_one_does_not(project: Project) -> None:
    project.write("conftest.py", UNNAMED)
    ran = project.run_test(RUN, limit=900)
    # 96 MiB in each epoch, and 0.8 GiB before the first.
    leaky = ran.finding("test_epoch[leaky]", "rss")
    assert leaky["colour"] == "red", ran.text
    assert "MemoryError: Unable to allocate 96" in leaky["reason"], ran.text
    assert leaky["culprit"]["ran_out"]["function"] == "Epoch.__init__", ran.text
    # All 50 epochs, in less than one of the leaky dataset takes: the rest of its growth may need more to be told from none.
    fixed = ran.finding("test_epoch[fixed]", "rss")
    assert (fixed["colour"] != "red", fixed["iterations"]) == (True, 50), ran.text
    assert fixed["level"] < 96 << 20, ran.text
