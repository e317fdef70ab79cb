"""Several who leave files in one folder at once: what is leaked is never in order, and the innocent are never red."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from projects import UNNAMED, Outcome, Project

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/dev/shm, /proc")

# Names as the standard library makes them up. The resource tracker would remove the segments at the end of a session.
LEAKY: Final = """
    import os, tempfile, time
    from multiprocessing import resource_tracker
    from multiprocessing.shared_memory import SharedMemory
    import pytest

    resource_tracker.register = lambda name, kind: None

    def leave_file():
        os.close(tempfile.mkstemp()[0])

    def leave_segment():
        segment = SharedMemory(create=True, size=4096)
        segment.close()
        with open({made!r}, "a") as made:
            made.write(segment.name.lstrip("/") + "\\n")

    @pytest.mark.parametrize("turn", range({turns}))
    @pytest.mark.parametrize("leak", [
        pytest.param(leave_file, marks=pytest.mark.disk_budget(0), id="file"),
        pytest.param(leave_segment, marks=pytest.mark.shm_budget(0), id="segment"),
    ])
    def test_leaky(leak, turn):
        leak()
        time.sleep(0.005)
"""
CLEAN: Final = """
    import time
    import pytest

    @pytest.mark.disk_budget(0)
    @pytest.mark.shm_budget(0)
    @pytest.mark.parametrize("turn", range(2))
    def test_clean(turn):
        time.sleep(0.005)
"""


@pytest.fixture
def temporary(project: Project) -> Iterator[Path]:
    """The temporary folder of all sessions; what they left in the machine's shared memory goes too."""
    project.write("conftest.py", UNNAMED)
    # A short path, so that one of a socket fits in a folder below.
    with tempfile.TemporaryDirectory(prefix="shared-") as folder:
        yield Path(folder)
    made = project.folder / "made"
    for name in made.read_text().split() if made.exists() else ():
        Path("/dev/shm", name).unlink(missing_ok=True)


def write_leaky(project: Project, turns: int) -> None:
    project.write("test_leaky.py", LEAKY.format(made=str(project.folder / "made"), turns=turns))


def verdicts(outcome: Outcome, resource: str) -> list[str]:
    return [one["verdict"] for one in outcome.findings if one["resource"] == resource]


@pytest.mark.laboratory
def test_what_sessions_side_by_side_leak_is_a_leak_in_each_and_a_clean_one_is_not_red(
    project: Project, temporary: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """They share the machine's shared memory."""
    write_leaky(project, 1)
    others = [Project(tmp_path_factory.mktemp("session")) for _ in range(3)]
    for other in others:
        other.write("conftest.py", UNNAMED)
        other.write("test_it.py", LEAKY.format(made=str(project.folder / "made"), turns=1))
    others[-1].write("test_it.py", CLEAN)
    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(lambda one: one.run(TMPDIR=str(temporary)), [project, *others]))
    for outcome in outcomes[:-1]:
        assert [one["verdict"] for one in outcome.findings] == ["leak"] * 2, outcome.text
    clean = outcomes[-1]
    assert clean.status == 0, clean.text
    assert {one["colour"] for one in clean.findings} <= {"green", "yellow"}
    for one in clean.findings:
        assert one["verdict"] == "ok" or "of unknown origin in /dev/shm" in one["reason"], one


@pytest.mark.usefixtures("temporary")
def test_one_entry_that_another_process_makes_is_not_held_against_a_level(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        import os, time
        from collections import Counter
        from pathlib import Path
        import pytest

        RUNS = Counter()

        @pytest.mark.shm_budget(0)
        @pytest.mark.parametrize("own", [True, False])
        def test_it(own):
            RUNS[own] += 1
            if RUNS[own] == 8 and own:
                os.mkdir(f"/dev/shm/leakcheck-{os.getpid()}-own")
                Path("made").write_text(f"leakcheck-{os.getpid()}-own")
            elif RUNS[own] == 8:
                # Another process makes one, and is waited for.
                Path("now").touch()
                while Path("now").exists():
                    time.sleep(0.001)
        """,
    )
    script = "import os, sys, time\nwhile True:\n time.sleep(0.001)\n if os.path.exists(sys.argv[1]):\n"
    script += "  os.mkdir(sys.argv[2])\n  os.unlink(sys.argv[1])\n  break\n"
    foreign = Path(f"/dev/shm/leakcheck-{os.getpid()}-foreign")
    with subprocess.Popen([sys.executable, "-c", script, str(project.folder / "now"), str(foreign)]) as other:
        try:
            outcome = project.run()
        finally:
            other.kill()
    foreign.rmdir()
    Path("/dev/shm", (project.folder / "made").read_text()).rmdir()
    (project.folder / "made").unlink()
    found = {"test_it[True]": "over_budget", "test_it[False]": "inconclusive"}
    assert outcome.verdicts == {(name, "shm"): verdict for name, verdict in found.items()}, outcome.text
    assert "1 entry of unknown origin in /dev/shm: " in outcome.finding("test_it[False]", "shm")["reason"]
    assert "and no other session at the same time" in outcome.one_line


def test_the_temporary_folder_is_private_while_a_test_is_judged_and_counted_through_all_levels(
    project: Project, temporary: Path
) -> None:
    project.copy("arms_of_temporary_folders.py")
    outcome = project.run("test_it.py", TMPDIR=str(temporary))
    assert outcome.verdicts == {
        ("test_imported", "disk"): "leak",
        ("test_of_fixture", "disk"): "leak",
        ("test_below", "disk"): "leak",
        ("test_of_pytest", "disk"): "ok",
    }, outcome.text
    plain, *silent = map(Path, (project.folder / "where").read_text().split())
    assert plain == temporary
    assert len({*silent}) == 1
    assert (silent[0].name, silent[0].parent.parent) == ("t", temporary)
    assert len(str(silent[0])) <= len(f"{temporary}/leakcheck-12345678/t")
    # What the test itself has left in the session's own run stays, as in a plain session.
    assert not silent[0].exists()
    assert not [*temporary.glob("leakcheck-*")]


@pytest.mark.parametrize("arguments", [(), ("-n1",), ("--basetemp=below",)], ids=str)
def test_what_holds_of_the_temporary_folders_in_a_plain_session_holds_in_each_run(
    project: Project, temporary: Path, arguments: tuple[str, ...]
) -> None:
    project.copy("program_with_temporary_folders.py")
    arguments = tuple(one.replace("=below", f"={temporary}/below") for one in arguments)
    outcome = project.run("--leakcheck-scope=all", *arguments, TMPDIR=str(temporary))
    assert outcome.last_line == "3 passed", outcome.text
    assert {one["verdict"] for one in outcome.findings} <= {"ok", "inconclusive"}
    assert "not repeatable" not in outcome.text, outcome.text
    # Those of a plain session are kept.
    kept = sorted(path.parent.name for path in temporary.rglob("file") if not path.parent.name.endswith("current"))
    assert kept == ["test_fixture0", "test_marked0", "test_unmarked0"]
    assert not [*temporary.glob("leakcheck-*")]


@pytest.mark.laboratory
def test_they_hold_in_isolated_tests(project: Project, temporary: Path) -> None:
    project.copy("program_with_temporary_folders.py")
    outcome = project.run("--leakcheck-scope=all", "--leakcheck-isolate", TMPDIR=str(temporary))
    assert outcome.last_line == "3 passed", outcome.text
    assert "not repeatable" not in outcome.text, outcome.text
    assert not [*temporary.glob("leakcheck-*")]


@pytest.mark.parametrize("chosen", ["temporary", "base", "environment"])
def test_folders_that_the_project_has_chosen_stay(project: Project, temporary: Path, chosen: str) -> None:
    project.write(
        "test_it.py",
        """
        import os, tempfile
        from pathlib import Path
        import pytest

        HERE = Path(__file__).parent

        @pytest.fixture(scope="session", autouse=True)
        def chosen(tmp_path_factory):
            with pytest.MonkeyPatch.context() as patch:
                if os.environ["CHOSEN"] == "temporary":
                    patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("chosen")))
                    patch.setattr(tempfile, "tempdir", None)
                if os.environ["CHOSEN"] == "environment":
                    patch.setattr(os, "environ", dict(os.environ))
                yield os.environ["TMPDIR"]

        @pytest.mark.leakcheck(iterations=3)
        def test_it(chosen, tmp_path):
            if os.environ["CHOSEN"] == "temporary":
                assert tempfile.gettempdir() == chosen
            assert tmp_path.parent == HERE / "base"
        """,
    )
    outcome = project.run("--basetemp=base", TMPDIR=str(temporary), CHOSEN=chosen)
    assert outcome.last_line == "1 passed", outcome.text
    assert "not repeatable" not in outcome.text, outcome.text


def test_the_second_pass_makes_folders_again_in_a_base_that_the_project_has_chosen(
    project: Project, temporary: Path
) -> None:
    outcome = project.run_test(
        """
        from pathlib import Path
        import pytest

        HERE = Path(__file__).parent
        BASES = set()

        @pytest.fixture(scope="session")
        def data(tmp_path_factory): return tmp_path_factory.mktemp("data", numbered=False)

        def test_first(data): BASES.add(data.parent)
        def test_second(data, tmp_path): assert tmp_path.parent == data.parent
        def test_base(): assert BASES <= {HERE / "base", HERE / "base" / "leakcheck"}
        """,
        "--leakcheck-scope=all",
        "--basetemp=base",
        TMPDIR=str(temporary),
    )
    assert (outcome.last_line, set(outcome.verdicts.values())) == ("3 passed", {"ok"}), outcome.text


@pytest.mark.laboratory
def test_each_worker_and_each_isolated_test_has_a_temporary_folder_of_its_own(
    project: Project, temporary: Path
) -> None:
    project.write(
        "test_it.py",
        """
        import os, subprocess, sys, tempfile
        from multiprocessing.connection import Listener
        from pathlib import Path
        import pytest

        @pytest.mark.parametrize("turn", range(2))
        @pytest.mark.leakcheck(iterations=2, warmup=1, resources=("fd",))
        def test_where(turn, tmp_path):
            code = "import tempfile; print(tempfile.gettempdir())"
            child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
            folder = {tempfile.gettempdir(), child.stdout.strip(), os.environ["TMPDIR"]}
            if tempfile.gettempdir() == str(tmp_path).partition("/pytest-of-")[0]:
                # The session's own run.
                return
            Path(tempfile.gettempdir(), "left").touch()
            Listener(family="AF_UNIX").close()
            with open("where", "a") as where:
                where.write(" ".join([*folder, str(tmp_path)]) + "\\n")
        """,
    )
    for arguments in ("-n2", "--dist=each"), ("--leakcheck-isolate",), ("-n2", "--dist=each", "--leakcheck-isolate"):
        (project.folder / "where").unlink(missing_ok=True)
        outcome = project.run(*arguments, TMPDIR=str(temporary))
        assert outcome.status == 0, outcome.text
        lines = {tuple(line.split()) for line in (project.folder / "where").read_text().splitlines()}
        folders = {Path(folder) for folder, _tmp_path in lines}
        assert len(folders) >= 2
        for folder, tmp_path in lines:
            assert Path(folder).parent.parent == temporary
            assert Path(tmp_path).parent == Path(folder, "pytest")
        assert [one.name for one in temporary.iterdir() if not one.name.startswith("pytest-of-")] == []
