"""Incident 1 under a ceiling of memory: the leaky dataset ends a training run by want of memory, the fixed one does not."""

from __future__ import annotations

import pytest

from projects import UNNAMED, Project


@pytest.mark.laboratory
def test_the_leaky_dataset_runs_out_of_memory_and_the_fixed_one_does_not(project: Project) -> None:
    project.write("conftest.py", UNNAMED)
    project.copy("arms_of_epochs_under_ceiling.py")
    ran = project.run(limit=900)
    # 96 MiB in each epoch, and 0.8 GiB before the first.
    leaky = ran.finding("test_epoch[leaky]", "rss")
    assert leaky["colour"] == "red", ran.text
    assert "MemoryError: Unable to allocate 96" in leaky["reason"], ran.text
    assert leaky["culprit"]["ran_out"]["function"] == "Epoch.__init__", ran.text
    # All 50 epochs, in less than one of the leaky dataset takes: the rest of its growth may need more to be told from none.
    fixed = ran.finding("test_epoch[fixed]", "rss")
    assert (fixed["colour"] != "red", fixed["iterations"]) == (True, 50), ran.text
    assert fixed["level"] < 96 << 20, ran.text
