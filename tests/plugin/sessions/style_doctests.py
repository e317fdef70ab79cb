"""Doctests of a module.

>>> twice(2)
4
>>> print("said")
said
"""

from __future__ import annotations

from typing import Any


def twice(number: Any) -> Any:
    """
    >>> twice(1)
    2
    >>> twice("a")
    'aa'
    """
    return 2 * number


def wrong() -> None:
    """
    >>> wrong()
    3
    """


def skipped() -> None:
    """
    >>> skipped()  # doctest: +SKIP
    3
    """


class Class:
    """
    >>> from pytest import skip
    >>> Class().name
    'one'
    """

    name = "one"


def uses_a_fixture() -> None:
    """
    >>> path = getfixture("tmp_path")
    >>> path.is_dir()
    True
    """
