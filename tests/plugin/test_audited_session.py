"""What a session writes, removes, binds and unpickles is what SECURITY.md lists."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import pytest_leakcheck
from projects import ROOT, UNNAMED, Project
from variants import variants

PACKAGE = Path(pytest_leakcheck.__file__).parent
# By module, each call that runs code by name or from data. All of it is of this package, of the user's own mark, or is
# written for another program to read.
RUNS = {
    "__init__": {"import_module"},
    "attribution/tracing/traced_children": {"exec"},
    "config/scaling_marker": {"eval"},
    "config/settings": {"import_module"},
    "plugin/report_files": {"pickle.PROTO", "pickle.dumps"},
    "plugin/undisturbed": {"import_module"},
    "probes/accelerators": {"import_module"},
    "probes/catalog": {"import_module"},
    "probes/child_start": {"exec"},
    # Modules of Ray, where it is loaded; and the program of a rank, in its actor.
    "probes/ray_counters": {"import_module"},
    "runner/fault_injection": {"import_module"},
    "runner/processes/ray_ranks": {"runpy"},
}
_CALL = re.compile(
    r"(?<!\")\b(pickle\.\w+|marshal\.\w+|import_module(?=\()|__import__(?=\()|runpy|exec(?=[(,])|(?<!\.)eval(?=\()|shell=True|TCPStore)"
)
TESTS = """
    import multiprocessing, os, tempfile
    import pytest
    KEPT = []

    @pytest.mark.fd_budget(0)
    def test_leaks():
        KEPT.append(os.open(__file__, os.O_RDONLY))

    def work(): pass

    if "ENGINE" in os.environ:
        @pytest.mark.leakcheck
        def test_spawns():
            child = multiprocessing.get_context("spawn").Process(target=work)
            child.start()
            child.join()

        @pytest.mark.scaling_budget("n", [1, 2, 4], engine=os.environ["ENGINE"], fd="O(n)")
        def test_world(n): pass
"""


def load_audit() -> Any:
    spec = importlib.util.spec_from_file_location("audit_suite", ROOT / "ci" / "audit_suite.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_code_is_run_where_it_is_known_only() -> None:
    found = {
        str(path.relative_to(PACKAGE).with_suffix("")): set(_CALL.findall(path.read_text()))
        for path in PACKAGE.rglob("*.py")
    }
    assert {module: calls for module, calls in found.items() if calls} == RUNS


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the folders are those of Linux")
@pytest.mark.parametrize("engine", variants([""], ["process", "gloo"]))
def test_a_session_keeps_to_its_folders(project: Project, engine: str) -> None:
    to = project.folder / "events"
    project.write("test_it.py", TESTS)
    options = ("--leakcheck-html=page.html", "--leakcheck-baseline=known.json", "--leakcheck-update-baseline")
    recorder: dict[str, Any] = {"AUDIT_TO": str(to), "PYTHONPATH": str(ROOT / "ci" / "audit")}
    if engine:
        recorder["ENGINE"] = engine
    if not engine:
        project.write("conftest.py", UNNAMED)
    # Isolated, and in place.
    umask = os.umask(0)
    try:
        for how in (("--leakcheck-isolate",), ())[: 2 if engine else 1]:
            ran = project.run(*options, *how, **recorder)
            assert "INTERNALERROR" not in ran.text
    finally:
        os.umask(umask)
    events = [json.loads(line) for line in to.read_text().splitlines()]
    assert {event[0] for event in events} >= {"open", "os.mkdir", "subprocess.Popen"}, "the recorder has seen nothing"
    named = [project.folder / name for name in ("findings.json", "page.html", "known.json", "")]
    temporaries = [*project.folder.glob(".known.json*"), *project.folder.glob("*.lock")]
    assert not load_audit().outside(events, [*named, *temporaries])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the folders are those of Linux")
@pytest.mark.parametrize("engine", variants([""], ["process", "gloo"]))
def test_what_lies_in_temporary_folders_is_for_this_user_alone(project: Project, engine: str) -> None:
    mark = f'scaling_budget("n", [1, 2, 4], engine="{engine}", fd="O(n)")' if engine else "fd_budget(0)"
    body = f"""
        import os
        from pathlib import Path
        import pytest
        from pytest_leakcheck.probes.own_folder import own_folder

        @pytest.mark.{mark}
        def test_it({"n" if engine else ""}):
            private = {'Path(os.environ["TMPDIR"]).parent' if engine else "own_folder()"}
            modes = {{str(one): one.stat().st_mode & 0o777 for one in (private, *private.rglob("*"))}}
            assert len(modes) > 4
            assert not {{name: oct(mode) for name, mode in modes.items() if mode & 0o077}}
        """
    umask = os.umask(0)
    try:
        ran = project.run_test(body, "--leakcheck-isolate")
    finally:
        os.umask(umask)
    assert ran.last_line == "1 passed", ran.text
