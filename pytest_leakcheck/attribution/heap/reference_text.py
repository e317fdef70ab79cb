"""Describe how one object refers to another, such as by attribute, key or cell."""

from __future__ import annotations

import contextvars
import gc
import logging
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from types import (
    AsyncGeneratorType,
    CellType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
)
from typing import Any, Final, TypeGuard, cast

from pytest_leakcheck.attribution.call_paths import is_of_plugin
from pytest_leakcheck.attribution.object_inspection import (
    LRU,
    class_name,
    container_kind,
    describe,
    instance_dict,
    module_of_type,
    namespace_of,
    show_key,
    slots,
    type_name,
)
from pytest_leakcheck.model.culprit import Step

_OF_PLUGIN: Final = ", of an installed pytest plugin"
UNNAMED: Final = "(internal)"
# What suspends a function, and the prefix of its attributes.
_SUSPENDED: Final = ((GeneratorType, "gi"), (CoroutineType, "cr"), (AsyncGeneratorType, "ag"))


def steps_of(path: Sequence[object], suspect: object) -> tuple[tuple[Step, ...], str]:
    """Describe a path from a root, with the step of the suspect marked, and derive a name to search the source for."""
    steps: list[Step] = []
    name, at = "", 0
    while at < len(path) - 1:
        via, taken = _describe_reference(path, at)
        passed = path[at : at + taken]
        is_suspect = any(one is suspect for one in passed)
        name = _identify(path[at])[1] or name
        # An entry of the growing container is one of many and does not belong in the name; an attribute does, which is
        # a key of the dict of an object or a module.
        is_namespace = passed[0] is not suspect or (type(suspect) is dict and module_name(suspect) != "")
        is_entry = is_suspect and container_kind(suspect) is not None and not is_namespace
        if not (is_entry or type(path[at]) is LRU or is_fixture(path[at])):
            name += _format_for_name(via, path[at], first=not steps)
        steps.append(Step(describe_holder(path[at]), via, is_suspect))
        at += taken
    return tuple(steps), name


def _format_for_name(via: str, holder: object, *, first: bool) -> str:
    if first and (type(holder) is dict or issubclass(type(holder), ModuleType)):
        return f".{via}"
    return via if via.startswith((".", "[")) else f" {via}"


def module_name(one: object) -> str:
    """Return the name of a module, given the module or the dict of its globals; empty for other objects."""
    if issubclass(type(one), ModuleType):
        one = instance_dict(one)
    if type(one) is not dict:
        return ""
    name = one.get("__name__")
    if type(name) is not str or "__spec__" not in one:
        return ""
    return name


def describe_holder(one: object) -> str:
    """Describe an object in the form in which paths name it, such as ``module case``."""
    return _identify(one)[0] or describe(one)


def _identify(one: Any) -> tuple[str, str]:
    """Return a description of an object that has a name, and the name if it tells the object without its path."""
    kind = type(one)
    if module := module_name(one):
        return f"module {module}{_OF_PLUGIN if is_of_plugin(module) else ''}", module
    if is_class(one):
        return f"class {class_name(one)}", class_name(one)
    if kind is FunctionType:
        text = kept_by_interpreter(one)
        return text or f"function {one.__qualname__}", text
    if issubclass(kind, logging.Logger):
        name = (instance_dict(one) or {}).get("name")
        return "", f"logging.getLogger({show_key(name)})" if type(name) is str else ""
    text = kept_by_interpreter(one) or _name_instance(one)
    if not text and is_plugin_object(one):
        return describe(one) + _OF_PLUGIN, f"{module_of_type(kind)}.{type_name(one)}"
    return text, text


def _name_instance(one: Any) -> str:
    """Name a thread, a fixture, an ``lru_cache``, a frame or a suspended function; empty for other objects."""
    kind, attributes, text = type(one), instance_dict(one) or {}, ""
    if issubclass(kind, threading.Thread):
        name = attributes.get("_name")
        text = f"thread {show_key(name)}" if type(name) is str else "thread"
    elif is_fixture(one):
        text = f"fixture {attributes.get('argname')}"
    elif kind is LRU:
        name = attributes.get("__qualname__")
        text = f"lru_cache of {name}" if type(name) is str else "lru_cache"
    elif kind is FrameType:
        text = f"frame of {one.f_code.co_qualname}()"
    elif code := _read_suspended(one, "code"):
        text = f"suspended {type_name(one)} {code.co_qualname}()"
    return text


def kept_by_interpreter(one: object) -> str:
    """Name what only the interpreter holds: the context of the running thread, the handler of a signal; else empty."""
    if type(one) is contextvars.Context:
        # A copy shares the table of variables.
        tables = gc.get_referents(contextvars.copy_context())
        return (
            "context of the running thread"
            if any(one is two for one in gc.get_referents(one) for two in tables)
            else ""
        )
    if type(one) not in (FunctionType, MethodType):
        return ""
    numbers = (number for number in signal.valid_signals() if signal.getsignal(number) is one)
    return next((f"handler of {signal.Signals(number).name}" for number in numbers), "")


def is_plugin_object(one: object) -> bool:
    """Return whether an object is of a class of an installed pytest plugin, and no node of pytest's tree of tests."""
    kind = type(one)
    is_node = (module_of_type(base).startswith("_pytest.") for base in kind.__mro__)
    return is_of_plugin(module_of_type(kind)) and not any(is_node)


def _read_suspended(one: object, name: str) -> Any:
    """Return the frame or the code of a suspended function; None for other objects, and for the frame once it ended."""
    return next((getattr(one, f"{prefix}_{name}") for kind, prefix in _SUSPENDED if type(one) is kind), None)


def _describe_reference(path: Sequence[object], at: int) -> tuple[str, int]:
    """Return how an object refers to the next one, and how many positions of the path that reference spans."""
    # The dict of an instance or a class, and the tuple and the cell of a closure, are not steps of their own.
    holder, child = path[at], path[at + 1]
    if type(holder) is dict and module_name(holder):
        return _name_in_namespace(holder, child), 1
    if type(holder) is FunctionType:
        return _describe_function_reference(holder, *(*path[at + 1 : at + 4], None, None)[:3])
    return _describe_named_reference(path, at) or (_describe_direct_reference(holder, child), 1)


def _describe_named_reference(path: Sequence[object], at: int) -> tuple[str, int] | None:
    """Return what `_describe_reference` does for attributes, suspended frames' locals and fixture values; else None."""
    holder, child = path[at], path[at + 1]
    beyond = path[at + 2] if at + 2 < len(path) else None
    if is_fixture(holder):
        # Through the attribute dict of the `FixtureDef`, and the tuple of value, cache key and exception.
        return "value", 3 if type(beyond) is tuple else 2
    if beyond is None:
        return None
    if type(child) is FrameType and _frame_of(holder) is child:
        return _describe_attribute(holder, beyond), 2
    if issubclass(type(holder), threading.local) and type(child) is type(beyond) is dict and at + 3 < len(path):
        # The interpreter keeps one dict of attributes for each thread, inside another dict.
        return f".{_name_in_namespace(beyond, path[at + 3])}", 3
    if type(child) is dict and _is_attribute_dict(holder, child, beyond):
        dot = "" if issubclass(type(holder), ModuleType) else "."
        return "cache" if type(holder) is LRU else dot + _name_in_namespace(child, beyond), 2
    return None


def _is_attribute_dict(holder: object, namespace: dict[Any, Any], beyond: object) -> bool:
    if type(holder) is LRU or is_class(holder) or instance_dict(holder) is namespace:
        return True
    # An instance of an extension type may keep its attributes in a dict that it does not expose as `__dict__`.
    unnamed = container_kind(holder) is None and _describe_attribute(holder, namespace) == UNNAMED
    return unnamed and _name_in_namespace(namespace, beyond) != UNNAMED


def _name_in_namespace(namespace: object, child: object) -> str:
    pairs = list(dict.items(namespace)) if type(namespace) is dict else []
    return _find_name(pairs, child) or UNNAMED


def _describe_function_reference(function: FunctionType, first: Any, second: object, third: object) -> tuple[str, int]:
    """Do the work of `_describe_reference` for a function and the objects after it; None where the path has ended."""
    code, closure = function.__code__, cast("Any", function.__closure__)
    defaults, keywords = cast("Any", function.__defaults__), cast("Any", function.__kwdefaults__)
    if second is not None and first is closure and third is not None:
        return f"closure cell {_find_name(zip(code.co_freevars, closure, strict=False), second) or '?'!r}", 3
    if second is not None and first is defaults:
        names = code.co_varnames[: code.co_argcount][-len(defaults) :]
        return f"default argument {_find_name(zip(names, defaults, strict=False), second) or '?'!r}", 2
    if second is not None and first is keywords:
        return f"default argument {_find_name(keywords.items(), second) or '?'!r}", 2
    if second is not None and first is instance_dict(function):
        return f".{_name_in_namespace(first, second)}", 2
    return _describe_direct_reference(function, first), 1


def _find_name(pairs: Iterable[tuple[object, object]], wanted: object) -> str:
    return next((name for name, value in pairs if value is wanted and type(name) is str), "")


def _describe_direct_reference(holder: Any, child: object) -> str:
    kind: Any = container_kind(holder)
    if kind is dict:
        found = _describe_dict_entry(holder, child)
    elif kind is contextvars.Context:
        found = next((f"variable {show_key(variable.name)}" for variable, one in holder.items() if one is child), "")
    elif kind is set or type(holder) is frozenset:
        found = "element"
    elif kind is not None or type(holder) is tuple:
        entries = enumerate(list((kind or tuple).__iter__(holder)))
        found = next((f"[{index}]" for index, one in entries if one is child), "")
    else:
        found = "closure cell" if type(holder) is CellType else "cache" if type(holder) is LRU else ""
    return found or _describe_attribute(holder, child)


def _describe_dict_entry(holder: dict[object, object], child: object) -> str:
    for key, value in list(dict.items(holder)):
        if value is child:
            return f"[{show_key(key)}]"
        if key is child:
            return f"key {show_key(key)}"
    return ""


def _describe_attribute(holder: object, child: object) -> str:
    frame = _frame_of(holder)
    if frame is not None:
        return f"local {_find_name(list(frame.f_locals.items()), child) or '?'!r}"
    own = list(namespace_of(holder).items()) if is_class(holder) else []
    name = _find_name(own or [*(instance_dict(holder) or {}).items(), *slots(holder)], child)
    return f".{name}" if name else UNNAMED


def is_fixture(one: object) -> bool:
    """Return whether an object is pytest's `FixtureDef`, which keeps the fixture's value as long as its scope lasts."""
    return type(one).__name__ == "FixtureDef" and module_of_type(type(one)) == "_pytest.fixtures"


def is_class(one: object) -> TypeGuard[type]:
    """Return whether an object is a class, without `isinstance`, which would read ``__class__`` of a proxy."""
    return issubclass(type(one), type)


def _frame_of(one: Any) -> FrameType | None:
    return one if type(one) is FrameType else _read_suspended(one, "frame")


def running_frames() -> Iterator[FrameType]:
    """Yield the running frames of all threads, innermost first: the collector does not report their variables."""
    for innermost in sys._current_frames().values():
        frame: FrameType | None = innermost
        while frame is not None:
            yield frame
            frame = frame.f_back
