"""torch's memory snapshot of a test that leaks on a device. CUDA is patched here: nothing of this has run on a real device."""

from __future__ import annotations

import json
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from projects import Outcome, Project

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts exactly on Linux")

# CUDA as torch shows it. Each call of the recording is noted with the iteration in which it comes.
CONFTEST = """
    import torch
    import torch.cuda.memory as memory
    CALLS, RUNS = [], []

    def record(enabled="all", **options):
        CALLS.append([enabled, len(RUNS), sorted(options)])

    torch.cuda.is_initialized = lambda: True
    # A build for GPUs fails here without a driver; one for the CPU does not have it.
    torch._C._cuda_isHistoryEnabled = lambda: False
    memory._record_memory_history = record
    memory._snapshot = lambda: {"segments": [{"device": 0}], "device_traces": [], "calls": list(CALLS)}

    def pytest_sessionfinish(session):
        if not hasattr(session.config, "workerinput"):
            import json, pathlib
            name = "child.json" if session.config.pluginmanager.hasplugin("leakcheck-child") else "calls.json"
            pathlib.Path(name).write_text(json.dumps([CALLS, len(RUNS)]))
"""
LEAKY = """
    import pytest, torch
    from conftest import RUNS
    KEPT = []

    @pytest.mark.vram_budget(0)
    def test_it():
        RUNS.append(1)
        KEPT.append(torch.zeros(1000))
"""
FIXED = LEAKY.replace("KEPT.append(torch.zeros(1000))", "torch.zeros(1000)")


def run(project: Project, suite: str, *arguments: str, conftest: str = CONFTEST) -> tuple[Outcome, dict[str, Any]]:
    project.write("conftest.py", conftest)
    project.write("test_it.py", suite)
    (project.folder / "out").mkdir(exist_ok=True)
    ran = project.run("--leakcheck-vram=accounted", "-p", "no:randomly", *arguments)
    _first, finding, _last = project.lines()
    return ran, finding


def calls(project: Project, name: str = "calls.json") -> tuple[list[list[Any]], int]:
    found, runs = json.loads((project.folder / name).read_text(encoding="utf-8"))
    return found, runs


def test_a_leak_has_a_snapshot_with_the_history_of_the_search(project: Project) -> None:
    ran, finding = run(project, LEAKY, "--leakcheck-html=out/page.html")
    path = Path(finding["snapshot"])
    assert path == project.folder / "out" / f"{finding['fingerprint']}.snapshot.pickle"
    written = pickle.loads(path.read_bytes())
    assert written["segments"] == [{"device": 0}]
    found, _runs = calls(project)
    began, ended = found
    # It was recording when the snapshot was made, and not before the verdict.
    assert written["calls"] == [began]
    assert began[0] == "all"
    assert began[1] >= finding["verdicts"][0]["iterations"]
    assert began[2] == ["max_entries", "stacks"]
    assert ended[0] is None
    told = "".join(ran.text.split())
    assert f"snapshot{path}:openitatpytorch.org/memory_viz" in told
    page = (project.folder / "out" / "page.html").read_text(encoding="utf-8")
    assert f'<a href="{path.name}" download>{path.name}</a>' in page


def test_the_fixed_one_has_none_and_records_nothing(project: Project) -> None:
    ran, finding = run(project, FIXED, "--leakcheck-html=out/page.html")
    assert ran.status == 0, ran.text
    assert "snapshot" not in finding
    assert [path.name for path in (project.folder / "out").iterdir()] == ["page.html"]
    assert calls(project)[0] == []


@pytest.mark.laboratory
def test_a_test_in_a_process_of_its_own_has_one(project: Project) -> None:
    _ran, finding = run(project, LEAKY, "--leakcheck-isolate")
    path = Path(finding["snapshot"])
    assert (path.parent, path.exists()) == (project.folder, True)
    assert [call[0] for call in calls(project, "child.json")[0]] == ["all", None]


@pytest.mark.laboratory
def test_no_snapshot_without_a_report(project: Project) -> None:
    project.write("conftest.py", CONFTEST)
    ran = project.run_test(LEAKY, "--leakcheck", "--leakcheck-vram=accounted", leakcheck=False)
    assert "LEAK test_it.py::test_it" in ran.text
    assert "memory_viz" not in ran.text
    assert not list(project.folder.rglob("*.pickle"))
    assert calls(project)[0] == []


@pytest.mark.laboratory
def test_what_fails_leaves_the_verdict_and_a_reason(project: Project) -> None:
    broken = CONFTEST + "\n    def refuse(): raise RuntimeError('no driver')\n    memory._snapshot = refuse\n"
    ran, finding = run(project, LEAKY, conftest=broken)
    assert (finding["verdicts"][0]["verdict"], finding["snapshot_error"]) == ("leak", "RuntimeError: no driver")
    assert "snapshot" not in finding
    assert re.search(r"snapshot +not written: RuntimeError: no driver", ran.text)
    assert [call[0] for call in calls(project)[0]] == ["all", None]


@pytest.mark.laboratory
def test_a_torch_without_the_recording_still_has_segments(project: Project) -> None:
    older = (
        CONFTEST
        + "\n    def refuse(*_, **__): raise TypeError('unexpected')\n    memory._record_memory_history = refuse\n"
    )
    ran, finding = run(project, LEAKY, conftest=older)
    assert Path(finding["snapshot"]).exists()
    assert "lacks the history of allocations: TypeError: unexpected" in ran.one_line


@pytest.mark.laboratory
def test_a_program_that_records_keeps_its_history(project: Project) -> None:
    own = CONFTEST + "\n    torch._C._cuda_isHistoryEnabled = lambda: True\n"
    _ran, finding = run(project, LEAKY, conftest=own)
    assert Path(finding["snapshot"]).exists()
    assert calls(project)[0] == []
