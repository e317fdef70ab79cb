"""Find the cause of a red (failing) verdict in a few more iterations, traced in several ways.

Handles are followed from the call that created them to the end of the iteration, `tracemalloc`
follows what Python allocates, and any other growth is charged to the calls in which it occurs. The
sizes of all containers are compared before and after, and the references to what grew are followed
back to a root.
"""

from __future__ import annotations

import atexit
import gc
import inspect
import linecache
import re
import threading
from array import array
from collections.abc import Callable, Collection, Generator, Hashable, Iterator, Mapping, Sequence
from contextlib import closing
from contextvars import Context
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from math import inf
from pathlib import Path
from sys import getrefcount
from traceback import walk_tb
from typing import Final

from pytest_leakcheck.attribution import handles
from pytest_leakcheck.attribution.call_paths import (
    digest_of_file,
    function_at,
    is_harness,
    is_own,
    plugin_files,
    read_path,
    text_of,
)
from pytest_leakcheck.attribution.handles import HandleKind, Identities, pieces_of, things_of
from pytest_leakcheck.attribution.heap.append_only import are_append_only
from pytest_leakcheck.attribution.heap.cycles import (
    find_garbage,
    handles_in,
    largest_in,
    name_cycles,
)
from pytest_leakcheck.attribution.heap.eviction import find_eviction
from pytest_leakcheck.attribution.heap.growing_containers import (
    LEAST,
    MAX_SIZE_RATIO,
    Census,
    GrowingContainer,
    newcomers,
)
from pytest_leakcheck.attribution.heap.object_kinds import kind_of_entries, kinds_of, tensor_kinds
from pytest_leakcheck.attribution.heap.owner_search import Holders, SearchTarget, search
from pytest_leakcheck.attribution.heap.reference_paths import (
    count_exit_callbacks,
    describe_long_lived,
    is_ours,
)
from pytest_leakcheck.attribution.hints import hint_for
from pytest_leakcheck.attribution.inspection import LRU, container_kind, last_entries, length
from pytest_leakcheck.attribution.ray_records import RECORDED, find_records
from pytest_leakcheck.attribution.tracing import tracing_rounds as rounds
from pytest_leakcheck.attribution.tracing.backends import Lines
from pytest_leakcheck.attribution.tracing.tracer import is_wait
from pytest_leakcheck.judge.exhaustion import causes
from pytest_leakcheck.judge.growth import upper_median
from pytest_leakcheck.model.culprit import Culprit, OutOfTime, Remainder, Site
from pytest_leakcheck.model.finding import Verdict
from pytest_leakcheck.model.resources import (
    BLOCKS,
    HEAP,
    REFERENCES,
    RESIDENT,
    RESOURCES,
    find_resource,
)
from pytest_leakcheck.model.units import format_amount, format_rate
from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.garbage_collector import has_frozen
from pytest_leakcheck.probes.processes import TREE
from pytest_leakcheck.probes.reference_counts import Account
from pytest_leakcheck.runner.bounded_caches import Pruned
from pytest_leakcheck.runner.known_causes import KnownCause, find_container, owner_now
from pytest_leakcheck.runner.measurement_run import MeasurementRun
from pytest_leakcheck.runner.sampler import Sampler

# Iterations that must be left to look for the line that stores what is retained in its owner.
_KEEPER_ITERATIONS: Final = 6
# The search for the owner may always take this many seconds; it takes less than one in most
# programs.
_MIN_OWNER_SECONDS: Final = 5.0
# The two walks of a search over all tracked objects take about 1 us for each.
_SECONDS_PER_OBJECT: Final = 2e-6
# A resource that grows in a smaller share of the iterations is searched for at its own rate. A kind
# of object is reported only if at least this share of the expected number exists,
_MIN_FREQUENT_RATIO: Final = 0.5
# and if its objects hold at least this share of retained bytes.
_MIN_BYTES_SHARE: Final = 0.1
# Python has allocated resident memory only if the exact counters of memory show this share of its
# growth.
_MIN_SHOWN_RATIO: Final = 0.5
# An object has up to this many blocks, such as an instance with a dict of attributes.
_MAX_BLOCKS: Final = 3
# Two resources grow together if the amounts that they have grown by differ by at most this share.
_MAX_DIFFERENCE_RATIO: Final = 0.05
# So many causes whose entries go into one container are tried.
_MOST_CONFIRMED: Final = 3
# Functions whose descriptors no object closes.
_MAKES_NUMBERS: Final = frozenset({"dup()", "eventfd()", "memfd_create()", "pipe()", "pipe2()"})
_REASON_CAME_ONCE: Final = "it appeared once, and was not seen to recur"
_REASON_IN_CHILD: Final = "it is memory of a child process, in which nothing is traced"
_REASON_ENDED: Final = "it depends on time, or has ended"
_REASON_UNSTEADY: Final = "no steady growth was established, so the cause was not searched for"
_REASON_NOT_HELD: Final = "no object that the garbage collector lists holds them"
_REASON_NOT_GIVEN_UP: Final = "no object that the garbage collector lists has given them up"
_TRACEBACK_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


class CauseSearch:
    """The search for the cause of a red verdict, or of growth that may become one.

    `culprit` is None until `end`. Call `iteration_done` once before the first iteration and after
    each one, as long as it returns True. `resource` is the one that grows, and `at_red` has the
    handles at the verdict. `recurred` is False for a leak that hardly grew in the iterations of the
    search, although enough of them ran to show it.
    """

    culprit: Culprit | None = None
    recurred = True
    # What holds the growth, if the program removes entries from it.
    pruned: Pruned | None = None
    # Whether it is known already that the growth does not end by itself.
    is_unbounded = False
    # By how much the resource grows for each entry of the owner, if that is found by its name;
    # else 0.
    each = 0.0
    # The test whose cause this is, if it was only confirmed.
    recalled = ""
    _kinds: tuple[Remainder, ...] = ()
    _pool = ""
    _exits = 0

    def __init__(  # noqa: PLR0913 - what is measured, what has grown, and how far to go
        self,
        run: MeasurementRun,
        sampler: Sampler,
        red: Verdict,
        start: Identities,
        deadline: float,
        *,
        among_known: bool = False,
    ) -> None:
        """Prepare the search, which begins no iteration after `deadline`, by ``clock.monotonic``.

        `among_known`: it ends if no known cause explains the growth.
        """
        # The search needs iterations that run to their end.
        run.ceiling.lift()
        if red.outcome == "unclosed" and red.traits.handles == "fds":
            # The collector has closed these descriptors already. Only the next iteration shows what
            # they point to.
            sampler.instruments.watch.name_released(True)
        self._start, self.at_red = start, handles.take_identities()
        self._is_early = run.verdicts.red is None
        folder = sampler.instruments.folders.get(red.resource)
        self._entries = handles.group(folder.kinds()) if folder is not None else ()
        self._sampler = sampler
        # Objects that may grow as well, but do not explain the verdict.
        self._innocent = run.innocent.owners.identities()
        self._verdict = red
        self.resource = red.resource
        self._resource = red.traits
        self._test, self._causes = run.plan.test, run.causes
        plain_seconds = sampler.settling.seconds_per_iteration()
        reader = (
            sampler.instruments.in_tree if red.resource in TREE else sampler.instruments.counter
        )
        self._read, self._deadline = reader(red.resource), deadline
        self._schedule = rounds.Schedule(plain_seconds, deadline, self._collect, self._read)
        self._found = Culprit(red.resource)
        self._made = rounds.Creation()
        self._kept = rounds.Creation()
        self._why: dict[str, str] = {}
        self.among_known = among_known
        account = run.innocent.account if red.resource == REFERENCES else None
        self._steps: Generator[None, None, object]
        if account is not None and red.slope > 0:
            self._steps = self._find_reference(account)
        else:
            self._steps = self._recall() if among_known else self._investigate()

    @property
    def has_found(self) -> bool:
        """Whether the line is known, or the owner."""
        return bool(self._made.path or self._found.owner)

    def is_listed(self, verdict: Verdict) -> bool:
        """Return whether the baseline lists the owner that was found."""
        return self._causes.lists(self._test, verdict, self._found)

    def confirm(self, red: Verdict, start: Identities, deadline: float) -> None:
        """Take a verdict that came later than the search, and prepare untraced iterations.

        In these few iterations, growth must go on.
        """
        self._verdict, self._start, self.at_red = red, start, handles.take_identities()
        self._steps = self._repeat(deadline)

    def iteration_done(self) -> bool:
        """Evaluate the last iteration, if any; return whether another, now prepared, is wanted."""
        try:
            next(self._steps)
        except StopIteration:
            return False
        except Exception as error:  # noqa: BLE001 - an error in the search must not cost the verdict
            self._note_failure(error)
            return False
        return True

    def _note_failure(self, error: Exception) -> None:
        failed = (
            f"the search for the cause failed, please report this: {type(error).__name__}: {error}"
        )
        self._why |= dict.fromkeys(("site", "owner"), failed)

    def end(self, why: str = "") -> None:
        """Release everything, and note in `culprit` what was found.

        `why` says why nothing more was found; it is empty if the time was over.
        """
        if self.culprit is not None:
            return
        held, found = self.held().get(self._verdict.resource, ()), self._found
        ended_early = inspect.getgeneratorstate(self._steps) != inspect.GEN_CLOSED
        try:
            self._steps.close()
            where, kept = self._made.resolve(), self._kept.resolve()
            source = text_of(where.site) if where else ""
            digest = digest_of_file(where.site) if where else ""
            found = replace(
                found, where=where, kept=kept.site if kept else None, source=source, digest=digest
            )
            found = replace(found, native=self._made.native, companion=self._made.companion)
        except Exception as error:  # noqa: BLE001 - as above
            self._note_failure(error)
        missing = {
            "site": not found.where or bool(found.companion),
            "owner": not found.owner and not found.cycle,
        }
        no_time = OutOfTime("no time was left to search for it")
        otherwise = why or ("the iterations ended during the search" if ended_early else no_time)
        unresolved = {
            part: self._why.get(part, otherwise)
            for part, is_missing in missing.items()
            if is_missing
        }
        ran_out = any(isinstance(reason, OutOfTime) for reason in unresolved.values())
        found = replace(
            found, unresolved=unresolved, ran_out_of_time=ran_out, iterations=self._schedule.used
        )
        self.culprit = replace(found, hint=self._pool or hint_for(found, held))

    def collect_own(self) -> None:
        """Collect the garbage that the search leaves, which would count as the test's."""
        gc.unfreeze()
        self._collect()

    def held(self) -> Mapping[str, tuple[Remainder, ...]]:
        """List handles (descriptors, threads, files ...) that were new at the verdict, by resource.

        If the verdict is about memory or objects, list for it what was created during the search
        and still exists.
        """
        held = survivors_of(self._sampler, self._verdict, self._start, self.at_red)
        if found := self._kinds or self._entries:
            held[self._verdict.resource] = found
        return held

    def _collect(self) -> None:
        # As at the end of each measured iteration: if the program has switched the collector off,
        # garbage stays.
        if self._sampler.instruments.watch.enabled:
            self._sampler.instruments.watch.collect()

    def _investigate(self) -> Generator[None, None, None]:
        slope = self._verdict.slope
        if slope <= 0:
            once = self._sampler.samples.rises(self._verdict.resource) <= 1
            reason = _REASON_CAME_ONCE if once else _REASON_UNSTEADY
            self._why = dict.fromkeys(("site", "owner"), reason)
            return
        if self._verdict.resource == RESIDENT and self._sampler.samples.grown_children():
            self._why = dict.fromkeys(("site", "owner"), _REASON_IN_CHILD)
            return
        if self._verdict.outcome == "leak" and (yield from self._recall()):
            return
        before, earlier, objects = self._count_objects()
        made = yield from self._find_site()
        if self._has_ended(self._schedule):
            # What has grown instead is a bystander, such as the cache of a library that the search
            # fills.
            return
        self._made = made
        self._why["site"] = made.why
        self._sampler.instruments.watch.released_names.update(made.released)
        if made.process:
            self._why["owner"] = "they are in a child process, whose objects are not searched"
        if "owner" in self._why:
            return
        if self._verdict.outcome == "unclosed":
            yield from self._find_cycle()
            return
        if before is None:
            longer = (
                f"a search of {objects:,} objects would take longer than the time that was left"
            )
            self._why["owner"] = OutOfTime(longer)
        else:
            yield from self._find_owner(before, made, earlier)

    def _find_reference(self, account: Account) -> Generator[None, None, None]:
        """Find the call that gains or loses references to the one object."""
        obj, change = account.obj, account.change
        read = (lambda: getrefcount(obj)) if change > 0 else (lambda: -getrefcount(obj))
        slope, schedule = self._verdict.slope, self._schedule
        made = yield from rounds.charge(read, slope, slope, schedule)
        if not made.path:
            # What the call returns may hold another reference, until the caller drops it.
            twice = yield from rounds.charge(read, 2 * slope, slope, schedule)
            made = twice if twice.path else made
        self._made = yield from rounds.find_line(made, read, slope, schedule)
        verb, why = ("gained", _REASON_NOT_HELD) if change > 0 else ("lost", _REASON_NOT_GIVEN_UP)
        self._kinds = (Remainder(f"{verb} reference to {describe_long_lived(obj)}", abs(change)),)
        self._why = {"site": made.why, "owner": why}

    def _count_objects(self) -> tuple[Census | None, frozenset[int], int]:
        """Return a census, if there is time, the newcomers so far, and the number of objects."""
        # Load what the search itself retains before anything is counted.
        began = clock.monotonic()
        plugin_files()
        if self._resource.in_python_bytes:
            rounds.load_memray()
        earlier = newcomers() if has_frozen() else frozenset[int]()
        gc.unfreeze()
        objects = len(gc.get_objects())
        before = None
        needed = objects * _SECONDS_PER_OBJECT
        has_time = began + needed < self._schedule.deadline_for(_MIN_OWNER_SECONDS)
        if has_time and self._verdict.outcome != "unclosed":
            before = Census(values=self._resource.in_python_bytes)
            # On a busy machine the count alone may take longer than the time that is left.
            self._schedule.postpone(clock.monotonic() - began)
        self._exits = count_exit_callbacks()
        gc.freeze()
        return before, earlier, objects

    def _recall(self) -> Generator[None, None, bool]:
        """Return whether a known cause accounts for all of the growth, in a few iterations."""
        if self._verdict.outcome == "unclosed":
            return (yield from self._recall_unclosed())
        known = self._causes.of(self.resource)
        if not known:
            return False
        schedule, containers = (
            self._schedule.renew(self._deadline),
            [find_container(cause.owner) for cause in known],
        )
        lengths = array("q", map(length, containers))
        for _ in schedule.iterations(1.0, 0):
            yield
        grown = [at for at, container in enumerate(containers) if length(container) > lengths[at]]
        if len({id(containers[at]) for at in grown}) == 1:
            for at in grown[:_MOST_CONFIRMED]:
                if (yield from self._confirm(known[at], containers[at], schedule)):
                    return True
        return False

    def _recall_unclosed(self) -> Generator[None, None, bool]:
        if (things := self._things()) is None:
            return False
        made = yield from self._follow(things, 1)
        if made.process or not (
            test := self._causes.test_with(self.resource, "unclosed", made.line)
        ):
            return False
        self._made, self.is_unbounded, self.recalled = made, True, test
        yield from self._find_cycle()
        return True

    def _confirm(
        self, cause: KnownCause, container: object, schedule: rounds.Schedule
    ) -> Generator[None, None, bool]:
        of_handles, counted, before = self._resource.made_of == "handles", 0, self.at_red
        # The level and the length, in the beginning and now.
        then, now = array("q", (0, 0)), array("q", (0, 0))
        with closing(Lines(cause.code, self._read, self._schedule.plain_seconds)) as lines:
            for counted in schedule.iterations(1.0, rounds.OF_EXACT):
                lines.arm()
                yield
                lines.disarm()
                schedule.collect()
                if counted == 0:
                    lines.forget()
                    before = handles.take_identities() if of_handles else before
                now[0], now[1] = self._read(), length(container)
                if counted == 0:
                    then[:] = now
            grown, gained = now[0] - then[0], now[1] - then[1]
            if counted < rounds.OF_EXACT or not cause.explains(
                grown, gained, counted, self._verdict
            ):
                return False
            line, expected = cause.site.line, cause.each * gained
            # Other lines may hold as many blocks for a moment.
            if lines.interrupted or not (
                lines.line(grown) == line or lines.explains(line, expected)
            ):
                return False
        if of_handles:
            new = handles.new_handles(before, handles.take_identities(), self.resource)
            if not handles.stand_for(last_entries(container, gained), new):
                return False
        self._found = replace(self._found, owner=owner_now(cause.owner, container, gained, counted))
        # Which function the line calls may differ from test to test.
        self._made, self._schedule = rounds.Creation((replace(cause.site, call=""),)), schedule
        self.is_unbounded, self.recalled = True, cause.test
        return True

    def _repeat(self, deadline: float) -> Generator[None, None, None]:
        schedule = self._schedule.renew(deadline)
        for _ in schedule.iterations(self._rate):
            yield
            schedule.collect()
        self._has_ended(schedule)

    def _has_ended(self, schedule: rounds.Schedule) -> bool:
        """Return whether growth that each iteration should show was not seen, and note that."""
        # malloc's own cache hides smaller growth.
        least = max(
            self._resource.resolution,
            rounds.MAX_CACHED_BYTES if self._resource.in_python_bytes else 0,
        )
        slope, shows = (
            self._verdict.slope,
            self._verdict.outcome != "unclosed" and self._verdict.slope >= least,
        )
        if not shows or schedule.has_grown(slope, self._share):
            return False
        median = format_rate(max(0.0, upper_median(schedule.rises)), self._resource.unit).partition(
            "/"
        )[0]
        reason = (
            f"{median} of {format_rate(slope, self._resource.unit)} while traced: {_REASON_ENDED}"
        )
        self._why = dict.fromkeys(("site", "owner"), reason)
        self.recurred = self._verdict.outcome != "leak"
        return True

    def _find_site(self) -> Generator[None, None, rounds.Creation]:
        slope, read = self._verdict.slope, self._sampler.instruments.counter(self._verdict.resource)
        if self._resource.handles in RECORDED:
            return (yield from self._find_recorded())
        if (things := self._things()) is not None:
            made = yield from self._follow(things)
            if (
                made.path
                or made.process
                or self._verdict.outcome != "leak"
                or not self._resource.of_tree
            ):
                return made
            return (yield from self._follow_companion(made))
        made, of_heap = rounds.Creation(), self._resource.in_python_bytes
        if self._resource.in_python and not self._is_past_malloc():
            counted = [name for name, one in RESOURCES.items() if one.made_of == "objects"]
            steady = of_heap and all(
                self._sampler.samples.state(name) == "flat" for name in counted
            )
            samples = self._sampler.samples
            blocks = samples.above_start(BLOCKS) / samples.n if samples.has(BLOCKS) else inf
            made = yield from rounds.trace_allocations(
                slope,
                self._rate,
                self._schedule,
                by_size=of_heap,
                of_objects=self._resource.made_of == "objects",
                steady=steady,
                blocks=blocks,
            )
        if not made.path:
            made = yield from rounds.charge(
                read, slope, self._rate, self._schedule, of_heap=of_heap, of_c=made.of_c
            )
            made = yield from rounds.find_line(
                made, read, slope, self._schedule, self._rate, of_heap=of_heap
            )
        if not made.path and of_heap:
            made = yield from rounds.trace_natively(made, slope, self._rate, self._schedule)
        return made

    def _find_recorded(self) -> Generator[None, None, rounds.Creation]:
        """Find the line of what Ray keeps, by its own record where no call shows it."""
        if (things := self._things()) is not None:
            made = yield from self._follow(things)
        else:
            made = yield from rounds.list_new(self.resource, self._rate, self._schedule)
        if not made.identities:
            return made
        found = find_records(frozenset(map(str, made.identities)))
        if found.elsewhere:
            self._why["owner"] = f"{found.elsewhere}, whose objects are not searched"
        if made.path:
            return made
        path = () if found.site is None else (found.site,)
        return replace(made, path=path, why=made.why or found.why)

    def _is_past_malloc(self) -> bool:
        """Return whether this is resident memory, of which exact counters show less than half."""
        samples = self._sampler.samples
        is_counted = self.resource == RESIDENT and samples.has(HEAP) and samples.has(BLOCKS)
        return is_counted and samples.exact_rate() < _MIN_SHOWN_RATIO * self._verdict.slope

    def _things(self) -> HandleKind | None:
        """Return the kind of handle that grows; None if it is none, or cannot be listed."""
        name, instruments = self._verdict.resource, self._sampler.instruments
        if (device := instruments.device_for(name)) is not None:
            return pieces_of(device)
        return things_of(name, instruments.counter(name), instruments.folders.get(name))

    def _follow(
        self, things: HandleKind, few: int = rounds.OF_EACH
    ) -> Generator[None, None, rounds.Creation]:
        slope, schedule = self._verdict.slope, self._schedule
        is_unclosed = self._verdict.outcome == "unclosed"
        made = yield from rounds.follow(things, slope, schedule, unclosed=is_unclosed, few=few)
        return (yield from rounds.find_line(made, things.count, slope, schedule))

    def _follow_companion(self, made: rounds.Creation) -> Generator[None, None, rounds.Creation]:
        """Find the line of another countable resource that grew as much; else return `made`."""
        # For example, a thread that waits in ``accept`` reserves the number of a descriptor that no
        # listing shows.
        samples = self._sampler.samples
        total = samples.above_start(self._verdict.resource)
        for name, other in RESOURCES.items():
            if (
                name == self._verdict.resource
                or not other.of_tree
                or samples.state(name) != "growing"
            ):
                continue
            if abs(samples.above_start(name) - total) > _MAX_DIFFERENCE_RATIO * total:
                continue
            if (things := things_of(name, self._sampler.instruments.counter(name))) is not None:
                found = yield from self._follow(things)
                if found.path:
                    # The handles that were found are not those of the verdict, whose owner is
                    # searched for.
                    return replace(found, why=made.why, identities=frozenset(), companion=name)
        return made

    def _find_owner(
        self, before: Census, made: rounds.Creation, earlier: frozenset[int]
    ) -> Generator[None, None, None]:
        if not self._schedule.used:
            # Nothing was created since the first count, so nothing has grown.
            return
        holders = self._search_holders(before, made, earlier)
        if self._lack_owner(holders):
            self._why["owner"] = (
                "the interpreter holds each thread until it ends"
                if self._is_thread
                else holders.reason
            )
            return
        others = holders.owners[1:] if holders.joint else ()
        self._found = replace(self._found, owner=holders.owners[0], others=others)
        if rounds.MOST_TRACED - self._schedule.used >= _KEEPER_ITERATIONS:
            yield from self._find_keepers(holders)
        if self._is_early and holders.objects:
            # What has followed the owner refers to it.
            self.collect_own()
            paths = [
                where.path for one in (self._made, self._kept) if (where := read_path(one.path))
            ]
            self.is_unbounded = are_append_only(holders.objects, tuple(chain.from_iterable(paths)))
            gc.freeze()
        self.each = self._growth_per_entry(holders)

    def _search_holders(
        self, before: Census, made: rounds.Creation, earlier: frozenset[int]
    ) -> Holders:
        # If the program has called `gc.unfreeze`, what the containers have gained is the only
        # evidence.
        came, later = (gc.get_objects(), newcomers()) if has_frozen() else ([], frozenset[int]())
        gc.unfreeze()
        try:
            sought = self._describe_sought(made)
            ours = {id(came), *_own_identities(), *self._innocent}
            growing = before.grown(later, ours)
            sought = replace(sought, more=before.more, exits=count_exit_callbacks() - self._exits)
            holders = search(
                sought,
                came,
                growing,
                earlier | later,
                ours,
                deadline=self._schedule.deadline_for(_MIN_OWNER_SECONDS),
            )
            self.pruned = self._find_pruned(holders)
            self._pool = self._describe_pool()
            self.is_unbounded = self._is_lost(made, holders, growing)
            if self._resource.in_python:
                self._kinds = self._retained_kinds(came, holders, growing, before.more)
            elif self._resource.exhausts == "device":
                self._kinds = tensor_kinds(
                    came, self._schedule.used, _MIN_FREQUENT_RATIO * min(1.0, self._rate)
                )
            if not holders.owners and not self._sampler.instruments.watch.enabled:
                self._name_garbage(came, sought.identities, self._schedule.used)
        finally:
            # Release the list before the freeze, so that the search retains none of these objects.
            del came, growing
            gc.freeze()
        return holders

    def _growth_per_entry(self, holders: Holders) -> float:
        series, owner = self._sampler.samples.series(self._verdict.resource), holders.owners[0]
        if (
            not owner.gained
            or not series.rises
            or not holders.objects
            or find_container(owner) is not holders.objects[0]
        ):
            return 0.0
        rate = self._verdict.slope
        if all(before <= after for before, after in pairwise(series.readings)):
            rate = upper_median(series.rises.values()) * len(series.rises) / series.iterations
        return rate / owner.gained

    def _find_keepers(self, holders: Holders) -> Generator[None, None, None]:
        if not holders.objects and holders.owners[0].root_kind == "exits":
            yield from self._find_keeper(atexit._ncallbacks, creates=True)
        # A root itself may hold the objects, such as a running frame. It has no entries that could
        # be followed.
        for container in holders.objects[:1]:
            if container_kind(container) is not None:
                yield from self._find_keeper(
                    partial(length, container), creates=type(container) is Context
                )

    @property
    def _is_thread(self) -> bool:
        return self._resource.handles == "threads"

    def _lack_owner(self, holders: Holders) -> bool:
        # A thread that has not ended is no owner of itself.
        return not holders.owners or (self._is_thread and holders.owners[0].root_kind == "running")

    def _is_lost(
        self, made: rounds.Creation, holders: Holders, growing: Sequence[GrowingContainer]
    ) -> bool:
        """Return whether nothing holds a mere descriptor number, or a thread of a known leak."""
        if self._is_thread:
            has_leaked = self._causes.test_with(self.resource, "leak", made.line)
            return self._lack_owner(holders) and bool(has_leaked)
        if holders.owners or not _makes_number(made):
            return False
        return all(
            one.gained < LEAST * self._schedule.used or _is_own_container(one.holder)
            for one in growing
        )

    def _find_pruned(self, holders: Holders) -> Pruned | None:
        """Return the container that holds what grows, if the program removes entries from it."""
        eviction = find_eviction(holders.objects[0]) if holders.objects else None
        return (
            None
            if eviction is None
            else Pruned(holders.objects[0], holders.owners[0].name, eviction)
        )

    def _describe_pool(self) -> str:
        if self.pruned is None or not self._resource.is_pooled:
            return ""
        by = self.pruned.eviction.by
        return f"{by} removes entries from it: if that bounds it, set the bound as a budget, or more iterations"

    def _retained_kinds(
        self,
        came: Sequence[object],
        holders: Holders,
        growing: Sequence[GrowingContainer],
        more: Mapping[int, int],
    ) -> tuple[Remainder, ...]:
        """List the kinds of retained objects: first the entries that the owner has gained."""
        iterations, made_of = self._schedule.used, self._resource.made_of
        least_bytes = (
            _MIN_BYTES_SHARE * self._verdict.slope * iterations if made_of == "memory" else 0.0
        )
        sought = self._made.kind
        alike = [one for one in came if id(type(one)) == sought] if sought else came
        kinds = kinds_of(
            alike, iterations, _MIN_FREQUENT_RATIO * min(1.0, self._rate), least_bytes, more
        )
        gained = [
            container
            for container in growing
            if not container.is_value
            and any(container.holder is owner for owner in holders.objects)
        ]
        entries = [
            kind_of_entries(one, iterations, of_bytes=made_of != "objects") for one in gained
        ]
        listed: dict[str, Remainder] = {}
        for kind in filter(None, entries):
            same = listed.get(kind.what)
            listed[kind.what] = replace(kind, count=kind.count + same.count) if same else kind
        return (*listed.values(), *(kind for kind in kinds if kind.what not in listed))

    def _describe_sought(self, made: rounds.Creation) -> SearchTarget:
        slope, made_of = self._verdict.slope, self._resource.made_of
        iterations = max(1, self._schedule.used)
        if made_of == "anything" or (made_of == "handles" and self._things() is None):
            return SearchTarget(iterations, slope, in_python=True)
        if made_of == "handles":
            # Where the trace was cut short, what is new since the verdict is known all the same.
            new = handles.new_handles(
                self.at_red, handles.take_identities(), self._verdict.resource
            )
            return SearchTarget(
                iterations,
                slope,
                identities=made.identities or new,
                are_numbers=_makes_number(made),
            )
        rate = self._rate if self._rate < _MIN_FREQUENT_RATIO else None
        if made_of == "objects":
            return SearchTarget(
                iterations,
                self._rate if made.kind else rate,
                in_python=True,
                kind=made.kind,
                least=LEAST * slope * iterations,
            )
        if made_of == "blocks":
            least = LEAST / _MAX_BLOCKS * slope * iterations
            return SearchTarget(
                iterations, rate, made.size, in_python=True, least=least, held_as="blocks"
            )
        return SearchTarget(
            iterations,
            rate,
            made.size or slope,
            in_python=made.size is not None,
            least=(made.size or 0.0) / MAX_SIZE_RATIO * iterations,
            held_as="bytes",
        )

    @property
    def _rate(self) -> float:
        """The share of iterations with growth; for allocations, slope / median rise, at most 1."""
        if not self._resource.in_python and self._resource.exhausts != "device":
            # A handle is one unit; growth of other kinds has no typical size.
            return self._verdict.slope
        return self._share

    @property
    def _share(self) -> float:
        """The share of iterations with growth: slope / median rise up to 1."""
        rises = self._sampler.samples.series(self._verdict.resource).rises.values()
        return min(1.0, self._verdict.slope / upper_median(rises)) if rises else 1.0

    def _find_keeper(
        self, entries: Callable[[], int], *, creates: bool
    ) -> Generator[None, None, None]:
        """Find the line that stores what is retained in its owner; another line may create it."""
        # A registry of the interpreter creates the entries itself (`creates`), of which no other
        # line knows.
        gained = (self._found.owner.gained if self._found.owner else 0.0) or 1.0
        kept = yield from rounds.charge(
            entries, gained, gained, self._schedule, few=rounds.OF_EXACT
        )
        kept = yield from rounds.find_line(kept, entries, gained, self._schedule)
        if kept.path and kept.line != self._made.line and not is_wait(kept.path):
            if creates and self._resource.made_of != "handles":
                self._made = kept
            else:
                self._kept = kept

    def _find_cycle(self) -> Generator[None, None, None]:
        # Collect the garbage of the search itself first.
        self._collect()
        things = self._things()
        for _ in self._schedule.iterations(1.0, 0):
            before = things.list_now() if things is not None else {}
            yield
            now = things.list_now() if things is not None else {}
            self._name_garbage(
                gc.get_objects(), [key for key, what in now.items() if before.get(key) != what], 1
            )
            self._collect()
            self._why["owner"] = (
                "no cycle was found that the garbage collector frees and that leads to it"
            )

    def _name_garbage(
        self, objects: Sequence[object], identities: Collection[Hashable] | None, iterations: int
    ) -> None:
        """Name the cycle among these objects that keeps the handles, or the growth, alive."""
        garbage = [one for one in find_garbage(objects) if not is_ours(one)]
        expected, made_of = self._verdict.slope * iterations, self._resource.made_of
        if made_of == "handles" and identities:
            retained = handles_in(garbage, identities)
        elif made_of == "memory":
            retained = iter((largest_in(garbage, _MIN_FREQUENT_RATIO * expected),))
        else:
            self._found = replace(self._found, cycle=name_cycles(garbage, expected))
            return
        cycles = (name_cycles(garbage, expected, some) for some in retained if some)
        self._found = replace(self._found, cycle=next(filter(None, cycles), self._found.cycle))


def _makes_number(made: rounds.Creation) -> bool:
    """Return whether the call gives the program a descriptor without an object that closes it."""
    call = made.path[-1].call if made.path else ""
    # Other functions of this name, such as ``av.open()``, return an object.
    return call in _MAKES_NUMBERS or (call == "open()" and made.read_call() == "os.open()")


def _is_own_container(holder: object) -> bool:
    """Return whether this package fills a container, such as the dict of a cached function."""
    return is_ours(holder) or any(
        type(one) is LRU and is_ours(one) for one in gc.get_referrers(holder)
    )


def _own_identities() -> Iterator[int]:
    """Yield the ``id()`` of non-owners: the search makes them grow, or they retain nothing."""
    yield id(linecache.cache)
    # The caches of `re` are bounded, and the search itself fills them with the patterns that it
    # matches.
    yield from (id(getattr(re, name, None)) for name in ("_cache", "_cache2"))
    # `threading._active` contains every running thread, and keeps none alive.
    yield id(getattr(threading, "_active", None))


def survivors_of(
    sampler: Sampler, red: Verdict, start: Identities, now: Identities
) -> dict[str, tuple[Remainder, ...]]:
    """List the handles that exist now and did not at the start, by resource."""
    held = {
        name: kinds
        for name, kinds in handles.survivors(start, now).items()
        if name == red.resource
        or (not _is_detail(name) and sampler.samples.state(name) == "growing")
    }
    if red.resource == RESIDENT and (grown := sampler.samples.grown_children()):
        more = {
            pid: format_amount(by, red.traits.unit)
            for pid, by in sampler.samples.children().items()
        }
        held[red.resource] = tuple(
            Remainder(now.children.get(pid, "ended"), 1, f"child {pid}, +{more[pid]}")
            for pid in grown
        )
    if red.outcome == "unclosed" and red.traits.handles == "fds":
        held[red.resource] = handles.group_files(
            map(handles.describe_target, sampler.instruments.watch.released_names.elements())
        )
    return held


def _is_detail(resource: str) -> bool:
    """Return whether what remains of a resource is listed only if the verdict is about it."""
    # Libraries map memory too, and one object of Ray has references, bytes and perhaps a worker.
    return find_resource(resource).is_memory or find_resource(resource).of_cluster


def name_failed_line(resource: str, error: BaseException) -> Culprit | None:
    """Return what is known if a resource ran out before a verdict; None if not even the line."""
    site = failed_at(error)
    unresolved = {"owner": "the test did not continue after the failure"}
    return Culprit(resource, ran_out=site, unresolved=unresolved) if site is not None else None


def failed_at(error: BaseException) -> Site | None:
    """Return the innermost failed line of the program; for a worker's error, the worker's line."""
    # The traceback of a worker arrives as text: File "/a/b.py", line 12, in function.
    # It has the name of the function without that of its class, which the source tells.
    from_text: list[Site] = []
    for file, line, function in _TRACEBACK_FRAME.findall(str(error)):
        qualified = function_at(file, int(line))
        from_text.append(
            Site(file, int(line), qualified if qualified.endswith(f".{function}") else function)
        )
    raised = [
        Site(frame.f_code.co_filename, line, frame.f_code.co_qualname)
        for cause in causes(error)
        for frame, line in walk_tb(cause.__traceback__)
        # By pytest's convention: a function that hides itself has refused a wrong call, which its
        # caller can change.
        if not frame.f_locals.get("__tracebackhide__")
    ]
    for path in (from_text, raised):
        # Extension modules compiled from Python may carry a relative path of the machine that built
        # them.
        own = [
            site
            for site in path
            if Path(site.file).is_absolute() and is_own(site.file) and not is_harness(site.file)
        ]
        if own:
            return own[-1]
    return None
