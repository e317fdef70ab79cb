"""What an epoch draws here is larger than in the incident, so that the memory ends before growth is certain."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

os.environ.update(KERAS_BACKEND="torch", TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0")

from importlib import import_module
from itertools import islice

import numpy as np
import pytest
import tensorflow as tf


class Epoch:
    def __init__(self) -> None:
        self.draws = np.ones(12 << 20)

    def __iter__(self) -> Iterator[int]:
        yield from range(10)


@pytest.fixture(scope="module", params=["leaky", "fixed"])
def train(request: pytest.FixtureRequest) -> Any:
    module = import_module(f"leakcheck_incidents.tf_data_pipeline.{request.param}")
    return module.GeneratorDataset(lambda epoch: Epoch(), tf.TensorSpec((), tf.int64), buffer=4)


@pytest.mark.leakcheck(iterations=50, max_time=600, resources=["rss"])
@pytest.mark.leakcheck_ceiling(rss="2 GiB")
def test_epoch(train: Any) -> None:
    assert len(list(islice(train, 2))) == 2
