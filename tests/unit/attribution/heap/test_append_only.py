"""A container is append-only if all code that names it only adds to it, and the path there has no condition."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_leakcheck.attribution.heap.append_only import are_append_only
from pytest_leakcheck.attribution.heap.reference_paths import FORK_FUNCTIONS, kept_by_interpreter
from pytest_leakcheck.model.culprit import Site

SOURCE = """\
from collections import deque

class Thing: ...

appended_to, added_to, iterated_over = [], set(), []
bounded, measured, taken_from, in_two_places = [], [], [], []
by_key, of_numbers, window, listed = {}, set(), deque(maxlen=9), []
also = [in_two_places]

def appends(): appended_to.append(1)
def adds(): added_to.add(Thing())
def iterates():
    for one in iterated_over: one()
    iterated_over.append(print)

def bounds():
    if bounding: bounded.append(1)
bounding = 1
def asks_later():
    asked_since.append(1)
    assert bounding
def asks_in_a_loop():
    for _ in range(3):
        asked_in_a_loop.append(1)
        if bounding: break
asked_since, asked_in_a_loop = [], []
def measures(): measured.append(len(measured))
def takes(): taken_from.append(1)
def gives(): return taken_from.pop()
def appends_in_two_places(): in_two_places.append(1)
def keys(): by_key[1] = 1
def numbers(): of_numbers.add(1)
def slides(): window.append(1)
def lists(): listed.append(1)
def by_name(module): return getattr(module, "listed")

class Owner:
    shared_by_all = []
    def __init__(self): self.entries_kept, self.entries_reset = [], []
    def keep(self): self.entries_kept.append(1)
    def keep_shared(self): Owner.shared_by_all.append(1)
    def keep_until_reset(self): self.entries_reset.append(1)
    def reset(self): self.entries_reset = []

class Base:
    rows_of_all = []
    def add_row(self): Base.rows_of_all.append(1)
class Mixin:
    def clear_rows(self): self.rows_of_all.clear()
class Both(Base, Mixin): ...

class Alike:
    def __init__(self): self.values_kept = self.values_shared = None
    def reads(self, other): return self.values_kept, unlike.values_kept, Alike.values_kept, other.values_kept()
    def writes(self): self.values_kept = []
    def of_any(self, other): return other.values_shared
    @staticmethod
    def of_first(other): return other.values_first
    values_kept = ()
import types as unlike
values_kept, values_shared, values_first = [], [], []
def keeps(): values_kept.append(1)
def shares(): values_shared.append(1)
def first(): values_first.append(1)

def elsewhere(): unrelated.append(1)
unrelated = []
owner = Owner()
adds()
numbers()
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "adding.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    import adding  # type: ignore[import-not-found]

    yield adding
    monkeypatch.delitem(sys.modules, "adding")


def site(function: Any) -> Site:
    code = function.__code__
    return Site(code.co_filename, max(line for _start, _end, line in code.co_lines() if line), code.co_qualname)


def joined(*words: str) -> str:
    """Spell a name so that it stands nowhere in the code, also after the compiler has folded constants."""
    return "_".join(words)


def judged(module: ModuleType, path: str, holder: Any, name: str) -> bool:
    owner = module.owner if hasattr(module.Owner, path) else module
    return are_append_only((getattr(holder, name),), (site(getattr(owner, path)),))


def test_what_is_only_added_to_is_append_only(module: ModuleType) -> None:
    assert judged(module, "appends", module, joined("appended", "to"))
    assert judged(module, "adds", module, joined("added", "to"))
    assert judged(module, "iterates", module, joined("iterated", "over"))
    assert judged(module, "keep", module.owner, joined("entries", "kept"))
    assert judged(module, "keep_shared", module.Owner, joined("shared", "by_all"))


def test_a_condition_that_follows_decides_nothing(module: ModuleType) -> None:
    code = module.asks_later.__code__
    path = (Site(code.co_filename, code.co_firstlineno + 1, code.co_qualname),)
    assert are_append_only((next(value for name, value in vars(module).items() if name.endswith("since")),), path)


def test_another_object_with_such_an_attribute_is_left_out(module: ModuleType) -> None:
    """Another module, class or object has one of the same name: for certain, because it is named there, or called."""
    assert judged(module, "keeps", module, joined("values", "kept"))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("shares", joined("values", "shared")),
        ("first", joined("values", "first")),
        ("bounds", "bounded"),
        ("asks_in_a_loop", "asked_in_a_loop"),
        ("measures", "measured"),
        ("takes", "taken_from"),
        ("appends_in_two_places", "in_two_places"),
        ("keys", "by_key"),
        ("numbers", "of_numbers"),
        ("slides", "window"),
        ("lists", "listed"),
        ("elsewhere", joined("appended", "to")),
    ],
)
def test_what_may_be_bounded_is_not(module: ModuleType, path: str, name: str) -> None:
    assert not judged(module, path, module, name)


def test_nothing_takes_from_the_functions_for_forks(module: ModuleType) -> None:
    lists = [one for one in gc.get_objects() if type(one) is list and kept_by_interpreter(one) == FORK_FUNCTIONS]
    assert lists
    assert are_append_only(lists, (site(module.bounds),))
    assert not are_append_only([*lists, module.listed], (site(module.lists),))


def test_a_library_knows_the_names_of_attributes_alone(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable, attribute = joined("iterated", "over"), joined("entries", "kept")
    library = tmp_path / "site-packages" / "handed.py"
    library.parent.mkdir()
    library.write_text(f"def of_variable(): return '{variable}'\ndef of_attribute(): return '{attribute}'")
    monkeypatch.syspath_prepend(library.parent)
    assert judged(module, "iterates", module, variable)
    assert judged(module, "keep", module.owner, attribute)
    handed = importlib.import_module("handed")
    assert judged(module, "iterates", module, variable)
    assert not judged(module, "keep", module.owner, attribute)
    assert handed.of_attribute() == attribute
    monkeypatch.delitem(sys.modules, "handed")


def test_a_method_of_a_class_beside_it_may_take_from_it(module: ModuleType) -> None:
    path, name = module.Base.add_row, next(one for one in vars(module.Base) if one.startswith("rows"))
    assert not are_append_only((getattr(module.Base, name),), (site(path),))
    del module.Both
    gc.collect()
    assert are_append_only((getattr(module.Base, name),), (site(path),))


def test_an_attribute_that_is_set_again_is_not(module: ModuleType) -> None:
    assert not judged(module, "keep_until_reset", module.owner, joined("entries", "reset"))
