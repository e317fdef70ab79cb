"""Ray's own record of where references were created, as text, and what a report makes of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from pytest_leakcheck.attribution import ray_records
from pytest_leakcheck.attribution.handles import Identities, survivors, take_identities
from pytest_leakcheck.attribution.ray_records import NO_RECORD, Found, Record, describe_new, find_records, parse_record
from pytest_leakcheck.model.culprit import Remainder, Site
from pytest_leakcheck.probes.ray_counters import Cluster, Reference

HERE = __file__
RAY = str(Path(sys.prefix, "lib", "python3", "site-packages", "ray"))


@pytest.fixture(autouse=True)
def ray(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("ray")
    module.__file__ = f"{RAY}/__init__.py"
    monkeypatch.setitem(sys.modules, "ray", module)


def put(line: int) -> str:
    inside = f"{RAY}/_private/client_mode_hook.py:wrapper:134 | {RAY}/_private/auto_init_hook.py:auto_init_wrapper:22"
    return f"(put object)  | {inside} | {HERE}:keep:{line}"


def here(key: str, record: str = "", kind: str = "LOCAL_REFERENCE") -> Reference:
    return Reference(key, 5, record, kind, os.getpid(), is_driver=True)


def away(key: str, record: str = "", kind: str = "LOCAL_REFERENCE", pid: int = 42) -> Reference:
    return Reference(key, 5, record, kind, pid, is_driver=False)


def install(monkeypatch: pytest.MonkeyPatch, *references: Reference, gap: str = "") -> None:
    monkeypatch.setattr(ray_records, "look_at_cluster", lambda: Cluster(references, (42,), gap))


def test_a_record_has_what_created_it_and_the_lines_without_those_of_ray() -> None:
    record = parse_record(put(7))
    assert record.made_by == "ray.put()"
    assert [site.line for site in record.sites] == [134, 22, 7]
    assert record.site == Site(HERE, 7, "keep")
    assert parse_record(f"(task call)  | {HERE}:run:3\n/lib/other.py:main:9").sites == (
        Site(HERE, 3, "run"),
        Site("/lib/other.py", 9, "main"),
    )
    assert parse_record(f"(actor call)  | {HERE}:run:3").made_by == "a call of an actor"
    assert parse_record("(deserialize actor task arg) app.A.hold") == Record(
        "deserialize actor task arg app.A.hold", ()
    )
    assert parse_record("") == parse_record("disabled") == Record("", ())
    assert parse_record(f"(put object)  | {RAY}/train/session.py:report:3").site is None


def test_a_package_that_calls_ray_is_named_only_without_a_line_of_the_program() -> None:
    package = str(Path(RAY).parent / "tuner" / "trial.py")
    assert parse_record(f"(put object)  | {package}:run:5 | {HERE}:test:9").site == Site(HERE, 9, "test")
    assert parse_record(f"(put object)  | {package}:run:5").site == Site(package, 5, "run")


def test_most_of_what_is_new_must_have_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, here("a", put(7)), here("b", put(7)), here("c", put(8)), here("other", put(9)))
    assert find_records({"a", "b", "c"}) == Found(Site(HERE, 7, "keep"), "", "")
    assert find_records({"a", "c", "other"}) == Found(None, "Ray has recorded no common line", "")
    install(monkeypatch, here("a"))
    assert find_records({"a"}) == Found(None, NO_RECORD, "")
    assert NO_RECORD == "start Ray with RAY_record_ref_creation_sites=1, which has Ray record it"


def test_what_a_worker_alone_holds_is_said_with_the_line_of_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    came = "(deserialize actor task arg) app.A.hold"
    install(monkeypatch, here("a", put(7), "BORROWED"), away("a", came))
    held = "held by worker 42 (LOCAL_REFERENCE, deserialize actor task arg app.A.hold)"
    assert find_records({"a"}) == Found(Site(HERE, 7, "keep"), "", held)
    assert describe_new({"a": ""}) == (Remainder("Ray object of ray.put(), test_ray_records.py:7 in keep()", 1, held),)
    # As soon as this driver holds it too, its objects are searched.
    install(monkeypatch, here("a", put(7)), away("a", came))
    assert find_records({"a"}).elsewhere == ""


def test_an_answer_of_only_some_workers_is_said_to_be_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, here("a"), gap="2 of Ray's workers did not answer")
    said = "incomplete: 2 of Ray's workers did not answer"
    assert find_records({"a"}).why == f"{NO_RECORD}; {said}"
    held = "held by the driver (LOCAL_REFERENCE)"
    assert describe_new({"a": ""}) == (Remainder("Ray object, line not recorded", 1, f"{held}; {said}"),)
    install(monkeypatch, gap="its nodes are away")
    assert find_records({"a"}).why == "Ray's record could not be read; incomplete: its nodes are away"


def test_what_remains_is_grouped_by_line_and_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    made = f"(actor call)  | {HERE}:start:3"
    install(monkeypatch, here("a", put(7)), here("b", put(7)), here("x", made, "ACTOR_HANDLE"))
    before = Identities({}, {}, {}, {}, ray_objects={"old": ""}, ray_placement_groups={"g": "trial"})
    after = Identities(
        *({},) * 4,
        ray_refs={"a": ""},
        ray_objects={"a": "", "b": "", "old": ""},
        ray_actors={"x": "Trainer", "y": "Trainer"},
        ray_placement_groups={"g": "trial", "h": "trial", "i": "trial"},
        ray_workers={42: "worker of Ray"},
    )
    kept, driver = "Ray object of ray.put(), test_ray_records.py:7 in keep()", "held by the driver (LOCAL_REFERENCE)"
    found = survivors(before, after)
    assert found["ray_ref"] == (Remainder(kept, 1, driver),)
    assert found["ray_object"] == found["plasma"] == (Remainder(kept, 2, driver),)
    assert found["ray_actor"] == (
        Remainder("actor Trainer, test_ray_records.py:3 in start()", 1, "held by the driver (ACTOR_HANDLE)"),
        # A detached one, to which nothing refers.
        Remainder("actor Trainer, line not recorded", 1),
    )
    assert found["ray_placement_group"] == (Remainder("trial", 2),)
    assert found["ray_worker"] == (Remainder("worker of Ray", 1),)


def test_without_a_cluster_nothing_is_listed() -> None:
    found = take_identities()
    assert (found.ray_refs, found.ray_objects, found.ray_actors) == ({}, {}, {})
