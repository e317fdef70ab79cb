"""Find a reference path from a root to an object, and describe it.

A root is a module, a class, a fixture, a thread or a running frame.
"""

from __future__ import annotations

import atexit
import contextvars
import gc
import logging
import signal
import sys
import threading
import types
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from typing import Any, Final, TypeGuard, cast

from pytest_leakcheck.attribution import inspection
from pytest_leakcheck.attribution.call_paths import is_of_plugin
from pytest_leakcheck.model.culprit import CACHE_OF, Owner, RootKind, Step
from pytest_leakcheck.probes.runtime_counters import list_tasks

# The most levels of referrers, and per level the most objects whose referrers are searched, and of
# these referrers.
_MAX_LEVELS: Final = 14
_MAX_OBJECTS_PER_LEVEL: Final = 16
_MAX_REFERRERS: Final = 20_000
# Ranks of roots, best first: a module or a class; a fixture or a thread; an object of a pytest
# plugin; a running frame.
_RANK_LASTING, _RANK_THREAD, _RANK_PLUGIN, _RANK_FRAME, _RANK_TEST_RUNNER = range(5)
# Up to Python 3.11, `gc.get_referrers` does not find a task by what it refers to as a future.
_HIDES_TASKS: Final = sys.version_info < (3, 12)
_OWN_PACKAGE: Final = "pytest_leakcheck"
# The code of a function (CO_OPTIMIZED), whose variables are in no dict, and the references to the
# copy of these in a dict: of the frame, of a variable and of an argument.
_FUNCTION_FLAG: Final = 1
_REFERENCES_TO_COPY: Final = 3
# Top-level packages of the test runner.
_RUNNERS: Final = ("_pytest", "pluggy", "pytest")


@dataclass(slots=True, eq=False)
class _Search:
    """The search for a root; `next_of`: the next object on the path to the target, by ``id()``.

    `is_cut`: a limit left out objects that may lead to the target.
    """

    target: object
    next_of: dict[int, object] = field(default_factory=dict)
    frontier: list[object] = field(default_factory=list)
    found: object = None
    rank: int = _RANK_TEST_RUNNER + 1
    is_cut: bool = False

    def path(self) -> tuple[object, ...]:
        """Return the path from the root to the target."""
        path = [self.found]
        while path[-1] is not self.target:
            path.append(self.next_of[id(path[-1])])
        return tuple(path)

    def meet(self, obj: object, rank: int | None) -> None:
        """Record what leads to the target: a root or, with rank None, an object to search from."""
        if rank is None:
            self.frontier.append(obj)
        elif rank < self.rank:
            self.found, self.rank = obj, rank


def find_paths(
    targets: Sequence[object],
    ignore: Collection[int] = (),
    *,
    to_root: bool = True,
    borrower: types.FrameType | None = None,
    new: Collection[int] = (),
) -> tuple[tuple[object, ...] | None, ...]:
    """Return a path from a root to each object; empty if there is none, None if a limit was met.

    The objects in `ignore`, by ``id()``, are on no path. Call this while nothing is frozen. All
    searches run together, because each level scans all tracked objects. An object that is a root
    itself is its own path, unless `to_root` is False. A variable of the `borrower` that is the
    object itself does not hold it. Where a level has too many objects, those in `new`, by ``id()``,
    come last.
    """
    running = {id(frame): frame for frame in running_frames()}
    searches = [_Search(target) for target in targets]
    for search in searches:
        search.meet(search.target, _root_rank(search.target, running) if to_root else None)
    skipped = {*ignore, id(targets)}
    for _ in range(_MAX_LEVELS):
        open_ones = [
            search for search in searches if search.rank > _RANK_THREAD and search.frontier
        ]
        if not open_ones:
            break
        _search_next_level(open_ones, skipped, running, new)
    is_cut = [search.is_cut or bool(search.frontier) for search in searches]
    for search in searches:
        if search.rank > _RANK_THREAD:
            _search_frames(search, running.values(), skipped, borrower)
    # Its own frame is among them: this function would be garbage that refers to what is searched
    # for.
    running.clear()
    lost = (None if is_limited else () for is_limited in is_cut)
    return tuple(
        search.path() if search.rank <= _RANK_TEST_RUNNER else none
        for search, none in zip(searches, lost, strict=True)
    )


def _search_next_level(
    searches: list[_Search],
    skipped: set[int],
    running: dict[int, types.FrameType],
    new: Collection[int],
) -> None:
    """Search the referrers of the current level, for all searches at once."""
    frontiers: list[list[object]] = []
    for search in searches:
        search.frontier.sort(key=lambda one: id(one) in new)
        search.is_cut |= len(search.frontier) > _MAX_OBJECTS_PER_LEVEL
        frontiers.append(list(islice(_alternate_kinds(search.frontier), _MAX_OBJECTS_PER_LEVEL)))
    wanted = {id(one): one for frontier in frontiers for one in frontier}
    asked = [{id(one) for one in frontier} for frontier in frontiers]
    for search in searches:
        search.frontier = []
    # These structures of the search refer to the objects as well, and must not count as referrers.
    own = {id(wanted), *map(id, frontiers), *(id(search.next_of) for search in searches)}
    # The dict of a module is a root already, and reading its other referents is dangerous (see
    # `owner_search`).
    listed = _list_referrers(wanted)
    referrers = [
        one
        for one in listed
        if not (id(one) in own or id(one) in skipped)
        and type(one) is not types.ModuleType
        and not is_ours(one)
    ]
    # All are read before a rank is found: telling which context runs replaces its table.
    places_in = [wanted.keys() & map(id, gc.get_referents(one)) for one in referrers]
    is_cut = len(listed) >= _MAX_REFERRERS
    for search in searches:
        search.is_cut |= is_cut
    for referrer, held in zip(referrers, places_in, strict=True):
        rank = _root_rank(referrer, running)
        for search, mine in zip(searches, asked, strict=True):
            places = held & mine
            if places and id(referrer) not in search.next_of and referrer is not search.target:
                search.next_of[id(referrer)] = wanted[min(places)]
                search.meet(referrer, rank)


def _list_referrers(wanted: Mapping[int, object]) -> list[object]:
    found = gc.get_referrers(*wanted.values())[:_MAX_REFERRERS]
    if _HIDES_TASKS:
        found += [
            task
            for task in list_tasks()
            if not wanted.keys().isdisjoint(map(id, gc.get_referents(task)))
        ]
    return found


def _alternate_kinds(some: Sequence[object]) -> Iterator[object]:
    """Alternate kinds of objects, so that hundreds of one do not hide the one leading to a root."""
    # The kind of a dict is its first key if that is a str, because hashing another key could run
    # user code.
    by_kind: dict[object, list[object]] = defaultdict(list)
    for obj in some:
        first = next(iter(obj), None) if type(obj) is dict else None
        by_kind[first if type(first) is str else type(obj)].append(obj)
    for level in zip_longest(*by_kind.values()):
        yield from (one for one in level if one is not None)


def _root_rank(obj: object, running: dict[int, types.FrameType]) -> int | None:
    """Return the rank of an object as a root; None where it is not a root."""
    if module := module_name(obj) or (
        is_class(obj) and (inspection.module_of_type(obj) or "builtins")
    ):
        return _RANK_TEST_RUNNER if _is_runner(module) else _RANK_LASTING
    if kept_by_interpreter(obj):
        return _RANK_LASTING
    if is_fixture(obj):
        return _RANK_THREAD
    if issubclass(type(obj), threading.Thread):
        return _RANK_THREAD if any(obj is thread for thread in threading.enumerate()) else None
    if id(obj) in running:
        return _RANK_FRAME
    return _RANK_PLUGIN if is_plugin_object(obj) else None


def is_runners(path: Sequence[object]) -> bool:
    """Return whether a path leads through the test runner.

    The test has only an indirect effect on what that holds.
    """
    root = path[0]
    is_frame_of_runner = type(root) is types.FrameType and _is_runner(_module_of_frame(root))
    if is_frame_of_runner or _root_rank(root, {}) == _RANK_TEST_RUNNER:
        return True
    return any(
        _is_runner(inspection.module_of_type(type(one))) and not is_fixture(one) for one in path
    )


def _is_runner(module: str) -> bool:
    return module.partition(".")[0] in _RUNNERS


def is_ours(obj: object) -> bool:
    """Return whether an object belongs to this package.

    It is an instance, a module, a class, a function, its cache, or a frame.
    """
    if type(obj) is types.FrameType:
        module = _module_of_frame(obj)
    elif is_class(obj):
        module = inspection.module_of_type(obj)
    elif type(obj) in (types.FunctionType, inspection.LRU):
        # A plain function and its cache run no code for this.
        module = str(obj.__module__)
    else:
        module = module_name(obj) or inspection.module_of_type(type(obj))
    return module.partition(".")[0] == _OWN_PACKAGE


def _search_frames(
    search: _Search,
    frames: Collection[types.FrameType],
    skipped: set[int],
    borrower: types.FrameType | None,
) -> None:
    """Search the locals of running frames: the collector does not report them."""
    # The locals of a module's frame are the globals of that module, which are a root already.
    functions = [
        one for one in frames if one.f_code.co_name != "<module>" and id(one) not in skipped
    ]
    pairs = [
        (frame, value)
        for frame in functions
        if not is_ours(frame)
        for _name, value in variables_of_frame(frame, is_caller=frame is borrower)
    ]
    held = [
        pair
        for pair in pairs
        if (pair[0] is not borrower if pair[1] is search.target else id(pair[1]) in search.next_of)
    ]
    # A frame that holds the target itself comes before one that holds it through another object.
    for frame, value in sorted(held, key=lambda pair: pair[1] is not search.target):
        rank = _RANK_TEST_RUNNER if _is_runner(_module_of_frame(frame)) else _RANK_FRAME
        if rank < search.rank:
            search.next_of[id(frame)] = value
            search.meet(frame, rank)


def _module_of_frame(frame: types.FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


_OF_PLUGIN: Final = ", of an installed pytest plugin"
UNNAMED: Final = "(internal)"
# How a function is described that a `yield` or an `await` suspends.
SUSPENDED: Final = "suspended"
# What suspends a function, and the prefix of its attributes.
_SUSPENDED: Final = (
    (types.GeneratorType, "gi"),
    (types.CoroutineType, "cr"),
    (types.AsyncGeneratorType, "ag"),
)


def describe_owner(
    path: Sequence[object], suspect: object, holds: str, gained: float = 0.0
) -> Owner:
    """Describe a path from a root to what is retained; the step of the suspect is marked."""
    steps, name = _steps_of(path, suspect)
    first = path[0]
    root, place, where = describe_holder(first), module_name(first), ""
    if is_class(first):
        # The name of a class is without its module.
        module = inspection.module_of_type(first)
        where, place = f" in {module}", f"{module}:{inspection.class_name(first)}"
    return Owner(name or root, root + where, steps, holds, gained, _root_kind(first), place)


def _root_kind(root: object) -> RootKind:
    if module_name(root):
        return "module"
    if is_class(root):
        return "class"
    if issubclass(type(root), threading.Thread):
        return "running"
    if type(root) is types.FrameType:
        return "frame"
    return "interpreter" if kept_by_interpreter(root) else "other"


def _steps_of(path: Sequence[object], suspect: object) -> tuple[tuple[Step, ...], str]:
    """Describe each step of a path, and derive a name to search the source for."""
    steps: list[Step] = []
    name, at = "", 0
    while at < len(path) - 1:
        holder = path[at]
        via, taken = _describe_reference(path, at)
        is_suspect = any(one is suspect for one in path[at : at + taken])
        name = _identify(holder)[1] or name
        # An entry of the growing container is one of many and does not belong in the name; an
        # attribute does, which is a key of the dict of an object or a module.
        is_namespace = holder is not suspect or (
            type(suspect) is dict and module_name(suspect) != ""
        )
        is_entry = (
            is_suspect and inspection.container_kind(suspect) is not None and not is_namespace
        )
        if not (is_entry or type(holder) is inspection.LRU or is_fixture(holder)):
            if not steps and (type(holder) is dict or issubclass(type(holder), types.ModuleType)):
                name += f".{via}"
            else:
                name += via if via.startswith((".", "[")) else f" {via}"
        steps.append(Step(describe_holder(holder), via, is_suspect))
        at += taken
    return tuple(steps), name


def module_name(obj: object) -> str:
    """Return the name of a module, given it or the dict of its globals; empty for other objects."""
    is_module = issubclass(type(obj), types.ModuleType)
    space: Any = inspection.instance_dict(obj) if is_module else obj
    if type(space) is not dict or "__spec__" not in space:
        return ""
    name = space.get("__name__")
    if type(name) is not str or not (is_module or _is_of_module(space, name)):
        return ""
    return name


def _is_of_module(space: dict[str, object], name: str) -> bool:
    """Return whether these are the globals of a module, not a copy such as doctest makes."""
    if inspection.instance_dict(sys.modules.get(name)) is space or gc.get_freeze_count():
        # What is frozen is no referrer.
        return True
    return any(
        issubclass(type(one), types.ModuleType) and inspection.instance_dict(one) is space
        for one in gc.get_referrers(space)
    )


def describe_holder(obj: object) -> str:
    """Describe an object in the form in which paths name it, such as ``module case``."""
    return _identify(obj)[0] or inspection.describe(obj)


def describe_long_lived(obj: object) -> str:
    """Describe a class, or the value of a module's variable, by its full name."""
    if is_class(obj):
        names = (inspection.module_of_type(obj), inspection.class_name(obj))
        return f"class {'.'.join(filter(None, names))}"
    for name, module in list(sys.modules.items()):
        if variable := _find_name(list((inspection.instance_dict(module) or {}).items()), obj):
            return f"{name}.{variable}"
    return describe_holder(obj)


def _identify(obj: Any) -> tuple[str, str]:
    """Describe a named object; also return the name if it tells the object without its path."""
    kind = type(obj)
    if module := module_name(obj):
        return f"module {module}{_OF_PLUGIN if is_of_plugin(module) else ''}", module
    if is_class(obj):
        return f"class {inspection.class_name(obj)}", inspection.class_name(obj)
    text = kept_by_interpreter(obj)
    if kind is types.FunctionType:
        return text or f"function {obj.__qualname__}", text
    if issubclass(kind, logging.Logger):
        name = (inspection.instance_dict(obj) or {}).get("name")
        return "", f"logging.getLogger({inspection.show_name(name)})" if type(name) is str else ""
    text = text or _name_instance(obj)
    if not text and is_plugin_object(obj):
        return inspection.describe(
            obj
        ) + _OF_PLUGIN, f"{inspection.module_of_type(kind)}.{inspection.type_name(obj)}"
    return text, text


def _name_instance(obj: Any) -> str:
    """Name a thread, fixture, ``lru_cache``, frame or suspended function; empty for others."""
    kind, attributes = type(obj), inspection.instance_dict(obj) or {}
    if issubclass(kind, threading.Thread):
        name = attributes.get("_name")
        return f"thread {inspection.show_name(name)}" if type(name) is str else "thread"
    if is_fixture(obj):
        return f"fixture {attributes.get('argname')}"
    if kind is inspection.LRU:
        name = attributes.get("__qualname__")
        return f"{CACHE_OF}{name}" if type(name) is str else "lru_cache"
    if kind is types.FrameType:
        return f"frame of {obj.f_code.co_qualname}()"
    code = _read_suspended(obj, "code")
    return f"{SUSPENDED} {inspection.type_name(obj)} {code.co_qualname}()" if code else ""


# Functions that the standard library registers for forks. The interpreter has a list for each of
# the three moments.
_OF_FORKS: Final = frozenset(
    id(vars(module)[name])
    for module in (threading, logging)
    for name in ("_after_fork", "_acquireLock", "_releaseLock", "_prepareFork", "_afterFork")
    if name in vars(module)
)
_MAX_OF_FORKS: Final = 8
_CHANGE: Final = contextvars.ContextVar[None]("change")
# The owner of these.
FORK_FUNCTIONS: Final = "os.register_at_fork"


class _ExitCallbacks:
    """Counts what `atexit` will call: `atexit.unregister` compares each with its argument."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self) -> None:
        self.count = 0

    def __eq__(self, _callback: object) -> bool:
        self.count += 1
        return False


def count_exit_callbacks() -> int:
    """Count what `atexit` will call; ``atexit._ncallbacks`` counts what was unregistered too."""
    callbacks = _ExitCallbacks()
    atexit.unregister(callbacks)  # type: ignore[arg-type]
    return callbacks.count


def kept_by_interpreter(obj: object) -> str:
    """Name what only the interpreter holds; empty for other objects.

    That is a context, a signal's handler, the functions for forks, or an exception.
    """
    if issubclass(type(obj), BaseException):
        return "exception that is being handled" if obj is sys.exception() else ""
    if type(obj) is list:
        return "" if _OF_FORKS.isdisjoint(map(id, obj[:_MAX_OF_FORKS])) else FORK_FUNCTIONS
    if type(obj) is contextvars.Context:
        return "context of the running thread" if _is_running(obj) else ""
    if type(obj) not in (types.FunctionType, types.MethodType):
        return ""
    numbers = (number for number in signal.valid_signals() if signal.getsignal(number) is obj)
    return next((f"handler of {signal.Signals(number).name}" for number in numbers), "")


def _is_running(context: contextvars.Context) -> bool:
    # Copies, such as those of tasks, share the table of variables until it changes.
    token = _CHANGE.set(None)
    table = set(map(id, gc.get_referents(contextvars.copy_context())))
    is_running = not table.isdisjoint(map(id, gc.get_referents(context)))
    _CHANGE.reset(token)
    return is_running


def is_plugin_object(obj: object) -> bool:
    """Return whether `obj` is of an installed plugin's class, and no node of pytest's test tree."""
    kind = type(obj)
    is_node = (inspection.module_of_type(base).startswith("_pytest.") for base in kind.__mro__)
    return is_of_plugin(inspection.module_of_type(kind)) and not any(is_node)


def _read_suspended(obj: object, name: str) -> Any:
    """Return a suspended function's code or frame (None once it ended); None for other objects."""
    return next(
        (getattr(obj, f"{prefix}_{name}") for kind, prefix in _SUSPENDED if type(obj) is kind), None
    )


def _describe_reference(path: Sequence[object], at: int) -> tuple[str, int]:  # noqa: PLR0911 - one for each way
    """Return how an object refers to the next, and how many positions of the path that spans."""
    # The dict of an instance or a class, the tuple and the cell of a closure, and the table of a
    # context are not steps of their own.
    holder, child, beyond, last = (*path[at : at + 4], None, None)[:4]
    if type(holder) is dict and module_name(holder):
        return _name_in_namespace(holder, child), 1
    if type(holder) is types.FunctionType:
        return _describe_function_reference(holder, child, beyond, last)
    if type(holder) is contextvars.Context:
        return _describe_variable(holder, path[at + 1 :])
    if is_fixture(holder):
        # Through the attribute dict of the `FixtureDef`, and the tuple of value, cache key and
        # exception.
        return "value", 3 if type(beyond) is tuple else 2
    if beyond is not None and type(child) is types.FrameType and frame_of(holder) is child:
        return _describe_attribute(holder, beyond), 2
    if (
        last is not None
        and issubclass(type(holder), threading.local)
        and type(child) is type(beyond) is dict
    ):
        # The interpreter keeps one dict of attributes for each thread, inside another dict.
        return f".{_name_in_namespace(beyond, last)}", 3
    if beyond is not None and type(child) is dict and _is_attribute_dict(holder, child, beyond):
        dot = "" if issubclass(type(holder), types.ModuleType) else "."
        return "cache" if type(holder) is inspection.LRU else dot + _name_in_namespace(
            child, beyond
        ), 2
    return _describe_direct_reference(holder, child), 1


def _describe_variable(context: contextvars.Context, below: Sequence[object]) -> tuple[str, int]:
    """Do `_describe_reference` for a context and the objects after it."""
    names = {id(value): variable.name for variable, value in context.items()}
    for at, one in enumerate(below, 1):
        if id(one) in names:
            return f"variable {inspection.show_name(names[id(one)])}", at
    return UNNAMED, 1


def _is_attribute_dict(holder: object, namespace: dict[Any, Any], beyond: object) -> bool:
    if (
        type(holder) is inspection.LRU
        or is_class(holder)
        or inspection.instance_dict(holder) is namespace
    ):
        return True
    # An instance of an extension type may keep its attributes in a dict that it does not expose as
    # `__dict__`.
    unnamed = (
        inspection.container_kind(holder) is None
        and _describe_attribute(holder, namespace) == UNNAMED
    )
    return unnamed and _name_in_namespace(namespace, beyond) != UNNAMED


def _name_in_namespace(namespace: object, child: object) -> str:
    pairs = list(dict.items(namespace)) if type(namespace) is dict else []
    return _find_attribute(pairs, child) or UNNAMED


def _describe_function_reference(
    function: types.FunctionType, first: Any, second: object, third: object
) -> tuple[str, int]:
    """Do `_describe_reference` for a function and the objects after it (None past its end)."""
    code, closure = function.__code__, cast("Any", function.__closure__)
    defaults, keywords = cast("Any", function.__defaults__), cast("Any", function.__kwdefaults__)
    if third is not None and first is closure:
        return (
            f"closure cell {_find_name(zip(code.co_freevars, closure, strict=False), second) or '?'!r}",
            3,
        )
    if second is not None and first is defaults:
        names = code.co_varnames[: code.co_argcount][-len(defaults) :]
        return (
            f"default argument {_find_name(zip(names, defaults, strict=False), second) or '?'!r}",
            2,
        )
    if second is not None and first is keywords:
        return f"default argument {_find_name(keywords.items(), second) or '?'!r}", 2
    if second is not None and first is inspection.instance_dict(function):
        return f".{_name_in_namespace(first, second)}", 2
    return _describe_direct_reference(function, first), 1


def _find_name(pairs: Iterable[tuple[object, object]], wanted: object) -> str:
    return next((name for name, value in pairs if value is wanted and type(name) is str), "")


def _find_attribute(pairs: Iterable[tuple[object, object]], wanted: object) -> str:
    # What cannot be written after a dot is a key of the program in a namespace.
    name = _find_name(pairs, wanted)
    return name if not name or name.isidentifier() else f"[{inspection.show_key(name)}]"


def _describe_direct_reference(holder: Any, child: object) -> str:
    kind: Any = inspection.container_kind(holder)
    found = ""
    if kind is dict:
        for key, value in list(dict.items(holder)):
            if value is child or key is child:
                return (
                    f"[{inspection.show_key(key)}]"
                    if value is child
                    else f"key {inspection.show_key(key)}"
                )
    elif kind is set or type(holder) is frozenset:
        found = "element"
    elif kind is not None or type(holder) is tuple:
        entries = enumerate(list((kind or tuple).__iter__(holder)))
        found = next((f"[{index}]" for index, one in entries if one is child), "")
    elif type(holder) in (types.CellType, inspection.LRU):
        found = "cache" if type(holder) is inspection.LRU else "closure cell"
    return found or _describe_attribute(holder, child)


def _describe_attribute(holder: object, child: object) -> str:
    frame = frame_of(holder)
    if frame is not None:
        return f"local {_find_name(variables_of_frame(frame), child) or '?'!r}"
    own = list(inspection.namespace_of(holder).items()) if is_class(holder) else []
    name = _find_attribute(
        own or [*(inspection.instance_dict(holder) or {}).items(), *inspection.slots(holder)], child
    )
    if not name and type(child) is list and inspection.module_of_type(type(holder)) == "_asyncio":
        # A future has no other list, and shows only copies of it.
        name = "_callbacks"
    return f".{name}" if name else UNNAMED


def is_fixture(obj: object) -> bool:
    """Return whether `obj` is pytest's `FixtureDef`, which keeps a value while its scope lasts."""
    return (
        type(obj).__name__ == "FixtureDef"
        and inspection.module_of_type(type(obj)) == "_pytest.fixtures"
    )


def is_class(obj: object) -> TypeGuard[type]:
    """Return whether `obj` is a class, not by `isinstance`, which reads a proxy's ``__class__``."""
    return issubclass(type(obj), type)


def frame_of(obj: Any) -> types.FrameType | None:
    """Return the frame that an object is, or of the function that it suspends; else None."""
    return obj if type(obj) is types.FrameType else _read_suspended(obj, "frame")


def running_frames() -> list[types.FrameType]:
    """List all threads' running frames, innermost first: the collector omits their variables."""
    frames: list[types.FrameType] = []
    for innermost in sys._current_frames().values():
        # Without its own frame, which would be garbage with this list, and hold the variables of
        # the caller.
        frame = innermost.f_back if innermost is sys._getframe() else innermost
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back
    del innermost
    return frames


def variables_of_frame(
    frame: types.FrameType, *, is_caller: bool = False
) -> list[tuple[str, object]]:
    """List the names and values of a frame's variables.

    The frame keeps no copy of them, unless a trace function may need that. That of the caller of
    this package needs none.
    """
    values = frame.f_locals
    pairs = list(values.items())
    if sys.version_info < (3, 13) and frame.f_code.co_flags & _FUNCTION_FLAG:
        # A copy, which the frame keeps: a value would outlive its variable. The program has it too
        # if it called `locals()`.
        if sys.getrefcount(values) == _REFERENCES_TO_COPY and (is_caller or _may_empty_copy(frame)):
            values.clear()
    return pairs


def _may_empty_copy(frame: types.FrameType) -> bool:
    """Return whether no trace function runs for a frame; after one, the copy sets the variables."""
    current: types.FrameType | None = None
    if is_ours(frame) or (sys.gettrace() is None and sys.getprofile() is None):
        # What other threads are doing is not known.
        current = sys._getframe()
        while current is not None and current is not frame:
            current = current.f_back
    return current is frame
