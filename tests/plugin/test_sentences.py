"""No sentence is data: with each one replaced by its hash, the verdicts and lines are the same."""

from __future__ import annotations

import os

import pytest

from projects import ROOT, Project
from sessions import write_arms
from verdict_rows import by_parameter, compare, is_made_here, read, reduce

# The causes whose names are texts that other code could read: callbacks at exit, a handler that only the interpreter
# holds, a cache, a suspended function, a cycle; and memory of C, without an owner.
ARMS = [
    "exit_keeps_worker-leaky",
    "signal_handlers_chained-leaky",
    "cache_on_a_method-leaky",
    "generator_suspended-leaky",
    "watch_in_a_cycle-leaky",
    "malloc_4_kib-leaky",
    "cache_on_a_method-fixed",
]


@pytest.mark.skipif(not is_made_here("cases"), reason="needs rows that this version of Python has recorded")
def test_no_sentence_is_data(project: Project) -> None:
    write_arms(project, ARMS)
    start = project.write("start/sitecustomize.py", "import hashed_sentences").parent
    path = os.pathsep.join(map(str, (start, ROOT, ROOT / "tests", ROOT / "tests" / "support")))
    # pytest's own loader of plugins would read the source as it is.
    ran = project.run("--tb=short", "--assert=plain", PYTHONPATH=path, TMPDIR=str(project.folder / "tmp"))
    assert "not resolved" not in ran.text, "no sentence is replaced"
    recorded = {name: row for name, row in read()["cases"].items() if name in ARMS}
    found = by_parameter(reduce(ran.findings))
    for row in (*recorded.values(), *found.values()):
        # How an owner is described, or why there is none, is a sentence.
        row.pop("owner", None)
    assert [str(one) for one in compare(recorded, found)] == []
