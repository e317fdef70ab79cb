"""Every block of README.md and docs/ is run, and every generated part is up to date."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from leakcheck_incidents.catalog import INCIDENTS
from on_ray import NEEDS_RAY
from projects import ROOT, Project
from pytest_leakcheck.config.settings import OPTIONS
from pytest_leakcheck.model.resources import RESOURCES
from pytest_leakcheck.runner import fault_injection

PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    # The scripts of found.md need the packages that they are about: ci/found.py runs them.
    *sorted(set((ROOT / "docs").glob("*.md")) - {ROOT / "docs" / "found.md"}),
]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCE = re.compile(r"(?ms)^```(\w*)\n(.*?)^```$")
# What makes a block long, three seconds of a processor and more; the laboratory runs those.
LONG = (
    "./ci/demo",
    "./ci/site",
    "import torch",
    "import tensorflow",
    "huggingface_hub",
    "from leakcheck_incidents",
    "scaling_budget",
    "pip install",
)


def blocks_of(page: Path) -> Iterator[Any]:
    for number, (language, text) in enumerate(FENCE.findall(page.read_text(encoding="utf-8"))):
        marks = [pytest.mark.laboratory] if any(line in text for line in LONG) else []
        marks += [NEEDS_RAY] if page.name == "ray.md" and language == "python" else []
        yield pytest.param(language, text, id=f"{page.name}-{number}", marks=marks)


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
LEAKING = (
    "mkdir -p ../leaking && cd ../leaking && echo 'import os\nF = []\ndef test_it(): F.append(os.dup(1))' > test_it.py;"
    f" {ROOT}/.venv/bin/python -m pytest --leakcheck-scope=all --leakcheck-json=leaks.json"
)
# How a command of the docs is run here: in a copy of the tree, and where it would take long, a part of it.
SHORTENED = {
    "./ci/demo": "./ci/demo",
    "./ci/site": "./ci/site",
    # Not of the copy: it installs hundreds of megabytes, as it did here before these tests began.
    "./ci/test": f"{ROOT}/ci/test -q tests/unit/model/test_units.py",
    "./ci/measure --only tests": f"{ROOT}/.venv/bin/python ci/laboratory.py --only tests --list",
    # Its parts are run on their own: what is here is the part of seconds.
    "./ci/check": f"{ROOT}/.venv/bin/ruff format --check --quiet . && {ROOT}/.venv/bin/ruff check --quiet ."
    f" && {ROOT}/.venv/bin/codespell pytest_leakcheck fixtures ci tests docs .github ./*.md pyproject.toml"
    f" && {ROOT}/.venv/bin/python ci/words.py",
    # From the checkout: no index decides whether a test passes.
    "pip install pytest-leakcheck": f"{ROOT}/.venv/bin/python -m pip install --quiet --no-deps --target ../installed .",
    # On a suite of one test; tests/adoption has a larger one.
    **{
        f"pytest {arguments}": "mkdir -p ../suite && cd ../suite && echo 'def test_it(): pass' > test_it.py"
        f" && env -u CI {ROOT}/.venv/bin/python -m pytest {arguments}"
        for arguments in ("--leakcheck-scope=all --leakcheck-update-baseline", "--leakcheck-scope=all")
    },
    # Both on a suite with one leak.
    "pytest --leakcheck-scope=all --leakcheck-json=leaks.json": f"{LEAKING}; [ $? -eq 1 ]",
    "pytest-leakcheck explain 0a1b2c leaks.json": f"{LEAKING}; {ROOT}/.venv/bin/python -m pytest_leakcheck explain"
    " $(tail -n 1 leaks.json | grep -o '\"finding\": \"[0-9a-f]*' | grep -o '[0-9a-f]*$') leaks.json",
    # In the folder of the suite above: a session that is compared with itself.
    "pytest-leakcheck compare main.json branch.json": "mkdir -p ../suite && cd ../suite && echo 'def test_it(): pass' > test_it.py"
    f" && {ROOT}/.venv/bin/python -m pytest --leakcheck-scope=all --leakcheck-json=main.json"
    f" && {ROOT}/.venv/bin/python -m pytest_leakcheck compare main.json main.json",
    # The incidents' own tests run these whole.
    **{
        f"pytest-leakcheck repro {name}": f"{ROOT}/.venv/bin/python -m pytest_leakcheck repro {name} --help"
        for name in INCIDENTS
    },
    # One of them, by counts alone.
    "pytest --leakcheck --pyargs leakcheck_incidents -k fixed": f"{ROOT}/.venv/bin/python -m pytest --leakcheck"
    " --pyargs leakcheck_incidents.pyav_loader -k 'fixed and CollectorOff' --leakcheck-iterations=13",
    "pytest-leakcheck watch 4242": f"sleep 2 & {ROOT}/.venv/bin/python -m pytest_leakcheck watch $! --ledger watch-4242.jsonl",
    "pytest-leakcheck watch -- python train.py": f"{ROOT}/.venv/bin/python -m pytest_leakcheck watch -- {ROOT}/.venv/bin/python -c pass",
    "pytest-leakcheck report watch-4242.jsonl": f"{ROOT}/.venv/bin/python -m pytest_leakcheck watch --ledger watch-4242.jsonl"
    f" -- true && {ROOT}/.venv/bin/python -m pytest_leakcheck report watch-4242.jsonl --no-open",
}


def shorten(line: str) -> str:
    # Benchmarks are never run by tests, since their figures depend on what else the machine does: only that they start.
    return f"{ROOT}/.venv/bin/{' '.join(line.split()[:2])} --help" if line.startswith("python ci/") else SHORTENED[line]


@pytest.fixture(scope="module")
def fresh_machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree as a stranger gets it: nothing that is not in the repository, no environment yet."""
    folder = tmp_path_factory.mktemp("fresh") / "tree"
    ignore = shutil.ignore_patterns(".venv", ".git", "__pycache__", ".*_cache", ".hypothesis", "*.egg-info")
    shutil.copytree(ROOT, folder, ignore=ignore)
    return folder


@pytest.mark.parametrize(("language", "text"), [block for block in BLOCKS if block.values[0] == "python"])
def test_python(project: Project, language: str, text: str) -> None:
    path = project.write(f"test_block.{language[:2]}", text)
    if "def test_" not in text:
        subprocess.run([sys.executable, path], check=True, timeout=600, cwd=project.folder)
        return
    tests = text.count("def test_")
    # The first line says how it is to be run, where that takes more than the flag.
    said = re.match(r"# pytest --leakcheck (.*)", text)
    options = said[1].split() if said else []
    plugins = [word for pair in pairwise(options) if pair[0] == "-p" for word in pair]
    assert project.run(*plugins, leakcheck=False).last_line == f"{tests} passed"
    measured = project.run(*options)
    assert measured.last_line == f"{tests} passed", measured.text
    assert {one["verdict"] for one in measured.findings} == {"ok"}


@pytest.mark.parametrize(("language", "text"), [block for block in BLOCKS if block.values[0] == "sh"])
def test_shell(fresh_machine: Path, language: str, text: str) -> None:
    # Under CI, a verdict that so few iterations cannot give would be red.
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "CI"))}
    for line in text.splitlines():
        command = shorten(line.strip())
        done = subprocess.run(
            [f"/bin/{language}", "-c", command],
            cwd=fresh_machine,
            env=clean,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_no_block_goes_unrun() -> None:
    # tests/unit/runner/test_phases.py compares the diagram with the code.
    assert {block.values[0] for block in BLOCKS} == {"python", "sh", "text", "mermaid"}


@pytest.fixture(scope="module")
def readme() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "ci" / "readme.py"))


@pytest.mark.parametrize("part", ["options", "budgets"])
def test_tables_are_up_to_date(readme: dict[str, Any], part: str) -> None:
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert readme[part]() in text, "run: python ci/readme.py"


def steady(text: str) -> str:
    """A report without what differs by machine, version of Python and run: figures, folders, and its layout."""
    # Which resources are judged by the time of a red verdict depends on how busy the machine is.
    text = re.sub(r"(?m)^( *inside| +called from| *also ok).*\n|.* so far \(not judged\)\n", "", text)
    text = re.sub(r"…?(?:/\S+)?/config", "/config", text)
    return re.sub(r"\s+", " ", re.sub(r"(?<!:)\b\d[\d.,]*( [KM]iB)?", "N", text))


def test_the_picture_of_the_report_is_up_to_date(readme: dict[str, Any]) -> None:
    drawn = readme["PICTURE"].read_text(encoding="utf-8")
    shown = re.search(r"(?s)<desc>(.*?)</desc>", drawn)
    assert shown is not None
    text = shown[1].replace("&lt;", "<").replace("&amp;", "&")
    assert steady(readme["without_colours"](readme["red"]())) == steady(text), "run: python ci/readme.py"
    # It loads nothing, and shows the text that it describes.
    assert re.findall(r"(?:href|src)=|url\((?!#)", drawn) == []
    assert "test_config.OPENED" in drawn.partition("</desc>")[2]


def test_the_first_test_and_its_green_output_are_up_to_date(readme: dict[str, Any]) -> None:
    start = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert all(readme["leaky"]() in text for text in (README, start)), "run: python ci/readme.py"
    assert steady(readme["green"]()) in steady(start), "run: python ci/readme.py"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of Linux")
def test_the_report_of_headroom_is_up_to_date(project: Project) -> None:
    blocks = FENCE.findall((ROOT / "docs" / "headroom.md").read_text(encoding="utf-8"))
    (_, program), (_, shown) = [block for block in blocks if "os.devnull" in block[1] or "Too many" in block[1]]
    project.write("test_step.py", program)
    shown, printed = (re.sub("[▁-█]+", "", text) for text in (shown, project.run(COLUMNS="80").text))
    assert steady(shown).rstrip() in steady(printed)


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150


def test_each_incident_has_a_section_with_its_picture_and_a_readme() -> None:
    text = (ROOT / "docs" / "incidents.md").read_text(encoding="utf-8")
    for incident in INCIDENTS.values():
        assert f"```sh\npytest-leakcheck repro {incident.name}\n```\n" in text
        assert f"](incidents/{incident.name}.svg)" in text
        assert f"](../fixtures/leakcheck_incidents/{incident.name}/README.md)" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    commands = {"repro", "watch", "report", "compare", "explain", "baseline"}
    named = {
        r"(--leakcheck(?:-\w+)*)": {option.flag for option in OPTIONS},
        r"\b(leakcheck_[a-z_]+)": {option.key for option in OPTIONS} | {"leakcheck_incidents", "leakcheck_ceiling"},
        r"\b([a-z]+)_budget\b": RESOURCES.keys() | {"scaling", "over", "connection"},
        r"pytest-leakcheck\[(\w+)\]": project["optional-dependencies"].keys(),
        r"`pytest-leakcheck ([a-z]+)\b": commands,
        # What begins with tests/ may be an example's.
        r"(?<![\w/.])(?:\./)?((?:ci|fixtures|pytest_leakcheck)/[\w/.-]*\w)": {
            str(path.relative_to(ROOT))
            for room in ("ci", "fixtures", "pytest_leakcheck")
            for path in (ROOT / room).rglob("*")
        },
    }
    unknown = {
        name for pattern, known in named.items() for name in re.findall(f"(?m){pattern}", text) if name not in known
    }
    assert unknown == set()


def test_the_functions_that_raise_by_default_are_listed() -> None:
    text = (ROOT / "docs" / "failing-paths.md").read_text(encoding="utf-8")
    listed = re.search(r"(?s)The functions of `all`.*?\n\n(.*?)\n\n", text)
    assert listed is not None
    assert re.findall(r"`([\w.]+)`", listed[1]) == list(fault_injection.DEFAULT)


def test_the_tools_of_the_readme_have_the_figures_of_the_benchmarks() -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip().strip("*") for cell in line.split("|")[1:-1]] for line in README.splitlines() if line[:1] == "|"
    ]
    names = {"pytest-leakcheck": "pytest-leakcheck, now", "pytest-memray (`limit_leaks`)": "memray limit_leaks"}
    names |= {"pytest-leaks, regrtest `-R`": "pytest-leaks -R", "distributed `-L all`": "distributed -L all"}
    for name, found, alarms, line, owner, _beyond in rows[2:]:
        mode = "default" if name == "pytest-leakcheck" else "best"
        begin = f"| {names.get(name, name)} | {mode} | {found.split()[0]}/24 | {alarms.split()[0]}/13 | {line}/24 | "
        (row,) = [one for one in text.splitlines() if one.startswith(begin)]
        assert f" | {owner.split()[0]}/14 | " in row


def test_every_module_stands_in_the_architecture() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms, _, _ = text.partition("## Where does my line go?")
    named = set(re.findall(r"`(\w+)`", rooms))
    assert {path.stem for path in (ROOT / "pytest_leakcheck").rglob("*.py")} - {"__init__"} <= named
