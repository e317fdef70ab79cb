"""Which findings an entry of the file of known leaks stands for: those of its cause, and no other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from pytest_leakcheck.baseline.known_leaks import (
    Baseline,
    KnownLeak,
    KnownLeaks,
    Observed,
    find_fixed,
    find_outdated,
    update,
)
from pytest_leakcheck.model.culprit import CreationPath, Culprit, Owner, RootKind, Site, fingerprint_of_owner
from pytest_leakcheck.model.finding import Finding, UnjudgedGrowth, Verdict
from pytest_leakcheck.model.recording import Recording

TODAY = "2026-11-26"
# Owners of everybody, with the objects at which their reference paths begin.
SHARED = {
    "atexit": "atexit",
    "context of the running thread": "context of the running thread",
    "handler of SIGUSR1": "handler of SIGUSR1",
    "sys.path": "module sys",
    "sys.modules": "module sys",
    "sys.meta_path": "module sys",
    "posix.environ": "module posix",
    "gc.callbacks": "module gc",
    "copyreg.dispatch_table": "module copyreg",
    "builtins.made_7": "module builtins",
    "logging.getLogger('root').handlers": "module logging",
    "Logger.manager.loggerDict": "class Logger in logging",
    "finalize._registry": "class finalize in weakref",
    "os.register_at_fork": "os.register_at_fork",
    "multiprocessing.util._finalizer_registry": "module multiprocessing.util",
    "xml.etree.ElementTree._namespace_map": "module xml.etree.ElementTree",
}
OWN = {
    "shop.{}": "module shop",
    "Client.{}": "class Client in shop",
    "vendor.{}": "module vendor",
    "lru_cache of {}": "module shop",
    "logging.getLogger('root').handlers[1].{}": "module logging",
    "thread 'worker'.{}": "thread 'worker'",
}
RESOURCES = ("object", "block", "heap", "fd", "thread", "process", "task", "disk", "shm", "mmap")
LIBRARY = "/venv/lib/python3.11/site-packages/client/pool.py"
CONNECT = Site(LIBRARY, 3, "connect")
SERVE = Site("/project/shop.py", 7, "serve")
SOCKET = Site("/usr/lib/python3.11/socket.py", 1, "socket.__init__")
LOOP = Site("/usr/lib/python3.11/asyncio/base_events.py", 607, "BaseEventLoop.run_forever", "self._run_once()")


def finding(
    test: str = "test_a",
    resource: str = "object",
    rate: float = 1.0,
    *,
    line: str = "",
    owner: str = "",
    root: str = "module shop",
    path: tuple[Site, ...] = (),
    seen: tuple[UnjudgedGrowth, ...] = (),
) -> Finding:
    """A leak in a test; `line` is a function of ``shop.py``, or `path` what the test calls."""
    own = Site(f"/project/tests/{test}.py", 5, test)
    path = (own, *(path or ((Site("/project/shop.py", 7, line),) if line else ())))
    outside = [site for site in path if "/lib/" not in site.file]
    where = CreationPath(path, outside[-1]) if len(path) > 1 else None
    of_class, _in, module = root.removeprefix("class ").partition(" in ")
    place = f"{module}:{of_class}" if module else root.removeprefix("module ")
    kind: RootKind = "class" if module else "interpreter" if owner == root else "module"
    named = Owner(owner, root, (), "x", rate, kind, place) if owner else None
    verdict = Verdict(resource, "leak", slope=rate, iterations=229, explicit=False, colour="yellow")
    culprit = Culprit(resource, where, owner=named)
    test = f"{test}.py::{test}"
    return Finding(test, (verdict,), {}, seen, {}, Recording(test, ()), {}, culprit, known="x")


def after(*findings: Finding, of: Baseline | None = None, suite: tuple[str, ...] = ()) -> Baseline:
    return update(of or Baseline(), Observed(list(findings), suite=suite), TODAY).baseline


def state(baseline: Baseline, one: Finding) -> str:
    return KnownLeaks(baseline, TODAY).match(one).state


def two(
    resource: str = "object", *, test: str = "", line: str = "", owner: str = "", root: str = "", **more: Any
) -> list[Finding]:
    """Two findings that differ by what has ``{}`` in its name."""
    return [
        finding(
            test.format(one), resource, line=line.format(one), owner=owner.format(one), root=root.format(one), **more
        )
        for one in ("old", "new")
    ]


def pairs() -> Iterator[tuple[str, list[Finding]]]:
    """Yield pairs of a leak and one beside it that is as like as can be: of another function, or another container."""
    for name, root in SHARED.items():
        yield name, two(test="test_{}", line="{}_line", owner=name, root=root)
        yield f"{name}, in the test itself", two(test="test_{}", owner=name, root=root, path=(SOCKET,))
    for name, root in OWN.items():
        for resource in ("object", "fd"):
            yield f"{name}: {resource}", two(resource, test="test_a", line="keep", owner=name, root=root)
    for name, root in (("Client.cache", "class Client in {}"), ("lru_cache of load", "module {}")):
        yield f"{root}", two(test="test_a", line="keep", owner=name, root=root)
    for resource in RESOURCES:
        yield f"no owner: {resource}", two(resource, test="test_{}", line="{}")
        yield f"no name: {resource}", two(resource, test="test_{}")
        yield f"a library: {resource}", two(resource, test="test_{}", path=(CONNECT,))
        yield f"an event loop: {resource}", two(resource, test="test_{}", path=(SERVE, LOOP))


@pytest.mark.parametrize(("old", "new"), [pytest.param(*two, id=name) for name, two in pairs()])
def test_beside_a_known_leak_another_is_new(old: Finding, new: Finding) -> None:
    baseline = after(old)
    assert (state(baseline, old), state(baseline, new)) == ("known", "new")
    assert len(after(old, new).known) == 2 or old.fingerprint == new.fingerprint
    both = after(new, of=baseline)
    assert (state(both, old), state(both, new)) == ("known", "known")


def test_what_an_owner_of_everybody_retains_has_one_id_per_function() -> None:
    first, again = (finding(test, line="add", owner="sys.path", root="module sys") for test in ("test_a", "test_b"))
    assert first.fingerprint == again.fingerprint
    assert first.fingerprint.endswith("-object-shop-add")
    (entry,) = after(first, again).known
    assert (entry.owner, entry.site) == ("", "shop.py:add")
    assert entry.tests == ("test_a.py::test_a", "test_b.py::test_b")
    # The name of an owner may differ in each run, such as that of a signal or an attribute.
    other = finding(line="add", owner="builtins.made_9", root="module builtins")
    assert other.fingerprint == first.fingerprint


def test_objects_blocks_and_bytes_of_one_cause_are_one_entry() -> None:
    some: list[dict[str, Any]] = [{"line": "add", "owner": "shop.ROWS"}, {"line": "add"}, {}]
    for names in some:
        found = [finding("test_a", resource, **names) for resource in ("object", "block", "heap")]
        for first in found:
            baseline = after(first)
            assert {state(baseline, one) for one in found} == {"known"}
            assert len(after(*found, of=baseline).known) == 1
        assert len(after(*found).known) == 1
        # What holds a handle is an object, but a handle is more than an object.
        for resource in ("fd", "thread", "task"):
            handle = finding("test_a", resource, **names)
            assert {state(after(handle), one) for one in found} == {"known"}
            assert {state(after(one), handle) for one in found} == {"new"}
            assert [one.resource for one in after(*found, handle).known] == [resource]


def test_growth_is_compared_in_the_resource_of_the_entry() -> None:
    baseline = after(finding(resource="object", line="add", rate=1.0))
    block = finding(resource="block", line="add", rate=40.0)
    assert state(baseline, replace(block, seen=(UnjudgedGrowth("object", 1.2, 300),))) == "known"
    assert state(baseline, replace(block, seen=(UnjudgedGrowth("object", 9.0, 300),))) == "grown"
    # An update takes the rate of the same resource too.
    (entry,) = after(replace(block, seen=(UnjudgedGrowth("object", 9.0, 300),)), of=baseline).known
    assert (entry.resource, entry.rate) == ("object", 9.0)
    (entry,) = after(block, of=baseline).known
    assert entry.rate == 1.0


UNCERTAIN: dict[str, dict[str, Any]] = {
    "no name": {},
    "a library": {"path": (CONNECT,)},
    "the step of an event loop": {"path": (SERVE, LOOP)},
    "trio": {
        "path": (
            SERVE,
            Site("/venv/lib/python3.11/site-packages/trio/_core/_run.py", 2500, "unrolled_run"),
            Site("/venv/lib/python3.11/site-packages/trio/_socket.py", 5, "accept"),
        )
    },
    "everybody's, without a line": {"owner": "sys.path", "root": "module sys"},
}


@pytest.mark.parametrize("now", UNCERTAIN)
@pytest.mark.parametrize("then", [*UNCERTAIN, "a function", "an owner"])
def test_an_uncertain_name_is_known_by_its_test(then: str, now: str) -> None:
    names: dict[str, dict[str, Any]] = {
        "a function": {"line": "connect"},
        "an owner": {"owner": "shop.POOL"},
        **UNCERTAIN,
    }
    baseline = after(finding("test_a", "fd", **names[then]))

    def seen_as(name: str, test: str = "test_a", rate: float = 1.0) -> str:
        return state(baseline, finding(test, "fd", rate, **names[name]))

    assert seen_as(now) == "known"
    assert seen_as(now, rate=2.0) == "grown"
    assert seen_as(now, "test_b") == "new"
    if then in UNCERTAIN:
        # The name is found now.
        assert (seen_as("a function"), seen_as("an owner"), seen_as("a function", "test_b")) == (
            "known",
            "known",
            "new",
        )


def test_the_tests_of_an_uncertain_entry_are_never_a_whole_file() -> None:
    found = [replace(finding(path=(CONNECT,)), test=f"t.py::test[{at}]") for at in range(30)]
    (entry,) = after(*found).known
    assert (len(entry.tests), entry.package) == (30, "client")
    named = [replace(finding(line="add"), test=f"t.py::test[{at}]") for at in range(30)]
    assert after(*named).known[0].tests == ("t.py::*",)


def test_a_project_that_is_installed_has_lines_of_its_own() -> None:
    shop = Site("/venv/lib/python3.11/site-packages/shop/pool.py", 3, "connect")
    own = finding("test_a", "fd", path=(shop, CONNECT))
    culprit = own.culprit
    assert culprit is not None
    assert culprit.where is not None
    # The line to change is not the innermost outside of packages.
    own = replace(own, culprit=replace(culprit, where=replace(culprit.where, site=shop)))
    (entry,) = after(own).known
    assert (entry.site, entry.package, entry.is_uncertain) == ("shop/pool.py:connect", "", False)
    assert state(after(own), replace(own, test="test_b.py::test_b")) == "known"


def former(*functions: str, owner: str = "atexit", resource: str = "object", **more: Any) -> Baseline:
    """A file as earlier versions wrote it: one entry for all that an owner of everybody retains."""
    name = fingerprint_of_owner(resource, finding(owner=owner, root=SHARED[owner]).culprit)
    tests = tuple(f"test_{one}.py::test_{one}" for one in functions)
    entry = KnownLeak(name, resource, "leak", 2.0, owner, f"shop.py:{functions[0]}", tests, "2026-01-01")
    return Baseline((replace(entry, **more),))


def of_function(name: str, resource: str = "object", test: str = "") -> Finding:
    return finding(f"test_{test or name}", resource, line=name, owner="atexit", root="atexit")


def test_an_entry_of_an_earlier_version_is_split_by_function() -> None:
    baseline = former("first", "second", "third", reason="ticket 7", link="a", expires="2030-01-01")
    assert baseline.known[0].finding == "ad6b6f-object-atexit"
    found = [of_function("first"), of_function("second", "block")]
    assert [state(baseline, one) for one in found] == ["known", "known"]
    assert state(baseline, of_function("other")) == "new"
    # Also in a test that reaches the function of an entry, if the file has not been split yet.
    assert find_outdated(baseline, Observed(found)) == ("ad6b6f-object-atexit",)
    # A session of a part of the suite leaves what it has not seen.
    change = update(baseline, Observed(found), TODAY)
    assert (change.added, change.changed, change.replaced) == (2, 1, 0)
    rest = next(one for one in change.baseline.known if one.owner == "atexit")
    assert rest.tests == ("test_third.py::test_third",)
    change = update(change.baseline, Observed([*found, of_function("third")]), TODAY)
    assert (change.added, change.changed, change.replaced, change.unchanged) == (1, 0, 1, 2)
    known = sorted(change.baseline.known, key=lambda one: one.site)
    assert [(one.site, one.tests) for one in known] == [
        (f"shop.py:{name}", (f"test_{name}.py::test_{name}",)) for name in ("first", "second", "third")
    ]
    assert {(one.reason, one.link, one.expires, one.seen) for one in known} == {
        ("ticket 7", "a", "2030-01-01", "2026-01-01")
    }
    assert not find_outdated(change.baseline, Observed(found))
    assert update(change.baseline, Observed(found), TODAY).baseline == change.baseline


def test_an_entry_of_an_earlier_version_for_a_whole_file_is_replaced_by_a_session_of_all_tests() -> None:
    baseline = former("first", tests=("test_first.py::*",))
    assert state(baseline, of_function("first")) == "known"
    one = of_function("first")
    assert [leak.site for leak in after(one, of=baseline, suite=(one.test,)).known] == ["shop.py:first"]
    assert len(after(of_function("first"), of=baseline).known) == 2


@pytest.mark.parametrize("tests", [("test_first.py::*",), ("test_first.py::test_first", "test_first.py::test_other")])
def test_an_entry_of_an_earlier_version_stays_for_tests_that_were_not_judged(tests: tuple[str, ...]) -> None:
    baseline, one, other = former("first", tests=tests), of_function("first"), "test_first.py::test_other"
    # Such as those outside of a sample, or without a mark.
    observed = Observed([one], suite=(one.test, other))
    change = update(baseline, observed, TODAY)
    assert (change.added, change.replaced) == (1, 0)
    assert KnownLeaks(change.baseline, TODAY).match(replace(of_function("second"), test=other)).state == "known"
    # One that judges all of them.
    observed.floors[other] = {"object": 1.0}
    assert [leak.site for leak in update(change.baseline, observed, TODAY).baseline.known] == ["shop.py:first"]


@pytest.mark.parametrize("collected", [(), ("test_gone.py",)])
def test_an_entry_stays_for_a_file_that_was_skipped_or_ignored(collected: tuple[str, ...]) -> None:
    """Its tests are not known: only the collector of a skipped module is."""
    baseline, one = former("first", tests=("test_first.py::*", "test_gone.py::*")), of_function("first")
    change = update(baseline, Observed([one], suite=(one.test, *collected)), TODAY)
    assert [leak.tests for leak in change.baseline.known if leak.finding == baseline.known[0].finding] == [
        ("test_gone.py::*",)
    ]
    of_gone = replace(of_function("second"), test="test_gone.py::test_x")
    assert KnownLeaks(change.baseline, TODAY).match(of_gone).state == "known"


def test_a_leak_that_another_resource_shows_is_not_fixed() -> None:
    baseline = after(finding(resource="object", line="add"))
    floors: dict[str, Mapping[str, float | None]] = {"test_a.py::test_a": {"object": 0.5}}
    assert find_fixed(baseline, Observed([], floors)) == baseline.known
    assert not find_fixed(baseline, Observed([finding(resource="block", line="add")], floors))


def test_an_entry_of_an_earlier_version_for_a_class_is_replaced() -> None:
    ours, other = two(test="test_{}", line="keep", owner="Client.rows", root="class Client in {}")
    (entry,) = after(ours).known
    former_id = fingerprint_of_owner("object", ours.culprit)
    baseline = Baseline((replace(entry, finding=former_id, reason="ticket 7"),))
    assert (state(baseline, ours), state(baseline, other)) == ("known", "new")
    assert find_outdated(baseline, Observed([ours])) == (former_id,)
    change = update(baseline, Observed([ours]), TODAY)
    assert (change.added, change.replaced) == (1, 1)
    assert change.baseline.known == (replace(entry, reason="ticket 7"),)
    # What a report shows in blocks this time has the same cause, and the other class has not.
    same, another = (replace(one, verdicts=(replace(one.verdict, resource="block"),)) for one in (ours, other))
    assert (state(change.baseline, same), state(change.baseline, another)) == ("known", "new")
