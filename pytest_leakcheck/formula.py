"""A formula of a budget over an axis, such as ``max(64, world_size)``: text in, a small tree of values out.

It is read by a grammar of its own and never evaluated as Python: numbers, sizes, the name of the axis, and

    sum      =  product {("+" | "-") product}
    product  =  factor {("*" | "//") factor}
    factor   =  NUMBER [UNIT] | AXIS | "(" sum ")" | ("max" | "min") "(" sum {"," sum} ")"

It is short by rule, so that none takes long to read, or has a value too large for a float.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pytest_leakcheck.units import LARGEST, AmountError, Unit, parse_rate

LONGEST: Final = 200
# Sixteen numbers of less than 2**63 multiply to less than the largest float.
_MOST_OPERANDS: Final = 16
_DEEPEST: Final = 16
_TOKEN: Final = re.compile(r"\s*(?:([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)|([^\W\d]\w*)|(//|[-+*(),]))")


class BoundError(ValueError):
    """A bound that cannot be read; the message says what was seen, what is wrong with it, and what is valid."""


@dataclass(frozen=True, slots=True)
class Number:
    value: float

    def at(self, size: int) -> float:  # noqa: ARG002 - the same at every size
        return self.value


@dataclass(frozen=True, slots=True)
class Axis:
    def at(self, size: int) -> float:
        return size


@dataclass(frozen=True, slots=True)
class Operation:
    sign: Literal["+", "-", "*", "//"]
    left: Node
    right: Node

    def at(self, size: int) -> float:
        left, right = self.left.at(size), self.right.at(size)
        if self.sign == "+":
            return left + right
        if self.sign == "-":
            return left - right
        return left * right if self.sign == "*" else left // right


@dataclass(frozen=True, slots=True)
class Extreme:
    name: Literal["max", "min"]
    parts: tuple[Node, ...]

    def at(self, size: int) -> float:
        values = [part.at(size) for part in self.parts]
        return max(values) if self.name == "max" else min(values)


Node: TypeAlias = Number | Axis | Operation | Extreme


def parse_formula(text: str, axis: str, unit: Unit, *, whole: str) -> Node:
    """Read a formula.

    Args:
        text: The formula alone.
        axis: The only name that it may use.
        unit: Of the resource; sizes with a unit are for bytes only.
        whole: The bound as it was written, for messages.

    Raises:
        BoundError: It does not follow the grammar, is too long or too deep, or may divide by 0.
    """
    return _Parser(whole, text, axis, unit).read()


def shown(value: object) -> str:
    """A value as a message quotes it, at a bounded length."""
    # A text is shown whole where it may be; what else was given may be of any size, or have no `repr`.
    if isinstance(value, str):
        return repr(value) if len(value) <= LONGEST else repr(value[:30] + "...")
    if isinstance(value, int | float):
        return str(value) if -LARGEST <= value <= LARGEST else "a number beyond 2**63 - 1"
    return f"a value of type {type(value).__name__}"


class _Parser:
    """Recursive descent over the tokens of one formula."""

    def __init__(self, whole: str, text: str, axis: str, unit: Unit) -> None:
        self._whole = whole
        self._axis = axis
        self._unit = unit
        self._tokens = self._split(text)
        self._at = 0
        self._depth = 0
        self._operands = 0

    def read(self) -> Node:
        node = self._sum()
        if self._token():
            raise self._error(f"has {self._token()!r} where '+', '-', '*', '//' or the end belongs")
        return node

    def _split(self, text: str) -> list[tuple[str, float | None]]:
        """The tokens, each with its value where it is a number, and an empty one for the end."""
        tokens: list[tuple[str, float | None]] = []
        at, text = 0, text.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise self._error(f"has {text[at:].lstrip()[0]!r}, which no formula has")
            number, unit, name, sign = match.groups()
            tokens.append((name or sign, None) if number is None else (match[0].strip(), self._value(number, unit)))
            at = match.end()
        return [*tokens, ("", None)]

    def _value(self, number: str, unit: str) -> float:
        if unit and self._unit == "count":
            raise self._error(f"has '{number} {unit}', and this resource is counted, in plain numbers")
        try:
            if unit:
                return parse_rate(f"{number} {unit}", "bytes")
            # As bytes: of these a number may have a fraction too (1.5 times the axis), which an amount of things has not.
            value = float(number) if "." in number else int(number)
            return parse_rate(value, self._unit)
        except (AmountError, ValueError) as error:
            raise self._error(f"has a number that cannot be read ({error})") from None

    def _sum(self) -> Node:
        node = self._product()
        while self._token() in ("+", "-"):
            sign: Literal["+", "-"] = "+" if self._next() == "+" else "-"
            node = Operation(sign, node, self._product())
        return node

    def _product(self) -> Node:
        node = self._factor()
        while self._token() in ("*", "//"):
            if self._next() == "*":
                node = Operation("*", node, self._factor())
                continue
            divisor = self._factor()
            if not _is_positive(divisor):
                raise self._error("divides by what may be 0 or less at some size: divide by a number or the axis")
            node = Operation("//", node, divisor)
        return node

    def _factor(self) -> Node:
        value = self._tokens[self._at][1]
        word = self._next()
        if word == "(":
            return self._inside()[0]
        if word in ("max", "min") and self._token() == "(":
            self._next()
            return Extreme("max" if word == "max" else "min", self._inside(several=True))
        self._operands += 1
        if self._operands > _MOST_OPERANDS:
            raise self._error(f"has more than {_MOST_OPERANDS} numbers and names: write a shorter one")
        if value is not None:
            return Number(value)
        if word == self._axis:
            return Axis()
        if word.isidentifier():
            raise self._error(f"has the name {word!r}: the only name is the axis, {self._axis!r}")
        seen = f"{word!r}" if word else "nothing"
        raise self._error(f"has {seen} where a number or {self._axis!r} belongs")

    def _inside(self, *, several: bool = False) -> tuple[Node, ...]:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._error(f"is nested more than {_DEEPEST} deep: write a flatter one")
        parts = [self._sum()]
        while several and self._token() == ",":
            self._next()
            parts.append(self._sum())
        if self._next() != ")":
            raise self._error("has an opening parenthesis that is not closed")
        self._depth -= 1
        return tuple(parts)

    def _token(self) -> str:
        return self._tokens[self._at][0]

    def _next(self) -> str:
        token = self._token()
        # The end is met again and again by whoever asks for more.
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def _error(self, wrong: str) -> BoundError:
        example = f"max(64, {self._axis})" if self._unit == "count" else f"1.5 MiB * {self._axis} + 64 MiB"
        return BoundError(f"{shown(self._whole)} {wrong}; valid is, for example, {example!r}")


def _is_positive(node: Node) -> bool:
    """Whether it is surely above 0 at every size of 1 or more."""
    if isinstance(node, Number):
        return node.value > 0
    if isinstance(node, Operation):
        return node.sign in ("+", "*") and _is_positive(node.left) and _is_positive(node.right)
    if isinstance(node, Extreme):
        return (any if node.name == "max" else all)(_is_positive(part) for part in node.parts)
    return True
