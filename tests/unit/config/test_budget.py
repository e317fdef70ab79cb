from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_leakcheck.config.budget import Budget, default_budget, parse_budget
from pytest_leakcheck.model import InputError
from pytest_leakcheck.model.resources import RESOURCES, find_resource

PROPERTY = settings(max_examples=50, deadline=None, derandomize=True)
NAMES = st.sampled_from(sorted(RESOURCES))


def test_nothing_given_bounds_growth_only() -> None:
    assert parse_budget("fd", (), {}) == Budget("fd", None, 0.0, None, "fail", "", explicit=True)


def test_every_part_is_read() -> None:
    given_keywords = {"per_iteration": "4 KiB", "over": 10_000, "unclosed": "warn", "reason": "kept by the codec"}
    budget = parse_budget("heap", ("8 MiB",), given_keywords)
    assert budget == Budget("heap", 8 * 2**20, 4096.0, 10_000, "warn", "kept by the codec")


def test_a_level_alone_is_read_in_the_unit_of_the_resource() -> None:
    assert parse_budget("heap", ("1 MiB",), {}).level == 2**20
    assert parse_budget("gauge:frames", (4,), {}).level == 4
    with pytest.raises(InputError, match="'1 MiB' is not a number"):
        parse_budget("fd", ("1 MiB",), {})


@pytest.mark.parametrize(
    ("budget", "text"),
    [
        (Budget("fd"), "no growth"),
        (Budget("fd", 0), "0"),
        (Budget("fd", 3), "3"),
        (Budget("heap", 8 * 2**20, 4096.0), "8.0 MiB, +4.0 KiB/iter"),
        (Budget("rss", 2**31, over=100_000), "2.0 GiB, over 100,000 iterations"),
        (Budget("fd", None, 0.5), "+0.5/iter"),
    ],
)
def test_its_text_is_what_it_allows(budget: Budget, text: str) -> None:
    assert str(budget) == text


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ((1, 2), {}, "takes one level, 2 arguments were given"),
        ((0,), {"level": 3}, "has no keyword 'level': valid keywords are per_iteration, peak, over, unclosed, reason"),
        ((0,), {"per_iteration": -1}, "per_iteration: -1 is negative: a budget is 0 or more"),
        ((0,), {"over": 0}, "over=0 is not a positive whole number: write over=10_000"),
        ((0,), {"over": True}, "over=True is not a positive whole number: write over=10_000"),
        ((0,), {"over": 1.5}, "over=1.5 is not a positive whole number: write over=10_000"),
        ((), {"over": 9}, "over=9 needs a level to compare with: write fd_budget(LEVEL, over=9)"),
        ((0,), {"unclosed": "maybe"}, "unclosed='maybe' is not one of 'fail', 'warn', 'allow'"),
        ((0,), {"reason": 3}, "reason=3 is not a string"),
    ],
)
def test_what_cannot_be_read_is_named(arguments: tuple[object, ...], keywords: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as raised:
        parse_budget("fd", arguments, keywords)
    assert str(raised.value) == message


@PROPERTY
@given(
    name=NAMES,
    level=st.none() | st.integers(0, 2**40),
    rate=st.floats(0, 2**40),
    over=st.none() | st.integers(1, 10**9),
    unclosed=st.sampled_from(["fail", "warn", "allow"]),
    reason=st.text(),
)
def test_every_budget_can_be_written_as_a_mark(
    *, name: str, level: int | None, rate: float, over: int | None, unclosed: Any, reason: str
) -> None:
    over = over if level is not None else None
    keywords: dict[str, object] = {"per_iteration": rate, "unclosed": unclosed, "reason": reason}
    if over is not None:
        keywords["over"] = over
    read = parse_budget(name, () if level is None else (level,), keywords)
    assert read == Budget(name, level, rate, over, unclosed, reason)
    assert str(read)


@PROPERTY
@given(
    name=NAMES,
    arguments=st.lists(st.one_of(st.integers(), st.text(), st.floats(), st.none()), max_size=2),
    keywords=st.dictionaries(
        st.sampled_from(["per_iteration", "over", "unclosed", "reason", "level", "of"]),
        st.one_of(st.integers(), st.text(), st.floats(), st.none(), st.lists(st.integers())),
    ),
)
def test_any_mark_is_a_budget_or_a_budget_error(
    name: str, arguments: list[object], keywords: dict[str, object]
) -> None:
    try:
        budget = parse_budget(name, tuple(arguments), keywords)
    except InputError:
        return
    assert budget.level is None or budget.level >= 0
    assert budget.per_iteration >= 0
    assert budget.over is None or (budget.over >= 1 and budget.level is not None)
    assert budget.unclosed in ("fail", "warn", "allow")


def test_every_resource_is_found_and_every_gauge_is_an_exact_counter() -> None:
    scarce = ["fd", "thread", "process", "shm", "disk", "task"]
    assert list(RESOURCES) == [*scarce, "heap", "object", "block", "arrow", "vram", "mmap", "rss"]
    assert [name for name, one in RESOURCES.items() if one.scarce] == [*scarce, "vram"]
    assert all(one.default for one in RESOURCES.values())
    assert [name for name in RESOURCES if default_budget(name).per_iteration] == ["rss"]
    assert [name for name in RESOURCES if not default_budget(name).judges_all_growth] == ["rss"]
    assert Budget("rss").judges_all_growth
    assert find_resource("gauge:frames").scarce
    with pytest.raises(KeyError):
        find_resource("frames")
