"""Lower layers know nothing of higher ones, and few modules know pytest: read from the import statements."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest_leakcheck

PACKAGE = Path(pytest_leakcheck.__file__).parent

# From the top down; a module may import its own layer and those below.
LAYERS = (
    {"cli"},
    # What a shell and a page need; no part of the plugin, which may import none of it.
    {"watch.command", "repro.command"},
    {"repro.picture"},
    {"repro.outcome"},
    {"repro.arm"},
    {"repro.difference", "page.command"},
    {"repro", "exits"},
    {"watch.told"},
    {"watch.table", "watch.training"},
    {"watch.words"},
    {"watch.following", "watch.outlook"},
    {"watch.history", "watch.ledger"},
    {
        "page",
        "page.findings",
        "page.picture",
        "page.render",
        "page.values",
        "watch",
        "watch.allowance",
        "watch.devices",
        "watch.events",
        "watch.newcomers",
        "watch.room",
        "watch.slope",
        "watch.steps",
        "watch.tree",
    },
    {
        "plugin",
        "hookspecs",
        "protocol",
        "given",
        "replay",
        "residue",
        "timer",
        "session",
        "xdist",
        "fixture",
        "failure",
        "measurement",
        "isolate",
        "isolated",
        "child",
        "errand",
        "peaked",
        "scaled",
        "sized",
    },
    {
        "report",
        "report.block",
        "report.culprit",
        "report.destination",
        "report.glyphs",
        "report.json",
        "report.law",
        "report.summary",
    },
    {"finding"},
    {"runner", "once"},
    {"sequel"},
    {"attest", "headroom", "investigation", "provenance", "suspicion"},
    {"result"},
    {
        "children",
        "fresh",
        "gauges",
        "meter",
        "panel",
        "attribution",
        "attribution.allocations",
        "attribution.arrivals",
        "attribution.bounded",
        "attribution.called",
        "attribution.calltree",
        "attribution.census",
        "attribution.culprit",
        "attribution.cycles",
        "attribution.handover",
        "attribution.hints",
        "attribution.holders",
        "attribution.identity",
        "attribution.kinds",
        "attribution.lines",
        "attribution.monitored",
        "attribution.native",
        "attribution.objects",
        "attribution.owner",
        "attribution.ownership",
        "attribution.path",
        "attribution.peak",
        "attribution.profiled",
        "attribution.references",
        "attribution.retained",
        "attribution.roots",
        "attribution.rounds",
        "attribution.site",
        "attribution.source",
        "attribution.tensors",
        "attribution.things",
        "attribution.throttle",
        "attribution.tracer",
        "markers",
        "settings",
        "sweep",
        "temporary",
        "world",
    },
    {"end_tree", "exhaustion", "forked", "progress"},
    {"settling"},
    {"rows"},
    {"plan", "scaling"},
    {"ceiling"},
    {"judge"},
    {
        "verdict",
        "floor",
        "probes",
        "probes.accelerators",
        "probes.accounted",
        "probes.audit",
        "probes.base",
        "probes.cgroup",
        "probes.changes",
        "probes.collector",
        "probes.device",
        "probes.driver",
        "probes.fanotify",
        "probes.folders",
        "probes.groups",
        "probes.heap",
        "probes.libraries",
        "probes.limits",
        "probes.mapped",
        "probes.objects",
        "probes.pace",
        "probes.peak",
        "probes.processes",
        "probes.rss",
        "probes.storages",
        "probes.user",
        "probes.users",
    },
    {"points"},
    {"decoding"},
    {"series", "budget", "ratchet", "law", "bound", "formula", "witness"},
    {"resources"},
    {"units"},
)
KNOW_PYTEST = next(layer for layer in LAYERS if "plugin" in layer) - {"measurement"}
BESIDE = ("watch", "page", "repro")
HEIGHT = {module: -depth for depth, layer in enumerate(LAYERS) for module in layer}


def sources() -> dict[str, str]:
    """The text of each module, by its name below the package (the package itself is the empty name)."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = path.read_text(encoding="utf-8")
    return found


def imports(text: str) -> Iterator[str]:
    """The absolute names of all modules that are imported at run time, in functions too."""
    for node in at_run_time(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            assert node.module
            # `from package import module` names a module too; a name that is none is dropped by the caller.
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from at_run_time(child)


def violations(modules: dict[str, str]) -> list[str]:
    wrong = []
    for module, text in modules.items():
        for name in imports(text):
            top, _, below = name.partition(".")
            if top in ("pytest", "_pytest") and module not in KNOW_PYTEST:
                wrong.append(f"{module} imports {name}")
            if top == "pytest_leakcheck" and below in HEIGHT and HEIGHT[below] > HEIGHT[module]:
                wrong.append(f"{module} imports {below}")
    return sorted(set(wrong))


def test_every_module_has_a_layer() -> None:
    assert set(sources()) - {""} == set(HEIGHT)


def test_no_module_imports_from_above_and_few_import_pytest() -> None:
    modules = sources()
    # The package itself is no layer: it may name anything lazily, and so imports nothing.
    own = {name.partition(".")[0] for name in imports(modules.pop(""))}
    assert own == {"__future__", "typing", "importlib"}
    assert violations(modules) == []


def test_watch_and_page_do_without_the_modules_that_know_pytest() -> None:
    known = {f"pytest_leakcheck.{module}" for module in KNOW_PYTEST}
    beside = {module: text for module, text in sources().items() if module.partition(".")[0] in BESIDE}
    assert len(beside) > len(BESIDE)
    assert [module for module, text in beside.items() if known & set(imports(text))] == []


def test_a_planted_violation_is_found() -> None:
    planted = sources()
    del planted[""]
    planted["units"] += "\ndef late():\n    from pytest_leakcheck.judge import judge\n"
    planted["series"] += "\nfrom pytest_leakcheck import budget, runner\n"
    planted["verdict"] += "\nimport pytest\n"
    planted["finding"] += "\nfrom _pytest.runner import runtestprotocol\n"
    planted["ratchet"] += "\nif TYPE_CHECKING:\n    from pytest_leakcheck.runner import Result\n    import pytest\n"
    assert violations(planted) == [
        "finding imports _pytest.runner",
        "finding imports _pytest.runner.runtestprotocol",
        "series imports runner",
        "units imports judge",
        "verdict imports pytest",
    ]
