"""What a case is, and the few helpers that the families share."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, MutableSequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, TypeVar

Arm: TypeAlias = Callable[..., object]
Thing = TypeVar("Thing")

# Every word that a case may use for what it retains: the resources of the plugin, those to come included.
KINDS: Final = frozenset(
    {"fd", "thread", "process", "shm", "disk", "mmap", "heap", "object", "block", "task", "rss", "reference"}
)

_NUMBERS: Final = itertools.count()


def nothing() -> None:
    """The set-up and the tear-down of a case that needs none."""


@dataclass(frozen=True, slots=True)
class Case:
    """A leak beside its repair, or work that is noisy and clean. Each arm is one call, and is called many times.

    Attributes:
        name: Unique in the catalog; the arms are ``<name>-leaky``, ``<name>-fixed`` and ``<name>-clean``.
        kind: What the leaky arm retains. One of these is to be judged red; empty for a clean case.
        leaky: Retains something in every call, or in every few calls.
        fixed: The same work without the fault.
        clean: Retains nothing in the long run, and does not look like it.
        setup: Once, before the first call of an arm.
        teardown: Once, after the last call of an arm: gives back whatever a leaky arm has retained.
        verdict: What the plugin is to call the leaky arm; ``inconclusive`` where only a budget makes it a leak.
        doubt: Why ``inconclusive`` is an honest answer to the fixed or clean arm; empty where it is none.
        timed: The verdict depends on how fast the machine is: threads end while the counters are read.
        process_wide: The set-up changes the process for everyone, so that these run after all others.
        folder: Each call takes a folder, as a `Path`, that is new and is removed after the call.
        budget: The resource that a budget names in addition, where only that counts what the case retains.
        settles_after: Calls after which the clean arm retains nothing more.
        line: Parts of source text. A report is right if the line that it names has one of them.
        owner: Names of the objects that hold what is retained. A report that names another one is wrong.
    """

    name: str
    kind: tuple[str, ...] = ()
    leaky: Arm | None = None
    fixed: Arm | None = None
    clean: Arm | None = None
    setup: Arm = nothing
    teardown: Arm = nothing
    verdict: Literal["leak", "unclosed", "inconclusive"] = "leak"
    doubt: str = ""
    timed: bool = False
    process_wide: bool = False
    folder: bool = False
    budget: str = ""
    settles_after: int = 0
    line: tuple[str, ...] = ()
    owner: tuple[str, ...] = ()

    @property
    def arms(self) -> dict[str, Arm]:
        """The callables by the name that a test has."""
        arms = {"leaky": self.leaky, "fixed": self.fixed, "clean": self.clean}
        return {f"{self.name}-{role}": arm for role, arm in arms.items() if arm is not None}


def leak(
    name: str,
    kinds: str,
    leaky: Arm,
    fixed: Arm,
    teardown: Arm = nothing,
    *,
    line: str | tuple[str, ...] = (),
    owner: str | tuple[str, ...] = (),
    **more: Any,
) -> Case:
    """A leak beside its repair. `kinds` are words; a name of `owner` that begins with a dot is in the case's module."""
    lines, owners = ((one,) if isinstance(one, str) else one for one in (line, owner))
    return Case(name, tuple(kinds.split()), leaky, fixed, teardown=teardown, line=lines, owner=owners, **more)


def in_turn(first: Arm, then: Arm) -> Arm:
    """An arm that does the one and then the other, which takes no argument."""

    def both(*arguments: object) -> None:
        first(*arguments)
        then()

    return both


def kept(name: str, kinds: str, leaky: Arm, end: Arm, **more: Any) -> Case:
    """A leak whose repair is to end in each call what otherwise the tear-down ends."""
    return leak(name, kinds, leaky, in_turn(leaky, end), end, **more)


def numbers() -> Iterator[int]:
    """A count that starts beyond the small ints, each of which exists once and for all."""
    return itertools.count(10_000)


def unique(stem: str) -> str:
    """A name for something that outlives the process: it says whose it was."""
    return f"leakcheck-{os.getpid()}-{stem}-{next(_NUMBERS)}"


def drain(kept: MutableSequence[Thing], end: Callable[[Thing], object] = lambda _thing: None) -> Arm:
    """A tear-down that ends each kept thing and releases it."""

    def teardown() -> None:
        while kept:
            end(kept.pop())

    return teardown
