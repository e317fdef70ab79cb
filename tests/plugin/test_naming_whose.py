"""Whose a leak is: a fixture's, a package's, one cause of several tests; what is held, and what the search leaves as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from projects import Outcome, Project, line_of


def test_a_fixture_is_blamed_in_the_phase_in_which_it_leaks(project: Project) -> None:
    path = project.copy("arms_of_fixtures.py")
    leaky = project.run()
    for test, fixture, phase, shown in (
        ("test_setup", "pipeline", "setup", "set-up"),
        ("test_teardown", "summary", "teardown", "tear-down"),
    ):
        found = leaky.finding(test)
        assert found["site"]["line"] == line_of(f"{test} LEAK", path.read_text())
        where = found["culprit"]["where"]
        assert (where["fixture"], where["phase"]) == (fixture, phase)
        assert f"in fixture {fixture}, {shown}, not in the test function itself" in leaky.text
    assert leaky.finding("test_setup")["owner"]["name"] == "test_it.KEPT"
    project.copy("arms_of_fixtures.py", LEAKY=False)
    fixed = project.run()
    assert fixed.status == 0, fixed.text


PACKAGE = """
    import os

    def opened(path):
        return os.open(path, os.O_RDONLY)
"""
USING = """
    import os
    import pytest
    from decode import opened

    @pytest.mark.fd_budget(0)
    def test_decode():
        opened(__file__)

    @pytest.mark.fd_budget(0)
    def test_decode_again():
        opened(__file__)

    @pytest.mark.fd_budget(0)
    def test_of_another():
        os.dup(1)
"""


def test_tests_that_fail_for_one_cause_are_one_finding(project: Project) -> None:
    project.write("decode.py", PACKAGE)
    ran = project.run_test(USING)
    fingerprints = {one["test"].rpartition("::")[2]: one["fingerprint"] for one in ran.findings if one["fingerprint"]}
    assert fingerprints["test_decode"] == fingerprints["test_decode_again"] != fingerprints["test_of_another"]
    assert fingerprints["test_decode"].endswith("-fd-decode-open")
    assert "  test_it.py::test_decode and 1 more" in ran.text
    # Lines above, and another folder, change nothing.
    project.write("decode.py", "# A comment.\n" + PACKAGE.replace("\n    ", "\n"))
    again = project.run("-k", "again").finding("test_decode_again")
    assert again["fingerprint"] == fingerprints["test_decode"]


def test_only_what_the_named_packages_have_to_do_with_is_red(project: Project) -> None:
    project.write("decode.py", PACKAGE)
    project.write("test_it.py", USING)
    blamed = project.run("--leakcheck-blame=decode")
    colours = {one["test"].rpartition("::")[2]: one["colour"] for one in blamed.findings}
    assert colours == {"test_decode": "red", "test_decode_again": "red", "test_of_another": "yellow"}
    assert blamed.finding("test_of_another")["third_party"] == "no suspect frame belongs to decode"
    assert blamed.last_line == "2 failed, 1 passed"
    unblamed = project.run("--leakcheck-blame=other,another")
    assert unblamed.last_line == "3 passed"


@pytest.mark.parametrize("tests", ["group/frames/tests", "group/frames"])
def test_an_installed_package_whose_tests_run_is_the_projects_and_what_it_calls_is_not(
    project: Project, tmp_path: Path, tests: str
) -> None:
    installed = tmp_path / "lib" / "site-packages"
    # A namespace, which the packages in it share.
    project.write(str(installed / "group/opener/__init__.py"), PACKAGE)
    project.write(
        str(installed / "group/frames/__init__.py"), "from group.opener import opened\ndef read(path): opened(path)\n"
    )
    project.write(
        str(installed / tests / "test_it.py"),
        "import pytest\nfrom group.frames import read\n@pytest.mark.fd_budget(0)\ndef test_read(): read(__file__)\n",
    )
    ran = project.run("--pyargs", "group.frames", PYTHONPATH=str(installed))
    site = ran.finding("test_read")["site"]
    assert (site["file"], site["line"]) == (str(installed / "group/frames/__init__.py"), 2), ran.text


def test_the_payload_comes_first_until_the_leak_is_fixed(project: Project) -> None:
    project.copy("arms_that_hold.py")
    leaky = project.run()
    found = leaky.finding("test_payload", "heap")
    assert found["verdict"] == "leak"
    assert found["held"][0]["what"] == "bytearray"
    assert found["held"][0]["note"].startswith("1,048,6")
    errors = leaky.finding("test_errors", "object")
    assert errors["held"][0]["what"] == "KeyError"
    assert "× KeyError" in errors["owner"]["holds"]
    (files,) = leaky.finding("test_files")["held"]
    assert files["what"].endswith("/part-*.bin")
    assert files["count"] >= 17
    project.copy("arms_that_hold.py", LEAKY=False)
    assert set(project.run().verdicts.values()) == {"ok"}


FOREIGN = """
    import cProfile, os, sys, threading
    import pytest

    KEPT = []

    def profile(frame, event, argument):
        pass

    def trace(frame, event, argument):
        return None

    @pytest.mark.fd_budget(0)
    def test_hooks_are_put_back():
        KEPT.append(os.open(__file__, os.O_RDONLY))

    def test_afterwards():
        assert (sys.getprofile(), sys.gettrace()) == (profile, trace)
"""


def test_what_the_program_has_hooked_in_is_put_back(project: Project) -> None:
    project.write("test_it.py", FOREIGN)
    project.write(
        "conftest.py",
        """
        import sys
        import pytest

        @pytest.fixture(autouse=True, scope="session")
        def hooks(request):
            from test_it import profile, trace
            sys.setprofile(profile)
            sys.settrace(trace)
            yield
            sys.setprofile(None)
            sys.settrace(None)
        """,
    )
    ran = project.run()
    assert ran.last_line == "1 failed, 1 passed", ran.text
    assert ran.finding("test_hooks_are_put_back")["site"] is not None


def test_what_comes_once_is_not_looked_for(project: Project) -> None:
    found = project.run_test("""
        import os, itertools
        import pytest
        count = itertools.count()

        @pytest.mark.fd_budget(0)
        def test_once():
            if next(count) == 8:
                os.dup(1)
        """).finding("test_once")
    assert (found["verdict"], found["site"], found["owner"]) == ("over_budget", None, None)
    assert set(found["culprit"]["unresolved"].values()) == {"it appeared once, and was not seen to recur"}
    assert found["culprit"]["iterations"] == 0


INSTALLED = """
    from pathlib import Path
    KEPT = []
    class Loader:
        def __init__(self, name):
            self.file = Path(name).open()
    def load(name):
        KEPT.append(Loader(name))
"""
USING_INSTALLED = """
    import pytest
    import toxpkg

    @pytest.mark.fd_budget(0)
    def test_load(): toxpkg.load(__file__)
"""


def install(folder: Path, files: dict[str, str], name: str = "tox_pkg") -> None:
    """Do what pip does, without a build."""
    metadata = f"{name}-1.dist-info"
    installed = {
        **files,
        f"{metadata}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n",
        f"{metadata}/RECORD": "".join(f"{one},,\n" for one in files),
    }
    for one, text in installed.items():
        path = folder / one
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def run_installed(project: Project, *arguments: str, module: str = "toxpkg/__init__.py", config: str = "") -> Outcome:
    folder = project.folder / "lib" / "site-packages"
    install(folder, {module: project.write("source.py", INSTALLED).read_text(encoding="utf-8")})
    project.write("tests/test_it.py", USING_INSTALLED)
    for line in config.splitlines():
        name, _, text = line.partition(": ")
        project.write(name, text.replace("|", "\n"))
    return project.run(*arguments, "tests", PYTHONPATH=str(folder))


def culprit(outcome: Outcome) -> tuple[str, int]:
    site = outcome.finding("test_load")["site"]
    return "/".join(Path(site["file"]).parts[-2:]), site["line"]


@pytest.mark.parametrize(
    ("module", "config"),
    [
        ("toxpkg/__init__.py", "pyproject.toml: [project]|name = 'tox.pkg'"),
        ("toxpkg/__init__.py", "pyproject.toml: [tool.poetry]|name = 'Tox-Pkg'"),
        ("toxpkg/__init__.py", "setup.cfg: [metadata]|name = tox_pkg"),
        ("toxpkg.py", "pyproject.toml: [project]|name = 'tox-pkg'"),
    ],
)
def test_the_installed_project_is_the_programs_own(project: Project, module: str, config: str) -> None:
    outcome = run_installed(project, module=module, config=config)
    assert culprit(outcome) == (f"site-packages/{module}" if "/" not in module else module, 5)
    assert "opened       " in outcome.text
    assert "self.file = Path(name).open()" in outcome.text


def test_a_package_that_is_blamed_is_as_well(project: Project) -> None:
    assert culprit(run_installed(project, "--leakcheck-blame=toxpkg")) == ("toxpkg/__init__.py", 5)


@pytest.mark.parametrize("config", ["", "pyproject.toml: [project]|name = 'other'"])
def test_another_package_is_what_the_line_is_inside(project: Project, config: str) -> None:
    outcome = run_installed(project, config=config)
    assert culprit(outcome) == ("tests/test_it.py", 5)
    assert "inside lib/site-packages/toxpkg/__init__.py:5 " in outcome.text


def test_the_search_for_these_files_is_not_found_as_a_leak(project: Project) -> None:
    """What is imported to read pyproject.toml would add to sys.modules while containers are counted."""
    package = "KEPT = []\ndef load(name):\n    KEPT.append(bytearray(65536))\n"
    folder = project.folder / "lib" / "site-packages"
    install(folder, {"toxpkg/__init__.py": package})
    project.write("setup.cfg", "[metadata]\nname = another\n")
    outcome = project.run_test(USING_INSTALLED.replace("fd_budget(0)", "heap_budget"), PYTHONPATH=str(folder))
    assert outcome.finding("test_load", "heap")["owner"]["name"] == "toxpkg.KEPT"
