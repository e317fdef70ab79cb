"""Describe the cause of a resource's growth, as values."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final, Literal, TypeAlias

from pytest_leakcheck.model.resources import OfResource, check_resource

# A file of the standard library, on any machine.
_STANDARD: Final = re.compile(r"/lib(?:64)?/python3\.\d+t?/|\\Python3?\d*\\Lib\\", re.IGNORECASE)
# Names of folders that contain installed packages, but not the standard library.
PACKAGE_FOLDERS: Final = frozenset({"site-packages", "dist-packages"})
# What an owner's name says after the name of the function that holds it.
_WITHIN_FUNCTION: Final = re.compile(r" (?:closure cell|default argument|local) .*")
# The type and the length of a key in an owner's name; the length may differ from run to run.
_KEY: Final = re.compile(r"\[a [^\]]*\]")
# The number of a thread in its name.
_NUMBERED: Final = re.compile(r"-\d+")
# Functions that make an object; which of the constructors of its parts is seen first depends on the
# load.
_CONSTRUCTORS: Final = frozenset({"__init__", "__new__", "__post_init__"})
# The functions in which asyncio and trio run the steps of a program: what they create themselves is
# of no step.
_RUN_STEPS: Final = frozenset(
    {"BaseEventLoop.run_forever", "GuestState.guest_tick", "unrolled_run"}
)
# The first call in a line of source.
_CALL: Final = re.compile(r"(\w+)\(")
# How many hex digits an identifier begins with.
_ID_DIGITS: Final = 6
_DIGEST_DIGITS: Final = 32
TestPhase: TypeAlias = Literal["setup", "call", "teardown", ""]
# The object at which a reference path begins: `running` is a thread, `exits` are the callbacks of
# ``atexit``, and of `interpreter` is what no module holds, such as a handler of a signal.
RootKind: TypeAlias = Literal[
    "module", "class", "running", "frame", "exits", "interpreter", "other"
]
# The name of an owner that is the cache of a function begins so.
CACHE_OF: Final = "lru_cache of "


class OutOfTime(str):
    """A reason for an unresolved part that more time may resolve."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Culprit(OfResource):
    """The known cause of the growth of one resource.

    Attributes:
        resource: The resource that grows.
        where: Where it is created; None if unresolved.
        kept: The line that stores it in its owner, if that differs from the line that creates it.
        owner: The object that retains it; None if unresolved.
        others: Further objects, each of which retains a share of it, as `owner` does then.
        cycle: The type names of a reference cycle that only the garbage collector frees, in the
            order of the cycle; of a frame, the function and the variable that closes it.
        unresolved: Why the ``site`` or the ``owner`` (the possible keys) could not be found.
        ran_out_of_time: Whether something is unresolved that the search had no time for.
        hint: Advice, if the cause matches a known pattern; else empty.
        iterations: The number of iterations run to find the cause.
        source: The source text of the line `site`.
        digest: Of the whole file with this line, or with that of `share` (`digest_of`); empty if it
            has not been read.
        native: The C functions that allocated it, innermost first; empty unless native stacks were
            traced.
        ran_out: The line that failed when the resource ran out, in this process or in one of its
            worker processes.
        share: The line with the largest share of a memory peak. It is the cause only if `where` is
            that line too.
        companion: The resource that `where` creates in place of `resource`, whose own line is
            unresolved: it grows at the same rate. Empty if `where` creates `resource`.
        at_peak: `where` is the call at which the peak was read. What was held then may have been
            created earlier.
    """

    resource: str
    where: CreationPath | None = None
    kept: Site | None = None
    owner: Owner | None = None
    others: tuple[Owner, ...] = ()
    cycle: tuple[str, ...] = ()
    unresolved: Mapping[str, str] = field(default_factory=dict)
    ran_out_of_time: bool = False
    hint: str = ""
    iterations: int = 0
    source: str = ""
    digest: str = ""
    native: tuple[str, ...] = ()
    ran_out: Site | None = None
    share: Share | None = None
    companion: str = ""
    at_peak: bool = False

    def check(self) -> None:
        """Raise `InputError` for a value from a file if it names an unknown resource."""
        check_resource(self.resource)
        if self.companion:
            check_resource(self.companion, "companion")

    @property
    def site(self) -> Site | None:
        """The line to change: where the resource is created, else where it is stored or ran out."""
        return self.where.site if self.where else self.kept or self.ran_out

    @property
    def frames(self) -> tuple[Site, ...]:
        """All suspect lines: the call path, where the resource is stored, and where it ran out."""
        others = (one for one in (self.kept, self.ran_out) if one is not None)
        return (*(self.where.path if self.where else ()), *others)


def digest_of(lines: Sequence[str]) -> str:
    """Return a digest of the lines of a file; empty without lines."""
    text = "".join(lines).encode(errors="backslashreplace")
    return hashlib.sha256(text).hexdigest()[:_DIGEST_DIGITS] if lines else ""


def fingerprint(
    test: str, resource: str, culprit: Culprit | None, fault: Fault | None = None
) -> str:
    """Return an identifier of the cause: six hex digits, the resource, and a name to recognize it.

    The digits are a hash of the resource and of the first known of these: the owner, unless it is
    everybody's (`own_owner`); the project's line that creates the resource (`own_line`); the
    innermost function of an installed package; the test. Not part of it are the number of the line,
    its folder, the outcome, and what depends on the load of the machine: which constructor below a
    line came first. With a `fault`, its place is a part.
    """
    if fault is not None:
        within = fingerprint(test, resource, culprit)
        return _identify(resource, (within, fault.place), fault.site.function, fault.function)
    if (owner := own_owner(culprit)) is not None:
        # The name of a class or of a cached function is without its module.
        is_short = owner.root_kind == "class" or owner.name.startswith(CACHE_OF)
        return fingerprint_of_owner(resource, culprit, owner.root if is_short else "")
    line = creating_line(culprit)
    if line is None or culprit is None:
        return _identify(resource, (test,))
    source = culprit.source if line == culprit.site and not _is_constructor(line.call) else ""
    if culprit.where is not None and _is_constructor(line.function):
        line, source = _leave_constructors(culprit.where.path, line), ""
    path, called = PurePath(line.file), _CALL.search(source)
    module = path.parent.name if path.stem == "__init__" else path.stem
    name = called[1] if called else line.function.removesuffix(".__init__")
    return _identify(resource, (f"{module}:{line.function}", source), module, name)


def fingerprint_of_owner(resource: str, culprit: Culprit | None, *more: str) -> str:
    """Return the identifier of all that owners of one name retain; empty if there is no owner.

    The owner may also be everybody's.
    """
    if culprit is None or culprit.owner is None:
        return ""
    name = _KEY.sub("[]", _NUMBERED.sub("-N", culprit.owner.name or culprit.owner.root))
    words = re.findall(r"\w+", _WITHIN_FUNCTION.sub("", name))
    return _identify(resource, (name, *filter(None, more)), *words[:1], *words[1:][-1:])


def _is_constructor(function: str) -> bool:
    return function.removesuffix("()").rpartition(".")[2] in _CONSTRUCTORS


def _leave_constructors(path: Sequence[Site], line: Site) -> Site:
    """Return the line that calls a line's constructors; the outermost one if a test calls it."""
    at = path.index(line)
    while at and _is_constructor(path[at].function) and not is_of_tests(path[at - 1].file):
        at -= 1
    return path[at]


def short_id(finding: str) -> str:
    """Return the digits with which a fingerprint begins."""
    return finding[:_ID_DIGITS]


def _identify(resource: str, parts: tuple[str, ...], *names: str) -> str:
    digits = hashlib.sha256(
        "|".join((*parts, resource)).encode(errors="backslashreplace")
    ).hexdigest()[:_ID_DIGITS]
    words = (name.removesuffix("()").rpartition(".")[2].strip("<>") for name in names)
    return "-".join((digits, resource, *filter(None, words)))


def own_owner(culprit: Culprit | None) -> Owner | None:
    """Return the owner if it tells the cause; None if unknown or everybody's, like ``sys.path``."""
    if culprit is None or culprit.owner is None:
        return None
    # Any code may add to what the interpreter or the standard library holds, but not to what an
    # entry of that holds.
    name, of_class = (
        culprit.owner.name,
        culprit.owner.place if culprit.owner.root_kind == "class" else "",
    )
    modules = {re.split("[.:]", one)[0] for one in (name, of_class)}
    is_shared = (
        not modules.isdisjoint(sys.stdlib_module_names) or culprit.owner.root_kind == "interpreter"
    )
    return None if is_shared and "[" not in name else culprit.owner


def own_line(culprit: Culprit | None) -> Site | None:
    """Return the project's creating line; None if it is unknown, or says less than the owner."""
    # A line of the project that calls an installed package counts. A line of a test counts only if
    # it calls none, and the owner is unknown or belongs to the test: many tests may call what keeps
    # the resource.
    if culprit is None or culprit.where is None or (inner := _find_inner(culprit)) is None:
        return None
    if is_installed(inner.file):
        site = culprit.where.site
        return (
            site
            if site in _last_step(culprit) and not _is_foreign(site, culprit.where.path)
            else None
        )
    owner = own_owner(culprit)
    if not is_of_tests(inner.file) or owner is None:
        return inner
    return inner if PurePath(inner.file).stem in re.findall(r"\w+", owner.name) else None


def _is_foreign(site: Site, path: Sequence[Site]) -> bool:
    """Return whether the line to change is of the standard library, a test or a foreign package."""
    if is_installed(site.file):
        # It is the line to change although the path has lines outside of packages: the project
        # itself is installed.
        return all(
            is_installed(line.file) or line.file.startswith("<") or is_standard(line.file)
            for line in path
        )
    return is_standard(site.file) or is_of_tests(site.file)


def creating_line(culprit: Culprit | None) -> Site | None:
    """Return the creating line: the project's (`own_line`), else that of an installed package."""
    inner = _find_inner(culprit)
    return own_line(culprit) or (inner if inner is not None and is_installed(inner.file) else None)


def library_lines(culprit: Culprit) -> tuple[Site, ...]:
    """Return the lines of installed packages below the project's last line, outermost first."""
    found: list[Site] = []
    for site in culprit.where.path if culprit.where is not None else ():
        if is_installed(site.file):
            found.append(site)
        elif not is_standard(site.file):
            found.clear()
    return tuple(found)


def standard_lines(culprit: Culprit) -> tuple[str, ...]:
    """Return the standard library's lines below the last other line, as ``file:function``.

    The outermost comes first.
    """
    found: list[str] = []
    for site in culprit.where.path if culprit.where is not None else ():
        if is_standard(site.file):
            file = _STANDARD.split(site.file)[-1].replace("\\", "/")
            found.append(f"{file}:{site.function}")
        else:
            found.clear()
    return tuple(found)


def short_file(file: str) -> str:
    """Return a file's name without this machine's folders: from its package on, if installed."""
    parts = PurePath(file).parts
    if is_installed(file):
        return "/".join(
            parts[next(at for at, part in enumerate(parts) if part in PACKAGE_FOLDERS) + 1 :]
        )
    return "/".join(parts[-2:] if PurePath(file).stem == "__init__" else parts[-1:])


def _find_inner(culprit: Culprit | None) -> Site | None:
    """Return the last step's innermost line outside the standard library; None without one."""
    # There is none if an event loop itself acts.
    return next(
        (site for site in reversed(_last_step(culprit)) if not is_standard(site.file)), None
    )


def _last_step(culprit: Culprit | None) -> Sequence[Site]:
    """Return the part of the call path below the last event loop."""
    path = culprit.where.path if culprit is not None and culprit.where is not None else ()
    loops = [at for at, site in enumerate(path) if site.function in _RUN_STEPS]
    return path[loops[-1] + 1 :] if loops else path


def is_installed(file: str) -> bool:
    """Return whether a file belongs to an installed package, on any machine."""
    return not PACKAGE_FOLDERS.isdisjoint(PurePath(file).parts)


def is_standard(file: str) -> bool:
    """Return whether a file is of the standard library, by its name."""
    # A finding may come from another machine; `call_paths.is_standard` goes by this interpreter.
    return file.startswith("<frozen ") or (bool(_STANDARD.search(file)) and not is_installed(file))


def is_of_tests(file: str) -> bool:
    """Return whether a file belongs to a test suite, by its name."""
    stem = PurePath(file).stem
    return stem == "conftest" or stem.startswith("test_") or stem.endswith("_test")


# Stands for a function: the fault is that a task is cancelled while it waits.
AWAIT: Final = "await"
# Stands before the name of an iterator: the fault is that the code which has received an item
# raises.
ITERATE: Final = "iterate"


@dataclass(frozen=True, slots=True)
class Fault:
    """A call that raises an exception in each iteration, instead of being made.

    Attributes:
        function: The function that is called, such as ``os.open``; ``await`` for a task that is
            cancelled while it waits; ``iterate shop.rows`` for an iterator that is dropped.
        site: The line of the program from which it is called, also through the standard library, or
            which has received the item.
        number: Which of the calls from this line, or of the items, it is in an iteration, from 1.
        entry: The line of the test or of a fixture that leads to it; None if no such line does, as
            in a task.
    """

    function: str
    site: Site
    number: int
    entry: Site | None = None

    @property
    def iterator(self) -> str:
        """The name of the iterator that is dropped; empty of other faults."""
        _, _, name = self.function.partition(f"{ITERATE} ")
        return name

    @property
    def place(self) -> str:
        """The function and the unnumbered line, which identify the fault in any program version."""
        return f"{self.function} in {short_file(self.site.file)}:{self.site.function}"

    def find_earlier(self, culprit: Culprit | None) -> Site | None:
        """Return the other line of the same test or fixture that created what remains, if any."""
        entry, where = self.entry, culprit.where if culprit is not None else None
        if entry is None or where is None:
            return None
        lines = [
            site
            for site in where.path
            if (site.file, site.function) == (entry.file, entry.function)
        ]
        return lines[-1] if lines and lines[-1].line != entry.line else None


@dataclass(frozen=True, slots=True)
class CreationPath:
    """The place where a retained resource is created.

    Attributes:
        path: The call path from the outermost frame of the test to the creating frame, innermost
            last.
        site: The line to change: the innermost one that belongs neither to an installed package nor
            to the standard library, or the innermost of all if there is none.
        phase: The phase of the test; empty outside of pytest.
        fixture: The fixture whose code runs; empty in the test itself.
        process: The child processes in which it runs, as text; empty if it is the measured process.
    """

    path: tuple[Site, ...]
    site: Site
    phase: TestPhase = ""
    fixture: str = ""
    process: str = ""


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a memory peak that Python allocated on one line.

    Attributes:
        where: The line.
        size: Bytes that were allocated there and were held at the peak.
        total: Bytes of the peak.
        source: The source text of the line.
    """

    where: CreationPath
    size: int
    total: int
    source: str = ""


@dataclass(frozen=True, slots=True)
class Remainder:
    """The survivors of one kind: what still exists after the iterations that created it.

    Attributes:
        what: A description common to all of them, such as a file name pattern or a type.
        count: The number of survivors.
        note: A further detail, such as the age of the oldest or their total size; may be empty.
    """

    what: str
    count: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One reference on the path from a root object to the retained resource.

    Attributes:
        holder: The referrer, such as ``module case``, ``Trainer`` or ``list of 20``.
        via: The name of the reference, such as ``_KEPT``, ``.history``, ``[a str of 7]`` or
            ``closure cell 'items'``.
        suspect: Whether this reference retains the resource.
    """

    holder: str
    via: str
    suspect: bool = False


@dataclass(frozen=True, slots=True)
class Owner:
    """The object that retains the resource.

    Attributes:
        name: A short name to search the source for, such as ``case._KEPT``.
        root: A description of the object at which the reference path begins.
        root_kind: What that object is.
        place: Where that object is found: ``case`` for a module, ``case:Trainer`` for a class; else
            empty.
        steps: The reference path, with the suspect reference marked.
        holds: The retained contents, such as ``20 × bytes, 3,033 B each``.
        gained: Entries added per iteration; for a single growing value, bytes or characters; 0 if
            unknown.
    """

    name: str
    root: str
    steps: tuple[Step, ...]
    holds: str
    gained: float
    root_kind: RootKind = "other"
    place: str = ""


@dataclass(frozen=True, slots=True)
class Site:
    """One line of a call path.

    Attributes:
        file: The file name of the code object, usually an absolute path.
        line: The line number, from 1.
        function: The function that contains the line; qualified with its class.
        call: The function called in that line, as ``name()``; empty if the line itself creates the
            resource.
    """

    file: str
    line: int
    function: str
    call: str = ""


def touches(path: Sequence[Site], packages: Sequence[str]) -> bool:
    """Return whether any frame is in a folder or module with the name of one of the packages."""
    wanted = set(packages)
    return any(
        not wanted.isdisjoint((*PurePath(site.file).parts[:-1], PurePath(site.file).stem))
        for site in path
    )
