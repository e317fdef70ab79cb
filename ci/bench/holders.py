"""Measure the cost of finding the owners of leaked memory, and check that the right ones are named.

In a fresh process for each row of `LIMITS`, five owners retain objects that the garbage collector does not track: a
dict of a module, an attribute of an instance, a closure, a default argument, a class. The process also has containers
that must not be named: one that does not change, one that is emptied in each step, and one that grows at another rate.

The plugin counts the entries of containers before and after the growth, and then searches for the owners. The script
measures the CPU time of both counts and of the search. Exit 1 above a limit, or if the named owners are not those five.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, ClassVar, Final

from pytest_leakcheck.attribution.heap.growing_containers import Census, newcomers
from pytest_leakcheck.attribution.heap.owner_search import SearchTarget, find_owners

# Objects on the heap, the limit in CPU seconds, and what is counted: containers only, or single values too.
LIMITS: Final = (
    (500_000, 1.5, "containers"),
    (500_000, 1.5, "values"),
    (2_000_000, 4.0, "containers"),
    (2_000_000, 6.0, "values"),
)
WARM: Final = 12
MORE: Final = 16

CACHE: dict[int, bytes] = {}
STILL: list[bytes] = [bytes(100)] * 50
EMPTIED: list[bytes] = []
OTHER: list[int] = []
BALLAST: list[object] = []


class Trainer:
    """Two owners of leaked memory: an attribute of the instance, and an attribute of the class."""

    history: ClassVar[deque[bytes]] = deque()

    def __init__(self) -> None:
        self.uploads: list[bytearray] = []


class Record:
    """An object of the ballast, which only makes the heap larger."""

    def __init__(self, number: int) -> None:
        self.name, self.weight, self.parts = f"record {number}", number * 1.5, [number]


def _create_collector() -> Callable[[str], None]:
    items: list[str] = []
    return lambda text: items.append(text)  # noqa: PLW0108 - a bound method would be no closure


def remember(one: object, acc: list[object] = []) -> None:  # noqa: B006 - the leak
    """Retain an object in the default argument."""
    acc.append(one)


trainer = Trainer()
add = _create_collector()


def step(number: int, array: Callable[[int], Any]) -> None:
    """Do one step that leaks through each of the five owners."""
    CACHE[number] = bytes(3000)
    trainer.uploads.append(bytearray(2000))
    add(f"{number:06}" * 50)
    remember(array(1000))
    Trainer.history.append(bytes(700))
    EMPTIED.clear()
    EMPTIED.extend(itertools.repeat(b"", 20))
    OTHER.extend(range(3))


def main() -> int:
    """Measure each case in a subprocess; return 1 if one fails."""
    parser = argparse.ArgumentParser(description="Cost of finding who holds it, and whether the right one is named.")
    parser.add_argument("--inside", nargs=3, metavar=("OBJECTS", "SECONDS", "COUNTED"), help="measure in this process")
    inside: list[str] | None = parser.parse_args().inside
    if inside is not None:
        size, limit, counted = inside
        return measure(int(size), float(limit), values=counted == "values")
    print("| objects | counted | first count | second count | search | in all | limit | named |")
    print("| ---: | --- | ---: | ---: | ---: | ---: | ---: | --- |", flush=True)
    cases = [["--inside", *map(str, case)] for case in LIMITS]
    return max(subprocess.run([sys.executable, __file__, *case], check=False).returncode for case in cases)


def measure(size: int, limit: float, *, values: bool) -> int:
    """Measure in this process and print a row; return 1 above the limit, or unless just the five owners are named."""
    array: Callable[[int], Any] = bytearray
    if find_spec("numpy"):
        from numpy import zeros as array
    BALLAST.extend({"number": number, "parts": [number]} for number in range(size // 4))
    # The attributes of a record are stored in the record, or in a dict that the garbage collector tracks.
    BALLAST.extend(Record(number) for number in range(size // 4))
    for number in range(WARM):
        step(number, array)
    gc.collect()
    began = time.process_time()
    before = Census(values=values)
    counted = time.process_time()
    gc.freeze()
    for number in range(WARM, WARM + MORE):
        step(number, array)
        gc.collect()
    again = time.process_time()
    new = newcomers()
    gc.unfreeze()
    growing = before.grown(new)
    searched = time.process_time()
    holders = find_owners(SearchTarget(MORE, rate=1.0), growing, new=new)
    ended = time.process_time()
    names = {owner.name for owner in holders.owners}
    right = {
        "__main__.CACHE",
        "__main__.trainer.uploads",
        "__main__.add closure cell 'items'",
        "__main__.remember default argument 'acc'",
        "Trainer.history",
    }
    in_all = counted - began + ended - again
    parts = (counted - began, searched - again, ended - searched, in_all, limit)
    named = f"{len(names & right)} of {len(right)}, {len(names - right)} wrong"
    cells = (
        f"{len(gc.get_objects()):,}",
        "values too" if values else "containers",
        *(f"{one:.2f} s" for one in parts),
        named,
    )
    print(f"| {' | '.join(cells)} |", flush=True)
    return int(names != right or in_all > limit)


if __name__ == "__main__":
    sys.exit(main())
