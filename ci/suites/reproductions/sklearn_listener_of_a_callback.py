"""scikit-learn: a callback that records what an estimator does leaves its listener open: a socket and a thread."""

import gc
import threading
import warnings
from pathlib import Path

import numpy as np
from sklearn.callback import ScoringMonitor
from sklearn.linear_model import LogisticRegression

ITERATIONS = 100
X = np.arange(20.0).reshape(10, 2)
Y = np.arange(10) % 2


def fit(*, monitor: bool) -> None:
    """Fit an estimator, with a callback if it is to be monitored."""
    estimator = LogisticRegression(max_iter=3)
    if monitor:
        estimator.set_callbacks(ScoringMonitor(scoring="accuracy"))
    estimator.fit(X, Y)


def count() -> tuple[int, int]:
    """Return how many descriptors and threads exist."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()


def run(*, monitor: bool) -> str:
    """Return how many descriptors and threads exist before and after."""
    fit(monitor=monitor)
    before = count()
    for _ in range(ITERATIONS):
        fit(monitor=monitor)
    after = count()
    return f"{before[0]} -> {after[0]} descriptors, {before[1]} -> {after[1]} threads"


warnings.simplefilter("ignore")
print(f"{ITERATIONS} iterations: {run(monitor=True)}; without a callback: {run(monitor=False)}")
