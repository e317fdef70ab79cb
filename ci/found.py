"""Repeat what each known leak of a released package or of CPython needs, and write or check ``docs/found.md``.

For each leak of ``known_libraries.json``, and each in ``ci/found`` that no finding can be matched with, this takes the
reproduction (`library_leaks.py` and ``ci/found`` have them) and runs it on the last release here that leaks:

* as a script without pytest, which prints a level twice, each after as many calls;
* as a test under ``pytest --leakcheck``, whose finding the page shows.

Usage: python ci/found.py               (exits with 1 if a leak does not show, or not as the page says)
       python ci/found.py --write       (writes docs/found.md, and the results to ci/found/results.json)
       python ci/found.py --only lmdb-getmulti
       python ci/found.py --issue lmdb-getmulti        (prints a report to file upstream)
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).with_name("bench")))

from pytest_leakcheck.baseline.library_leaks import INTERPRETER, read_shipped
from pytest_leakcheck.model.decoding import decode
from pytest_leakcheck.model.finding import RED
from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.model.units import format_rate
from pytest_leakcheck.report.finding_text import block
from pytest_leakcheck.report.json_file import read
from subjects import constants
from venvs import PROJECT, ROOT, Absent, Missing, environment, find_interpreter, inherited, interpreters

PAGE: Final = ROOT / "docs" / "found.md"
RESULTS: Final = ROOT / "ci" / "found" / "results.json"
_ENVIRONMENTS: Final = ROOT / ".venv" / "library-leaks"
_LIMIT: Final = 300
# What a script prints, and the module that it needs, by resource; the first of these that a leak has is taken.
_LEVELS: Final = {
    "reference": ("sys.getrefcount({})", "sys"),
    "fd": ('len(os.listdir("/proc/self/fd"))', "os"),
    "thread": ("threading.active_count()", "threading"),
    "shm": ('len(os.listdir("/dev/shm"))', "os"),
    "disk": ("len(os.listdir(tempfile.gettempdir()))", "os, tempfile"),
    "block": ("sys.getallocatedblocks()", "sys"),
    "object": ("len(gc.get_objects())", "gc"),
    "heap": ("resource.getrusage(resource.RUSAGE_SELF).ru_maxrss", "resource"),
}
# How often a script makes the calls before it prints: of those that need a thread or a process, and of the others.
_CALLS_WITH_HANDLES: Final = 20
_CALLS: Final = 1000
# So that the memory rises by more than what the allocator keeps.
_CALLS_FOR_MEMORY: Final = 10_000
_HANDLES: Final = {"fd", "thread", "shm", "disk"}
_LEAST_RATIO: Final = 0.5
# A rate in bytes depends on the allocator.
_RATE_TOLERANCE: Final = 0.25


@dataclass(frozen=True, slots=True)
class Leak:
    """A leak of a package, with the releases of its reproduction, the first and the last that leak.

    `obj`: whose references the script counts. `unclosed`: the collector releases it, so the script switches that off.
    """

    name: str
    package: str
    releases: tuple[str, ...]
    needs: tuple[str, ...]
    resources: tuple[str, ...]
    text: str
    link: str
    path: Path
    obj: str
    unclosed: bool

    @property
    def resource(self) -> str:
        return next(one for one in _LEVELS if one in self.resources)

    @property
    def calls(self) -> int:
        few = _CALLS_FOR_MEMORY if self.resource == "heap" else _CALLS
        return _CALLS_WITH_HANDLES if self.resource in _HANDLES else few


@dataclass(frozen=True, slots=True)
class Result:
    """What was seen of a leak.

    `levels`: what the script printed after the calls, and after as many again. `report`: the finding as a terminal shows it.
    """

    release: str
    python: str
    rate: str
    levels: tuple[int, int]
    report: str


def main() -> int:
    """Return 1 if a leak does not show, or the page differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="NAME", help="one leak")
    parser.add_argument("--write", action="store_true", help="write the page")
    parser.add_argument("--issue", metavar="NAME", help="print a report to file upstream")
    given = parser.parse_args()
    results = read_results()
    if given.issue:
        leak = next(one for one in leaks() if one.name == given.issue)
        print(issue(leak, results[leak.name]))
        return 0
    status = 0
    for leak in leaks():
        if given.only not in (None, leak.name):
            continue
        try:
            result = reproduce(leak)
        except Absent as error:
            print(f"{leak.name:32} did not run: {error}", flush=True)
            continue
        except (Missing, subprocess.TimeoutExpired) as error:
            print(f"{leak.name:32} did not run: {error}", flush=True)
            status = 1
            continue
        wrong = compare(leak, result, None if given.write else results.get(leak.name))
        print(f"{leak.name:32} {result.release:24} {result.rate:>14}  {wrong or 'leaks'}", flush=True)
        status |= bool(wrong)
        if given.write and not wrong:
            results[leak.name] = result
            text = json.dumps(
                {name: asdict(one) for name, one in sorted(results.items())}, indent=1, ensure_ascii=False
            )
            RESULTS.write_text(text + "\n", encoding="utf-8")
    if given.write:
        PAGE.write_text(page(), encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != page():
        print("docs/found.md is not up to date: run python ci/found.py --write")
        status = 1
    return status


def leaks() -> list[Leak]:
    """Return all leaks, those of packages first, by name."""
    shipped = {leak.name: leak for leak in read_shipped()}
    found = []
    for path in sorted(ROOT.glob("ci/library_leaks/test_*.py")) + sorted(ROOT.glob("ci/found/test_*.py")):
        header, name = constants(path.read_text(encoding="utf-8")), path.stem.removeprefix("test_").replace("_", "-")
        known = shipped.get(name)
        releases = header["RELEASES"]
        found.append(
            Leak(
                name,
                releases[0].partition("==")[0],
                releases,
                header.get("NEEDS", ()),
                known.resources if known else header["RESOURCES"],
                known.text if known else header["TEXT"],
                known.link if known else header.get("LINK", ""),
                path,
                header.get("OBJECT", ""),
                header.get("UNCLOSED", False),
            )
        )
    return sorted(found, key=lambda one: (one.package == INTERPRETER, one.name))


def read_results() -> dict[str, Result]:
    """Return what was seen when the page was written, by the name of the leak."""
    if not RESULTS.exists():
        return {}
    read_in = json.loads(RESULTS.read_text(encoding="utf-8"))
    return {name: decode(Result, one) for name, one in read_in.items()}


def reproduce(leak: Leak) -> Result:
    """Run a reproduction as a script and as a test; raise `Missing` if it cannot run here."""
    if leak.package == INTERPRETER:
        here = [one.partition("==")[2] for one in leak.releases if one.partition("==")[2] in interpreters()]
        if not here:
            raise Absent(f"no CPython {' or '.join(one.partition('==')[2] for one in leak.releases)} here")
        release, base = f"CPython {here[0]}", find_interpreter(here[0])
        python = environment(_ENVIRONMENTS, base, ("pytest>=9.0", PROJECT), name=f"python-{here[0]}")
    else:
        release = leak.releases[-1].replace("==", " ")
        wanted = ("pytest>=9.0", *leak.needs, leak.releases[-1], PROJECT)
        python = environment(_ENVIRONMENTS, sys.executable, wanted, name=leak.name)
    with tempfile.TemporaryDirectory() as folder:
        # A reproduction that makes files would find those of the last run elsewhere.
        Path(folder, "tmp").mkdir()
        Path(folder, "leak.py").write_text(script(leak), encoding="utf-8")
        printed = _run([str(python), "leak.py"], folder)
        levels = [int(line) for line in printed.splitlines() if line.isdecimal()]
        if len(levels) != 2:
            raise Missing(f"the script printed {printed!r}")
        rate, report = _judge(leak, python, folder)
    version = _run([str(python), "-c", "import platform; print(platform.python_version())"], folder="/").strip()
    return Result(release, version, rate, (levels[0], levels[1]), report)


def compare(leak: Leak, result: Result, before: Result | None) -> str:
    """Return what is wrong with a result, also beside what the page says; empty if nothing is."""
    if not result.rate:
        return "the test is not red"
    if leak.resource != "heap" and result.levels[1] - result.levels[0] < _LEAST_RATIO * leak.calls:
        return f"the script printed {result.levels}"
    if before is None:
        return ""
    now, then = (float(re.search(r"[\d.]+", one.rate)[0]) for one in (result, before))  # type: ignore[index]
    if (
        result.rate.lstrip("+0123456789.,") != before.rate.lstrip("+0123456789.,")
        or abs(now - then) > _RATE_TOLERANCE * then
    ):
        return f"the page says {before.rate}"
    lines = [[one for one in of.report.splitlines() if "held by" in one] for of in (result, before)]
    return "" if lines[0] == lines[1] else f"{lines[0]}, and the page says {lines[1]}"


def _judge(leak: Leak, python: Path, folder: str) -> tuple[str, str]:
    """Return the rate of the test's leak, and the report on it; both empty if it does not leak."""
    report = Path(folder, "leaks.json")
    Path(folder, "pytest.ini").write_text("[pytest]\nleakcheck_library_leaks = false\n", encoding="utf-8")
    Path(folder, "test_leak.py").write_text(as_test(leak), encoding="utf-8")
    command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", "--leakcheck", f"--leakcheck-json={report}"]
    # On a busy machine the default does not suffice for memory.
    command += [f"--leakcheck-resources={leak.resource}", "--leakcheck-max-time=120"]
    printed = _run([*command, "test_leak.py"], folder)
    try:
        (finding,) = read(report).findings
    except (OSError, ValueError):
        raise Missing(printed[-2000:]) from None
    verdict = finding.verdict
    if verdict.resource != leak.resource or verdict.outcome not in RED | {"unclosed"}:
        return "", ""
    with chdir(folder):
        return format_rate(verdict.slope, find_resource(leak.resource).unit), block(finding)


def _run(command: list[str], folder: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=inherited() | {"COLUMNS": "80", "NO_COLOR": "1", "TMPDIR": str(Path(folder, "tmp"))},
        capture_output=True,
        text=True,
        check=False,
        timeout=_LIMIT,
    )
    return done.stdout + done.stderr * bool(done.returncode and not done.stdout)


def script(leak: Leak) -> str:
    """Return the reproduction without pytest: it prints a level after the calls, and after as many again."""
    before, body = _parts(leak)
    level, modules = _LEVELS[leak.resource]
    level = level.format(leak.obj)
    collects = leak.resource in ("object", "block", "heap", "reference")
    needed = {*modules.split(", "), *(["gc"] if collects or leak.unclosed else [])}
    loop = f"for _ in range(2):\n    for _ in range({leak.calls}):\n"
    loop += "".join(f"        {line}\n" for one in body for line in ast.unparse(one).splitlines())
    loop += "    gc.collect()\n" * collects + f"    print({level})\n"
    return _format(
        "\n".join(
            [*(f"import {one}" for one in needed), *map(ast.unparse, before), "gc.disable()" * leak.unclosed, loop]
        )
    )


def as_test(leak: Leak) -> str:
    """Return the reproduction as a test that stands alone."""
    before, body = _parts(leak)
    test = "def test_leak():\n" + "".join(f"    {line}\n" for one in body for line in ast.unparse(one).splitlines())
    # A reference is judged only where it is named.
    mark = "reference_budget()" if leak.resource == "reference" else "leakcheck"
    return _format("\n".join(["import pytest", *map(ast.unparse, before), f"@pytest.mark.{mark}\n{test}"]))


def _parts(leak: Leak) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """Return the statements that the leaky test needs, and its body, without types."""
    tree = _Untyped().visit(ast.parse(leak.path.read_text(encoding="utf-8")))
    leaky = next(one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == "test_leaky")
    wanted, needed = _names(*leaky.body), set[ast.stmt]()
    while True:
        more = [
            one for one in tree.body if one not in needed and one is not leaky and not wanted.isdisjoint(_binds(one))
        ]
        if not more:
            return [one for one in tree.body if one in needed], leaky.body
        needed.update(more)
        wanted |= _names(*more)


def _names(*nodes: ast.stmt) -> set[str]:
    return {one.id for node in nodes for one in ast.walk(node) if isinstance(one, ast.Name)}


def _binds(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement of a module binds, or whose object it changes."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from ((one.asname or one.name).partition(".")[0] for one in node.names)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign):
        yield from (one.id for target in node.targets for one in ast.walk(target) if isinstance(one, ast.Name))
    elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        yield from _names(node)


class _Untyped(ast.NodeTransformer):
    """Remove annotations and docstrings."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        assert node.value is not None
        return ast.copy_location(ast.Assign([node.target], node.value), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        return self._strip(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> Any:
        return self._strip(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        return self._strip(node)

    def _strip(self, node: Any) -> Any:
        if not isinstance(node, ast.ClassDef):
            node.returns = None
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:]
        return self.generic_visit(node)


def _format(text: str) -> str:
    for command in (["check", "--select=I", "--fix"], ["format", "--line-length=88"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--quiet", "--isolated", "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout
    return text


def issue(leak: Leak, result: Result) -> str:
    """Return a report to file upstream, as Markdown."""
    return f"""\
# {leak.text[0].upper()}{leak.text[1:]}

{result.release}, CPython {result.python}, Linux: {result.rate.replace("/iter", "")} per call.

{_shown(leak, result)}
"""


def page() -> str:
    """Return the text of docs/found.md."""
    results, found = read_results(), leaks()
    packages = [one for one in found if one.package != INTERPRETER]
    rows = "\n".join(_row(one, results.get(one.name)) for one in found)
    sections = "\n\n".join(_section(one, results[one.name]) for one in found if one.name in results)
    return f"""\
# Leaks in released packages

{len(found)} leaks, in releases of {len({one.package for one in packages})} packages and of CPython, each with a script \
that shows it without pytest.

`python ci/found.py` installs the last release of each leak that is to be had, runs the script and the test, and exits \
with 1 if one shows no leak, or not as this page says. `python ci/found.py --issue lmdb-getmulti` prints a report to file \
upstream. Findings on most of these leaks are recognised: [library leaks](known-leaks.md#library-leaks).

Releases are the first and the last one that leak in the reproduction; of CPython, they are those of each series until \
the one that fixes it, as its changelog says. Rates are of an iteration of the test.

| package | releases | per iteration | what remains | state |
|---|---|---|---|---|
{rows}

{sections}
"""


def _row(leak: Leak, result: Result | None) -> str:
    name = f"[{_package(leak)}](#{leak.name})" if result else _package(leak)
    state = f"[reported]({leak.link})" if leak.link else "no report known"
    return f"| {name} | {_releases(leak)} | {_rate_of(leak, result)} | {leak.text} | {state} |"


def _rate_of(leak: Leak, result: Result | None) -> str:
    return f"{leak.resource} {result.rate.replace('/iter', '')}" if result else "not run"


def _package(leak: Leak) -> str:
    return f"CPython: {leak.name.split('-')[1]}" if leak.package == INTERPRETER else leak.package


def _releases(leak: Leak) -> str:
    known = next((one for one in read_shipped() if one.name == leak.name), None)
    if leak.package == INTERPRETER and known is not None:
        return known.versions.replace(">=", "").replace(",<", " until ").replace(" | ", ", ")
    return " - ".join(dict.fromkeys(one.partition("==")[2] for one in leak.releases))


def _section(leak: Leak, result: Result) -> str:
    return f"""\
## {leak.name}

{result.release}: {leak.text}.

{_shown(leak, result)}"""


def _shown(leak: Leak, result: Result) -> str:
    first, second = result.levels
    return f"""\
```python
{script(leak).rstrip()}
```

It prints {first:,} and {second:,}. As a test under `pytest --leakcheck`:

```text
{result.report}
```"""


if __name__ == "__main__":
    sys.exit(main())
