"""After a red verdict: a few more iterations, each watched in a way of its own, to find out where it comes from.

What has an identity (a descriptor, a thread, a file) is followed from the call that made it to the end of the iteration.
What Python allocates is followed by `tracemalloc`. Any other counter is charged to the calls that it grows in. Meanwhile the
containers that grow are counted, and in the end what keeps the growth is followed back to a root.
"""

from __future__ import annotations

import gc
import linecache
import re
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

from pytest_leakcheck.attribution.call_paths import plugin_files
from pytest_leakcheck.attribution.handle_kinds import pieces_of, things_of
from pytest_leakcheck.attribution.heap.cycles import name_cycles, save_garbage
from pytest_leakcheck.attribution.heap.gc_roots import is_ours
from pytest_leakcheck.attribution.heap.growing_containers import Census, newcomers
from pytest_leakcheck.attribution.heap.object_kinds import kinds_of
from pytest_leakcheck.attribution.heap.owner_candidates import Sought, search
from pytest_leakcheck.attribution.heap.tensors import tensor_kinds
from pytest_leakcheck.attribution.hints import hint_for
from pytest_leakcheck.attribution.object_inspection import container_kind, length
from pytest_leakcheck.attribution.tracing.native_stacks import FOR_NATIVE, trace_natively
from pytest_leakcheck.attribution.tracing.source_code import text_of
from pytest_leakcheck.attribution.tracing.tracing_rounds import (
    MOST,
    OF_EXACT,
    Made,
    Schedule,
    charge,
    find_line,
    follow,
    trace_allocations,
)
from pytest_leakcheck.judge.growth import middle
from pytest_leakcheck.model.culprit import Culprit, Held
from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.model.verdict import Verdict
from pytest_leakcheck.runner.sampler import Sampler

# Iterations that the line which keeps it takes to find.
_TO_WATCH: Final = 6
# What comes in fewer iterations than this is looked for at its own rate.
_EACH: Final = 0.5
_OURS: Final = "pytest_leakcheck"
_ONCE: Final = "it came once, and was not seen to come again"


class CauseSearch:
    """Runs inside the repetition: `iteration_done` after each iteration, as long as it wants another.

    Attributes:
        kinds: Of memory and objects, what came in these iterations and is still there.
    """

    def __init__(
        self,
        sampler: Sampler,
        verdict: Verdict,
        plain_seconds: float,
        deadline: float,
        bounded: frozenset[int] = frozenset(),
    ) -> None:
        """
        Args:
            sampler: The instruments.
            verdict: A red one.
            plain_seconds: What an iteration takes.
            deadline: When no further iteration may begin, by ``time.perf_counter``.
            bounded: Identities of caches with a bound. They grow as well, and were found not to explain the verdict.
        """
        self._sampler = sampler
        self._bounded = bounded
        self._verdict = verdict
        self._resource = find_resource(verdict.resource)
        self._schedule = Schedule(plain_seconds, deadline, self._collect)
        self._culprit = Culprit(verdict.resource)
        self._made = Made()
        self._kept = Made()
        self.kinds: tuple[Held, ...] = ()
        self._why: dict[str, str] = {}
        self._steps = self._investigate()

    def iteration_done(self) -> bool:
        """Evaluate the iteration that has ended, and get ready for the next. Returns whether one is wanted."""
        try:
            next(self._steps)
        except StopIteration:
            return False
        except Exception as error:  # noqa: BLE001 - whatever goes wrong in here must not cost the verdict
            self._failed(error)
            return False
        return True

    def _failed(self, error: Exception) -> None:
        failed = f"the search itself failed, please report it: {type(error).__name__}: {error}"
        self._why |= dict.fromkeys(("site", "owner"), failed)

    def end(self, held: Sequence[Held]) -> Culprit:
        """Give everything back, and say what was found.

        Args:
            held: The survivors of this resource.
        """
        found = self._culprit
        try:
            self._steps.close()
            where, kept = self._made.resolve(), self._kept.resolve()
            source = text_of(where.site) if where else ""
            native = self._made.native
            found = replace(found, where=where, kept=kept.site if kept else None, source=source, native=native)
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(error)
        missing = {"site": found.where is None, "owner": found.owner is None and not found.cycle}
        unresolved = {
            part: self._why.get(part, "no time was left to look for it")
            for part, is_missing in missing.items()
            if is_missing
        }
        found = replace(found, unresolved=unresolved, iterations=self._schedule.used)
        return replace(found, hint=hint_for(found, held))

    def _collect(self) -> None:
        # As each iteration is ended: what the program leaves to a collector that it has switched off stays.
        if self._sampler.instruments.watch.enabled:
            self._sampler.instruments.watch.collect()

    def _investigate(self) -> Generator[None, None, None]:
        slope = self._verdict.slope
        if slope <= 0:
            self._why = dict.fromkeys(("site", "owner"), _ONCE)
            return
        # What the search itself loads, and keeps, comes before anything is counted.
        plugin_files()
        earlier = newcomers()
        gc.unfreeze()
        before = Census(values=self._resource.in_python_bytes)
        gc.freeze()
        made = yield from self._find_site()
        self._made = made
        self._why["site"] = made.why
        if self._verdict.outcome == "unclosed":
            yield from self._find_cycle()
            return
        yield from self._find_owner(before, made, earlier)
        if self._wants_native(made):
            # Last, since what memray itself loads and keeps would be counted with the rest.
            self._made = yield from trace_natively(made, slope, self._rate, self._schedule)
            self._why["site"] = self._made.why

    def _wants_native(self, made: Made) -> bool:
        return not made.path and self._resource.in_python_bytes

    def _find_site(self) -> Generator[None, None, Made]:
        sampler, name, slope = self._sampler, self._verdict.resource, self._verdict.slope
        read = sampler.instruments.counter(name)
        things = things_of(
            name, read, sampler.instruments.folders[name].path if name in sampler.instruments.folders else ""
        )
        device = sampler.instruments.device_for(name)
        if device is not None:
            things = pieces_of(device)
        if things is not None:
            made = yield from follow(things, slope, self._schedule, unclosed=self._verdict.outcome == "unclosed")
            count = (lambda: len(things.list_now())) if name in sampler.instruments.folders else things.count
            return (yield from find_line(made, count, slope, self._schedule))
        made, of_heap = Made(), self._resource.in_python_bytes
        if self._resource.in_python:
            made = yield from trace_allocations(slope, self._rate, self._schedule, by_size=of_heap)
        if not made.path:
            made = yield from charge(read, slope, self._rate, self._schedule, of_heap=of_heap)
            made = yield from find_line(made, read, slope, self._schedule, of_heap=of_heap)
        return made

    def _find_owner(self, before: Census, made: Made, earlier: frozenset[int]) -> Generator[None, None, None]:
        slope = self._verdict.slope
        came, later = gc.get_objects(), newcomers()
        gc.unfreeze()
        try:
            sought = self._sought(made)
            ours = {id(came), id(sought), *_of_the_search(), *self._bounded}
            holders = search(sought, came, before.grown(later, ours), earlier | later, ours)
            if self._resource.in_python:
                self.kinds = kinds_of(came, self._schedule.used, _EACH * min(1.0, self._rate))
            elif self._resource.exhausts == "device":
                self.kinds = tensor_kinds(came, self._schedule.used, _EACH * min(1.0, self._rate))
            if holders.is_cycle:
                ours |= {id(one) for one in came if is_ours(one)}
                garbage = [one for one in came if id(one) not in ours]
                self._culprit = replace(self._culprit, cycle=name_cycles(garbage, slope * self._schedule.used))
                del garbage
        finally:
            # What came is let go of before it is frozen, and is not kept by this search.
            del came
            gc.freeze()
        if not holders.owners and self._resource.handles == "threads":
            self._why["owner"] = "the interpreter holds a thread until it ends"
        elif not holders.owners:
            self._why["owner"] = holders.reason.removeprefix("not resolved: ")
        if not holders.owners:
            return
        self._culprit = replace(self._culprit, owner=holders.owners[0])
        container = holders.objects[0]
        left = MOST - self._schedule.used - (FOR_NATIVE if self._wants_native(made) else 0)
        if container_kind(container) is not None and left >= _TO_WATCH:
            yield from self._find_keeper(container)

    def _sought(self, made: Made) -> Sought:
        slope, made_of = self._verdict.slope, self._resource.made_of
        iterations = max(1, self._schedule.used)
        if made_of == "anything":
            return Sought(iterations, slope, in_python=True)
        if made_of == "handles":
            return Sought(iterations, slope, identities=made.identities)
        rate = self._rate if self._rate < _EACH else None
        if made_of == "objects":
            return Sought(iterations, rate, in_python=True)
        return Sought(iterations, rate, made.size or slope, in_python=made.size is not None)

    @property
    def _rate(self) -> float:
        """In which part of the iterations it grows, at most 1: it comes in pieces of the size of a common rise."""
        slope = self._verdict.slope
        if not self._resource.in_python and self._resource.exhausts != "device":
            # It does not come in pieces of some size, or is counted in them.
            return slope
        readings = self._sampler.samples.series(self._verdict.resource).readings
        rises = [after - before for before, after in pairwise(readings) if after > before]
        return min(1.0, slope / middle(rises)) if rises else 1.0

    def _find_keeper(self, container: Any) -> Generator[None, None, None]:
        """The line that puts it into its owner, which need not be the one that makes it."""

        def entries() -> int:
            return length(container)

        gained = (self._culprit.owner.gained if self._culprit.owner else 0.0) or 1.0
        kept = yield from charge(entries, gained, gained, self._schedule, few=OF_EXACT)
        kept = yield from find_line(kept, entries, gained, self._schedule)
        if kept.path and kept.line != self._made.line:
            self._kept = kept

    def _find_cycle(self) -> Generator[None, None, None]:
        """The cycle that only the collector frees."""
        # What the search itself has left.
        self._collect()
        for _ in self._schedule.iterations(1.0, 0):
            yield
            garbage = [one for one in save_garbage(self._collect) if not is_ours(one)]
            cycle = name_cycles(garbage, self._verdict.slope)
            del garbage
            self._collect()
            self._why["owner"] = "no cycle was found in what the collector freed"
            self._culprit = replace(self._culprit, cycle=cycle)


def _of_the_search() -> Iterator[int]:
    """Identities of what grows by the search itself, or holds whatever is alive and nothing else."""
    yield id(linecache.cache)
    # Bounded, and filled by what the search itself matches.
    yield from (id(getattr(re, name, None)) for name in ("_cache", "_cache2"))
    # Every thread that runs is in here, and none is held by it.
    yield id(getattr(threading, "_active", None))
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == _OURS:
            yield from map(id, vars(module).values())
