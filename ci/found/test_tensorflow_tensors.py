"""tensorflow: each tensor retains a reference to its class."""

from __future__ import annotations

import pytest
import tensorflow as tf

RELEASES = ("tensorflow-cpu==2.21.0",)
RESOURCES = ("reference",)
TEXT = "each tensor retains a reference to its class, also when it is freed"
OBJECT = "type(tf.constant(1.5))"

TENSOR = tf.constant(1.5)


@pytest.mark.leakcheck
def test_leaky() -> None:
    tf.constant(1.5)


@pytest.mark.leakcheck
def test_control() -> None:
    TENSOR.numpy()
