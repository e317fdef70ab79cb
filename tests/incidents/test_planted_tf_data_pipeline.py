"""Regressions of incident 1 turn the tests of its fixed arm red, and refactorings do not."""

from __future__ import annotations

import pytest

from planting import Change, judge_change, red_findings
from projects import UNNAMED, Project

RESET = "        tf.compat.v1.reset_default_graph()\n"
STARTED = "        self._items = iter(self._pipeline())\n"
READER = "        return self._read(self._epoch)\n"
CLASS = "class GeneratorDataset(PipelineDataset):\n"
# Half as many epochs as in the incident decide on bytes.
EFFORT = ("--leakcheck-iterations=30",)

REGRESSIONS = [
    (
        Change(
            "the session of Keras, which runs on torch, is cleared in place of the graph",
            {"fixed.py": [(RESET, "        tf.keras.backend.clear_session()\n")]},
            "TestEpochs",
            EFFORT,
        ),
        ("test_epoch[fixed]", "heap", "leak"),
    ),
    (
        Change(
            "what an epoch draws is cached by its number",
            {
                "pipeline.py": [
                    ("        self._epoch = 0\n", "        self._epoch = 0\n        self._drawn = {}\n"),
                    (
                        "        items = self._generate(self._epoch)\n",
                        "        items = self._drawn.setdefault(self._epoch, self._generate(self._epoch))\n",
                    ),
                ]
            },
            "TestEpochs",
            EFFORT,
        ),
        ("test_epoch[fixed]", "heap", "leak"),
    ),
    (
        Change(
            "an exit handler keeps the iterator",
            {
                "fixed.py": [
                    ("import tensorflow as tf\n", "import atexit\nimport tensorflow as tf\n"),
                    (STARTED, f"{STARTED}        atexit.register(lambda items: None, self._items)\n"),
                ]
            },
            "TestIteratorsKept",
            EFFORT,
        ),
        ("test_epoch[fixed]", "heap", "leak"),
    ),
    (
        Change(
            "the pipelines are kept for checkpoints",
            {
                "fixed.py": [
                    (CLASS, f"{CLASS}    _made = []\n"),
                    (
                        STARTED,
                        "        self._made.append(self._pipeline())\n        self._items = iter(self._made[-1])\n",
                    ),
                ]
            },
            "TestEpochs",
            EFFORT,
        ),
        ("test_epoch[fixed]", "heap", "leak"),
    ),
]
# An object per epoch is less than what TensorFlow's own objects vary by, as long as nothing is frozen: often undecided.
READERS = Change(
    "the dataset keeps its readers",
    {
        "fixed.py": [
            (CLASS, f"{CLASS}    _readers = []\n"),
            (READER, "        self._readers.append(self._read(self._epoch))\n        return self._readers[-1]\n"),
        ]
    },
    "TestEpochs",
)
REFACTORINGS = [
    Change(
        "one pipeline for all epochs, and no reset",
        {
            "fixed.py": [
                (
                    STARTED,
                    "        self._cached = self._cached or self._shuffled(self._next_epoch, self._seed)\n"
                    "        self._items = iter(self._cached)\n",
                ),
                (RESET, "\n    def _next_epoch(self):\n        return self._generate(self._epoch)\n"),
                (CLASS, f"{CLASS}    _cached = None\n"),
            ]
        },
        "TestEpochs or TestIteratorsKept",
        EFFORT,
    ),
    Change(
        "a class reads the epoch, and ends it when it is deleted",
        {
            "fixed.py": [
                (READER, "        return Reader(self, self._epoch)\n"),
                (
                    CLASS,
                    "class Reader:\n"
                    "    def __init__(self, dataset, epoch):\n"
                    "        self.dataset, self.epoch = dataset, epoch\n\n"
                    "    def __iter__(self):\n"
                    "        return self\n\n"
                    "    def __next__(self):\n"
                    "        return as_tensors(self.dataset._next(self.epoch))\n\n"
                    "    def __del__(self):\n"
                    "        if self.epoch == self.dataset._epoch:\n"
                    f"            self.dataset.close()\n\n\n{CLASS}",
                ),
            ]
        },
        "TestEpochs or TestIteratorsKept",
        EFFORT,
    ),
]


@pytest.mark.laboratory
@pytest.mark.parametrize(("change", "red"), REGRESSIONS, ids=lambda one: getattr(one, "what", ""))
def test_a_regression_is_red(project: Project, change: Change, red: tuple[str, str, str]) -> None:
    project.write("conftest.py", UNNAMED)
    ran = judge_change(project, "tf_data_pipeline", change)
    assert red_findings(ran) == {red}, ran.text


@pytest.mark.laboratory
def test_readers_that_are_kept_are_not_taken_for_clean(project: Project) -> None:
    ran = judge_change(project, "tf_data_pipeline", READERS)
    found = ran.finding("TestEpochs::test_epoch[fixed]", "object")
    assert found["verdict"] in ("leak", "over_budget", "inconclusive"), ran.text
    if found["colour"] == "red":
        assert found["owner"]["name"] == "GeneratorDataset._readers", ran.text


@pytest.mark.laboratory
@pytest.mark.parametrize("change", REFACTORINGS, ids=lambda change: change.what)
def test_a_refactoring_is_green(project: Project, change: Change) -> None:
    project.write("conftest.py", UNNAMED)
    ran = judge_change(project, "tf_data_pipeline", change)
    assert ran.findings, ran.text
    assert {one["verdict"] for one in ran.findings} == {"ok"}, ran.text
