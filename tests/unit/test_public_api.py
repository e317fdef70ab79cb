from __future__ import annotations

import subprocess
import sys

import pytest

import pytest_leakcheck

NAMES = [
    "Budget",
    "Device",
    "Finding",
    "LeakError",
    "Leakcheck",
    "Measurement",
    "Probe",
    "Recording",
    "Series",
    "Verdict",
    "__version__",
    "measure",
]


def test_the_public_names_are_these() -> None:
    assert pytest_leakcheck.__all__ == NAMES
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
