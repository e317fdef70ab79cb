"""scikit-learn: a ``ProgressBar`` leaves a thread behind in each fit."""

from __future__ import annotations

import pytest
from sklearn.callback import ProgressBar
from sklearn.linear_model import LogisticRegression

RELEASES = ("scikit-learn==1.9.1",)
NEEDS = ("rich",)
RESOURCES = ("thread",)
TEXT = "each fit with a ProgressBar leaves a thread behind"


@pytest.mark.leakcheck
def test_leaky() -> None:
    LogisticRegression().set_callbacks(ProgressBar()).fit([[0.0], [1.0]], [0, 1])


@pytest.mark.leakcheck
def test_control() -> None:
    LogisticRegression().fit([[0.0], [1.0]], [0, 1])
