"""Encode values as plain JSON types, and decode them; errors name the invalid part's path."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from itertools import repeat
from types import NoneType
from typing import Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

from pytest_leakcheck.model import InputError, LeakcheckError
from pytest_leakcheck.model.units import LARGEST

T = TypeVar("T")
# Stands for a missing key; its `repr` appears in the error message.
_MISSING: Any = type("_Nothing", (), {"__repr__": lambda _self: "nothing"})()
_LEAST: Final = -LARGEST - 1
# The function itself: a test may replace that of the module.
_loads = json.loads


class DecodeError(LeakcheckError, ValueError):
    """An unexpected JSON value; the message gives its path, expected and actual value."""


def encode(value: Any) -> Any:
    """Convert dataclasses to dicts in the order of their fields, and tuples to lists.

    A ``SCHEMA`` attribute comes first, as the key ``schema``. The properties that ``DERIVED`` names
    come last; `decode` does not read them. With ``SPARSE``, fields and properties with their
    default (None for a property) are left out. ``REST`` names a field with the keys that this
    version does not know: they come last, as they were read.
    """
    if is_dataclass(value):
        encoded = {"schema": value.SCHEMA} if hasattr(value, "SCHEMA") else {}
        defaults = _defaults_of(value.__class__)
        for name, (key, _) in _fields_of(value.__class__).items():
            content = getattr(value, name)
            if name not in defaults or content != defaults[name]:
                encoded[key] = encode(content)
        derived = {name: getattr(value, name) for name in getattr(value, "DERIVED", ())}
        encoded |= {name: encode(one) for name, one in derived.items() if one is not None}
        return encoded | getattr(value, getattr(value, "REST", ""), {})
    if isinstance(value, Mapping):
        return {key: encode(one) for key, one in value.items()}
    return [encode(one) for one in value] if isinstance(value, (list, tuple)) else value


def parse(text: str | bytes) -> Any:
    """Parse JSON, or raise `DecodeError`."""
    try:
        return _loads(text)
    except RecursionError:
        raise DecodeError("its values are nested too deeply") from None
    except ValueError as error:
        raise DecodeError(f"not JSON: {error}") from None


def decode(kind: type[T], data: object) -> T:
    """Convert a result of `encode`, possibly parsed from JSON, to a value of the given type.

    Raise `DecodeError` on failure. `kind` is a dataclass or any type allowed in its annotations:
    scalars, `Any`, literals, mappings from texts, tuples and optionals. A dataclass may have a
    method `check`, which raises `InputError`. Numbers are finite, of 64 bits.
    """
    decoded: T = _decode(kind, data, "")
    return decoded


def _decode(kind: Any, data: Any, path: str) -> Any:  # noqa: PLR0911 - a return per kind of type
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return data
    if is_dataclass(kind):
        return _decode_object(kind, _check_type(dict, data, path, "object"), path)
    if NoneType in args:
        (inner,) = (one for one in args if one is not NoneType)
        return None if data is None else _decode(inner, data, path)
    if origin is Literal:
        return data if data in args else _check_type((), data, path, " or ".join(map(repr, args)))
    if origin in (Mapping, dict):
        _check_type(dict, data, path, "object")
        return {key: _decode(args[1], one, _join_path(path, key)) for key, one in data.items()}
    if origin is not tuple:
        value = _check_type((int, float) if kind is float else kind, data, path, kind.__name__)
        # No comparison with NaN is true.
        if kind in (int, float) and not _LEAST <= value <= LARGEST:
            raise DecodeError(
                f"{path or 'value'}: expected a finite number of 64 bits, got {reprlib.repr(value)}"
            )
        return value
    length = None if args[-1] is ... else len(args)
    if not isinstance(data, (list, tuple)) or (length is not None and len(data) != length):
        _check_type((), data, path, "list" if length is None else f"list of {length}")
    if (
        set(args) <= {int, ...}
        and set(map(type, data)) == {int}
        and min(data) >= _LEAST
        and max(data) <= LARGEST
    ):
        # A fast path, because a series has hundreds of readings.
        return tuple(data)
    parts = zip(repeat(args[0], len(data)) if length is None else args, data, strict=True)
    return tuple(_decode(one, part, f"{path}[{at}]") for at, (one, part) in enumerate(parts))


def _decode_object(kind: Any, data: Mapping[str, Any], path: str) -> Any:
    schema = getattr(kind, "SCHEMA", None)
    if schema is not None and data.get("schema") != schema:
        seen = data.get("schema")
        raise DecodeError(
            f"{_join_path(path, 'schema')} {seen!r} is not {schema}: written by another version"
        )
    defaults = _defaults_of(kind)
    parts = {
        name: _decode(of, data.get(key, _MISSING), _join_path(path, key))
        for name, (key, of) in _fields_of(kind).items()
        if key in data or name not in defaults
    }
    if rest := getattr(kind, "REST", ""):
        known = {"schema", *(key for key, _of in _fields_of(kind).values())}
        parts[rest] = {key: one for key, one in data.items() if key not in known}
    value = kind(**parts)
    if hasattr(kind, "check"):
        try:
            value.check()
        except InputError as error:
            raise DecodeError(_join_path(path, str(error))) from None
    return value


def _check_type(kinds: Any, data: Any, path: str, name: str) -> Any:
    # `bool` is a subclass of `int`, but must not pass as a number.
    if isinstance(data, kinds) and (kinds is bool or not isinstance(data, bool)):
        return data
    raise DecodeError(f"{path or 'value'}: expected {name}, got {reprlib.repr(data)}")


def _join_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


@cache
def _defaults_of(kind: Any) -> dict[str, Any]:
    """Return the defaults of the fields that `encode` leaves out if they have them."""
    if not getattr(kind, "SPARSE", False):
        return {}
    found = {field.name: field.default for field in fields(kind) if field.default is not MISSING}
    return found | {
        field.name: field.default_factory()
        for field in fields(kind)
        if field.default_factory is not MISSING
    }


@cache
def _fields_of(kind: Any) -> dict[str, tuple[str, Any]]:
    """Map each field's name to its JSON key (its ``key`` metadata, or else its name) and type."""
    hints, rest = get_type_hints(kind), getattr(kind, "REST", "")
    known = (one for one in fields(kind) if one.name != rest)
    return {one.name: (str(one.metadata.get("key", one.name)), hints[one.name]) for one in known}
