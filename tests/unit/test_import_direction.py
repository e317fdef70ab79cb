"""How the package is built: imports go down only, the judge alone makes verdicts, rooms have a limit of tokens."""

from __future__ import annotations

import ast
import tokenize
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import pytest_leakcheck
from pytest_leakcheck.model.resources import RESOURCES

PACKAGE = Path(pytest_leakcheck.__file__).parent

# From the bottom up: a room imports itself and those before it. Imports inside functions and for types count as well.
ROOMS = "model probes config baseline judge attribution runner report plugin measurement watch cli __main__"
MAY_IMPORT_PYTEST = {"plugin"}
# The names, operators and numbers that each room may have, without commas and parentheses, which the formatter adds; "" is
# the package's own folder. 2 % of each figure were free when it was set, so that code stands where it belongs. To add to a
# full room, take something out. Lower a figure when code goes.
MOST_TOKENS = {
    "": 1_221,
    "attribution": 40_400,
    "baseline": 4_060,
    "config": 6_650,
    "judge": 10_710,
    "model": 7_600,
    "plugin": 32_840,
    "probes": 17_950,
    "report": 11_800,
    "runner": 39_800,
    "watch": 7_280,
}
# A room that must not import another one, although that one is below it.
BESIDE = {"watch": "plugin", "judge": "probes"}


def sources() -> dict[str, str]:
    """Return the text of each module by its name below the package; the package itself is left out."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = path.read_text(encoding="utf-8")
    # It names anything lazily.
    del found[""]
    return found


def imports(text: str) -> Iterator[str]:
    """Yield the absolute names of everything that is imported."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def graph(modules: Mapping[str, str]) -> dict[str, set[str]]:
    """Return which modules of the package each module imports."""
    found: dict[str, set[str]] = {}
    for module, text in modules.items():
        names = {
            name.removeprefix("pytest_leakcheck.") for name in imports(text) if name.startswith("pytest_leakcheck.")
        }
        # `from room import module` names a module; else the last word is something in it.
        found[module] = {name if name in modules else name.rpartition(".")[0] for name in names} - {module, ""}
    return found


def violations(modules: Mapping[str, str]) -> list[str]:
    height = {room: level for level, room in enumerate(ROOMS.split())}
    wrong = []
    for module, below in graph(modules).items():
        room = module.partition(".")[0]
        others = {name: name.partition(".")[0] for name in below}
        wrong += [f"{module} imports {name}" for name, other in others.items() if height[other] > height[room]]
        wrong += [f"{module} imports {name}" for name, other in others.items() if other == BESIDE.get(room)]
        if room not in MAY_IMPORT_PYTEST:
            outside = {name.partition(".")[0] for name in imports(modules[module])}
            wrong += [f"{module} imports {name}" for name in ("pytest", "_pytest") if name in outside]
    return sorted(wrong)


def test_rooms_import_downwards_and_only_the_plugin_imports_pytest() -> None:
    assert violations(sources()) == []


def test_every_room_is_in_the_list_and_nothing_else() -> None:
    assert {module.partition(".")[0] for module in sources()} == set(ROOMS.split())


def test_no_module_is_part_of_a_circle() -> None:
    TopologicalSorter(graph(sources())).prepare()


def test_a_file_name_is_unique() -> None:
    files = [path.name for path in PACKAGE.rglob("*.py") if path.name not in ("__init__.py", "command.py")]
    assert sorted(files) == sorted(set(files))


def test_a_planted_violation_is_found() -> None:
    planted = sources()
    planted["model.units"] += "\ndef late():\n    from pytest_leakcheck.judge.growth import growth\n"
    planted["judge.growth"] += "\nif TYPE_CHECKING:\n    from pytest_leakcheck.runner import repetition\n"
    planted["judge.screening"] += "\nfrom pytest_leakcheck.probes import clock\n"
    planted["model.culprit"] += "\nimport pytest\n"
    planted["watch.history"] += "\nfrom pytest_leakcheck.plugin.keys import PLAN\n"
    planted["runner.repetition"] += "\nfrom _pytest.runner import runtestprotocol\n"
    assert violations(planted) == [
        "judge.growth imports runner.repetition",
        "judge.screening imports probes.clock",
        "model.culprit imports pytest",
        "model.units imports judge.growth",
        "runner.repetition imports _pytest",
        "watch.history imports plugin.keys",
    ]
    planted = sources()
    planted["judge.growth"] += "\ndef late():\n    from pytest_leakcheck.judge.judge_series import judge\n"
    with pytest.raises(CycleError):
        TopologicalSorter(graph(planted)).prepare()


def tokens_of(path: Path) -> int:
    """Count the names, operators and numbers of a file, not inside f-strings, which Python 3.11 does not split."""
    found = inside = 0
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            name = tokenize.tok_name[token.type]
            inside += (name == "FSTRING_START") - (name == "FSTRING_END")
            found += not inside and name in ("NAME", "OP", "NUMBER") and token.string not in "(),"
    return found


def test_no_room_outgrows_its_tokens() -> None:
    found = dict.fromkeys(MOST_TOKENS, 0)
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).parts
        found[parts[0] if len(parts) > 1 else ""] += tokens_of(path)
    assert {room: tokens for room, tokens in found.items() if tokens > MOST_TOKENS[room]} == {}


def test_no_function_outgrows_two_pages() -> None:
    too_long = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = (node.end_lineno or 0) - node.lineno + 1
                too_long += [f"{path.name}: {node.name} has {lines} lines"] if lines > 80 else []
    assert too_long == []


def test_a_verdict_is_made_by_the_judge_alone() -> None:
    made = {
        path.relative_to(PACKAGE).parts[0]
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Verdict"
    }
    assert made == {"judge"}


# Words that are no names of resources where they stand: engines, a file, a way to capture output, a key of the report,
# what the interpreter names.
OTHER_MEANINGS = {
    ("attribution/inspection.py", "mmap"),
    ("attribution/heap/reference_paths.py", "thread"),
    ("config/scaling_marker.py", "thread"),
    ("plugin/isolation/engines.py", "process"),
    ("plugin/isolation/child_session.py", "thread"),
    ("plugin/progress_line.py", "fd"),
    ("plugin/isolation/item_elsewhere.py", "thread"),
    ("report/finding_text.py", "process"),
    ("report/finding_text.py", "thread"),
    ("runner/environment.py", "vram"),
}


def test_resources_are_named_in_the_model_and_the_probes_alone() -> None:
    found = {
        (str(path.relative_to(PACKAGE)), node.value)
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).parts[0] not in ("model", "probes")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in RESOURCES
    }
    assert found == OTHER_MEANINGS
