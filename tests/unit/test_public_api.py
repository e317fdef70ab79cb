from __future__ import annotations

import ast
import subprocess
import sys
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

import pytest

import leakcheck_incidents
import pytest_leakcheck
from projects import ROOT
from pytest_leakcheck.config.settings import OPTIONS
from pytest_leakcheck.model import CANNOT, INTERRUPTED, WRONG_USE
from pytest_leakcheck.plugin import MARKERS

NAMES = pytest_leakcheck.__all__


def test_the_public_names_are_these() -> None:
    assert " ".join(NAMES) == (
        "Budget Device Finding InjectedError LeakError Leakcheck LeakcheckError Measurement Probe Recording Series Verdict "
        "__version__ measure"
    )
    assert sorted(NAMES) == NAMES
    # Each is a promise for years.
    assert len(NAMES) <= 15


@pytest.mark.parametrize("name", NAMES)
def test_each_public_name_is_there(name: str) -> None:
    value = getattr(pytest_leakcheck, name)
    if name != "__version__":
        assert value.__name__ == name


def test_a_star_import_gives_them_all() -> None:
    names: dict[str, object] = {}
    exec("from pytest_leakcheck import *", names)
    assert set(NAMES) <= set(names)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'pytest_leakcheck' has no attribute 'leak'"):
        pytest_leakcheck.leak  # noqa: B018


def test_importing_the_package_imports_no_other_module_of_it() -> None:
    script = "import sys, pytest_leakcheck; print(sorted(n for n in sys.modules if n.startswith(('pytest', 'psutil'))))"
    shown = subprocess.run([sys.executable, "-I", "-c", script], check=True, capture_output=True, text=True)
    assert shown.stdout.strip() == "['pytest_leakcheck']"


def test_the_markers_are_these() -> None:
    names = [line.partition("(")[0] for line in MARKERS]
    assert " ".join(name.removesuffix("_budget") for name in names if name.endswith("_budget")) == (
        "fd thread process shm disk task ray_actor ray_placement_group ray_ref ray_object ray_worker plasma "
        "heap object block arrow vram mmap rss reference scaling"
    )
    assert names[-2:] == ["leakcheck_ceiling", "leakcheck"]
    assert len(names) == 23


def test_the_options_are_these() -> None:
    keys = [option.key for option in OPTIONS]
    assert " ".join(key.removeprefix("leakcheck_") for key in keys) == (
        "leakcheck scope resources cases sample session_time iterations warmup max_time min_time isolate ceiling failures run "
        "fail_on unclosed rules blame library_leaks library baseline no_baseline baseline_strict update_baseline "
        "prune_baseline force_update vram missing summary json json_readings html source"
    )
    assert all(key.startswith("leakcheck") for key in keys)
    assert [option.flag for option in OPTIONS] == [f"--{key.replace('_', '-')}" for key in keys]
    # In the configuration as well, but for what one run writes or ignores.
    of_one_run = {"no_baseline", "update_baseline", "prune_baseline", "force_update", "json", "html"}
    in_the_file = ["leakcheck_rules", "leakcheck_library_leaks", "leakcheck_library", "leakcheck_source"]
    assert [option.key for option in OPTIONS if not option.flagged] == in_the_file
    assert {option.key for option in OPTIONS if not option.ini} == {f"leakcheck_{name}" for name in of_one_run}


def test_the_exit_codes_are_these() -> None:
    assert (WRONG_USE, CANNOT, INTERRUPTED) == (2, 3, 130)


def test_the_entry_points_are_these() -> None:
    found = {(one.group, one.name, one.value) for one in distribution("pytest-leakcheck").entry_points}
    assert found == {
        ("pytest11", "leakcheck", "pytest_leakcheck.plugin"),
        ("console_scripts", "pytest-leakcheck", "pytest_leakcheck.cli:main"),
    }


def test_all_errors_of_wrong_use_share_a_base_and_a_leak_is_none_of_them() -> None:
    package = Path(pytest_leakcheck.__file__).parent
    found = []
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and node.name.endswith(("Error", "WrongUse")):
                bases = [ast.unparse(base) for base in node.bases]
                found.append((node.name, bases[0]))
    odd = {name for name, base in found if base != "LeakcheckError"}
    # What a test is to see of a failing path is no error of wrong use either.
    assert odd == {"InjectedError", "LeakcheckError", "LeakError"}
    assert len(found) > 4
    assert not issubclass(pytest_leakcheck.LeakError, Exception)
    assert issubclass(pytest_leakcheck.LeakcheckError, Exception)


# What documentation tells people to import or to pass to ``-p``, beside the names of the package itself.
@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("pytest_leakcheck.watch.training", "Watcher"),
        ("pytest_leakcheck.watch.training", "lightning_callback"),
        ("leakcheck_incidents.material", "synthetic_video"),
        ("leakcheck_incidents.material", "synthetic_arrow"),
        ("leakcheck_incidents.material", "loopback_hub"),
        ("leakcheck_incidents.simulated", "simulated_device"),
    ],
)
def test_a_promised_module_has_its_names(module: str, name: str) -> None:
    tree = ast.parse(Path(find_spec(module).origin).read_text(encoding="utf-8"))  # type: ignore[union-attr, arg-type]
    assert name in {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


@pytest.mark.parametrize(("name", "module"), leakcheck_incidents._MODULES.items())
def test_an_exported_part_of_an_incident_exists_and_is_documented(name: str, module: str) -> None:
    spec = find_spec(f"leakcheck_incidents.{module}")
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))  # type: ignore[union-attr, arg-type]
    assert name in {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    assert f"`{name}`" in (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
