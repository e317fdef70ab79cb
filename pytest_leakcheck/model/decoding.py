"""Encode values as plain JSON types and decode them again; an error names the path of what is wrong."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass
from functools import cache
from itertools import repeat
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")
_NOTHING: Any = type("_Nothing", (), {"__repr__": lambda _self: "nothing"})()


class DecodeError(ValueError):
    """A JSON value of another type than expected: where it is, what is valid there, and what was seen."""


def encode(value: Any) -> Any:
    """Convert dataclasses to dicts, in the order of their fields; one with a ``SCHEMA`` says it first."""
    if is_dataclass(value):
        schema = {"schema": value.SCHEMA} if hasattr(value, "SCHEMA") else {}
        return schema | {_key(one): encode(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {key: encode(one) for key, one in value.items()}
    return [encode(one) for one in value] if isinstance(value, (list, tuple)) else value


def decode(kind: type[T], data: object, path: str = "") -> T:
    """Convert what `encode` gave to a value of this type again, after any trip through a JSON encoder.

    Args:
        kind: A dataclass, or what its fields may be annotated with: scalars, literals, mappings, tuples, and None.
        data: The value.
        path: Where it stands in the whole, for errors.

    Raises:
        DecodeError: A part is missing, of another type, or of another schema.
    """
    decoded: T = _decode(kind, data, path)
    return decoded


def _decode(kind: Any, data: Any, path: str) -> Any:  # noqa: PLR0911 - a return per kind of type
    shape, of, plain = _shape(kind)
    if shape is object:
        return _decode_object(kind, _expect(dict, data, path, "object"), path)
    if shape is NoneType:
        return None if data is None else _decode(of[0], data, path)
    if shape is Literal:
        return data if data in of else _expect((), data, path, " or ".join(map(repr, of)))
    if shape is dict:
        _expect(dict, data, path, "object")
        if of[0] is str and set(map(type, data.values())) <= plain:
            return dict(data)
        return {_decode_key(of[0], key, path): _decode(of[1], one, _join(path, key)) for key, one in data.items()}
    if shape is None:
        return _expect((int, float) if kind is float else kind, data, path, kind.__name__)
    length = None if of[-1] is ... else len(of)
    if not isinstance(data, (list, tuple)) or (length is not None and len(data) != length):
        _expect((), data, path, "list" if length is None else f"list of {length}")
    if set(map(type, data)) <= plain:
        # A series has hundreds of readings.
        return shape(data) if shape is tuple else shape(*data)
    parts = zip(repeat(of[0], len(data)) if length is None else of, data, strict=True)
    found = [_decode(one, part, f"{path}[{at}]") for at, (one, part) in enumerate(parts)]
    return tuple(found) if shape is tuple else shape(*found)


@cache
def _shape(kind: Any) -> tuple[Any, tuple[Any, ...], frozenset[Any]]:
    """What a type is (a dataclass, an optional, a literal, a mapping, a tuple, a scalar), of what, and of which scalar alone."""
    origin, of = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return object, (), frozenset()
    if NoneType in of:
        return NoneType, tuple(one for one in of if one is not NoneType), frozenset()
    if hasattr(kind, "_fields"):
        # A named tuple is a list in JSON.
        origin, of = kind, tuple(_types(kind).values())
    shape = dict if origin is Mapping else origin
    parts = frozenset(of[1:] if shape is dict else of) - {...}
    return shape, of, parts if len(parts) == 1 and parts <= {int, float, str} else frozenset()


def _decode_object(kind: Any, data: Mapping[str, Any], path: str) -> Any:
    schema = getattr(kind, "SCHEMA", None)
    if schema is not None and data.get("schema") != schema:
        seen = data.get("schema")
        raise DecodeError(f"{_join(path, 'schema')} {seen!r} is not {schema}: written by another version")
    parts = {name: _decode(of, data.get(key, _NOTHING), _join(path, key)) for name, (key, of) in _parts(kind).items()}
    return kind(**parts)


def _decode_key(kind: Any, key: str, path: str) -> Any:
    try:
        return kind(key)
    except ValueError:
        raise DecodeError(f"{path}: expected keys of {kind.__name__}, got {key!r}") from None


def _expect(kinds: Any, data: Any, path: str, name: str) -> Any:
    # A bool is an int to Python.
    if isinstance(data, kinds) and (kinds is bool or not isinstance(data, bool)):
        return data
    raise DecodeError(f"{path or 'value'}: expected {name}, got {reprlib.repr(data)}")


def _key(one: Field[Any]) -> str:
    """The key of a field in JSON: its name, where it does not say another."""
    return str(one.metadata.get("key", one.name))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


@cache
def _types(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


@cache
def _parts(kind: Any) -> dict[str, tuple[str, Any]]:
    """By the name of a field: its key and its type."""
    return {one.name: (_key(one), _types(kind)[one.name]) for one in fields(kind)}
